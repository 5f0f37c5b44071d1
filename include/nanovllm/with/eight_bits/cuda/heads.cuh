#pragma once
/// `project_qkv` of up to 8 rows by 8-bit weights in one kernel, where the device's architecture
/// has one. The bits are those of `fp8_few_rows` and `qk_norm_rope_store` in sequence.

#include <cstddef>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/linear/weight_rows.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/ops/project_qkv.hpp"
#include "nanovllm/with/eight_bits/cuda/few_rows.cuh"
#include "nanovllm/with/eight_bits/cuda/few_rows_kernel.cuh"
#include "nanovllm/with/eight_bits/cuda/matrix.cuh"

namespace nanovllm::cuda {
namespace detail {

/// The products of `fp8_few_rows` for an architecture's kernel of the heads.
template <int kWarps>
struct Fp8HeadProducts {
  using Block = Fp8FewRowsBlock<kWarps, 1, 1, true, WeightRows::heads>;
  using Operands = Fp8FewRowsOperands;
  static constexpr int kThreads = Block::kThreads, kColumns = Block::kColumns;
  static constexpr int kBlocksPerSm = Block::kBlocksPerSm;

  template <class LoadAhead>
  static __device__ __forceinline__ Fp8FewRowsSums<Block> run(const Operands& p, int first,
                                                              uint4* shared,
                                                              const LoadAhead& load_ahead) {
    return fp8_few_rows_products<Block>(p, first, shared, load_ahead);
  }
  [[nodiscard]] static std::size_t shared_bytes(const Operands&) {
    return static_cast<std::size_t>(Block::kSharedBytes);
  }
  [[nodiscard]] static int shared_percent(const Operands&) { return -1; }
};

}  // namespace detail

/// Whether m rows by W [n, k] take less time in one kernel than by their parts. By small weights
/// the exchange between its blocks costs more than a kernel for the heads, which begins early
/// (`cuda_fp8_linear_bench`, one H200).
[[nodiscard]] constexpr bool suits_fp8_heads(std::int64_t m, std::int64_t n, std::int64_t k) {
  return m <= 4 && n * k > 10'000'000;
}

/// Enqueues all of the op; the next kernel may start once those ahead of this one are done. False,
/// with nothing enqueued, where `Architectures` has no such kernel for the device, or for more than
/// 8 rows, no norm of x, or a head_dim that it does not take.
template <class Architectures, KvFormat Kv>
[[nodiscard]] bool fp8_project_heads(const ProjectQkvArgs<bf16, Fp8Matrix, Kv, bf16>& args,
                                     const Context& context) {
  if (!args.norm) return false;
  const Fp8Layer layer{
      .x = args.x, .norm = args.norm, .weight = args.weight->view(), .y = args.qkv};
  auto p = detail::fp8_few_rows_operands(layer);
  p.pair_rows = static_cast<std::int32_t>(args.kv.head_dim / 2);
  return Architectures::choose(context, [&](auto native) {
    using Products8 = detail::Fp8HeadProducts<8>;
    using Products4 = detail::Fp8HeadProducts<4>;
    return detail::fp8_few_rows_has_8_warps<typename Products8::Block>(p.n, context)
               ? native.template project_heads<Products8>(p, args, context)
               : native.template project_heads<Products4>(p, args, context);
  });
}

}  // namespace nanovllm::cuda
