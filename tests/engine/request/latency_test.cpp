// The histogram of latencies, and what an engine says of the time that requests and tokens took.

#include "nanovllm/engine/request/latency.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

/// The time of rank ⌈share · n⌉, exactly.
double exact(std::vector<double> times, double share) {
  std::ranges::sort(times);
  const double rank = std::ceil(share * static_cast<double>(times.size()));
  return times.at(static_cast<std::size_t>(rank) - 1);
}

void check_close(const Percentiles& got, const std::vector<double>& times) {
  const auto check_one = [&](double value, double share) {
    const double expected = exact(times, share);
    CAPTURE(share, value, expected);
    CHECK(std::abs(value - expected) <= std::max(expected / 32, 1e-6));
  };
  check_one(got.p50, 0.5);
  check_one(got.p90, 0.9);
  check_one(got.p99, 0.99);
}

struct UrgentPolicy : Float32Policy {
  using Scheduling = Priority;
};

template <class Policy>
using TestEngine = Engine<AnyModel, Policy>;

EngineConfig small_config(bool overlap = false) {
  return {.model = model_directory("fairytale"),
          .num_threads = 1,
          .max_num_seqs = 4,
          .max_model_len = 256,
          .overlap = overlap,
          .seed = 1};
}

SamplingParams greedy(std::int32_t max_tokens, std::int32_t priority = 0) {
  SamplingParams params{.temperature = 0.f, .max_tokens = max_tokens, .ignore_eos = true};
  params.priority = priority;
  return params;
}

}  // namespace

TEST_CASE("percentiles are within 1/32 of the exact ones, or a microsecond", "[latency]") {
  std::mt19937 random(1);
  for (const int count : {1, 2, 9, 10, 100, 5000}) {
    for (const double spread : {0.01, 1.0, 12.0}) {
      LatencyHistogram histogram;
      std::vector<double> times;
      std::normal_distribution<double> exponent(-4, spread);
      for (int i = 0; i < count; ++i) {
        times.push_back(std::min(std::exp(exponent(random)), 0x1p14));
        histogram.add(times.back());
      }
      REQUIRE(histogram.count() == count);
      check_close(histogram.percentiles(), times);
    }
  }
}

TEST_CASE("a histogram takes any number, and many at once", "[latency]") {
  LatencyHistogram histogram;
  REQUIRE(histogram.percentiles().p50 == 0);
  REQUIRE(histogram.count() == 0);
  for (const double odd : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), 1e-30})
    histogram.add(odd);
  REQUIRE(histogram.percentiles().p99 == 0);
  histogram.add(std::numeric_limits<double>::infinity(), 10);
  histogram.add(1e9);
  REQUIRE(histogram.count() == 15);
  REQUIRE(histogram.percentiles().p50 == 0x1p14);
  histogram.add(0.25, 1000);
  REQUIRE(std::abs(histogram.percentiles().p90 - 0.25) <= 0.25 / 32);
}

TEST_CASE("times of a stretch are what was added in it", "[latency]") {
  std::mt19937 random(3);
  LatencyHistogram histogram;
  std::vector<double> later;
  for (int i = 0; i < 3000; ++i) histogram.add(1.0 + random() % 1000);
  const LatencyHistogram before = histogram;
  CHECK(before.count() == 3000);
  CHECK((histogram - before).count() == 0);
  CHECK((histogram - before).percentiles().p99 == 0);
  for (int i = 0; i < 500; ++i) {
    later.push_back(0.001 * (1.0 + random() % 1000));
    histogram.add(later.back());
  }
  const LatencyHistogram stretch = histogram - before;
  CHECK(stretch.count() == 500);
  check_close(stretch.percentiles(), later);
  CHECK(histogram.percentiles().p50 > 100);
  CHECK(before.count() == 3000);
}

TEST_CASE("counts up to a bound are exact but for the last sixteenth below it", "[latency]") {
  std::mt19937 random(4);
  const std::vector<double> bounds{1e-9, 1e-6, 0.001, 0.3, 0.5, 1.0, 7.5, 40, 2560, 0x1p14, 1e9};
  for (const double spread : {0.5, 3.0, 9.0}) {
    LatencyHistogram histogram;
    std::vector<double> times;
    std::normal_distribution<double> exponent(-1, spread);
    for (int i = 0; i < 3000; ++i) {
      times.push_back(std::min(std::exp(exponent(random)), 0x1p14));
      histogram.add(times.back());
    }
    const std::vector<std::int64_t> counts = histogram.cumulative(bounds);
    REQUIRE(counts.size() == bounds.size() + 1);
    CHECK(counts.back() == 3000);
    CHECK(std::ranges::is_sorted(counts));
    for (std::size_t i = 0; i < bounds.size(); ++i) {
      CAPTURE(spread, bounds[i]);
      const double bound = std::min(bounds[i], 0x1p14);
      const auto up_to = [&](double limit) {
        return std::ranges::count_if(times, [&](double time) { return time <= limit; });
      };
      CHECK(counts[i] <= up_to(bound));
      CHECK(counts[i] >= up_to(std::min(bound / (1 + 1.0 / 16), bound - 1e-6)));
    }
    // A bound where a bucket ends leaves nothing out.
    CHECK(counts[4] == std::ranges::count_if(times, [](double time) { return time < 0.5; }));
  }
  CHECK(LatencyHistogram().cumulative({}) == std::vector<std::int64_t>{0});
}

TEST_CASE("a histogram's sum is that of its times", "[latency]") {
  LatencyHistogram histogram;
  CHECK(histogram.sum() == 0);
  histogram.add(0.5, 3);
  histogram.add(0.25);
  CHECK(histogram.sum() == 1.75);
  const LatencyHistogram before = histogram;
  for (const double odd : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) histogram.add(odd);
  CHECK(histogram.sum() == 1.75);
  histogram.add(std::numeric_limits<double>::infinity());
  CHECK((histogram - before).sum() == 0x1p14);
  CHECK(before.sum() == 1.75);
}

TEST_CASE("an engine's times of a stretch are those of its requests", "[latency]") {
  TestEngine<Float32Policy> engine(small_config());
  engine.generate({"One", "Two"}, greedy(9));
  const Latencies before = engine.latencies();
  CHECK(before.first_token.count() == 2);
  std::vector<double> first, whole;
  for (const Output& output : engine.generate({"Three", "Four", "Five"}, greedy(4))) {
    first.push_back(output.timings.first_token);
    whole.push_back(output.timings.finished);
  }
  const Latencies stretch = engine.latencies() - before;
  CHECK(stretch.queue.count() == 3);
  CHECK(stretch.inter_token.count() == 3 * 3);
  check_close(stretch.first_token.percentiles(), first);
  check_close(stretch.end_to_end.percentiles(), whole);
}

TEST_CASE("a request's timings follow each other, and percentiles are those of all requests",
          "[latency]") {
  TestEngine<Float32Policy> engine(small_config(GENERATE(false, true)));
  std::vector<Prompt> prompts(12, std::vector<TokenId>{5, 6, 7});
  std::vector<SamplingParams> params;
  for (int i = 0; i < 12; ++i) params.push_back(greedy(i < 2 ? 1 + i : 5 + i));
  const auto begin = std::chrono::steady_clock::now();
  const auto outputs = engine.generate(prompts, params);
  const double all =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::vector<double> queue, first, whole, longest;
  for (const Output& output : outputs) {
    const RequestTimings& t = output.timings;
    CHECK(0 < t.scheduled);
    CHECK(t.scheduled < t.first_token);
    CHECK(t.first_token <= t.finished);
    CHECK(t.finished < all);
    const double num_gaps = static_cast<double>(output.token_ids.size()) - 1;
    CHECK(t.first_token + num_gaps * t.mean_inter_token <= t.finished + 1e-9);
    CHECK(t.max_inter_token >= t.mean_inter_token);
    CHECK((t.mean_inter_token > 0) == (num_gaps > 0));
    queue.push_back(t.scheduled);
    first.push_back(t.first_token);
    whole.push_back(t.finished);
    longest.push_back(t.max_inter_token);
  }
  // Of two tokens there is one gap.
  CHECK(outputs[1].timings.mean_inter_token == outputs[1].timings.max_inter_token);
  // Four run at a time; the last of twelve waits for others to end.
  CHECK(outputs[11].timings.scheduled > outputs[0].timings.finished);
  const EngineStats stats = engine.stats();
  check_close(stats.queue_seconds, queue);
  check_close(stats.first_token_seconds, first);
  check_close(stats.end_to_end_seconds, whole);
  CHECK(stats.inter_token_seconds.p50 > 0);
  CHECK(stats.inter_token_seconds.p50 <= stats.inter_token_seconds.p99);
  CHECK(stats.inter_token_seconds.p99 <= *std::ranges::max_element(longest) * (1 + 1.0 / 32));
}

TEST_CASE("the time between two tokens is that of the steps, pauses included", "[latency]") {
  TestEngine<Float32Policy> engine(small_config());
  std::optional<Output> output;
  engine.submit(std::vector<TokenId>{1, 2, 3}, greedy(6), [&](const TokenEvent& event) {
    if (event.output) output = *event.output;
  });
  for (int i = 0; engine.step(); ++i) {
    if (i == 2) std::this_thread::sleep_for(std::chrono::milliseconds(30));
  }
  REQUIRE(output);
  CHECK(output->timings.max_inter_token >= 0.03);
  CHECK(output->timings.mean_inter_token >= 0.03 / 5);
  CHECK(output->timings.mean_inter_token * 5 <= output->timings.finished);
  CHECK(engine.stats().inter_token_seconds.p99 >= 0.03 * 31 / 32);
  CHECK(engine.stats().inter_token_seconds.p50 < 0.03);
}

TEST_CASE("what was never served counts in no percentile, what was aborted not end to end",
          "[latency]") {
  TestEngine<Float32Policy> engine(small_config());
  std::vector<RequestTimings> timings;
  const auto keep = [&](const TokenEvent& event) {
    if (event.output) timings.push_back(event.output->timings);
  };
  const RequestId early = engine.submit(std::vector<TokenId>{1}, greedy(5), keep);
  engine.abort(early);
  while (engine.step()) {
  }
  REQUIRE(timings.size() == 1);
  CHECK(timings[0].scheduled == 0);
  CHECK(timings[0].first_token == 0);
  CHECK(timings[0].mean_inter_token == 0);
  CHECK(timings[0].finished > 0);
  CHECK(engine.stats().queue_seconds.p99 == 0);
  CHECK(engine.stats().end_to_end_seconds.p99 == 0);
  const RequestId late = engine.submit(std::vector<TokenId>{1}, greedy(50), keep);
  for (int i = 0; i < 3; ++i) engine.step();
  engine.abort(late);
  while (engine.step()) {
  }
  CHECK(timings.at(1).first_token > 0);
  CHECK(engine.stats().first_token_seconds.p50 > 0);
  CHECK(engine.stats().end_to_end_seconds.p99 == 0);
}

TEST_CASE("urgent requests get their first token sooner, and all get the same tokens",
          "[latency][priority]") {
  const bool overlap = GENERATE(false, true);
  EngineConfig config = small_config(overlap);
  config.max_num_seqs = 2;
  std::vector<Prompt> prompts;
  std::vector<SamplingParams> params;
  for (int i = 0; i < 10; ++i) {
    prompts.push_back(std::vector<TokenId>{5, 6, 7 + i});
    params.push_back(greedy(10, i >= 8 ? -1 : 1));
  }
  TestEngine<Float32Policy> plain(config);
  TestEngine<UrgentPolicy> engine(config);
  const auto in_order = plain.generate(prompts, params);
  const auto outputs = engine.generate(prompts, params);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    CHECK(outputs[i].token_ids == in_order[i].token_ids);
    if (i < 8) CHECK(outputs[i].timings.first_token > outputs[8].timings.first_token);
    if (i < 6) CHECK(in_order[i].timings.first_token < in_order[8].timings.first_token);
  }
  engine.check_invariants();

  // One that comes late takes the place of one that runs.
  std::vector<RequestId> ended;
  const auto keep = [&](const TokenEvent& event) {
    if (event.output) ended.push_back(event.id);
  };
  const RequestId first = engine.submit(prompts[0], greedy(30, 1), keep);
  const RequestId second = engine.submit(prompts[1], greedy(30, 1), keep);
  for (int i = 0; i < 5; ++i) engine.step();
  const RequestId urgent = engine.submit(prompts[2], greedy(3, -1), keep);
  while (engine.step()) {
  }
  CHECK(ended == std::vector<RequestId>{urgent, first, second});
  CHECK(engine.stats().num_preemptions == 1);
}

TEST_CASE("sequences of one step that waited for different times are told apart",
          "[latency][priority]") {
  EngineConfig config = small_config();
  config.max_num_seqs = 2;
  TestEngine<UrgentPolicy> engine(config);
  std::vector<Output> outputs;
  const auto keep = [&](const TokenEvent& event) {
    if (event.output) outputs.push_back(*event.output);
  };
  engine.submit(std::vector<TokenId>{5, 6}, greedy(8, 1), keep);
  engine.submit(std::vector<TokenId>{5, 7}, greedy(8, 1), keep);
  engine.step();
  engine.step();
  engine.submit(std::vector<TokenId>{5, 8}, greedy(3, -1), keep);
  for (int i = 0; engine.step(); ++i) {
    if (i < 2) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  // The second was preempted for two pauses; of the 16 gaps, its alone is as long.
  REQUIRE(outputs.size() == 3);
  CHECK(outputs[2].timings.max_inter_token >= 0.2);
  CHECK(outputs[1].timings.max_inter_token < 0.19);
  CHECK(engine.stats().inter_token_seconds.p99 >= 0.2 * 31 / 32);
  CHECK(engine.stats().inter_token_seconds.p90 < 0.19);
}
