#pragma once
/// Checkpoints of Qwen3 mixtures of experts with what transformers makes of them
/// (tests/oracle/make_qwen3_moe_fixtures.py).

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "engine/parity/greedy_traces.hpp"
#include "engine/parity/parity.hpp"
#include "nanovllm/with/moe/expert_parallel.hpp"
#include "nanovllm/with/moe/qwen3_moe/qwen3_moe.hpp"
#include "with/moe/parity/qwen3_moe_checkpoint.hpp"

namespace nanovllm::test {

using AnyMoe = Qwen3Moe<shapes::qwen3_moe_any>;

struct MoeCase {
  MoeCase(const std::string& name, const std::string& dtype)
      : reference(name, dtype), files(reference.config(), reference.seed()) {}

  Reference reference;
  MoeFiles files;
};

inline std::string each_moe() {
  return GENERATE(as<std::string>{}, "moe_4_of_4", "moe_1_of_5", "moe_2_of_8_step", "moe_8_of_60",
                  "moe_3_of_16_first", "moe_6_of_24_mixed");
}

/// The model that the laws run: layers with and without experts, 6 of 24.
template <class Policy>
struct MoeLawModel {
  using Engine = nanovllm::Engine<AnyMoe, Policy>;

  MoeCase model{"moe_6_of_24_mixed", "float32"};
  std::vector<std::vector<TokenId>> prompts;

  MoeLawModel() {
    for (std::uint64_t i = 0; i < 6; ++i) prompts.push_back(random_prompt(i, 1 + 13 * i, 83));
    for (std::size_t i = 4; i < 6; ++i)  // two share 32 tokens with a third
      std::copy_n(prompts[3].begin(), 32, prompts[i].begin());
  }

  [[nodiscard]] std::unique_ptr<Engine> engine(EngineConfig config) const {
    config.model = model.files.path();
    config.num_threads = 2;
    return std::make_unique<Engine>(std::move(config));
  }
};

/// A mixture of experts whose matrices have parts of blocks of 128 at their ends where a rank has
/// 192 of the `width` columns of an expert: ups begin in the middle of a block.
[[nodiscard]] inline nlohmann::json partial_blocks_config(std::int64_t width) {
  return {{"architectures", {"Qwen3MoeForCausalLM"}},
          {"model_type", "qwen3_moe"},
          {"hidden_size", 320},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 64},
          {"intermediate_size", 384},
          {"moe_intermediate_size", width},
          {"num_experts", 6},
          {"num_experts_per_tok", 2},
          {"vocab_size", 83},
          {"max_position_embeddings", 256},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 1e4},
          {"norm_topk_prob", true},
          {"tie_word_embeddings", false}};
}

/// How far the log-probabilities of this model by `Policy` are from those by `Other` on average.
/// Both have weights in 8-bit floats.
/// @param rows   that the former multiplies at a time, at the most.
/// @param whole  ranks have whole experts.
template <class Policy, class Other>
[[nodiscard]] double partial_blocks_difference(int ranks, bool whole, int rows) {
  const MoeFiles files(partial_blocks_config(whole ? 192 : 192 * ranks), 23, true);
  const auto logprobs = [&]<class P>(P, int most_rows) {
    Engine<AnyMoe, P> engine({.model = files.path(),
                              .tensor_parallel = ranks,
                              .extras = {ExpertParallel{.on = whole}},
                              .num_threads = 2,
                              .max_num_seqs = 4,
                              .max_num_batched_tokens = most_rows,
                              .max_model_len = 128});
    std::vector<float> out;
    for (std::uint64_t i = 0; i < 4; ++i) {
      const Output output = engine.generate(
          random_prompt(300 + i, 90, 83),
          {.temperature = 0.f, .max_tokens = 1, .ignore_eos = true, .prompt_logprobs = 0});
      REQUIRE(output.error == "");
      for (const auto& logprob : output.prompt_logprobs) {
        if (logprob) out.push_back(logprob->logprob);
      }
    }
    return out;
  };
  const std::vector<float> expected = logprobs(Other(), 512), got = logprobs(Policy(), rows);
  REQUIRE(expected.size() == 4 * 89);
  REQUIRE(got.size() == expected.size());
  double sum = 0;
  for (std::size_t i = 0; i < got.size(); ++i) sum += std::abs(double{got[i]} - expected[i]);
  return sum / static_cast<double>(got.size());  // NaN is below no bound
}

/// Equal tokens whatever else is in a step, and log-probabilities up to `bound`. Blocks of the
/// policy have at most 32 tokens, so that prompts share some.
template <class Policy>
void check_moe_laws(double bound) {
  const MoeLawModel<Policy> law;
  const auto& prompts = law.prompts;
  const auto plain = law.engine({.prefix_caching = false});
  std::vector<Trace> alone;
  for (const auto& prompt : prompts)
    alone.push_back(traces(*plain, std::vector<std::vector<TokenId>>{prompt}).front());
  check_equal(traces(*plain, prompts), alone, bound);

  const auto cached = law.engine({});
  check_equal(traces(*cached, prompts), alone, bound);
  check_equal(traces(*cached, prompts), alone, bound);
  CHECK(cached->stats().num_hit_tokens >= 64);

  for (const int chunk : {1, 7, 50}) {
    const auto chunked = law.engine({.max_num_seqs = std::min(chunk, 4),
                                     .max_num_batched_tokens = chunk,
                                     .prefix_caching = false});
    check_equal(traces(*chunked, prompts), alone, bound);
  }

  const auto small = law.engine({.kv_size = KvSize::blocks(8), .prefix_caching = false});
  check_equal(traces(*small, prompts, 60), traces(*plain, prompts, 60), bound);
  CHECK(small->stats().num_preemptions > 0);
}

}  // namespace nanovllm::test
