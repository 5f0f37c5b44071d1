#pragma once
/// The KV pool as a step's forward pass gets it: layer by layer, each with the step's copies of
/// blocks in it.

#include <cstdint>
#include <utility>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/ops/copy_blocks.hpp"

namespace nanovllm {

/// The format of a pool.
template <class Pool>
using KvElementOf = typename decltype(std::declval<Pool&>().layer(0))::Format;

/// Elements from a layer of a pool to the next, of those that `view` gives.
template <class Pool, class Base, class View>
[[nodiscard]] std::int64_t layer_stride(Pool& pool, View (Base::*view)(std::int64_t)) {
  return pool.num_layers() > 1 ? (pool.*view)(1).data - (pool.*view)(0).data : 0;
}

/// Copies between a pool and what its block manager keeps outside of it. This template makes none.
/// The header of what is kept there specialises it for such pools, with these members.
template <class Backend, class Pool>
struct OutsideCopies {
  /// Throws ConfigError if they cannot be made, and there are `num_blocks` outside.
  static void check(std::int32_t /*num_blocks*/) {}
  /// Whether copies are made while later ops run, so that each layer is to be awaited.
  static constexpr bool kAreAwaited = false;

  /// Begins to copy: the list `down` first, then `up`.
  static void begin(Backend&, Pool&, VectorView<const BlockCopy> /*down*/,
                    VectorView<const BlockCopy> /*up*/) {
    throw Error("copies of blocks from outside of the pool: there are none outside");
  }
  /// What is enqueued from now on finds all copies in `layer` and those before it made.
  static void await(Backend&, std::int64_t /*layer*/) {}
};

/// A step's lists of copies, see StepPlan.
struct StepCopies {
  VectorView<const BlockCopy> down{};    ///< outside
  VectorView<const BlockCopy> inside{};  ///< in the backend's memory
  VectorView<const BlockCopy> up{};      ///< outside
};

/// Makes a step's copies, and hands out the pool's layers. Where copies from outside are made while
/// the backend computes, whatever uses a layer waits for that layer's copies, so that the first
/// layers are computed while blocks of later ones still arrive. Whatever happens in between, after
/// the end of its life all copies are awaited.
template <class Backend, class Pool>
class StepKv {
  using Kv = KvElementOf<Pool>;
  using FromOutside = OutsideCopies<Backend, Pool>;

 public:
  /// Without copies.
  StepKv(Backend& backend, Pool& pool) : backend_(backend), pool_(pool), next_(pool.num_layers()) {}

  /// Begins to make `copies`. Throws ShapeError for those that cannot be, as far as the backend
  /// sees it, and Error for copies to host memory where it has no such op.
  StepKv(Backend& backend, Pool& pool, const StepCopies& copies) : StepKv(backend, pool) {
    const bool has_outside = !copies.down.empty() || !copies.up.empty();
    if (has_outside) FromOutside::begin(backend, pool, copies.down, copies.up);
    if (has_outside && FromOutside::kAreAwaited) {
      inside_ = copies.inside;
      next_ = 0;
    } else {
      copy_inside(0, next_, copies.inside);
    }
  }

  StepKv(const StepKv&) = delete;
  StepKv& operator=(const StepKv&) = delete;

  ~StepKv() {
    try {
      finish();
    } catch (...) {  // the device has failed: whatever comes next says so
    }
  }

  /// Keys and values of layer `layer`; what is enqueued from now on finds the copies there made.
  [[nodiscard]] KvView<Kv> layer(std::int64_t layer) {
    while (next_ <= layer) arrive(next_++);
    return pool_.layer(layer);
  }

  /// Whatever is enqueued from now on finds all copies made.
  void finish() {
    while (next_ < pool_.num_layers()) arrive(next_++);
  }

 private:
  void arrive(std::int64_t layer) {
    FromOutside::await(backend_, layer);
    copy_inside(layer, 1, inside_);
  }

  /// Does nothing for none, so that a backend need not have the op where no plan has copies.
  void copy_inside(std::int64_t layer, std::int64_t num_layers,
                   VectorView<const BlockCopy> copies) {
    if (copies.empty()) return;
    backend_.run(CopyBlocksArgs<Kv>{.first_layer = pool_.layer(layer),
                                    .layer_stride = layer_stride(pool_, &Pool::layer),
                                    .num_layers = num_layers,
                                    .copies = copies});
  }

  Backend& backend_;
  Pool& pool_;
  VectorView<const BlockCopy> inside_{};  ///< of layers from next_ on
  std::int64_t next_;                     ///< the first layer whose copies are not awaited
};

}  // namespace nanovllm
