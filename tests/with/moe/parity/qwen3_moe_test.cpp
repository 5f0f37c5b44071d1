// Qwen3 mixtures of experts on the CPU in float32: against Hugging Face transformers, which experts
// are chosen included, and the engine's laws.

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/parity/greedy_traces.hpp"
#include "nanovllm/cpu.hpp"
#include "nanovllm/engine/runner/thread_ranks.hpp"
#include "nanovllm/policy.hpp"
#include "nanovllm/with/sessions.hpp"
#include "with/moe/parity/qwen3_moe_cases.hpp"

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

using LawModel = MoeLawModel<MoePolicy>;

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
  check_moe_laws<MoePolicy>(0);
}

TEST_CASE("a session with a mixture of experts is its tokens sent anew", "[moe][laws]") {
  const LawModel law;
  const SamplingParams params{
      .temperature = 0, .max_tokens = 20, .ignore_eos = true, .logprobs = 0};
  const auto engine = law.engine({}), fresh = law.engine({.prefix_caching = false});
  Session session(*engine);
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
