// Engines that draft with EAGLE-3 heads on a GPU: the law in batch-invariant mode, to the bit; and
// in float32 the drafts that a head on the CPU makes anew, with heads of the target's shape and of
// another, which have a backend of their own.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "nanovllm/with/batch_invariant.cuh"
#include "nanovllm/with/speculation.cuh"
#include "with/speculation/eagle3/engine_cases.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

template <class Base>
struct WithHead : Base {
  using Guesses = DraftedBy<MixedEagle3>;
  static constexpr KvConfig kv{.block_size = 16};
};

/// A folder for a head, which goes with it.
struct HeadFolder {
  explicit HeadFolder(const TargetSizes& sizes) { write_head(path, sizes); }
  ~HeadFolder() { std::filesystem::remove_all(path); }
  std::filesystem::path path = std::filesystem::temp_directory_path() / "nanovllm_eagle3_head";
};

constexpr TargetSizes kTarget{.hidden = 64,
                              .layers = 4,
                              .heads = 8,
                              .kv_heads = 2,
                              .head_dim = 64,
                              .intermediate = 96,
                              .vocab = 331,
                              .context = 128,
                              .tied = false};

}  // namespace

TEST_CASE("drafted = undrafted on CUDA with an EAGLE-3 head", "[speculation][eagle3][laws][gpu]") {
  if (!has_gpu() || !Gpu().is_hopper()) return;  // the mode needs compute capability 9.0
  using TestEngine = Engine<AnyModel, WithHead<CudaBatchInvariantPolicy>>;
  const HeadFolder head(kTarget);
  for (const Draws draws : {Draws::one, Draws::four, Draws::edited}) {
    const MatrixWork work = work_of(draws, kTarget.vocab);
    EngineConfig config = config_of(kTarget, head_options(head.path, 5));
    const std::vector<Output> expected = answers_alone<TestEngine>(work, config);
    for (const std::int64_t num_blocks : {7, 400}) {
      CAPTURE(static_cast<int>(draws), num_blocks);
      config.max_num_batched_tokens = 24;
      config.max_num_seqs = 16;
      config.kv_size = KvSize::blocks(num_blocks);
      const auto counts =
          run_all<TestEngine>(work, expected, config).template of<SpeculationStats>();
      CHECK(counts.num_failed == 0);
      CHECK(counts.num_accepted > 0);
      CHECK(counts.num_drafted > counts.num_accepted);
    }
  }
}

TEST_CASE("an engine on CUDA drafts what a head on the CPU does", "[eagle3][parity][gpu]") {
  if (!has_gpu()) return;
  using TestEngine = Engine<AnyModel, WithHead<CudaFloat32Policy>>;
  TargetSizes other = kTarget;
  other.heads = 4, other.head_dim = 32;
  for (const TargetSizes& shape : {kTarget, other}) {
    CAPTURE(shape.heads);
    const HeadFolder head(shape);
    const MatrixWork work = work_of(Draws::one, kTarget.vocab);
    EngineConfig config = config_of(kTarget, head_options(head.path, 5));
    config.max_num_batched_tokens = 24;
    config.max_num_seqs = 16;
    known_texts().clear();
    MixedEagle3::noted().clear();
    TestEngine engine(config);
    for (const Output& output : engine.generate_each(
             std::vector<Prompt>(work.prompts.begin(), work.prompts.end()), work.params))
      CHECK(output.error == "");
    DraftsAnew anew(target_files(kTarget), head.path);
    const auto [others, drafts] = anew.count_others(MixedEagle3::noted());
    CHECK(drafts > 50);
    CHECK(others * 10 < drafts);  // sums have another order
  }
}
