#pragma once
/// The hidden states that steps give, on their way from a network to the host.

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/engine/step/step_results.hpp"

namespace nanovllm {

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
