// The EAGLE-3 head of examples/models/fairytale_eagle3 drafts for the model that it was trained
// for: tales are those without drafts, and most of what it drafts first is right.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "catch.hpp"
#include "model/one_sequence.hpp"
#include "nanovllm/cpu/backend.hpp"
#include "nanovllm/kv/kv_pool.hpp"
#include "nanovllm/model/qwen3/qwen3.hpp"
#include "nanovllm/text/tokenizer.hpp"
#include "nanovllm/with/speculation/eagle3/chains.hpp"
#include "with/speculation/fairytale_openings.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

constexpr TokenId kEnd = 4093;  // <|im_end|>
constexpr std::int32_t kBlocks = 12, kMaxDrafts = 4;
constexpr StepLimits kLimits{
    .max_num_batched_tokens = 64, .max_num_seqs = 32, .max_model_len = 160};
using Target = Qwen3Network<shapes::qwen3_any, Elements<float>, CpuBackend, Single>;
using Head = Eagle3Head<Elements<float>, CpuBackend>;
using Chains = Eagle3Chains<Elements<float>, CpuBackend>;

/// fairytale and its head, in float32.
struct Rig {
  Rig() : pool({6, network.num_kv_heads(), network.head_dim(), 16, sizeof(float)}, kBlocks) {
    network.weights().load(files, backend);
    head.weights().load(head_files, backend);
    network.taps().open(head.stream_layers(), 6);
  }

  /// The likeliest token after each of `tokens`, which begin at position `begin`.
  std::vector<TokenId> run(OneSequence& sequence, const std::vector<TokenId>& tokens,
                           std::int32_t begin) {
    const std::int64_t width = network.padded_vocab_size();
    std::vector<float> logits(tokens.size() * static_cast<std::size_t>(width));
    network.forward(sequence.batch(tokens, begin), pool,
                    MatrixView<float>(logits.data(), {std::ssize(tokens), width}));
    std::vector<TokenId> out;
    for (auto row = logits.begin(); row != logits.end(); row += width)
      out.push_back(static_cast<TokenId>(std::max_element(row, row + 4096) - row));
    return out;
  }

  Checkpoint files{"examples/models/fairytale"}, head_files{"examples/models/fairytale_eagle3"};
  Qwen3Config config = Qwen3Config::load(files);
  CpuBackend backend{BackendConfig{.num_threads = 1}};
  Single comm;
  Target network{config, kLimits, backend, comm};
  Head head{Eagle3Config::load(head_files),
            {.hidden_size = config.hidden_size, .num_layers = 6, .vocab_size = config.vocab_size},
            kLimits,
            backend};
  Chains chains{head, backend, kLimits, 16, kBlocks, kMaxDrafts};
  KvPool<float, CpuBackend::Buffer<float>> pool;
};

struct Counts {
  int num_drafts = 0, num_drawn = 0;
  std::vector<int> accepted = std::vector<int>(kMaxDrafts);
};

/// `count` tokens after the prompt or those up to the end, greedy, with drafts.
std::vector<TokenId> drafted_tokens(Rig& rig, const std::vector<TokenId>& prompt, std::size_t count,
                                    Counts& counts) {
  OneSequence sequence(kBlocks - 1);
  std::vector<TokenId> rows = prompt, out;
  std::vector<std::vector<TokenId>> drafts(1);
  std::int32_t begin = 0;
  while (out.size() < count && std::ranges::find(out, kEnd) == out.end()) {
    std::vector<TokenId> step = rows;
    step.insert(step.end(), drafts[0].begin(), drafts[0].end());
    const std::vector<TokenId> drawn = rig.run(sequence, step, begin);
    std::vector<TokenId> next(rows.begin() + 1, rows.end());
    next.push_back(drawn[rows.size() - 1]);
    std::size_t right = 0;
    while (right < drafts[0].size() && drafts[0][right] == next.back()) {
      ++counts.accepted[right];
      next.push_back(drawn[rows.size() + right++]);
    }
    counts.num_drafts += drafts[0].empty() ? 0 : 1;
    out.insert(out.end(), next.end() - static_cast<std::ptrdiff_t>(right) - 1, next.end());
    const Eagle3Request request{
        .begin = begin,
        .next = next,
        .blocks = sequence.blocks(static_cast<std::size_t>(begin) + step.size()),
        .num_drafts =
            std::min(kMaxDrafts, static_cast<std::int32_t>(count - std::min(count, out.size())))};
    rig.chains.draft(rig.network.taps().rows(std::ssize(step)), {&request, 1}, rig.network, drafts);
    begin += static_cast<std::int32_t>(next.size());
    rows = {out.back()};
  }
  counts.num_drawn += static_cast<int>(out.size()) - 1;
  return out;
}

}  // namespace

TEST_CASE("the head of fairytale drafts what it tells", "[eagle3]") {
  Rig rig;
  CHECK(rig.head.config().num_speculative_tokens == kMaxDrafts);
  CHECK(rig.head.config().target_ids.size() == 1024);
  const Tokenizer tokenizer = Tokenizer::from_checkpoint(rig.files);
  Counts counts;
  for (const std::string& opening : held_out_openings()) {
    const std::vector<TokenId> prompt = tokenizer.encode(opening);
    const std::vector<TokenId> got = drafted_tokens(rig, prompt, 96, counts);
    OneSequence sequence(kBlocks - 1);
    std::vector<TokenId> expected{rig.run(sequence, prompt, 0).back()};
    while (expected.size() < got.size())
      expected.push_back(
          rig.run(sequence, {expected.back()},
                  static_cast<std::int32_t>(prompt.size() + expected.size()) - 1)[0]);
    CHECK(got == expected);
  }
  const auto share = [&](std::size_t place) {
    return static_cast<double>(counts.accepted[place]) / counts.num_drafts;
  };
  UNSCOPED_INFO(counts.num_drafts << " chains of " << counts.num_drawn
                                  << " tokens, accepted by place " << share(0) << ", " << share(1)
                                  << ", " << share(2) << ", " << share(3));
  CHECK(counts.num_drafts > 300);
  CHECK(share(0) > 0.7);
  CHECK(share(kMaxDrafts - 1) > 0.3);
}
