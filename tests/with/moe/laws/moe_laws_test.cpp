// The laws for a mixture of experts, some of whose layers have none: what a request gives depends
// on nothing but the request. And programs that take any checkpoint take one of these, where their
// backend can run it.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "engine/laws/law_matrix.hpp"
#include "engine/models.hpp"
#include "nanovllm/full_policy.hpp"
#include "nanovllm/with/any/make_engine.hpp"
#include "nanovllm/with/moe/qwen3_moe/qwen3_moe.hpp"
#include "nanovllm/with/pooling.hpp"
#include "nanovllm/with/sessions.hpp"
#include "with/moe/parity/qwen3_moe_checkpoint.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

using AnyMoe = Qwen3Moe<shapes::qwen3_moe_any>;

template <class PreemptionPolicy>
using MoePolicy =
    MatrixPolicy<FullFloat32Policy, HashPrefixCache, PreemptionPolicy, ContinuousBatching>;
using MoeEngine = Engine<AnyMoe, MoePolicy<RecomputePreemption>>;

constexpr std::int64_t kVocab = 83;

/// Six layers, of which two have experts, 24 of them, six a token.
const MoeFiles& files() {
  static const MoeFiles made({{"architectures", {"Qwen3MoeForCausalLM"}},
                              {"model_type", "qwen3_moe"},
                              {"hidden_size", 40},
                              {"num_hidden_layers", 6},
                              {"num_attention_heads", 4},
                              {"num_key_value_heads", 2},
                              {"head_dim", 16},
                              {"intermediate_size", 48},
                              {"moe_intermediate_size", 28},
                              {"num_experts", 24},
                              {"num_experts_per_tok", 6},
                              {"decoder_sparse_step", 2},
                              {"mlp_only_layers", {3}},
                              {"vocab_size", kVocab},
                              {"max_position_embeddings", 256},
                              {"rms_norm_eps", 1e-6},
                              {"rope_theta", 1e4},
                              {"norm_topk_prob", true},
                              {"tie_word_embeddings", false}},
                             77);
  return made;
}

EngineConfig config() { return {.model = files().path(), .num_threads = 2, .max_model_len = 128}; }

struct Work {
  std::vector<std::vector<TokenId>> prompts;
  std::vector<SamplingParams> params;
};

Work make_work() {
  Work work;
  for (std::size_t i = 0; i < 10; ++i) {
    work.prompts.push_back(random_prompt(100 + i, 1 + (i * 13) % 53, kVocab));
    work.params.push_back({.temperature = i % 2 == 0 ? 0.f : 0.9f,
                           .seed = 1000 + i,
                           .max_tokens = 12 + static_cast<std::int32_t>(i % 5),
                           .ignore_eos = true,
                           .logprobs = 3});
  }
  return work;
}

std::vector<Trace> run(EngineConfig settings, const Work& work) {
  MoeEngine engine(std::move(settings));
  std::vector<Trace> out;
  for (const Output& output : engine.generate(work.prompts, work.params)) {
    REQUIRE(output.error == "");
    out.push_back(trace_of(output));
  }
  engine.check_invariants();
  return out;
}

/// Each alone, with nothing cached.
std::vector<Trace> run_alone(const Work& work) {
  EngineConfig settings = config();
  settings.prefix_caching = false;
  MoeEngine engine(settings);
  std::vector<Trace> out;
  for (std::size_t i = 0; i < work.prompts.size(); ++i)
    out.push_back(trace_of(engine.generate(work.prompts[i], work.params[i])));
  return out;
}

void check_same(const std::vector<Trace>& got, const std::vector<Trace>& expected) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    INFO("request " << i);
    CHECK(got[i].tokens == expected[i].tokens);
    CHECK(got[i].logprobs == expected[i].logprobs);
  }
}

/// A CPU that lacks the choice of experts.
class NoExpertsBackend : public CpuBackend {
 public:
  using CpuBackend::CpuBackend;
  using CpuBackend::run;
  void run(const RouteExpertsArgs&) = delete;
};
struct NoExperts : MoePolicy<RecomputePreemption> {
  using Backend = NoExpertsBackend;
};
class DeclaredBackend;

static_assert(runs_on<AnyMoe, ElementsOf<Float32Policy>, CpuBackend>());
static_assert(!runs_on<AnyMoe, ElementsOf<Float32Policy>, NoExpertsBackend>());
static_assert(!runs_on<AnyMoe, ElementsOf<Float32Policy>, DeclaredBackend>());
static_assert(runs_on<AnyModel, ElementsOf<Float32Policy>, NoExpertsBackend>());

}  // namespace

TEST_CASE("laws of experts: batched = alone, planned ahead or not, on any number of threads",
          "[laws][moe]") {
  const Work work = make_work();
  const std::vector<Trace> alone = run_alone(work);
  for (const bool overlap : {false, true}) {
    EngineConfig settings = config();
    settings.overlap = overlap;
    settings.num_threads = overlap ? 1 : 3;
    check_same(run(settings, work), alone);
    settings.max_num_seqs = 3;
    check_same(run(settings, work), alone);
  }
}

TEST_CASE("laws of experts: chunked = whole, cached = uncached", "[laws][moe]") {
  const Work work = make_work();
  const std::vector<Trace> alone = run_alone(work);
  EngineConfig settings = config();
  settings.max_num_batched_tokens = 5;
  check_same(run(settings, work), alone);
  settings = config();
  MoeEngine engine(settings);
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < work.prompts.size(); ++i) {
      const Output output = engine.generate(work.prompts[i], work.params[i]);
      check_same({trace_of(output)}, {alone[i]});
      if (round == 1 && work.prompts[i].size() > 16) CHECK(output.num_cached_tokens >= 16);
    }
  }
}

TEST_CASE("laws of experts: preempted or swapped = undisturbed, samples, beams and edits too",
          "[laws][moe]") {
  EngineConfig settings = config();
  settings.num_threads = 1;
  check_combination<FullFloat32Policy, HashPrefixCache, RecomputePreemption, ContinuousBatching,
                    AnyMoe>(settings, kVocab, true);
  check_combination<FullFloat32Policy, HashPrefixCache, SwapPreemption, ContinuousBatching, AnyMoe>(
      settings, kVocab, true);
}

TEST_CASE("laws of experts: a session and its turns sent anew, two ranks and one", "[laws][moe]") {
  const Work work = make_work();
  const SamplingParams greedy{.temperature = 0, .max_tokens = 12, .ignore_eos = true};
  MoeEngine engine(config());
  Session session(engine);
  std::vector<TokenId> all = random_prompt(1, 20, kVocab);
  for (std::uint64_t turn = 0; turn < 3; ++turn) {
    const std::vector<TokenId> more = turn == 0 ? all : random_prompt(turn + 1, 9, kVocab);
    if (turn > 0) all.insert(all.end(), more.begin(), more.end());
    const Output output = session.generate(more, greedy);
    CHECK(output.token_ids == MoeEngine(config()).generate(all, greedy).token_ids);
    all.insert(all.end(), output.token_ids.begin(), output.token_ids.end());
  }
  CHECK(session.tokens() == all);

  EngineConfig two = config();
  two.tensor_parallel = 2;
  const std::vector<Trace> alone = run_alone(work), sharded = run(two, work);
  for (std::size_t i = 0; i < alone.size(); ++i) {
    CHECK(sharded[i].tokens == alone[i].tokens);
    REQUIRE(sharded[i].logprobs.size() == alone[i].logprobs.size());
    for (std::size_t j = 0; j < alone[i].logprobs.size(); ++j)
      CHECK(std::abs(sharded[i].logprobs[j] - alone[i].logprobs[j]) < 1e-4f);
  }
}

TEST_CASE("programs for any checkpoint run a mixture of experts where the backend can",
          "[registry][moe]") {
  using List = Models<AnyMoe>;
  const auto engine = make_engine<List, MoePolicy<RecomputePreemption>>(config());
  const std::vector<TokenId> prompt = random_prompt(3, 30, kVocab);
  const SamplingParams greedy{.temperature = 0, .max_tokens = 8, .ignore_eos = true};
  const std::vector<Prompt> prompts = {prompt};
  CHECK(engine->generate(prompts, greedy).at(0).token_ids ==
        MoeEngine(config()).generate(prompt, greedy).token_ids);
  CHECK(engine->hidden_size() == 40);
  CHECK(embed(*engine, Prompt(prompt)).size() == 40);
  CHECK_THROWS_AS((make_engine<List, NoExperts>(config())), UnsupportedModelError);
  CHECK_THROWS_WITH(
      (make_engine<List, NoExperts>(config())),
      Catch::Matchers::Contains("config.json: this is of qwen3_moe (Qwen3MoeForCausalLM), and ") &&
          Catch::Matchers::Contains("NoExpertsBackend lacks operations that it needs"));
}
