#pragma once
/// What writes the paged cache on the CPU: `kv_store` and `copy_blocks`. Contracts:
/// ops/kv_store.hpp and ops/copy_blocks.hpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/ops/copy_blocks.hpp"
#include "nanovllm/ops/kv_store.hpp"

namespace nanovllm::cpu {

namespace detail {

/// Throws ShapeError for a slot outside the cache.
template <class Kv>
void check_slots(const char* op, VectorView<const Slot> slots, const KvView<Kv>& kv) {
  const Slot end = kv.num_blocks * kv.block_size;
  for (std::int64_t i = 0; i < slots.extent(0); ++i) {
    check<ShapeError>(slots.data[i] >= kNoSlot && slots.data[i] < end, op, ": slot ", i,
                      " must be in [0, ", end, ") or -1, got ", slots.data[i]);
  }
}

/// Stores a row of T as row `index` of the keys of `head`, or of its values for `head` +
/// num_kv_heads.
template <class T, class Kv>
void store_row(const KvView<Kv>& kv, const T* from, BlockId block, std::int64_t head,
               std::int64_t index) {
  KvStored<Kv>* const tile = kv.k(block, head);
  KvStored<Kv>* const to = tile + index * kv.head_dim;
  if constexpr (FixedScaleKvFormat<Kv>) {
    kv.scales(tile)[index] = Kv::store(from, kv.head_dim, to, kv.fixed_scale(head));
  } else if constexpr (ScaledKvFormat<Kv>) {
    kv.scales(tile)[index] = Kv::store(from, kv.head_dim, to);
  } else if constexpr (std::is_same_v<T, Kv>) {
    std::copy_n(from, kv.head_dim, to);
  } else {
    std::transform(from, from + kv.head_dim, to, [](T x) { return Kv(static_cast<float>(x)); });
  }
}

/// Copies one token's heads to its slot.
template <class T, class Kv>
void store_token(const KvStoreArgs<T, Kv>& args, std::int64_t token) {
  const Slot slot = args.slots.data[token];
  if (slot == kNoSlot) return;
  const KvView<Kv>& kv = args.kv;
  const auto block = static_cast<BlockId>(slot / kv.block_size);
  const std::int64_t index = slot % kv.block_size;
  for (std::int64_t head = 0; head < kv.num_kv_heads; ++head) {
    store_row(kv, args.k.at(token, head), block, head, index);
    store_row(kv, args.v.at(token, head), block, kv.num_kv_heads + head, index);
  }
}

}  // namespace detail

/// Also throws ShapeError for a slot outside the cache.
template <Element T, KvFormat Kv>
void kv_store(const KvStoreArgs<T, Kv>& args, const Context& context) {
  validate(args);
  detail::check_slots("kv_store", args.slots, args.kv);
  context.pool->parallel_for(args.k.extent(0), kRowGrain,
                             [&](std::int64_t begin, std::int64_t end, int) {
                               for (std::int64_t token = begin; token < end; ++token)
                                 detail::store_token(args, token);
                             });
}

template <Element T, KvFormat Kv>
void run_op(const KvStoreArgs<T, Kv>& args, Context& context) {
  kv_store(args, context);
}

/// Also throws ShapeError for copies that the contract rules out.
template <KvFormat Kv>
void copy_blocks(const CopyBlocksArgs<Kv>& args, const Context& context) {
  validate(args);
  const std::int64_t n = args.copies.extent(0);
  check_block_copies({args.copies.data, static_cast<std::size_t>(n)}, args.first_layer.num_blocks);
  const std::int64_t size = args.first_layer.block_stride();
  context.pool->parallel_for(
      n * args.num_layers, 1, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t i = begin; i < end; ++i) {
          const BlockCopy copy = args.copies.data[i % n];
          auto* const layer = args.first_layer.data + i / n * args.layer_stride;
          std::copy_n(layer + copy.from * size, size, layer + copy.to * size);
        }
      });
}

template <KvFormat Kv>
void run_op(const CopyBlocksArgs<Kv>& args, Context& context) {
  copy_blocks(args, context);
}

}  // namespace nanovllm::cpu
