// Ranks that have whole experts each: the laws of one rank.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "engine/parity/greedy_traces.hpp"
#include "nanovllm/engine/runner/thread_ranks.hpp"
#include "nanovllm/policy.hpp"
#include "nanovllm/with/eight_bits/cpu/fp8_matrix.hpp"
#include "nanovllm/with/eight_bits/cpu/linear.hpp"
#include "nanovllm/with/moe/expert_load.hpp"
#include "nanovllm/with/moe/expert_parallel.hpp"
#include "nanovllm/with/moe/qwen3_moe/qwen3_moe.hpp"
#include "with/moe/parity/qwen3_moe_checkpoint.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
using Catch::Matchers::Contains;

namespace {

constexpr std::int64_t kVocab = 83;

/// How many calls of `expert_mlp` had no token for any of their experts, and how many some. While
/// `hold` is set, a call waits in the middle of its step, and `is_held` says so.
class ExpertsCounted : public CpuBackend {
 public:
  using CpuBackend::CpuBackend;
  using CpuBackend::run;

  template <class T, class Matrix>
  void run(const ExpertMlpArgs<T, Matrix>& args) {
    const auto count = static_cast<std::int64_t>(args.experts.size());
    bool any = false;
    for (std::int64_t i = 0; i < args.ids.extent(0); ++i) {
      for (std::int64_t s = 0; s < args.ids.extent(1); ++s) {
        const std::int64_t e = *args.ids.at(i, s) - args.first_expert;
        any = any || (e >= 0 && e < count);
      }
    }
    {
      const std::lock_guard lock(mutex);
      ++(any ? num_busy : num_idle);
    }
    is_held = hold.load();
    hold.wait(true);
    CpuBackend::run(args);
  }

  inline static std::mutex mutex;
  inline static int num_busy = 0, num_idle = 0;
  inline static std::atomic<bool> hold = false, is_held = false;
};

struct Policy : Float32Policy {
  using Backend = ExpertsCounted;
  using Ranks = ThreadRanks;
  static constexpr KvConfig kv{.block_size = 16};
};
struct Fp8Policy : Policy {
  using Weight = Fp8Weights<float>;
};
struct Int8Policy : Policy {
  using Weight = Int8Weights<float>;
};
using MoeEngine = Engine<Qwen3Moe<shapes::qwen3_moe_any>, Policy>;
using DenseEngine = Engine<AnyModel, Policy>;

/// Two layers of 14 experts, three a token, and one without; neither 3 nor 4 ranks can divide the
/// experts evenly, and no ranks their columns.
nlohmann::json model() {
  return {{"architectures", {"Qwen3MoeForCausalLM"}},
          {"model_type", "qwen3_moe"},
          {"hidden_size", 40},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 12},
          {"num_key_value_heads", 12},
          {"head_dim", 8},
          {"intermediate_size", 48},
          {"moe_intermediate_size", 29},
          {"num_experts", 14},
          {"num_experts_per_tok", 3},
          {"mlp_only_layers", {1}},
          {"vocab_size", kVocab},
          {"max_position_embeddings", 256},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 1e4},
          {"norm_topk_prob", true},
          {"tie_word_embeddings", false}};
}

const MoeFiles& files() {
  static const MoeFiles made(model(), 91);
  return made;
}

EngineConfig config(int ranks) {
  return {.model = files().path(),
          .tensor_parallel = ranks,
          .extras = {ExpertParallel{}},
          .num_threads = 2,
          .max_model_len = 128};
}

std::vector<std::vector<TokenId>> prompts() {
  std::vector<std::vector<TokenId>> out;
  for (std::size_t i = 0; i < 7; ++i) out.push_back(random_prompt(200 + i, 1 + i * 11, kVocab));
  return out;
}

std::vector<Trace> run(EngineConfig settings) {
  MoeEngine engine(std::move(settings));
  return traces(engine, prompts());
}

/// Of one rank, which the setting means nothing to.
const std::vector<Trace>& expected() {
  static const std::vector<Trace> made = [] {
    EngineConfig settings = config(1);
    settings.extras = {};
    return run(settings);
  }();
  return made;
}

}  // namespace

TEST_CASE("expert parallel ranks give what one rank gives", "[laws][moe][expert_parallel]") {
  check_equal(run(config(1)), expected(), 0);
  for (const int ranks : {2, 3, 4}) {
    INFO(ranks << " ranks");
    check_equal(run(config(ranks)), expected());
  }
}

TEST_CASE("ranks that divide experts and their columns give what one rank gives",
          "[laws][moe][expert_parallel]") {
  nlohmann::json json = model();
  json["moe_intermediate_size"] = 30;
  const MoeFiles even(json, 91);
  const auto run_with = [&](int ranks, int columns, std::optional<int> most_tokens = {}) {
    EngineConfig settings = config(ranks);
    settings.model = even.path(), settings.max_num_batched_tokens = most_tokens;
    settings.extras.set(ExpertParallel{.on = ranks > 1, .tensor_parallel = columns});
    if (most_tokens) settings.max_num_seqs = 3;
    return run(settings);
  };
  const std::vector<Trace> one = run_with(1, 1);
  check_equal(run_with(4, 2), one);
  check_equal(run_with(4, 2, 7), one);
  check_equal(run_with(2, 2), one);  // all ranks have all experts
  check_equal(run_with(6, 3), one);
}

TEST_CASE("expert parallel: chunked = whole, cached = uncached, alone = together",
          "[laws][moe][expert_parallel]") {
  EngineConfig settings = config(3);
  settings.max_num_batched_tokens = 7, settings.max_num_seqs = 3;
  check_equal(run(settings), expected());
  MoeEngine engine(config(2));
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < prompts().size(); ++i) {
      check_equal(traces(engine, std::vector<std::vector<TokenId>>{prompts()[i]}), {expected()[i]});
    }
  }
  CHECK(engine.stats().num_hit_tokens >= 64);
}

TEST_CASE("a rank none of whose experts are chosen adds nothing", "[laws][moe][expert_parallel]") {
  // One token at a time, of three experts: one of four ranks at least has none in each layer.
  ExpertsCounted::num_busy = ExpertsCounted::num_idle = 0;
  MoeEngine engine(config(4));
  const std::vector<std::vector<TokenId>> one = {prompts()[0]};
  REQUIRE(one[0].size() == 1);
  check_equal(traces(engine, one), {expected()[0]});
  CHECK(ExpertsCounted::num_idle >= 24 * 2);
  CHECK(ExpertsCounted::num_busy >= 24 * 2);
}

TEST_CASE("expert parallel with weights of 8 bits", "[laws][moe][expert_parallel]") {
  // Shares of the columns of attention are whole blocks of 128, so that ranks have one rank's
  // scales.
  nlohmann::json json = model();
  json["num_attention_heads"] = json["num_key_value_heads"] = 8;
  json["head_dim"] = 32, json["intermediate_size"] = 256;
  const MoeFiles eight(json, 17);
  const auto run_with = [&]<class EightPolicy>(EightPolicy, int ranks) {
    EngineConfig settings = config(ranks);
    settings.model = eight.path();
    Engine<Qwen3Moe<shapes::qwen3_moe_any>, EightPolicy> engine(settings);
    return traces(engine, prompts(), 8);
  };
  check_equal(run_with(Fp8Policy(), 2), run_with(Fp8Policy(), 1));
  // Activations are rounded too, so a last bit may become a step of a 127th.
  const std::vector<Trace> one = run_with(Int8Policy(), 1), two = run_with(Int8Policy(), 2);
  for (std::size_t i = 0; i < one.size(); ++i)
    CHECK(std::abs(one[i].logprobs[0] - two[i].logprobs[0]) < 0.05f);
}

TEST_CASE("an engine counts the tokens of each expert", "[moe][expert_parallel]") {
  // 24 tokens each, of which the last is not computed.
  std::int64_t num_tokens = 0;
  for (const auto& prompt : prompts()) num_tokens += static_cast<std::int64_t>(prompt.size()) + 23;
  std::vector<std::int64_t> first;
  for (const auto& [ranks, whole, chunk] :
       {std::tuple(1, false, 1024), {1, false, 5}, {2, true, 1024}, {4, true, 9}}) {
    INFO(ranks << " ranks, chunks of " << chunk);
    EngineConfig settings = config(ranks);
    settings.extras.set(ExpertParallel{.on = whole}), settings.prefix_caching = false;
    settings.max_num_batched_tokens = chunk;
    settings.max_num_seqs = std::min(chunk, 7);
    MoeEngine engine(settings);
    CHECK(engine.stats().of<ExpertLoad>().tokens == std::vector<std::int64_t>(2 * 14));
    std::atomic<bool> done = false;
    std::jthread reader([&] {  // others read meanwhile
      std::int64_t before = 0;
      while (!done) {
        std::int64_t all = 0;
        for (const std::int64_t n : engine.stats().of<ExpertLoad>().tokens) all += n;
        if (all < before) std::abort();
        before = all;
      }
    });
    traces(engine, prompts());
    done = true;
    reader.join();
    const ExpertLoad load = engine.stats().of<ExpertLoad>();
    CHECK(load.num_experts == 14);
    REQUIRE(load.tokens.size() == 2 * 14);
    for (const std::size_t layer : {0u, 14u}) {
      std::int64_t all = 0;
      for (std::size_t e = 0; e < 14; ++e) all += load.tokens[layer + e];
      CHECK(all == 3 * num_tokens);
    }
    CHECK((load.balancedness(14) > 0.1 && load.balancedness(14) < 1));
    if (first.empty()) first = load.tokens;
    CHECK(load.tokens == first);
  }
  DenseEngine dense({.model = model_directory(kRandomModels[0])});
  traces(dense, std::vector<std::vector<TokenId>>{{1, 2, 3}}, 2);
  CHECK(dense.stats().of<ExpertLoad>().empty());
}

TEST_CASE("stats do not wait for the step under way", "[moe][expert_parallel]") {
  MoeEngine engine(config(2));
  traces(engine, prompts());
  const std::vector<std::int64_t> before = engine.stats().of<ExpertLoad>().tokens;
  ExpertsCounted::hold = true;
  std::jthread other([&] { traces(engine, prompts()); });
  const auto eventually = [](const auto& condition) {
    for (int i = 0; i < 10'000 && !condition(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return condition();
  };
  CHECK(eventually([] { return ExpertsCounted::is_held.load(); }));
  auto asked =
      std::async(std::launch::async, [&] { return engine.stats().of<ExpertLoad>().tokens; });
  CHECK(asked.wait_for(std::chrono::seconds(10)) == std::future_status::ready);
  ExpertsCounted::hold = false;
  ExpertsCounted::hold.notify_all();
  other.join();
  // The first layer has been counted, or not yet; those after it have not.
  const std::vector<std::int64_t> during = asked.get(),
                                  after = engine.stats().of<ExpertLoad>().tokens;
  CHECK(std::equal(during.begin() + 14, during.end(), before.begin() + 14));
  CHECK(after != during);
}

TEST_CASE("what cannot be expert parallel is refused by name", "[moe][expert_parallel]") {
  EngineConfig columns = config(2);
  columns.extras = {};
  CHECK_THROWS_WITH(MoeEngine(columns), Contains("does not divide moe_intermediate_size = 29"));
  nlohmann::json few = model();
  few["num_experts"] = 3;
  const MoeFiles few_files(few, 1);
  EngineConfig four = config(4);
  four.model = few_files.path();
  CHECK_THROWS_WITH(
      MoeEngine(four),
      Contains("expert_parallel: each of the 4 ranks must have an expert, but num_experts = 3"));
  const auto with_columns = [&](int ranks, int number) {
    EngineConfig out = config(ranks);
    out.extras.set(ExpertParallel{.tensor_parallel = number});
    return out;
  };
  for (const int wrong : {0, -1, 3, 8}) {
    CHECK_THROWS_WITH(
        MoeEngine(with_columns(4, wrong)),
        Contains(concat("expert_tensor_parallel must divide tensor_parallel = 4, got ", wrong)));
  }
  CHECK_THROWS_WITH(MoeEngine(with_columns(4, 2)), Contains("expert_tensor_parallel = 2 does not "
                                                            "divide moe_intermediate_size = 29"));
  columns.extras.set(ExpertParallel{.on = false, .tensor_parallel = 2});
  CHECK_THROWS_WITH(MoeEngine(columns),
                    Contains("expert_tensor_parallel = 2 needs expert_parallel"));
  EngineConfig heads = config(5);
  CHECK_THROWS_WITH(MoeEngine(heads), Contains("does not divide num_attention_heads = 12"));
  for (const int ranks : {1, 2}) {
    EngineConfig dense{.model = model_directory(kRandomModels[0]), .tensor_parallel = ranks};
    dense.extras.set(ExpertParallel{});
    CHECK_THROWS_WITH(DenseEngine(dense),
                      Contains("expert_parallel is set, but this model has no experts"));
  }
}
