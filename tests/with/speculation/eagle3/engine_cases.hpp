#pragma once
/// Engines that draft with EAGLE-3 heads: a target in memory, and what its head drafts when it
/// begins anew with all tokens of a sequence.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "engine/laws/law_matrix.hpp"
#include "memory_checkpoint.hpp"
#include "model/one_sequence.hpp"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/kv/kv_pool.hpp"
#include "nanovllm/model/qwen3/qwen3.hpp"
#include "nanovllm/parallel/communicator.hpp"
#include "with/speculation/drafters.hpp"

namespace nanovllm::test {

/// Sizes of a target.
struct TargetSizes {
  std::int64_t hidden = 24, layers = 6, heads = 4, kv_heads = 2, head_dim = 8, intermediate = 40,
               vocab = 61, context = 96;
  bool tied = true;
};

/// Noise of standard deviation `scale`, or ones.
inline std::string noise_bytes(std::size_t count, std::uint64_t key, float scale) {
  std::vector<float> values(count, 1.f);
  for (std::size_t i = 0; i < count && scale > 0; ++i) {
    const auto words = philox4x32(key, {static_cast<std::uint32_t>(i), 0, 0, 3});
    values[i] = scale * 3.46f * (static_cast<float>(words[0]) / 4294967296.f - 0.5f);
  }
  std::string out(sizeof(float) * count, '\0');
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}

/// A Qwen3 with weights of noise, so large that no stream is like another.
inline Checkpoint target_files(const TargetSizes& s) {
  nanovllm_test::MemoryCheckpoint out;
  out.texts["config.json"] =
      concat(R"({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": )",
             s.hidden, R"(, "num_hidden_layers": )", s.layers, R"(, "num_attention_heads": )",
             s.heads, R"(, "num_key_value_heads": )", s.kv_heads, R"(, "head_dim": )", s.head_dim,
             R"(, "intermediate_size": )", s.intermediate, R"(, "vocab_size": )", s.vocab,
             R"(, "max_position_embeddings": )", s.context,
             R"(, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "eos_token_id": )", s.vocab - 1,
             R"(, "tie_word_embeddings": )", s.tied ? "true}" : "false}");
  std::uint64_t key = 100;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
    std::size_t count = 1;
    for (const std::int64_t extent : shape) count *= static_cast<std::size_t>(extent);
    const float scale = shape.size() == 1 ? 0.f : 0.4f;
    out.add(name, FileDType::f32, {shape.begin(), shape.end()}, noise_bytes(count, ++key, scale));
  };
  add("model.embed_tokens.weight", {s.vocab, s.hidden});
  for (std::int64_t i = 0; i < s.layers; ++i) {
    const std::string layer = concat("model.layers.", i, ".");
    add(layer + "input_layernorm.weight", {s.hidden});
    add(layer + "self_attn.q_proj.weight", {s.heads * s.head_dim, s.hidden});
    add(layer + "self_attn.k_proj.weight", {s.kv_heads * s.head_dim, s.hidden});
    add(layer + "self_attn.v_proj.weight", {s.kv_heads * s.head_dim, s.hidden});
    add(layer + "self_attn.q_norm.weight", {s.head_dim});
    add(layer + "self_attn.k_norm.weight", {s.head_dim});
    add(layer + "self_attn.o_proj.weight", {s.hidden, s.heads * s.head_dim});
    add(layer + "post_attention_layernorm.weight", {s.hidden});
    add(layer + "mlp.gate_proj.weight", {s.intermediate, s.hidden});
    add(layer + "mlp.up_proj.weight", {s.intermediate, s.hidden});
    add(layer + "mlp.down_proj.weight", {s.hidden, s.intermediate});
  }
  add("model.norm.weight", {s.hidden});
  if (!s.tied) add("lm_head.weight", {s.vocab, s.hidden});
  return Checkpoint(std::move(out));
}

/// Writes a head of noise for a target of `sizes`, in the form of AngelSlim's files, to `directory`.
/// It reads the streams that enter layers 1, 2 and 3.
inline void write_head(const std::filesystem::path& directory, const TargetSizes& sizes) {
  std::filesystem::create_directories(directory);
  const TargetSizes& s = sizes;
  std::ofstream(directory / "config.json")
      << concat(R"({"architectures": ["Eagle3LlamaForCausalLM"], "model_type": "llama",
          "num_hidden_layers": 1, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e4,
          "tie_word_embeddings": false, "hidden_size": )",
                s.hidden, R"(, "num_attention_heads": )", s.heads, R"(, "num_key_value_heads": )",
                s.kv_heads, R"(, "head_dim": )", s.head_dim, R"(, "intermediate_size": )",
                s.intermediate, R"(, "vocab_size": )", s.vocab, R"(, "draft_vocab_size": )",
                s.vocab, R"(, "max_position_embeddings": )", s.context,
                R"(, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}})");
  std::string header = "{", data;
  const auto add = [&](const std::string& name, std::int64_t rows, std::int64_t columns) {
    const auto count = static_cast<std::size_t>(rows * std::max<std::int64_t>(columns, 1));
    const std::size_t begin = data.size();
    data += noise_bytes(count, 900 + begin, columns > 0 ? 0.2f : 0.f);
    header += concat(header.size() > 1 ? ", " : "", "\"", name, R"(": {"dtype": "F32", "shape": [)",
                     rows, columns > 0 ? concat(", ", columns) : std::string(),
                     R"(], "data_offsets": [)", begin, ", ", data.size(), "]}");
  };
  add("fc.weight", s.hidden, 3 * s.hidden);
  for (const char* norm : {"input_layernorm", "hidden_norm", "post_attention_layernorm"})
    add(concat("midlayer.", norm, ".weight"), s.hidden, 0);
  add("midlayer.self_attn.q_proj.weight", s.heads * s.head_dim, 2 * s.hidden);
  add("midlayer.self_attn.k_proj.weight", s.kv_heads * s.head_dim, 2 * s.hidden);
  add("midlayer.self_attn.v_proj.weight", s.kv_heads * s.head_dim, 2 * s.hidden);
  add("midlayer.self_attn.o_proj.weight", s.hidden, s.heads * s.head_dim);
  add("midlayer.mlp.gate_proj.weight", s.intermediate, s.hidden);
  add("midlayer.mlp.up_proj.weight", s.intermediate, s.hidden);
  add("midlayer.mlp.down_proj.weight", s.hidden, s.intermediate);
  add("norm.weight", s.hidden, 0);
  add("lm_head.weight", s.vocab, s.hidden);
  header += "}";
  std::ofstream file(directory / "model.safetensors", std::ios::binary);
  const std::uint64_t size = header.size();
  file.write(reinterpret_cast<const char*>(&size), sizeof(size));
  file << header << data;
}

/// Drafts that an engine was given, and the tokens that they follow.
struct NotedDraft {
  std::vector<TokenId> tokens, drafts;
};

/// Notes what the head drafts. Of some drafts the first tokens become those that are known to come:
/// a head of noise is never right.
class MixedEagle3 : public Eagle3Drafter {
 public:
  using Eagle3Drafter::Eagle3Drafter;

  void propose(std::span<const DraftRequest> requests, std::span<Draft> drafts) override {
    Eagle3Drafter::propose(requests, drafts);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const std::span<const TokenId> tokens = requests[i].tokens;
      noted().push_back({{tokens.begin(), tokens.end()}, drafts[i].tokens});
      const auto right = known_rest(tokens, static_cast<std::int32_t>(tokens.size() % 6));
      for (std::size_t j = 0; j < std::min(right.size(), drafts[i].tokens.size()); ++j)
        drafts[i].tokens[j] = right[j];
    }
  }
  static std::vector<NotedDraft>& noted() {
    static std::vector<NotedDraft> drafts;
    return drafts;
  }
};

inline EngineConfig config_of(const TargetSizes& target, const SpeculativeConfig& options) {
  EngineConfig out{.num_threads = 1, .max_model_len = target.context};
  out.checkpoint = target_files(target);
  out.extras.set(options);
  return out;
}

inline SpeculativeConfig head_options(const std::string& directory, std::int32_t num_tokens) {
  return {.method = "eagle3",
          .model = directory,
          .num_speculative_tokens = num_tokens,
          .adaptive = false};
}

/// What each request gives alone, which is known from then on.
template <class TestEngine>
std::vector<Output> answers_alone(const MatrixWork& work, EngineConfig config) {
  config.extras.set(SpeculativeConfig{.num_speculative_tokens = 0});
  config.prefix_caching = false;
  TestEngine engine(std::move(config));
  std::vector<Output> out;
  known_texts().clear();
  for (std::size_t i = 0; i < work.prompts.size(); ++i) {
    out.push_back(engine.generate(work.prompts[i], work.params[i]));
    REQUIRE(out.back().error == "");
    for (const auto& answer : answer_of(out.back())) know(work.prompts[i], answer);
  }
  return out;
}

inline void check_same(const Output& got, const Output& expected) {
  CHECK(got.error == "");
  CHECK(answer_of(got) == answer_of(expected));
  CHECK(got.finish_reason == expected.finish_reason);
  CHECK(got.cumulative_logprob == expected.cumulative_logprob);
  REQUIRE(got.logprobs.size() == expected.logprobs.size());
  for (std::size_t i = 0; i < got.logprobs.size(); ++i)
    CHECK((got.logprobs[i].logprob == expected.logprobs[i].logprob &&
           got.logprobs[i].top == expected.logprobs[i].top));
}

/// All at once, twice: the second round finds what the first has left in the prefix cache.
template <class TestEngine>
EngineStats run_all(const MatrixWork& work, const std::vector<Output>& expected,
                    EngineConfig config) {
  TestEngine engine(std::move(config));
  for (int round = 0; round < 2; ++round) {
    CAPTURE(round);
    std::vector<Output> outputs(work.prompts.size());
    for (std::size_t i = 0; i < work.prompts.size(); ++i)
      engine.submit(work.prompts[i], work.params[i], [&outputs, i](const TokenEvent& event) {
        if (event.output != nullptr) outputs[i] = *event.output;
      });
    while (engine.step()) engine.check_invariants();
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      CAPTURE(i);
      check_same(outputs[i], expected[i]);
    }
  }
  CHECK(engine.stats().num_free_kv_blocks == engine.stats().num_kv_blocks);
  return engine.stats();
}

inline MatrixWork work_of(Draws draws, std::int64_t vocab) {
  MatrixWork work = matrix_work(draws, vocab);
  for (std::size_t i = 0; i < work.params.size(); ++i) {
    if (!work.params[i].beam_width) work.params[i].logprobs = 2;
    if (i == 2) work.params[i].stop_token_ids = random_prompt(5, 2, vocab);
  }
  return work;
}

/// A target and a head on the CPU.
class DraftsAnew {
  using Target = Qwen3Network<shapes::qwen3_any, Elements<float>, CpuBackend, Single>;
  static constexpr StepLimits kLimits{
      .max_num_batched_tokens = 128, .max_num_seqs = 8, .max_model_len = 128};

 public:
  DraftsAnew(const Checkpoint& target, const std::string& head)
      : network_(Qwen3Config::load(target), kLimits, backend_, comm_),
        pool_({network_.num_layers(), network_.num_kv_heads(), network_.head_dim(), 16,
               sizeof(float)},
              16),
        files_(head),
        head_(Eagle3Config::load(files_),
              {network_.hidden_size(), network_.num_layers(), network_.vocab_size()}, kLimits,
              backend_) {
    network_.weights().load(target, backend_);
    head_.weights().load(files_, backend_);
    network_.taps().open(head_.stream_layers(), network_.num_layers());
  }

  /// `count` drafts after `tokens`, of which the last is not computed.
  std::vector<TokenId> drafts(const std::vector<TokenId>& tokens, std::int32_t count) {
    OneSequence sequence(8);
    const auto n = std::ssize(tokens) - 1;
    const std::vector<TokenId> computed(tokens.begin(), tokens.end() - 1);
    std::vector<float> logits(static_cast<std::size_t>(network_.padded_vocab_size()));
    network_.forward(sequence.batch(computed, 0, true), pool_,
                     MatrixView<float>(logits.data(), {1, network_.padded_vocab_size()}));
    Eagle3Chains<Elements<float>, CpuBackend> chains(head_, backend_, kLimits, 16, 16, count);
    const Eagle3Request all{.next = std::span(tokens).subspan(1),
                            .blocks = sequence.blocks(static_cast<std::size_t>(n)),
                            .num_drafts = count};
    std::vector<std::vector<TokenId>> out;
    chains.draft(network_.taps().rows(n), {&all, 1}, network_, out);
    return out[0];
  }

  /// Of the noted drafts, those that are other ones than these, and how many there are.
  std::pair<int, int> count_others(const std::vector<NotedDraft>& noted) {
    int num_others = 0, num_drafts = 0;
    std::map<std::vector<TokenId>, std::vector<TokenId>> known;
    for (const NotedDraft& one : noted) {
      if (one.drafts.empty()) continue;
      ++num_drafts;
      std::vector<TokenId>& expected = known[one.tokens];
      if (expected.size() < one.drafts.size())
        expected = drafts(one.tokens, static_cast<std::int32_t>(one.drafts.size()));
      num_others += std::equal(one.drafts.begin(), one.drafts.end(), expected.begin()) ? 0 : 1;
    }
    return {num_others, num_drafts};
  }

 private:
  CpuBackend backend_{BackendConfig{.num_threads = 1}};
  Single comm_;
  Target network_;
  KvPool<float, CpuBackend::Buffer<float>> pool_;
  Checkpoint files_;
  Eagle3Head<Elements<float>, CpuBackend> head_;
};

}  // namespace nanovllm::test
