// Qwen3 mixtures of experts on the CPU in float32: against Hugging Face transformers, which experts
// are chosen included, and the engine's laws.

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/parity/greedy_traces.hpp"
#include "engine/parity/qwen3_moe_cases.hpp"
#include "nanovllm/engine/runner/thread_ranks.hpp"
#include "nanovllm/policy.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

/// Keeps what `route_experts` has chosen, as the text that references have.
class RoutesKept : public CpuBackend {
 public:
  using CpuBackend::CpuBackend;
  using CpuBackend::run;

  void run(const RouteExpertsArgs& args) {
    CpuBackend::run(args);
    std::string text;
    for (std::int64_t i = 0; i < args.ids.extent(0); ++i) {
      for (std::int64_t s = 0; s < args.ids.extent(1); ++s)
        text += (s > 0 ? " " : i > 0 ? "," : "") + std::to_string(*args.ids.at(i, s));
    }
    const std::lock_guard lock(mutex);
    routes.push_back(std::move(text));
  }

  inline static std::mutex mutex;
  inline static std::vector<std::string> routes;  ///< one a call
};

struct MoePolicy : Float32Policy {
  using Backend = RoutesKept;
  using Ranks = ThreadRanks;
};
using MoeEngine = Engine<AnyMoe, MoePolicy>;

/// The model that the laws run: layers with and without experts, 6 of 24.
struct LawModel {
  MoeCase model{"moe_6_of_24_mixed", "float32"};
  std::vector<std::vector<TokenId>> prompts;

  LawModel() {
    for (std::uint64_t i = 0; i < 6; ++i) prompts.push_back(random_prompt(i, 1 + 13 * i, 83));
    for (std::size_t i = 4; i < 6; ++i)  // two share 32 tokens with a third
      std::copy_n(prompts[3].begin(), 32, prompts[i].begin());
  }

  [[nodiscard]] std::unique_ptr<MoeEngine> engine(EngineConfig config) const {
    config.model = model.files.path();
    config.num_threads = 2;
    return std::make_unique<MoeEngine>(std::move(config));
  }
};

}  // namespace

TEST_CASE("log-probabilities of a mixture of experts are those of transformers", "[moe][parity]") {
  const std::string name = each_moe();
  const MoeCase test(name, "float32");
  Difference full, likely;
  compare_prefixes<AnyMoe, MoePolicy>(test.files.path(), 128, test.reference, full, likely);
  INFO(name << ": largest difference " << full.largest << ", mean " << full.mean());
  CHECK(full.largest < 1e-4);
  CHECK(likely.largest < 1e-4);
}

TEST_CASE("greedy tokens and experts of a mixture of experts are those of transformers",
          "[moe][parity]") {
  const std::string name = each_moe();
  INFO(name);
  const MoeCase test(name, "float32");
  MoeEngine engine({.model = test.files.path(), .num_threads = 2});
  compare_greedy(engine, test.reference);
  for (std::size_t p = 0; p < test.reference.num_prompts(); ++p) {
    MoeEngine alone({.model = test.files.path(), .num_threads = 2});
    RoutesKept::routes.clear();
    CHECK(alone.generate(test.reference.prompt(p), {.temperature = 0, .max_tokens = 1}).error ==
          "");
    CHECK(RoutesKept::routes == test.reference.experts(p));
  }
}

TEST_CASE("batched, cached, chunked and preempted, a mixture of experts is what it is alone",
          "[moe][laws]") {
  const LawModel law;
  const auto& prompts = law.prompts;
  const auto plain = law.engine({.prefix_caching = false});
  std::vector<Trace> alone;
  for (const auto& prompt : prompts)
    alone.push_back(traces(*plain, std::vector<std::vector<TokenId>>{prompt}).front());
  check_equal(traces(*plain, prompts), alone, 0);

  const auto cached = law.engine({});
  check_equal(traces(*cached, prompts), alone, 0);
  check_equal(traces(*cached, prompts), alone, 0);
  CHECK(cached->stats().num_hit_tokens >= 64);

  for (const int chunk : {1, 7, 50}) {
    const auto chunked = law.engine({.max_num_seqs = std::min(chunk, 4),
                                     .max_num_batched_tokens = chunk,
                                     .prefix_caching = false});
    check_equal(traces(*chunked, prompts), alone, 0);
  }

  const auto small = law.engine({.kv_size = KvSize::blocks(8), .prefix_caching = false});
  check_equal(traces(*small, prompts, 60), traces(*plain, prompts, 60), 0);
  CHECK(small->stats().num_preemptions > 0);
}

TEST_CASE("a session with a mixture of experts is its tokens sent anew", "[moe][laws]") {
  const LawModel law;
  const SamplingParams params{
      .temperature = 0, .max_tokens = 20, .ignore_eos = true, .logprobs = 0};
  const auto engine = law.engine({}), fresh = law.engine({.prefix_caching = false});
  Session session = engine->session();
  for (const std::size_t turn : {2u, 1u, 0u}) {
    std::vector<TokenId> all = session.tokens();
    all.insert(all.end(), law.prompts[turn].begin(), law.prompts[turn].end());
    const Trace got = trace_of(session.generate(law.prompts[turn], params));
    check_equal({got}, {trace_of(fresh->generate(all, params))}, 0);
  }
  CHECK(session.tokens().size() == 42 + 60);
}

TEST_CASE("a mixture of experts on two ranks is the one on one rank", "[moe][laws]") {
  const LawModel law;
  const auto one = law.engine({}), two = law.engine({.tensor_parallel = 2});
  check_equal(traces(*two, law.prompts), traces(*one, law.prompts));

  nlohmann::json config = law.model.reference.config();
  config["moe_intermediate_size"] = 27;
  const MoeFiles odd(config, 1);
  CHECK_THROWS_WITH(MoeEngine({.model = odd.path(), .tensor_parallel = 2}),
                    Catch::Matchers::Contains("does not divide moe_intermediate_size = 27"));
}
