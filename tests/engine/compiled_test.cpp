// Which engines, and which runners of other engines, a program links: with NANOVLLM_SEPARATE those of
// the library, else none.
#include "nanovllm/engine/compiled.hpp"
#include "nanovllm/cpu.hpp"

#include <type_traits>

#include "catch.hpp"
#include "nanovllm/engine.hpp"
#include "nanovllm/engine/setup.hpp"
#include "nanovllm/policy.hpp"
#include "nanovllm/with/eight_bits/int8_kv.hpp"
#include "nanovllm/with/gpt2/shapes.hpp"
#include "nanovllm/with/moe/qwen3_moe/shapes.hpp"
#include "nanovllm/with/radix.hpp"

namespace nanovllm {
namespace {

#if defined(NANOVLLM_SEPARATE)
constexpr bool kLinks = true;
#else
constexpr bool kLinks = false;
#endif

using AnyModel = Qwen3<shapes::qwen3_any>;  // in every list of the presets
constexpr Qwen3Shape kOwnShape{.hidden_size = 24};

struct OwnSteps : DefaultPolicy {
  using Scheduling = PrefillFirst;
  using Preemption = RecomputePreemption;
  template <int kBlockSize>
  using PrefixCache = RadixPrefixCache<kBlockSize>;
  static constexpr KvConfig kv{.block_size = 32};
};
struct OwnKv : DefaultPolicy {
  using KvElement = Int8Kv;
};

struct ShapedBackend : CpuBackend {
  using CpuBackend::CpuBackend;
  static constexpr bool kReadsHeadShape = true;
};
struct ReadsShapes : DefaultPolicy {
  using Backend = ShapedBackend;
};

template <class Model, class Policy>
constexpr bool kLinksRunner = std::is_same_v<RunnerMakerOf<Model, Policy>,
                                             CompiledRunnerMaker<AnySizeOf<Model>, DefaultPolicy>>;
template <class Model, class Policy>
constexpr bool kCompilesRunner =
    std::is_same_v<RunnerMakerOf<Model, Policy>, RunnerMaker<Model, RunnerPolicyOf<Policy>>>;

TEST_CASE("engines of the library's shapes and policies are linked, others are compiled") {
  STATIC_REQUIRE(is_compiled<AnyModel, DefaultPolicy>() == kLinks);
  STATIC_REQUIRE(!is_compiled<AnyModel, OwnSteps>());
  STATIC_REQUIRE(is_compiled<Qwen3<kOwnShape>, DefaultPolicy>() == kLinks);
  STATIC_REQUIRE(!is_compiled<Qwen3<kOwnShape>, OwnSteps>());
  STATIC_REQUIRE(!is_compiled<Qwen3Moe<shapes::qwen3_235b_a22b>, DefaultPolicy>());
}

TEST_CASE("a list names the shapes of families that it does not know") {
  using detail::is_model_of, detail::is_of_family;
  STATIC_REQUIRE(is_of_family<Gpt2<shapes::gpt2>>("qwen3_any,gpt2_any"));
  STATIC_REQUIRE(is_of_family<Gpt2<shapes::gpt2>>("gpt2_xl, qwen3_8b"));
  STATIC_REQUIRE(!is_of_family<Gpt2<shapes::gpt2>>("qwen3_any, tiny_gpt2_any"));
  STATIC_REQUIRE(!is_of_family<Qwen3Moe<shapes::qwen3_moe_any>>("qwen3_any, gpt2_any"));
  STATIC_REQUIRE(is_of_family<Qwen3Moe<shapes::qwen3_moe_any>>("qwen3_any, qwen3_30b_a3b"));
  STATIC_REQUIRE(is_model_of<Gpt2<shapes::gpt2>>("gpt2_any, gpt2"));
  STATIC_REQUIRE(!is_model_of<Gpt2<shapes::gpt2>>("gpt2_any, gpt2_xl"));
  STATIC_REQUIRE(!is_model_of<Qwen3<kOwnShape>>("qwen3_any"));
}

TEST_CASE("a policy that plans and caches in its own way links the runner") {
  STATIC_REQUIRE(kLinksRunner<AnyModel, DefaultPolicy> == kLinks);
  STATIC_REQUIRE(kLinksRunner<AnyModel, OwnSteps> == kLinks);
  STATIC_REQUIRE(kCompilesRunner<AnyModel, OwnKv>);
  STATIC_REQUIRE(kCompilesRunner<Qwen3<kOwnShape>, OwnKv>);
}

TEST_CASE("one engine serves all sizes of a family where the backend reads no shape") {
  using Own = Qwen3<kOwnShape>;
  STATIC_REQUIRE(std::is_same_v<AnySizeOf<Own>, AnyModel>);
  STATIC_REQUIRE(std::is_same_v<AnySizeOf<Gpt2<shapes::gpt2_any>>, Gpt2<shapes::gpt2_any>>);
  STATIC_REQUIRE(std::is_same_v<CompiledModel<Own, DefaultPolicy>, AnyModel>);
  STATIC_REQUIRE(kLinksRunner<Own, OwnSteps> == kLinks);
  STATIC_REQUIRE(std::is_same_v<SharedModel<Own, DefaultPolicy>, AnyModel>);
  STATIC_REQUIRE(std::is_same_v<SharedModel<Own, ReadsShapes>, Own>);
}

TEST_CASE("an engine of a named shape refuses a checkpoint of another") {
  const auto refuses = [](auto make) {
    CHECK_THROWS_AS(make(), ConfigError);
    CHECK_THROWS_WITH(make(), Catch::Matchers::Contains(
                                  "'hidden_size' is 24 at compile time but 256 in config.json"));
  };
  const EngineConfig config{.model = "examples/models/fairytale"};
  refuses([&] { Engine<Qwen3<kOwnShape>> engine(config); });
  refuses([&] { Engine<Qwen3<kOwnShape>, OwnSteps> engine(config); });
  const Qwen3Config model = Engine<AnyModel>(config).model_config();
  refuses([&] { Engine<Qwen3<kOwnShape>> engine(model, RandomWeights{}, {}); });
}

TEST_CASE("the config of a model is known where the model is only declared") {
  STATIC_REQUIRE(std::is_same_v<ConfigOf<Qwen3<kOwnShape>>, Qwen3Config>);
  STATIC_REQUIRE(std::is_same_v<ConfigOf<Gpt2<shapes::gpt2_any>>, Gpt2Config>);
  STATIC_REQUIRE(std::is_same_v<ConfigOf<Qwen3Moe<shapes::qwen3_moe_any>>, Qwen3MoeConfig>);
}

}  // namespace
}  // namespace nanovllm
