#pragma once
/// Drafts of the heads of tests/fixtures/eagle3 on any backend.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "nanovllm/with/speculation/eagle3/chains.hpp"
#include "with/speculation/eagle3/head_cases.hpp"

namespace nanovllm::test {

/// A head, and its fixture's streams twice in the backend's memory, one below the other.
template <class Backend>
struct ChainsRig {
  static constexpr StepLimits kLimits{
      .max_num_batched_tokens = 128, .max_num_seqs = 8, .max_model_len = 96};

  explicit ChainsRig(const std::string& name)
      : expected(name),
        checkpoint(head_directory(name)),
        config(Eagle3Config::load(checkpoint)),
        head(config, {config.layer.hidden_size, 9, config.layer.vocab_size}, kLimits, backend),
        chains(head, backend, kLimits, 16, 8, 5),
        target(backend, config.layer.vocab_size, config.layer.hidden_size, expected.embedding),
        streams(2 * expected.streams.size()) {
    backend.reserve(head.reserve_args());
    head.weights().load(checkpoint, backend);
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

  Backend backend{BackendConfig{}};
  ExpectedDrafts expected;
  Checkpoint checkpoint;
  Eagle3Config config;
  Eagle3Head<Elements<float>, Backend> head;
  Eagle3Chains<Elements<float>, Backend> chains;
  EmbeddingTarget<float, Backend> target;
  typename Backend::template Buffer<float> streams;
};

/// The drafts of a plain torch loop: of two sequences in one call, and of pairs in pieces.
template <class Backend>
void check_fixture_drafts() {
  for (const char* name : kHeads) {
    INFO(name);
    ChainsRig<Backend> rig(name);
    const std::span<const TokenId> tokens = rig.expected.tokens;
    const std::vector<TokenId>& drafts = rig.expected.drafts;
    const std::vector<BlockId> first{3, 1, 6}, second{0, 7, 2}, third{5, 4, 3};
    const auto both =
        rig.draft({{.next = tokens, .blocks = first, .num_drafts = 3},
                   {.first_row = 37, .next = tokens, .blocks = second, .num_drafts = 5}});
    CHECK(both[0] == std::vector<TokenId>(drafts.begin(), drafts.begin() + 3));
    CHECK(both[1] == drafts);

    static_cast<void>(rig.draft({{.next = tokens.first(20), .blocks = third}}));
    static_cast<void>(rig.draft(
        {{.first_row = 20, .begin = 20, .next = tokens.subspan(20, 16), .blocks = third}}));
    const Eagle3Request last{
        .first_row = 36, .begin = 36, .next = tokens.subspan(36), .blocks = third, .num_drafts = 5};
    CHECK(rig.draft({last})[0] == drafts);
  }
}

}  // namespace nanovllm::test
