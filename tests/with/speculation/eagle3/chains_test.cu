// EAGLE-3 heads on the CUDA backend: the drafts of a plain torch loop in float32, pairs together and
// in pieces, and a step of several sequences.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "nanovllm/engine.hpp"
#include "nanovllm/with/speculation.cuh"
#include "nanovllm/with/speculation.hpp"
#include "with/speculation/eagle3/head_cases.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

using Head = Eagle3Head<Elements<float>, CudaBackend>;

struct DeviceRig {
  explicit DeviceRig(const std::string& name)
      : expected(name),
        checkpoint(head_directory(name)),
        config(Eagle3Config::load(checkpoint)),
        head(config, {config.layer.hidden_size, 9, config.layer.vocab_size}, kLimits, backend),
        chains(head, backend, kLimits, 16, 8, 5),
        target(backend, config.layer.vocab_size, config.layer.hidden_size, expected.embedding),
        streams(2 * expected.streams.size()) {
    backend.reserve(head.reserve_args());
    head.weights().load(checkpoint, backend);
    // Those of two equal sequences, one below the other.
    for (std::size_t i = 0; i < 2; ++i)
      backend.upload(expected.streams.data(), streams.data() + i * expected.streams.size(),
                     expected.streams.size());
  }

  std::vector<std::vector<TokenId>> draft(const std::vector<Eagle3Request>& requests) {
    std::vector<std::vector<TokenId>> out;
    const auto rows = static_cast<std::int64_t>(2 * expected.tokens.size());
    chains.draft({streams.data(), {rows, head.streams_width()}}, requests, target, out);
    return out;
  }

  static constexpr StepLimits kLimits{
      .max_num_batched_tokens = 128, .max_num_seqs = 8, .max_model_len = 96};

  CudaBackend backend{BackendConfig{}};
  ExpectedDrafts expected;
  Checkpoint checkpoint;
  Eagle3Config config;
  Head head;
  Eagle3Chains<Elements<float>, CudaBackend> chains;
  EmbeddingTarget<float, CudaBackend> target;
  CudaBackend::Buffer<float> streams;
};

}  // namespace

TEST_CASE("a head on a GPU gives a plain loop's drafts", "[gpu][eagle3][parity]") {
  if (!has_gpu()) return;
  for (const char* name : kHeads) {
    INFO(name);
    DeviceRig rig(name);
    const std::span<const TokenId> tokens = rig.expected.tokens;
    const std::vector<BlockId> first{3, 1, 6}, second{0, 7, 2};
    const std::vector<TokenId> three(rig.expected.drafts.begin(), rig.expected.drafts.begin() + 3);
    const auto both =
        rig.draft({{.next = tokens, .blocks = first, .num_drafts = 3},
                   {.first_row = 37, .next = tokens, .blocks = second, .num_drafts = 5}});
    CHECK(both[0] == three);
    CHECK(both[1] == rig.expected.drafts);

    // In pieces, the last of one pair.
    const std::vector<BlockId> third{5, 4, 3};
    static_cast<void>(rig.draft({{.next = tokens.first(20), .blocks = third}}));
    static_cast<void>(rig.draft(
        {{.first_row = 20, .begin = 20, .next = tokens.subspan(20, 16), .blocks = third}}));
    CHECK(rig.draft({{.first_row = 36,
                      .begin = 36,
                      .next = tokens.subspan(36),
                      .blocks = third,
                      .num_drafts = 5}})[0] == rig.expected.drafts);
  }
}
