#pragma once
/// What a step gives, and the memory for it: what it draws, and hidden states.

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/ops/batch_field.hpp"
#include "nanovllm/ops/publish_results.hpp"
#include "nanovllm/ops/sampler.hpp"

namespace nanovllm {

/// What a step's rows of logits gave, in host memory: those of a sequence after each other, of its
/// prompt before those that draw, in the plan's order. Valid until the next launch but one.
struct StepResults {
  VectorView<const TokenId> tokens;      ///< [samples]
  VectorView<const float> logprobs;      ///< [samples]; meaningful where logprobs were asked for
  MatrixView<const TokenId> top_tokens;  ///< [samples, ≥ max num_logprobs]
  MatrixView<const float> top_logprobs;  ///< like top_tokens
  /// Of the tokens that each row asked for by their ids; empty where no row did.
  ListsView<const float> chosen_logprobs{};
  /// The rows whose hidden states were wanted, [rows, hidden_size], in the plan's order.
  MatrixView<const float> hidden{};
};

/// Where what a step draws is written, in the backend's memory. What is not wanted may be empty.
struct DrawnViews {
  VectorView<TokenId> tokens;      ///< [rows]
  VectorView<float> logprobs;      ///< [rows]
  MatrixView<TokenId> top_tokens;  ///< [rows, max_logprobs]
  MatrixView<float> top_logprobs;  ///< like top_tokens
  VectorView<float> chosen{};      ///< [num_chosen]

  /// The draw from `logits` that writes here.
  [[nodiscard]] SampleArgs draw(MatrixView<float> logits, const SamplingBatch& batch,
                                bool plain = false) const {
    return {logits, batch, tokens, logprobs, top_tokens, top_logprobs, plain};
  }
};

/// Makes `buffer` hold at least `size` elements; they are undefined then. Growth is rare and by
/// half at least.
template <class AnyBuffer>
void discard_and_grow(AnyBuffer& buffer, std::int64_t size) {
  const auto old_size = static_cast<std::int64_t>(buffer.size());
  if (old_size >= size) return;
  buffer = AnyBuffer(0);
  buffer = AnyBuffer(static_cast<std::size_t>(std::max(size, old_size + old_size / 2)));
}

/// Memory for what a step draws: where the sampler writes it, or where the host reads it.
template <template <class T> class Buffer>
struct StepResultsMemory {
  Buffer<TokenId> tokens{0};
  Buffer<float> logprobs{0};
  Buffer<TokenId> top_tokens{0};
  Buffer<float> top_logprobs{0};
  Buffer<float> chosen_logprobs{0};
  std::vector<std::int32_t> chosen_starts{};  ///< empty, or [num_samples + 1]
  std::int64_t num_samples = 0;
  std::int64_t num_top = 0;

  /// Makes room for `samples` rows with the `top` most likely tokens of each.
  void resize(std::int64_t samples, std::int64_t top) {
    num_samples = samples;
    num_top = top;
    chosen_starts.clear();
    discard_and_grow(tokens, samples);
    discard_and_grow(logprobs, samples);
    discard_and_grow(top_tokens, samples * top);
    discard_and_grow(top_logprobs, samples * top);
  }

  /// Makes room for what the lists of `starts`, [num_samples + 1], ask for.
  void resize_chosen(VectorView<const std::int32_t> starts) {
    chosen_starts.assign(starts.data, starts.data + starts.extent(0));
    discard_and_grow(chosen_logprobs, chosen_starts.back());
  }

  [[nodiscard]] ListsView<const float> chosen() const {
    if (chosen_starts.empty()) return {};
    return {.starts = {chosen_starts.data(), {static_cast<std::int64_t>(chosen_starts.size())}},
            .values = {chosen_logprobs.data(), {chosen_starts.back()}}};
  }

  /// Where a step of `rows` rows, no more than there is room for, writes.
  [[nodiscard]] DrawnViews drawn(std::int64_t rows) {
    const std::int64_t num_chosen = chosen_starts.empty() ? 0 : chosen_starts.back();
    return {.tokens = {tokens.data(), {rows}},
            .logprobs = {logprobs.data(), {rows}},
            .top_tokens = {top_tokens.data(), {rows, num_top}},
            .top_logprobs = {top_logprobs.data(), {rows, num_top}},
            .chosen = {chosen_logprobs.data(), {num_chosen}}};
  }

  /// Where a step is to leave what this has room for.
  [[nodiscard]] ResultsPlace place(bool wants_logprobs) {
    return {.tokens = tokens.data(),
            .logprobs = wants_logprobs ? logprobs.data() : nullptr,
            .top_tokens = num_top > 0 ? top_tokens.data() : nullptr,
            .top_logprobs = num_top > 0 ? top_logprobs.data() : nullptr,
            .num_rows = num_samples};
  }

  [[nodiscard]] StepResults view() const {
    return {.tokens = {tokens.data(), {num_samples}},
            .logprobs = {logprobs.data(), {num_samples}},
            .top_tokens = {top_tokens.data(), {num_samples, num_top}},
            .top_logprobs = {top_logprobs.data(), {num_samples, num_top}},
            .chosen_logprobs = chosen()};
  }
};

/// A network that gives hidden states of type `Activation` beside logits (model/model.hpp).
template <class N>
concept GivesHiddenRows = requires(const N& network) {
  typename N::Activation;
  { network.hidden_size() } -> std::convertible_to<std::int64_t>;
};

/// One executor's forward passes, and the hidden rows of the steps in its two slots. Without rows
/// that are wanted it has no memory. Where `Network` gives none, there are none.
template <class Network, class Backend>
class HiddenRows {
 public:
  /// `backend` must outlive this.
  HiddenRows(const Network&, Backend&) {}

  /// Network::forward.
  template <class Batch, class KvCache>
  void forward(Network& network, const Batch& in, KvCache& kv, MatrixView<float> logits) {
    network.forward(in, kv, logits);
  }
  /// The first `count` rows that the last forward pass gave are those of the step in `slot`. They
  /// are copied after it.
  void fetch(int /*slot*/, std::int64_t /*count*/) {}
  /// Those rows, [count, hidden_size], when the step in `slot` is done; valid until the next
  /// `fetch` for it.
  [[nodiscard]] MatrixView<const float> view(int /*slot*/) { return {}; }
};

template <GivesHiddenRows Network, class Backend>
class HiddenRows<Network, Backend> {
  using Activation = typename Network::Activation;
  static constexpr bool kIsLater = requires(Backend & backend, Activation* data) {
    backend.download_later(data, data, std::size_t{});
  };
  template <class B, bool kLater>
  struct HostBufferOf {
    using type = std::vector<Activation>;
  };
  template <class B>
  struct HostBufferOf<B, true> {
    using type = typename B::template HostBuffer<Activation>;
  };

 public:
  HiddenRows(const Network& network, Backend& backend)
      : backend_(backend), width_(network.hidden_size()) {}

  template <class Batch, class KvCache>
  void forward(Network& network, const Batch& in, KvCache& kv, MatrixView<float> logits) {
    const std::int64_t count = in.hidden_rows.extent(0), size = count * width_;
    if (static_cast<std::int64_t>(rows_.size()) < size) {
      if constexpr (kIsLater) backend_.synchronize();  // the copy of a step before may be under way
      discard_and_grow(rows_, size);
    }
    network.forward(in, kv, logits, MatrixView<Activation>(rows_.data(), {count, width_}));
  }

  void fetch(int slot, std::int64_t count) {
    Slot& mine = slots_[static_cast<std::size_t>(slot)];
    mine.count = count;
    if (count == 0) return;
    discard_and_grow(mine.rows, count * width_);
    const auto size = static_cast<std::size_t>(count * width_);
    if constexpr (kIsLater) {
      backend_.download_later(rows_.data(), mine.rows.data(), size);
    } else {
      backend_.download(rows_.data(), mine.rows.data(), size);
    }
  }

  [[nodiscard]] MatrixView<const float> view(int slot) {
    Slot& mine = slots_[static_cast<std::size_t>(slot)];
    mine.values.assign(mine.rows.data(), mine.rows.data() + mine.count * width_);
    return {mine.values.data(), {mine.count, width_}};
  }

 private:
  struct Slot {
    typename HostBufferOf<Backend, kIsLater>::type rows{};
    std::vector<float> values;
    std::int64_t count = 0;
  };

  Backend& backend_;
  std::int64_t width_;
  typename Backend::template Buffer<Activation> rows_{0};  // [rows of a step, hidden_size]
  std::array<Slot, 2> slots_{};
};

}  // namespace nanovllm
