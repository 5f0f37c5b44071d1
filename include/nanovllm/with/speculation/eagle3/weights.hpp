#pragma once
/// Weights of an EAGLE-3 draft head, and how they are filled. Every rank has all of them.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/model/parameter_list.hpp"
#include "nanovllm/ops/weight_format.hpp"
#include "nanovllm/with/speculation/eagle3/config.hpp"

namespace nanovllm {

/// Owner of them, by the modules' names in the files. H is the hidden size, s the number of streams
/// that are captured, V the draft's vocabulary.
template <WeightFormat W, class Backend>
struct Eagle3Weights {
  using T = WeightElement<W>;
  using Matrix = MatrixOf<Backend, W>;
  using Table = MatrixOf<Backend, W, MatrixRole::vocabulary>;
  using Vector = typename Backend::template Buffer<T>;

  Table embedding;               // [target's vocabulary, H], or without rows
  Vector streams_norm;           // [s · H], or empty: `input_norm`
  std::vector<Vector> fc_norms;  // s times [H], or none
  Matrix fc;                     // [H, s · H]
  Vector input_norm;             // [H], of the embedding
  Vector hidden_norm;            // [H], of the stream
  Matrix qkv;                    // [(heads + 2 kv_heads) · head_dim, 2H]
  /// Of q, k and v: tables of one row, because an op that looks up rows is what every backend has.
  std::array<Table, 3> qkv_bias;  // without rows if there is none
  Vector q_norm, k_norm;          // [head_dim], or empty
  Matrix o;                       // [H, heads · head_dim]
  Table o_bias;                   // [1, H], or without rows
  Vector post_norm;               // [H]
  Matrix gate_up;                 // [2 · intermediate, H]
  Matrix down;                    // [H, intermediate]
  Vector norm;                    // [H]
  Table lm_head;                  // [V, H]

  /// Allocates; contents are undefined until `load` or `randomize`.
  Eagle3Weights(const Eagle3Config& config, std::int64_t num_streams)
      : Eagle3Weights(config, num_streams, config.layer.hidden_size) {}

  /// Streams `checkpoint` in. Maps of the vocabulary and copies of the target's last layers, which
  /// training leaves in some files, are not read here. Throws one LoadError that names missing,
  /// surplus and misshapen tensors.
  void load(const Checkpoint& checkpoint, Backend& backend,
            std::function<void(std::uint64_t, std::uint64_t)> progress = {}) {
    const std::array<std::string, 4> ignored{"d2t", "t2d", "verifier_norm.weight",
                                             "verifier_lm_head.weight"};
    list_parameters(backend).load(checkpoint, ignored, std::move(progress));
  }

  /// See `ParameterList::randomize`.
  void randomize(std::uint64_t seed, Backend& backend, float scale = 0.02f) {
    list_parameters(backend).randomize(seed, 0, scale);
  }

 private:
  using List = ParameterList<T, Backend>;

  Eagle3Weights(const Eagle3Config& config, std::int64_t num_streams, std::int64_t width)
      : embedding(config.has_embedding ? config.layer.vocab_size : 0, width),
        streams_norm(make(config.norm_before_fc ? num_streams * width : 0)),
        fc(width, num_streams * width),
        input_norm(make(width)),
        hidden_norm(make(width)),
        qkv(sizes_of(config.layer).heads.qkv_width(), 2 * width),
        q_norm(make(config.norms_heads ? config.layer.head_dim : 0)),
        k_norm(make(config.norms_heads ? config.layer.head_dim : 0)),
        o(width, config.layer.num_attention_heads * config.layer.head_dim),
        o_bias(config.has_output_bias ? 1 : 0, width),
        post_norm(make(width)),
        gate_up(2 * config.layer.intermediate_size, width),
        down(width, config.layer.intermediate_size),
        norm(make(width)),
        lm_head(config.draft_vocab_size, width),
        config_(config) {
    for (std::int64_t i = 0; config.fc_norm && i < num_streams; ++i)
      fc_norms.push_back(make(width));
    for (std::size_t i = 0; i < qkv_bias.size(); ++i)
      qkv_bias[i] = Table(config.has_qkv_bias ? 1 : 0, qkv_rows()[i]);
  }

  [[nodiscard]] std::int64_t hidden() const { return config_.layer.hidden_size; }
  /// Rows of q_proj, k_proj and v_proj.
  [[nodiscard]] std::array<std::int64_t, 3> qkv_rows() const {
    const DecoderSizes sizes = sizes_of(config_.layer);
    return {extents::q(sizes), extents::kv(sizes), extents::kv(sizes)};
  }
  [[nodiscard]] static Vector make(std::int64_t size) {
    return Vector(static_cast<std::size_t>(size));
  }

  /// Every tensor of the checkpoint, and where it goes.
  [[nodiscard]] List list_parameters(Backend& backend) {
    List out(backend);
    if (config_.has_embedding) add(out, "embed_tokens", embedding);
    if (config_.norm_before_fc) out.add_vector("input_norm.weight", streams_norm);
    for (std::size_t i = 0; i < fc_norms.size(); ++i)
      out.add_vector(concat("fc_norm.", i, ".weight"), fc_norms[i]);
    add(out, "fc", fc);
    list_layer(out);
    out.add_vector("norm.weight", norm);
    add(out, "lm_head", lm_head);
    return out;
  }

  void list_layer(List& out) {
    const std::string &layer = config_.prefix, attention = layer + "self_attn.";
    out.add_vector(layer + "input_layernorm.weight", input_norm);
    out.add_vector(layer + "hidden_norm.weight", hidden_norm);
    constexpr std::array kProjections{"q_proj", "k_proj", "v_proj"};
    std::int64_t row = 0;
    for (std::size_t i = 0; i < kProjections.size(); ++i) {
      const std::int64_t rows = qkv_rows()[i];
      const std::string name = attention + kProjections[i];
      out.add_matrix(name + ".weight", {rows, qkv.cols()}, {}, qkv, row);
      if (config_.has_qkv_bias) out.add_matrix(name + ".bias", {rows}, {}, qkv_bias[i]);
      row += rows;
    }
    if (config_.norms_heads) {
      out.add_vector(attention + "q_norm.weight", q_norm);
      out.add_vector(attention + "k_norm.weight", k_norm);
    }
    add(out, attention + "o_proj", o);
    if (config_.has_output_bias) out.add_matrix(attention + "o_proj.bias", {hidden()}, {}, o_bias);
    out.add_vector(layer + "post_attention_layernorm.weight", post_norm);
    const std::int64_t width = config_.layer.intermediate_size;
    out.add_matrix(layer + "mlp.gate_proj.weight", {width, hidden()}, {}, gate_up);
    out.add_matrix(layer + "mlp.up_proj.weight", {width, hidden()}, {}, gate_up, width);
    add(out, layer + "mlp.down_proj", down);
  }

  static void add(List& out, const std::string& module, auto& matrix) {
    out.add_matrix(module + ".weight", {matrix.rows(), matrix.cols()}, {}, matrix);
  }

  Eagle3Config config_;
};

}  // namespace nanovllm
