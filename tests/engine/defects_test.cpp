// How requests end, and what must hold then. Each case bears the name of a defect that was found in
// an earlier engine, and failed on it.

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <new>
#include <random>
#include <string>
#include <thread>

#include "catch.hpp"
#include "engine/models.hpp"
#include "failing_new.hpp"
#include "safetensors_writer.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

/// A CPU that fails in the step after `steps_left` more.
class FailingBackend : public CpuBackend {
 public:
  using CpuBackend::CpuBackend;

  template <class Args>
  void run(const Args& args) requires RunsOp<CpuBackend, Args> {
    if constexpr (std::same_as<Args, PlanAttentionArgs>) {
      if (steps_left-- == 0) throw Error("the machine is on fire");
    }
    CpuBackend::run(args);
  }

  inline static int steps_left = -1;
};

/// A policy that, when told so, plans what does not fit: the scheduler must refuse it.
struct OverPlanning : ContinuousBatching {
  template <class Blocks>
  [[nodiscard]] static StepPlan plan(const SchedulerView& queues, const Blocks& blocks,
                                     const BatchConfig& config) {
    StepPlan plan = ContinuousBatching::plan(queues, blocks, config);
    if (plans_left-- == 0 && !plan.sequences.empty()) ++plan.num_tokens;
    return plan;
  }

  inline static int plans_left = -1;
};

/// Throws before the fourth token of requests that ask for `kFaultyTopK`.
class ThrowingProcessor {
 public:
  static constexpr bool kReadsTokens = false;
  static constexpr std::int32_t kFaultyTopK = 7777;

  explicit ThrowingProcessor(const LogitsProcessorSetup& setup)
      : is_faulty_(setup.params.top_k == kFaultyTopK) {}
  void accept(TokenId) {}
  void process(std::int32_t num_generated, TokenMask&) const {
    if (is_faulty_ && num_generated == 3) throw std::runtime_error("no rule for this");
  }

 private:
  bool is_faulty_;
};

struct DefectPolicy : TestPolicy<Float32Policy, 16, OverPlanning> {
  using Backend = FailingBackend;
  using LogitsProcessors = nanovllm::LogitsProcessors<MinTokensProcessor, ThrowingProcessor>;
};

using TestEngine = Engine<AnyModel, DefectPolicy>;

EngineConfig small_config(bool overlap) {
  return {.model = model_directory("fairytale"),
          .num_threads = 1,
          .max_num_seqs = 4,
          .max_model_len = 128,
          .overlap = overlap,
          .seed = 1};
}

/// What a callback heard of one request.
struct Stream {
  std::string text;
  std::vector<TokenId> tokens;
  int num_ends = 0;
  Output output;

  TokenCallback callback() {
    return [this](const TokenEvent& event) { hear(event); };
  }
  void hear(const TokenEvent& event) {
    // What the test itself allocates does not count.
    const PausedFailures paused;
    text += event.text;
    if (event.token) tokens.push_back(*event.token);
    if (event.output) {
      ++num_ends;
      output = *event.output;
    }
  }
  /// The law of streams.
  void check() const {
    CHECK(num_ends == 1);
    CHECK(text == output.text);
    CHECK(tokens == output.token_ids);
  }
};

template <class AnyEngine>
void check_idle(const AnyEngine& engine) {
  engine.check_invariants();
  const EngineStats stats = engine.stats();
  CHECK(stats.num_waiting == 0);
  CHECK(stats.num_running == 0);
  CHECK(stats.num_free_kv_blocks == stats.num_kv_blocks);
}

SamplingParams greedy(std::int32_t max_tokens) {
  return {.temperature = 0.f, .max_tokens = max_tokens, .ignore_eos = true};
}

}  // namespace

TEST_CASE("defect 1: the texts of all events are the text of the output, for every finish reason",
          "[defects]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  std::mt19937 random(7);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const std::vector<std::string> prompts{"Once upon a time", "The fox", "The old king said",
                                         "There was"};
  std::map<FinishReason, int> seen;
  for (int round = 0; round < 60; ++round) {
    std::vector<Stream> streams(6);
    std::vector<int> throw_at(6, -1);
    std::vector<RequestId> ids;
    for (std::size_t i = 0; i < streams.size(); ++i) {
      SamplingParams params{.temperature = 1.f, .max_tokens = 1 + below(20)};
      params.min_tokens = below(3) == 0 ? below(params.max_tokens + 1) : 0;
      if (below(2) == 0) params.stop = {" the", "zz", "and"};
      params.include_stop_str_in_output = below(2) == 0;
      if (below(4) == 0) throw_at[i] = below(6);
      ids.push_back(engine.submit(prompts[static_cast<std::size_t>(below(4))], params,
                                  [&, i](const TokenEvent& event) {
                                    streams[i].hear(event);
                                    if (throw_at[i] >= 0 && throw_at[i]-- == 0)
                                      throw std::runtime_error("enough");
                                  }));
    }
    FailingBackend::steps_left = below(3) == 0 ? below(12) : -1;
    while (engine.step()) {
      if (below(6) == 0) engine.abort(ids[static_cast<std::size_t>(below(6))]);
    }
    FailingBackend::steps_left = -1;
    for (const Stream& stream : streams) {
      CHECK(stream.num_ends == 1);
      CHECK(stream.text == stream.output.text);
      ++seen[stream.output.finish_reason];
    }
    check_idle(engine);
  }
  for (const FinishReason reason :
       {FinishReason::stop, FinishReason::length, FinishReason::abort, FinishReason::error})
    CHECK(seen[reason] > 5);
}

TEST_CASE("defect 2: a plan that the scheduler refuses costs the requests in it", "[defects]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  const int bad_plan = GENERATE(0, 1, 2, 5);
  const std::vector<TokenId> expected = engine.generate("The fox", greedy(8)).token_ids;
  std::vector<Stream> streams(2);
  for (Stream& stream : streams) engine.submit("The fox", greedy(8), stream.callback());
  OverPlanning::plans_left = bad_plan;
  while (engine.step()) {
  }
  OverPlanning::plans_left = -1;
  for (const Stream& stream : streams) {
    stream.check();
    CHECK(stream.output.finish_reason == FinishReason::error);
    CHECK_THAT(stream.output.error, Catch::Matchers::Contains("begin: the plan has"));
  }
  check_idle(engine);
  CHECK(engine.generate("The fox", greedy(8)).token_ids == expected);
}

TEST_CASE("defect 2: an allocation that fails anywhere in a step costs the requests in it",
          "[defects]") {
#if defined(__SANITIZE_THREAD__)
  std::cout << "skipped: one thread, and hours under ThreadSanitizer\n";
#else
#if defined(__SANITIZE_ADDRESS__)
  constexpr std::int64_t kStride = 7;  // slower by as much
#else
  constexpr std::int64_t kStride = 1;
#endif
  const bool overlap = GENERATE(false, true);
  const int faulty_call = GENERATE(0, 1, 4);
  TestEngine engine(small_config(overlap));
  const std::vector<std::string> prompts{"Once upon a time", "The fox", "The old king said"};
  const auto params = [](std::size_t i) {
    SamplingParams out = greedy(i == 1 ? 5 : 9);
    out.logprobs = 2;
    if (i == 2) out.stop = {"never said"};
    return out;
  };
  std::vector<Output> expected;
  for (std::size_t i = 0; i < prompts.size(); ++i)
    expected.push_back(engine.generate(prompts[i], params(i)));
  bool was_reached = true;
  int num_errors = 0;
  for (std::int64_t n = 0; was_reached; n += kStride) {
    INFO("allocation " << n << " of call " << faulty_call << ", overlap " << overlap);
    std::vector<Stream> streams(prompts.size());
    for (std::size_t i = 0; i < prompts.size(); ++i)
      engine.submit(prompts[i], params(i), streams[i].callback());
    bool goes_on = true;
    for (int call = 0; goes_on; ++call) {
      if (call == faulty_call) allocations_left = n;
      try {
        goes_on = engine.step();
      } catch (const std::bad_alloc&) {  // before anything was planned
      }
      if (call == faulty_call) {
        was_reached = allocations_left < 0;
        allocations_left = -1;
      }
    }
    for (std::size_t i = 0; i < streams.size(); ++i) {
      INFO("request " << i << ": " << streams[i].output.error);
      streams[i].check();
      if (streams[i].output.finish_reason == FinishReason::error) {
        ++num_errors;
      } else {
        CHECK(streams[i].output.token_ids == expected[i].token_ids);
        CHECK(streams[i].output.text == expected[i].text);
      }
    }
    check_idle(engine);
  }
  CHECK(num_errors > 10 / kStride);
#endif
}

TEST_CASE("defect 2: a logits processor that throws costs its own request alone", "[defects]") {
  const bool overlap = GENERATE(false, true);
  TestEngine engine(small_config(overlap));
  const std::vector<TokenId> expected = engine.generate("The fox", greedy(8)).token_ids;
  std::vector<Stream> streams(3);
  for (std::size_t i = 0; i < streams.size(); ++i) {
    SamplingParams params = greedy(8);
    if (i == 1) params.top_k = ThrowingProcessor::kFaultyTopK;
    engine.submit("The fox", params, streams[i].callback());
  }
  while (engine.step()) {
  }
  for (std::size_t i = 0; i < streams.size(); ++i) {
    streams[i].check();
    if (i != 1) CHECK(streams[i].output.token_ids == expected);
  }
  CHECK(streams[1].output.error == "no rule for this");
  CHECK(streams[1].output.token_ids == std::vector(expected.begin(), expected.begin() + 3));
  check_idle(engine);
}

TEST_CASE("defect: how many tokens come before a processor's error depends on overlap",
          "[defects]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  SamplingParams params = greedy(8);
  const std::vector<TokenId> expected = engine.generate("The fox", params).token_ids;
  params.top_k = ThrowingProcessor::kFaultyTopK;
  const Output failed = engine.generate("The fox", params);
  CHECK(failed.finish_reason == FinishReason::error);
  CHECK(failed.error == "no rule for this");
  CHECK(failed.token_ids == std::vector(expected.begin(), expected.begin() + 3));
  CHECK(engine.tokenizer().decode(failed.token_ids) == failed.text);
  // One that ends with the third token is never drawn for again.
  REQUIRE(std::count(expected.begin(), expected.begin() + 2, expected[2]) == 0);
  params.stop_token_ids = {expected[2]};
  const Output stopped = engine.generate("The fox", params);
  CHECK(stopped.finish_reason == FinishReason::stop);
  CHECK(stopped.error == "");
  CHECK(stopped.token_ids.size() == 3);
  check_idle(engine);
}

TEST_CASE("defect: a callback that throws after its request's end leaves no error", "[defects]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  SamplingParams params = greedy(3);
  Stream stream;
  std::vector<FinishReason> reasons;
  SECTION("which came inside the callback") {
    engine.submit("The fox", params, [&](const TokenEvent& event) {
      stream.hear(event);
      if (event.finish_reason != FinishReason::none) reasons.push_back(event.finish_reason);
      if (stream.tokens.size() > 1 || event.output != nullptr) return;
      engine.generate("Once upon a time", greedy(12));
      throw std::runtime_error("enough");
    });
  }
  SECTION("which came with another sample's") {
    params.n = 2;
    engine.submit("The fox", params, [&](const TokenEvent& event) {
      stream.hear(event);
      if (event.output != nullptr) reasons.push_back(event.finish_reason);
      if (event.finish_reason != FinishReason::none) throw std::runtime_error("enough");
    });
  }
  while (engine.step()) {
  }
  CHECK(stream.num_ends == 1);
  CHECK(stream.output.error == "the request's callback threw: enough");
  CHECK(stream.output.finish_reason == FinishReason::error);
  for (const Completion& other : stream.output.alternatives)
    CHECK(other.finish_reason == FinishReason::error);
  CHECK(reasons == std::vector{FinishReason::error});
  CHECK(stream.output.token_ids.size() == 3);
  check_idle(engine);
}

TEST_CASE("defect: an error stands beside the finish reason of a sample that ended before",
          "[defects]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  // So hot that the samples differ from the first token on.
  SamplingParams params{.temperature = 5.f, .seed = 5, .max_tokens = 12, .ignore_eos = true};
  params.n = 2;
  params.min_p = 0.f;
  params.top_k = ThrowingProcessor::kFaultyTopK;  // fails before the fourth token
  const auto run = [&](const TokenCallback& callback) {
    Output out;
    engine.submit("The fox", params, [&](const TokenEvent& event) {
      if (event.output != nullptr) out = *event.output;
      if (callback) callback(event);
    });
    while (engine.step()) {
    }
    return out;
  };
  const Output whole = run({});
  REQUIRE(whole.token_ids.size() == 3);
  const TokenId first = whole.token_ids[0];
  REQUIRE(std::ranges::count(whole.alternatives[0].token_ids, first) == 0);
  params.stop_token_ids = {first};
  Output failed;
  SECTION("by a processor") { failed = run({}); }
  SECTION("by the callback") {
    --*params.top_k;         // which filters nothing either
    bool has_ended = false;  // sample 0
    failed = run([&](const TokenEvent& event) {
      if (has_ended && event.output == nullptr) throw std::runtime_error("enough");
      has_ended |= event.finish_reason == FinishReason::stop;
    });
  }
  CHECK(failed.token_ids == std::vector{first});
  CHECK(failed.finish_reason == FinishReason::error);
  CHECK(failed.alternatives[0].finish_reason == FinishReason::error);
  CHECK(!failed.alternatives[0].token_ids.empty());
  CHECK(failed.error != "");
  check_idle(engine);
}

TEST_CASE("defect 3: a request from the last callback of an aborted one is served", "[defects]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  Stream second;
  const RequestId id = engine.submit("Once", greedy(20), [&](const TokenEvent& event) {
    if (event.output) engine.submit("The fox", greedy(3), second.callback());
  });
  if (GENERATE(false, true)) CHECK(engine.step());
  CHECK(engine.abort(id));
  while (engine.step()) {
  }
  second.check();
  CHECK(second.output.token_ids.size() == 3);
}

TEST_CASE("defect 5: counters after an abort or a failed step show what is there", "[defects]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  const RequestId id = engine.submit("Once", greedy(20));
  CHECK(engine.stats().num_waiting == 1);
  CHECK(engine.step());
  CHECK(engine.stats().num_running == 1);
  CHECK(engine.abort(id));
  while (engine.step()) {
  }
  check_idle(engine);
  CHECK(engine.stats().num_finished == 1);
  engine.submit("Once", greedy(20));
  CHECK(engine.step());
  FailingBackend::steps_left = 0;
  while (engine.step()) {
  }
  FailingBackend::steps_left = -1;
  check_idle(engine);
  CHECK(engine.stats().num_finished == 2);
}

TEST_CASE("defect 5: at any time every request is in exactly one counter", "[defects]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  constexpr int kRequests = 60;
  std::atomic<bool> stop{false};
  std::atomic<std::int64_t> begun{0}, submitted{0}, num_wrong{0}, num_polls{0};
  std::thread poller([&] {
    while (!stop) {
      const std::int64_t least = submitted;
      const EngineStats stats = engine.stats();
      const std::int64_t most = begun;
      const std::int64_t sum = stats.num_waiting + stats.num_running + stats.num_finished;
      num_wrong += sum < least || sum > most ? 1 : 0;
      ++num_polls;
    }
  });
  std::thread submitter([&] {
    for (int i = 0; i < kRequests; ++i) {
      ++begun;
      const RequestId id = engine.submit("Once upon a time", greedy(1 + i % 7));
      ++submitted;
      if (i % 5 == 0) engine.abort(id);
      if (i % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  while (engine.stats().num_finished < kRequests) engine.step();
  stop = true;
  poller.join();
  submitter.join();
  CHECK(num_polls > 100);
  CHECK(num_wrong == 0);
}

TEST_CASE("defect 11: a stop string may begin before min_tokens and end after it", "[defects]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  const Output whole = engine.generate("Once upon a time", greedy(24));
  // A stop string over a token boundary, the boundary being min_tokens.
  const auto ids = std::span(whole.token_ids);
  int num_tried = 0;
  for (std::size_t n = 6; n < 20; ++n) {
    const std::string before = engine.tokenizer().decode(ids.first(n));
    const std::string more = engine.tokenizer().decode(ids.first(n + 1));
    if (before.size() < 4 || more.size() < before.size() + 2) continue;
    const std::string stop = more.substr(before.size() - 3, 5);
    if (whole.text.find(stop) != before.size() - 3) continue;  // it is there earlier, too
    ++num_tried;
    SamplingParams params = greedy(24);
    params.stop = {stop};
    params.min_tokens = static_cast<std::int32_t>(n) + 1;
    Stream stream;
    engine.submit("Once upon a time", params, stream.callback());
    while (engine.step()) {
    }
    stream.check();
    CHECK(stream.output.finish_reason == FinishReason::stop);
    CHECK(stream.output.text == whole.text.substr(0, before.size() - 3));
  }
  CHECK(num_tried > 2);
}

TEST_CASE("defect 13: stop lists have limits, and refusals name them", "[defects]") {
  TestEngine engine(small_config(false));
  const auto refused = [&](SamplingParams params, const char* name, const char* limit) {
    CHECK_THROWS_WITH(engine.submit("Once", params),
                      Catch::Matchers::Contains(name) && Catch::Matchers::Contains(limit));
  };
  SamplingParams ids, strings, bytes;
  ids.stop_token_ids.assign(3'000'000, 5);
  refused(ids, "stop_token_ids", "1024");
  strings.stop.assign(65, "x");
  refused(strings, "stop", "64");
  bytes.stop = {std::string(1025, 'x')};
  refused(bytes, "stop: a string", "1024");
  // Duplicates are one.
  SamplingParams same = greedy(8);
  same.stop_token_ids.assign(1024, engine.generate("Once", greedy(8)).token_ids[2]);
  CHECK(engine.generate("Once", same).finish_reason == FinishReason::stop);
}

TEST_CASE("defect 14: a call of generate that throws takes its requests back", "[defects]") {
  EngineConfig config = small_config(GENERATE(false, true));
  bool throws = false;
  config.on_generate = [&](const GenerateProgress& progress) {
    if (throws && progress.num_finished > 0) throw std::runtime_error("no more");
  };
  TestEngine engine(std::move(config));
  const std::vector<std::string> prompts(6, "The fox");
  throws = true;
  CHECK_THROWS_WITH(engine.generate(prompts, greedy(5)), "no more");
  throws = false;
  while (engine.step()) {
  }
  check_idle(engine);
  CHECK(engine.stats().num_finished == 6);
  CHECK(engine.generate("The fox", greedy(5)).token_ids.size() == 5);
}

TEST_CASE("defect 14: an engine that goes sends the last event of every request", "[defects]") {
  std::vector<Stream> streams(7);
  std::string refusal;
  {
    TestEngine engine(small_config(GENERATE(false, true)));
    for (std::size_t i = 0; i < 6; ++i) engine.submit("The fox", greedy(50), streams[i].callback());
    engine.step();
    engine.step();
    engine.submit("The fox", greedy(50), [&](const TokenEvent& event) {
      streams[6].hear(event);
      try {
        engine.submit("too late");
      } catch (const RequestError& error) {
        refusal = error.what();
      }
      throw std::runtime_error("of no consequence");
    });
  }
  for (const Stream& stream : streams) {
    stream.check();
    CHECK(stream.output.finish_reason == FinishReason::abort);
  }
  CHECK(streams[0].output.token_ids.size() == 2);
  CHECK_THAT(refusal, Catch::Matchers::Contains("being destroyed"));
}

TEST_CASE("a callback may call anything, generate included", "[callbacks]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  const std::vector<TokenId> fox = engine.generate("The fox", greedy(6)).token_ids;
  std::vector<Stream> streams(3);
  std::vector<TokenId> inner;
  int depth = 0, deepest = 0;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    engine.submit("The fox", greedy(6), [&, i](const TokenEvent& event) {
      deepest = std::max(deepest, ++depth);
      streams[i].hear(event);
      if (i == 0 && streams[0].tokens.size() == 2 && inner.empty())
        inner = engine.generate("The fox", greedy(6)).token_ids;
      if (i == 1 && !event.output) engine.step();
      engine.check_invariants();
      static_cast<void>(engine.stats());
      --depth;
    });
  }
  while (engine.step()) {
  }
  CHECK(inner == fox);
  CHECK(deepest > 1);
  for (const Stream& stream : streams) {
    stream.check();
    CHECK(stream.output.token_ids == fox);
  }
  check_idle(engine);
}

TEST_CASE("defect 7: weights that neither the checkpoint nor the memory can hold are not asked for",
          "[engine]") {
  using Catch::Matchers::Contains;
  const std::filesystem::path honest = model_directory("group1_tied_yarn");
  nanovllm_test::TempDirectory directory;
  std::filesystem::copy(honest / "model.safetensors", directory.path());
  std::ifstream file(honest / "config.json");
  std::string json(std::istreambuf_iterator<char>(file), {});
  const auto set = [&](const std::string& from, const std::string& to) {
    REQUIRE(json.find(from) != json.npos);
    json.replace(json.find(from), from.size(), to);
  };
  const EngineConfig config{.model = directory.path(), .num_threads = 1, .max_num_seqs = 4};

  SECTION("sizes that are each within ModelLimits") {
    set("\"hidden_size\": 70", "\"hidden_size\": 131072");
    set("\"intermediate_size\": 98", "\"intermediate_size\": 1048576");
    directory.write("config.json", json);
    const Qwen3Config model = Qwen3Config::load(directory.path());
    const std::string count = std::to_string(num_parameters(model));
    const Checkpoint checkpoint(directory.path());
    CHECK_THROWS_AS(TestEngine(config), LoadError);
    CHECK_THROWS_WITH(TestEngine(config),
                      Contains(count) && Contains("the checkpoint holds " +
                                                  std::to_string(checkpoint.total_bytes())));
    CHECK_THROWS_AS(TestEngine(model, RandomWeights{1}, config), ConfigError);
    CHECK_THROWS_WITH(
        TestEngine(model, RandomWeights{1}, config),
        Contains(std::to_string(4 * num_parameters(model)) + " bytes") && Contains("available"));
  }
  SECTION("where only a part is missing, it is named") {
    set("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4");
    set("\"full_attention\",", "\"full_attention\", \"full_attention\",");
    directory.write("config.json", json);
    CHECK_THROWS_WITH(TestEngine(config),
                      Contains("'model.layers.3.mlp.up_proj.weight' is missing"));
  }
}

TEST_CASE("run serves until it is told to stop, and sleeps when there is nothing to do", "[run]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  const std::vector<TokenId> fox = engine.generate("The fox", greedy(6)).token_ids;
  std::stop_source stop;
  std::thread server([&] { engine.run(stop.get_token()); });
  std::atomic<int> num_done{0};
  std::vector<Stream> streams(20);
  for (Stream& stream : streams) {
    engine.submit("The fox", greedy(6), [&](const TokenEvent& event) {
      stream.hear(event);
      if (event.output) ++num_done;
    });
  }
  while (num_done < 20) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  getrusage(RUSAGE_SELF, &after);
  const auto cpu_ms = [](const rusage& r) {
    return r.ru_utime.tv_sec * 1000 + r.ru_utime.tv_usec / 1000;
  };
  CHECK(cpu_ms(after) - cpu_ms(before) < 50);
  // Woken by a request of another thread, which may also serve itself.
  CHECK(engine.generate("The fox", greedy(6)).token_ids == fox);
  stop.request_stop();
  server.join();
  for (const Stream& stream : streams) {
    stream.check();
    CHECK(stream.output.token_ids == fox);
  }
  engine.submit("The fox", greedy(6));
  engine.run(stop.get_token());  // returns at once
  CHECK(engine.stats().num_waiting == 1);
}
