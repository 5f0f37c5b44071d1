#pragma once
/// Dense layer on the CPU.
///
/// Threads take pairs of weight panels (32 outputs) as they come free, so that a weight is read
/// from memory once per pass; a pass has as many rows of x as stay in a core's own cache.
///
/// A row's result does not depend on the other rows, bit for bit: every instruction set uses one
/// kernel for any number of rows and sums in ascending order of columns.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/cpu/linear_amx.hpp"
#include "nanovllm/cpu/linear_avx2.hpp"
#include "nanovllm/cpu/linear_avx512.hpp"
#include "nanovllm/cpu/linear_portable.hpp"
#include "nanovllm/cpu/linear_tile.hpp"
#include "nanovllm/cpu/packed_matrix.hpp"
#include "nanovllm/cpu/scratch.hpp"
#include "nanovllm/ops/linear.hpp"

namespace nanovllm::cpu {
namespace detail {

/// Rows of x in one pass: as many as fill about one MiB, a multiple of 32.
[[nodiscard]] inline std::int64_t rows_per_pass(std::int64_t row_bytes) {
  return align_up(
      ceil_div<std::int64_t>(std::int64_t{1} << 20, std::max<std::int64_t>(row_bytes, 1)), 32);
}

/// How `n` rows are divided into blocks of at most `kMax`, equal but for one row.
struct RowBlocks {
  std::int64_t n;
  std::int64_t count;

  [[nodiscard]] std::int64_t begin(std::int64_t block) const { return n * block / count; }
  [[nodiscard]] int rows(std::int64_t block) const {
    return static_cast<int>(begin(block + 1) - begin(block));
  }
};

/// Writes rows of x as `[operands][compiled_rows(rows)]`; missing rows and columns are zero.
template <class Operand, class T>
void interleave(const MatrixView<const T>& x, std::int64_t operands, Operand* out) {
  const auto rows = static_cast<int>(x.extent(0));
  const int stride = compiled_rows(rows);
  constexpr bool kWords = !std::is_same_v<Operand, float>;
  const std::int64_t whole = kWords ? x.extent(1) / PackedMatrix<T>::kPerWord : x.extent(1);
  for (int r = 0; r < stride; ++r) {
    if (r == rows) {
      for (std::int64_t i = 0; i < operands; ++i) out[i * stride + r] = 0;
      continue;
    }
    const T* const row = x.at(r);
    for (std::int64_t i = 0; i < whole; ++i) {
      if constexpr (kWords) {
        std::memcpy(out + i * stride + r, row + i * PackedMatrix<T>::kPerWord, sizeof(Operand));
      } else {
        out[i * stride + r] = static_cast<float>(row[i]);
      }
    }
    for (std::int64_t i = whole; i < operands; ++i) {
      Operand tail = 0;
      if constexpr (kWords) std::memcpy(&tail, row + i * PackedMatrix<T>::kPerWord, sizeof(T));
      out[i * stride + r] = tail;
    }
  }
}

/// `linear` with one of the interleaving kernel families.
template <class Family, class T, class Out>
void linear_interleaved(const LinearArgs<T, PackedMatrix<T>, Out>& args, const Context& context) {
  using Operand = typename Family::Operand;
  const PackedMatrix<T>& weight = *args.weight;
  const std::int64_t n = args.x.extent(0);
  const std::int64_t operands =
      weight.num_words() * (std::is_same_v<Operand, float> ? PackedMatrix<T>::kPerWord : 1);
  const RowBlocks blocks{n, ceil_div<std::int64_t>(n, Family::kMaxRows)};
  const std::int64_t block_size = operands * Family::kMaxRows;
  Operand* const x = scratch<Family, Operand>(blocks.count * block_size);
  share(context, blocks.count, 2, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      interleave(args.x.slice(blocks.begin(b), blocks.begin(b + 1)), operands, x + b * block_size);
    }
  });
  share_panels(context, weight, [&](PanelQueue<T>& queue) {
    Tile tile;
    queue.drain([&](const Panel<T>& panel, std::int64_t first) {
      const auto cols = static_cast<int>(std::min<std::int64_t>(kPanelRows, weight.rows() - first));
      for (std::int64_t b = 0; b < blocks.count; ++b) {
        const int rows = blocks.rows(b);
        Family::multiply(rows, x + b * block_size, panel, tile);
        Family::store(tile, rows, cols, args.y.at(blocks.begin(b), first), args.y.strides[0],
                      args.accumulate);
      }
    });
  });
}

#if defined(__x86_64__)
/// `linear` with AMX, on x as it is unless its rows end within a tile.
template <class Out>
void linear_tiles(const LinearArgs<bf16, PackedMatrix<bf16>, Out>& args, const Context& context) {
  const PackedMatrix<bf16>& weight = *args.weight;
  AmxLinear<Out> op{args.x.data,       args.x.strides[0], args.y.data,
                    args.y.strides[0], args.x.extent(0),  args.accumulate};
  const std::int64_t cols = weight.cols(), padded = align_up(cols, PackedMatrix<bf16>::kTileCols);
  if (padded != cols) {
    bf16* const copy = scratch<AmxConfig, bf16>(op.rows * padded);
    for (std::int64_t r = 0; r < op.rows; ++r) {
      std::copy_n(args.x.at(r), cols, copy + r * padded);
      std::fill(copy + r * padded + cols, copy + (r + 1) * padded, bf16(0.0f));
    }
    op.x = copy;
    op.x_stride = padded;
  }
  share_panels(context, weight, [&](PanelQueue<bf16>& queue) {
    op.configure();
    queue.drain([&](const Panel<bf16>& panel, std::int64_t first) {
      const auto width = std::min<std::int64_t>(kPanelRows, weight.rows() - first);
      op.multiply(panel, first, static_cast<int>(width));
    });
    amx_release();
  });
}
#endif

template <class T, class Out>
void linear_pass(const LinearArgs<T, PackedMatrix<T>, Out>& args, const Context& context) {
#if defined(__x86_64__)
  if constexpr (std::is_same_v<T, bf16>) {
    if (context.isa >= Isa::amx) return linear_tiles(args, context);
    if (context.isa >= Isa::avx512_bf16) return linear_interleaved<Avx512Bf16Linear>(args, context);
  }
  if (context.isa >= Isa::avx512) return linear_interleaved<Avx512Linear>(args, context);
  if (context.isa >= Isa::avx2) return linear_interleaved<Avx2Linear>(args, context);
#endif
  linear_interleaved<PortableLinear>(args, context);
}

}  // namespace detail

template <Element T, class Out>
void linear(const LinearArgs<T, PackedMatrix<T>, Out>& args, const Context& context) {
  validate(args);
  const std::int64_t n = args.x.extent(0),
                     step = detail::rows_per_pass(args.x.extent(1) *
                                                  static_cast<std::int64_t>(sizeof(T)));
  for (std::int64_t begin = 0; begin < n; begin += step) {
    auto pass = args;
    const std::int64_t end = std::min(begin + step, n);
    pass.x = args.x.slice(begin, end);
    pass.y = args.y.slice(begin, end);
    detail::linear_pass(pass, context);
  }
}

}  // namespace nanovllm::cpu
