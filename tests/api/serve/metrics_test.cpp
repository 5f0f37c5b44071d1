// What a server says of itself: Prometheus text, read by a strict parser, and the reply to /health.

#include "nanovllm/api/serve/metrics.hpp"
#include "nanovllm/engine/request/frontend.hpp"

#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "nanovllm/api/serve/health_report.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/version.hpp"
#include "nanovllm/with/moe/expert_load.hpp"
#include "nanovllm/with/sessions/options.hpp"
#include "nanovllm/with/speculation/config.hpp"
#include "nanovllm/with/tiers/options.hpp"

using namespace nanovllm;
using namespace nanovllm::serve;

namespace {

using Labels = std::map<std::string, std::string>;

struct Family {
  std::string type;
  std::map<std::pair<std::string, Labels>, double> samples;  ///< by suffix and labels
};
using Families = std::map<std::string, Family>;

/// Reads format 0.0.4 as strictly as it is written: HELP, TYPE, then the samples of that family.
class PrometheusParser {
 public:
  explicit PrometheusParser(const std::string& text) : text_(text) {}

  Families parse() {
    Families out;
    while (at_ < text_.size()) {
      expect("# HELP ");
      const std::string name = read_name(":");
      expect(" ");
      const std::string help = read_until('\n');
      REQUIRE_FALSE(help.empty());
      REQUIRE(help.find('\\') == std::string::npos);
      expect("\n# TYPE " + name + " ");
      Family family{.type = read_until('\n'), .samples = {}};
      expect("\n");
      REQUIRE(std::set<std::string>{"counter", "gauge", "histogram"}.contains(family.type));
      REQUIRE((family.type == "counter") == name.ends_with("_total"));
      while (at_ < text_.size() && text_[at_] != '#') read_sample(name, family);
      REQUIRE_FALSE(family.samples.empty());
      INFO(name);
      REQUIRE(out.emplace(name, family).second);
    }
    return out;
  }

 private:
  void expect(const std::string& what) {
    INFO("byte " << at_ << ": expected " << what);
    REQUIRE(text_.substr(at_, what.size()) == what);
    at_ += what.size();
  }
  std::string read_until(char end) {
    const std::size_t stop = text_.find(end, at_);
    REQUIRE(stop != std::string::npos);
    return text_.substr(std::exchange(at_, stop), stop - at_);
  }
  std::string read_name(const std::string& more) {
    std::string out;
    while ((text_[at_] >= 'a' && text_[at_] <= 'z') || text_[at_] == '_' ||
           (!out.empty() && text_[at_] >= '0' && text_[at_] <= '9') ||
           more.find(text_[at_]) != std::string::npos)
      out += text_[at_++];
    REQUIRE_FALSE(out.empty());
    return out;
  }
  std::string read_value() {
    expect("\"");
    std::string out;
    for (; text_.at(at_) != '"'; ++at_) {
      REQUIRE(text_[at_] != '\n');
      if (text_[at_] != '\\') {
        out += text_[at_];
        continue;
      }
      const char escaped = text_.at(++at_);
      REQUIRE((escaped == '\\' || escaped == '"' || escaped == 'n'));
      out += escaped == 'n' ? '\n' : escaped;
    }
    ++at_;
    return out;
  }
  void read_sample(const std::string& family, Family& out) {
    expect(family);
    std::string suffix;
    if (text_[at_] != '{') suffix = read_name("");
    if (out.type == "histogram")
      REQUIRE(std::set<std::string>{"_bucket", "_sum", "_count"}.contains(suffix));
    else
      REQUIRE(suffix.empty());
    Labels labels;
    expect("{");
    for (bool first = true; text_.at(at_) != '}'; first = false) {
      if (!first) expect(",");
      const std::string name = read_name("");
      expect("=");
      REQUIRE(labels.emplace(name, read_value()).second);
    }
    expect("} ");
    const std::string number = read_until('\n');
    ++at_;
    std::size_t used = 0;
    const double value = std::stod(number, &used);
    REQUIRE(used == number.size());
    REQUIRE(std::isfinite(value));
    REQUIRE(out.samples.emplace(std::pair(suffix, labels), value).second);
  }

  std::string text_;
  std::size_t at_ = 0;
};

double le_of(const Labels& labels) {
  const std::string& text = labels.at("le");
  return text == "+Inf" ? INFINITY : std::stod(text);
}

/// Buckets by bound: rising, and the last one is the count.
std::map<double, double> buckets_of(const Family& family) {
  std::map<double, double> out;
  double count = -1;
  for (const auto& [key, value] : family.samples) {
    if (key.first == "_bucket") out.emplace(le_of(key.second), value);
    if (key.first == "_count") count = value;
  }
  double last = 0;
  for (const auto& [bound, value] : out) {
    CHECK(value >= last);
    last = value;
  }
  REQUIRE(out.contains(INFINITY));
  CHECK(out.at(INFINITY) == count);
  return out;
}

/// The value of the only sample with these labels beside the model's name.
double value_of(const Families& families, const std::string& name, const Labels& labels = {},
                const std::string& suffix = "") {
  INFO(name);
  Labels all = labels;
  all.emplace("model_name", "m");
  return families.at(name).samples.at({suffix, all});
}

EngineStats some_stats() {
  EngineStats stats;
  stats.num_steps = 11;
  stats.num_waiting = 2;
  stats.num_running = 3;
  stats.num_preemptions = 4;
  stats.num_prefill_tokens = 100;
  stats.num_sampled_tokens = 9'007'199'254'740'993;  // more than a double holds
  stats.num_queried_tokens = 120;
  stats.num_hit_tokens = 20;
  stats.num_kv_blocks = 40;
  stats.num_free_kv_blocks = 30;
  stats.extras.set(SessionStats{.num_blocks = 5});
  stats.host_seconds = 0.25;
  return stats;
}

/// An engine that says what it is told to.
class FakeEngine : public AnyEngine {
 public:
  Health state{};
  EngineStats counters{};
  std::vector<TokenCallback> submitted{};
  bool refuses = false;

  RequestId submit(const Prompt&, const SamplingParams& params, TokenCallback callback) override {
    check<RequestError>(!refuses, "the engine is closed");
    CHECK(params.max_tokens == 1);
    submitted.push_back(std::move(callback));
    return submitted.size();
  }
  [[nodiscard]] EngineStats stats() const override { return counters; }
  [[nodiscard]] Latencies latencies() const override { return {}; }
  [[nodiscard]] Health health() const override { return state; }

  bool abort(RequestId) override { return false; }
  bool step() override { return false; }
  void run(const std::stop_token&) override {}
  void run_worker() override {}
  [[nodiscard]] std::vector<TokenId> encode(const Prompt&) const override { return {}; }
  [[nodiscard]] const TextSide& text() const override { throw Error("no text"); }
  [[nodiscard]] std::span<const TokenId> eos_token_ids() const override { return {}; }
  [[nodiscard]] std::int64_t vocab_size() const override { return 1; }
  [[nodiscard]] std::int64_t max_total_tokens() const override { return 2; }
  void reset() override {}
  [[nodiscard]] std::string describe() const override { return {}; }
  void check_invariants() const override {}
};

}  // namespace

TEST_CASE("metrics are Prometheus text, with vLLM's names", "[metrics]") {
  Latencies latencies;
  latencies.first_token.add(0.003);
  latencies.first_token.add(0.3, 2);
  latencies.first_token.add(1e9);
  latencies.inter_token.add(0.0012, 5);
  ServiceCounters counters;
  counters.finish(FinishReason::stop);
  counters.finish(FinishReason::stop);
  counters.finish(FinishReason::abort);
  counters.num_preparing = 6;
  counters.num_prompt_tokens = 77;
  counters.refused.add(429);
  counters.refused.add(418);
  HttpCounters http;
  http.num_open_connections = 7;
  http.num_dropped_log_lines = 4;
  http.replies.add(200);
  http.refused.add(413);
  http.refused.add(429);
  const std::string text = prometheus_text(some_stats(), latencies, {}, counters, "m", &http);
  CHECK(text.find(" 9007199254740993\n") != std::string::npos);
  const Families families = PrometheusParser(text).parse();
  CHECK(value_of(families, "vllm:num_requests_running") == 3);
  CHECK(value_of(families, "vllm:num_requests_waiting") == 2);
  CHECK(value_of(families, "vllm:kv_cache_usage_perc") == 0.25);
  CHECK(value_of(families, "vllm:prefix_cache_queries_total") == 120);
  CHECK(value_of(families, "vllm:prefix_cache_hits_total") == 20);
  CHECK(value_of(families, "vllm:prompt_tokens_total") == 77);
  CHECK(value_of(families, "nanovllm:num_requests_preparing") == 6);
  CHECK(value_of(families, "nanovllm:log_lines_dropped_total") == 4);
  CHECK(value_of(families, "vllm:num_preemptions_total") == 4);
  CHECK(value_of(families, "vllm:request_success_total", {{"finished_reason", "stop"}}) == 2);
  CHECK(value_of(families, "vllm:request_success_total", {{"finished_reason", "length"}}) == 0);
  CHECK(value_of(families, "vllm:request_success_total", {{"finished_reason", "abort"}}) == 1);
  CHECK(value_of(families, "nanovllm:requests_refused_total", {{"status", "429"}}) == 2);
  CHECK(value_of(families, "nanovllm:requests_refused_total", {{"status", "413"}}) == 1);
  CHECK(value_of(families, "nanovllm:requests_finished_total") == 3);
  CHECK(value_of(families, "nanovllm:requests_refused_total", {{"status", "other"}}) == 1);
  CHECK(value_of(families, "nanovllm:http_open_connections") == 7);
  CHECK(value_of(families, "nanovllm:http_replies_total", {{"status", "200"}}) == 1);
  CHECK(value_of(families, "nanovllm:session_blocks") == 5);
  CHECK(value_of(families, "nanovllm:host_seconds_total") == 0.25);
  CHECK(value_of(families, "nanovllm:healthy") == 1);
  const std::string version =
      concat(NANOVLLM_VERSION_MAJOR, '.', NANOVLLM_VERSION_MINOR, '.', NANOVLLM_VERSION_PATCH);
  CHECK(value_of(families, "nanovllm:build_info", {{"version", version}}) == 1);

  const Family& first = families.at("vllm:time_to_first_token_seconds");
  CHECK(first.type == "histogram");
  const auto buckets = buckets_of(first);
  CHECK(buckets.size() == 23);
  CHECK(buckets.at(0.001) == 0);
  CHECK(buckets.at(0.005) == 1);
  CHECK(buckets.at(0.25) == 1);
  CHECK(buckets.at(0.5) == 3);
  CHECK(buckets.at(2560) == 3);
  CHECK(buckets.at(INFINITY) == 4);
  CHECK(value_of(families, "vllm:time_to_first_token_seconds", {}, "_sum") ==
        Approx(0.003 + 0.6 + 0x1p14));
  CHECK(text.find("le=\"1.0\"") != std::string::npos);  // as vLLM's client writes it
  CHECK(text.find("le=\"+Inf\"") != std::string::npos);
  const auto between = buckets_of(families.at("vllm:inter_token_latency_seconds"));
  CHECK(between.at(0.001) == 0);
  CHECK(between.at(0.0025) == 5);
  CHECK(buckets_of(families.at("vllm:e2e_request_latency_seconds")).size() == 22);
  CHECK(buckets_of(families.at("vllm:request_queue_time_seconds")).at(INFINITY) == 0);
}

TEST_CASE("labels of metrics are escaped, and UTF-8 whatever the name", "[metrics]") {
  const std::string name = "a\\b\"c\nd} 1\n# HELP x \xC3\xA9";
  const std::string text = prometheus_text({}, {}, {}, {}, name + "\xFF");
  for (const auto& [family, content] : PrometheusParser(text).parse())
    for (const auto& [key, value] : content.samples)
      CHECK(key.second.at("model_name") == name + "\xEF\xBF\xBD");
  CHECK(text.find("http_") == std::string::npos);  // no transport, nothing about one
}

TEST_CASE("experts have metrics where a model has experts", "[metrics]") {
  EngineStats stats = some_stats();
  CHECK(prometheus_text(stats, {}, {}, {}, "m").find("expert") == std::string::npos);
  stats.extras.set(ExpertLoad{.num_experts = 3, .tokens = {1, 2, 9, 10, 0, 2}});
  const Families families = PrometheusParser(prometheus_text(stats, {}, {}, {}, "m")).parse();
  CHECK(value_of(families, "nanovllm:expert_tokens_total", {{"expert", "0"}}) == 11);
  CHECK(value_of(families, "nanovllm:expert_tokens_total", {{"expert", "1"}}) == 2);
  CHECK(value_of(families, "nanovllm:expert_tokens_total", {{"expert", "2"}}) == 11);
  CHECK(families.at("nanovllm:expert_tokens_total").samples.size() == 3);
  CHECK(value_of(families, "nanovllm:expert_balancedness") == Approx(8. / 19));
}

TEST_CASE("drafts have vLLM's metrics where an engine drafts", "[metrics]") {
  EngineStats stats = some_stats();
  CHECK(prometheus_text(stats, {}, {}, {}, "m").find("spec_decode") == std::string::npos);
  stats.extras.set(SpeculationStats{.num_drafts = 7,
                                    .num_drafted = 20,
                                    .num_accepted = 9,
                                    .num_failed = 1,
                                    .accepted_by_position = {6, 2, 1}});
  const Families families = PrometheusParser(prometheus_text(stats, {}, {}, {}, "m")).parse();
  CHECK(value_of(families, "vllm:spec_decode_num_drafts_total") == 7);
  CHECK(value_of(families, "vllm:spec_decode_num_draft_tokens_total") == 20);
  CHECK(value_of(families, "vllm:spec_decode_num_accepted_tokens_total") == 9);
  CHECK(value_of(families, "nanovllm:spec_decode_failures_total") == 1);
  const std::string by_position = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
  CHECK(value_of(families, by_position, {{"position", "0"}}) == 6);
  CHECK(value_of(families, by_position, {{"position", "1"}}) == 2);
  CHECK(value_of(families, by_position, {{"position", "2"}}) == 1);
  CHECK(families.at(by_position).samples.size() == 3);
}

namespace {

/// Sets each of the first counters of a `Stats`, one after the other. Of the texts, no two are the
/// same.
template <class Stats, std::size_t kNumCounts, class Engine>
void check_counters(std::set<std::string>& seen, const Engine& engine_with) {
  for (std::size_t i = 0; i < kNumCounts; ++i) {
    Stats stats;
    std::array<std::int64_t, kNumCounts> counts{};
    counts[i] = 3;
    std::memcpy(static_cast<void*>(&stats), counts.data(), sizeof counts);
    CHECK(seen.insert(prometheus_text(engine_with(stats), {}, {}, {}, "m")).second);
  }
}

template <class Stats>
void check_extras(std::set<std::string>& seen) {
  check_counters<Stats, sizeof(Stats) / 8>(seen, [](const Stats& stats) {
    EngineStats out;
    out.extras.set(stats);
    return out;
  });
}

}  // namespace

TEST_CASE("every counter of an engine has a metric", "[metrics]") {
  constexpr std::size_t kNumCounts = 13;
  static_assert(offsetof(EngineStats, num_free_kv_blocks) == (kNumCounts - 1) * 8);
  static_assert(offsetof(EngineStats, prefill_seconds) == kNumCounts * 8);
  std::set<std::string> seen{prometheus_text({}, {}, {}, {}, "m")};
  check_counters<EngineStats, kNumCounts>(seen, [](const EngineStats& stats) { return stats; });
  check_extras<HostKvStats>(seen);
  check_extras<DiskKvStats>(seen);
  check_extras<SessionStats>(seen);
  CHECK(seen.size() == 1 + kNumCounts + 7 + 4 + 1);
}

TEST_CASE("metrics may be counted and read by many threads", "[metrics]") {
  ServiceCounters counters;
  HttpCounters http;
  Latencies latencies;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20000; ++i) {
        counters.finish(FinishReason::length);
        counters.refused.add(400);
        http.replies.add(503);
        ++http.num_connections;
      }
    });
  }
  threads.emplace_back([&] {  // the engine's
    for (int i = 0; i < 20000; ++i) latencies.inter_token.add(0.001 * i);
  });
  for (int i = 0; i < 20; ++i)
    CHECK(buckets_of(PrometheusParser(prometheus_text({}, latencies, {}, counters, "m", &http))
                         .parse()
                         .at("vllm:inter_token_latency_seconds"))
              .at(INFINITY) <= 20000);
  threads.clear();
  CHECK(counters.finished(FinishReason::length) == 60000);
  CHECK(counters.refused[400] == 60000);
  CHECK(http.replies[503] == 60000);
  CHECK(http.num_connections == 60000);
}

TEST_CASE("a report of health says what is wrong, since when and why", "[health]") {
  const auto body = [](const Health& health, bool is_draining = false) {
    const HealthReport report = health_report(health, is_draining);
    const Json json = parse_json_value(report.body);
    CHECK((report.status == 200) == (json["status"].string() == "ok"));
    CHECK((report.status == 200 || report.status == 503));
    return json;
  };
  CHECK(health_report(Health{}).body == "{\"status\": \"ok\"}");
  CHECK(body({.seconds = 5})["status"].string() == "ok");  // a long step within its limit
  CHECK(body({}, true)["status"].string() == "draining");
  const Json hung = body({Health::State::hung, "a \"step\"\n\xFF", 12.345});
  CHECK(hung["status"].string() == "hung");
  CHECK(hung["seconds"].get<double>() == 12.3);
  CHECK(hung["reason"].string() == "a \"step\"\n\xEF\xBF\xBD");
  const Json failed = body({Health::State::failed, "fire", 1}, true);
  CHECK(failed["status"].string() == "failed");  // more than that it is draining
  CHECK(failed["reason"].string() == "fire");
  CHECK(body({.is_unproven = true})["status"].string() == "recovering");
  CHECK(body({.is_unproven = true}, true)["status"].string() == "draining");
}

TEST_CASE("an idle engine that has failed is given a step to show that it has recovered",
          "[health]") {
  FakeEngine engine;
  const auto answer = [&](std::size_t i) {
    const Output output{};
    engine.submitted.at(i)({.text = {}, .output = &output});
  };
  HealthCheck health(engine, std::chrono::milliseconds(20));
  CHECK(health.report().status == 200);
  CHECK(engine.submitted.empty());

  engine.state = {Health::State::failed, "fire", 1};
  engine.counters.num_running = 1;
  CHECK(health.report().status == 503);
  CHECK(engine.submitted.empty());  // those that run will show it
  engine.counters.num_running = 0;
  CHECK(health.report(true).status == 503);
  CHECK(engine.submitted.empty());  // it takes no more
  CHECK(health.report().status == 503);
  CHECK(health.report().status == 503);
  CHECK(engine.submitted.size() == 1);

  // Not another while one is under way, nor too soon after it.
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  CHECK(health.report().status == 503);
  CHECK(engine.submitted.size() == 1);
  answer(0);
  CHECK(health.report().status == 503);
  CHECK(engine.submitted.size() == 2);
  answer(1);
  CHECK(health.report().status == 503);
  CHECK(engine.submitted.size() == 2);

  engine.state = {.is_unproven = true};  // it was reset
  CHECK(health.report().status == 503);
  CHECK(health.report().body == "{\"status\": \"recovering\"}");
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  CHECK(health.report().status == 503);
  REQUIRE(engine.submitted.size() == 3);
  answer(2);

  engine.state = {};  // that step went well
  CHECK(health.report().status == 200);

  engine.state = {Health::State::failed, "fire", 1};
  engine.refuses = true;
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  CHECK(health.report().status == 503);
  engine.refuses = false;
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  CHECK(health.report().status == 503);
  CHECK(engine.submitted.size() == 4);
}

TEST_CASE("the request that tries an engine may end after the check is gone", "[health]") {
  FakeEngine engine;
  engine.state = {Health::State::failed, "fire", 1};
  CHECK(HealthCheck(engine).report().status == 503);
  const Output output{};
  engine.submitted.at(0)({.text = {}, .output = &output});
}
