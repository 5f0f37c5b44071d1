#pragma once
/// Dense layer on the CPU.
///
/// Threads take ranges of weight panels (32 outputs) as they come free, so that a weight is read
/// from memory once per pass; a pass has as many rows of x as stay in a core's own cache.
///
/// A row's result does not depend on the other rows, bit for bit: every instruction set uses one
/// kernel for any number of rows and sums in an order that depends on the columns alone.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/cpu/aligned_buffer.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/cpu/linear/linear_amx.hpp"
#include "nanovllm/cpu/linear/linear_avx2.hpp"
#include "nanovllm/cpu/linear/linear_avx512.hpp"
#include "nanovllm/cpu/linear/linear_neon.hpp"
#include "nanovllm/cpu/linear/linear_tile.hpp"
#include "nanovllm/cpu/linear/packed_matrix.hpp"
#include "nanovllm/ops/linear.hpp"

namespace nanovllm::cpu {
namespace detail {

/// Rows of x in one pass: as many as fill about one MiB, a multiple of 32.
[[nodiscard]] inline std::int64_t rows_per_pass(std::int64_t row_bytes) {
  return align_up(
      ceil_div<std::int64_t>(std::int64_t{1} << 20, std::max<std::int64_t>(row_bytes, 1)), 32);
}

/// `n` rows in `count` blocks whose sizes differ by at most one row.
struct RowBlocks {
  std::int64_t n;
  std::int64_t count;

  [[nodiscard]] std::int64_t begin(std::int64_t block) const { return n * block / count; }
  [[nodiscard]] int rows(std::int64_t block) const {
    return static_cast<int>(begin(block + 1) - begin(block));
  }
};

/// Writes rows of x as `[operands][compiled_rows(rows)]`; missing rows and columns are zero. An
/// operand that is no float is a word of two elements.
template <class Operand, class T>
void interleave(const MatrixView<const T>& x, std::int64_t operands, Operand* out) {
  constexpr int kPerOperand = std::is_same_v<Operand, float> ? 1 : PackedMatrix<T>::kPerWord;
  const auto rows = static_cast<int>(x.extent(0));
  const int stride = compiled_rows(rows);
  const std::int64_t whole = x.extent(1) / kPerOperand, rest = x.extent(1) % kPerOperand;
  if (rows < stride || whole < operands) std::fill_n(out, operands * stride, Operand{});
  for (int r = 0; r < rows; ++r) {
    const T* const row = x.at(r);
    for (std::int64_t i = 0; i < whole; ++i) {
      if constexpr (kPerOperand == 1) {
        out[i * stride + r] = static_cast<Operand>(row[i]);
      } else {
        std::memcpy(out + i * stride + r, row + i * kPerOperand, sizeof(Operand));
      }
    }
    if (rest != 0) std::memcpy(out + whole * stride + r, row + whole * kPerOperand, sizeof(T));
  }
}

/// Columns whose products are summed in one chain, where activations or weights are float32: chains
/// are kept short and their sums added up, which costs a few percent and makes the rounding error
/// of a long row several times smaller; in 16 bits the rounding of the result hides it.
inline constexpr std::int64_t kChainColumns = 64;

/// Words of weights in a chain.
template <class T, class W>
[[nodiscard]] constexpr std::int64_t chain_words() {
  return std::is_same_v<T, float> || std::is_same_v<W, float>
             ? kChainColumns / PackedMatrix<W>::kPerWord
             : std::numeric_limits<std::int64_t>::max();
}

/// tile[r][c] = Σ_k x[r][k] · w[c][k], `kWords` words to a chain. `x` is interleaved.
template <class Family, std::int64_t kWords, class W, class Operand>
void multiply_chains(int rows, const Operand* x, const Panel<W>& panel, std::int64_t operands,
                     Tile& tile) {
  if (panel.words <= kWords) return Family::multiply(rows, x, panel, tile);
  const std::int64_t word_operands = operands / panel.words * compiled_rows(rows);
  Tile part;
  for (std::int64_t word = 0; word < panel.words; word += kWords) {
    Panel<W> chain = panel;
    chain.data += word * kPanelRows * PackedMatrix<W>::kPerWord;
    chain.words = std::min(kWords, panel.words - word);
    Family::multiply(rows, x + word * word_operands, chain, word == 0 ? tile : part);
    if (word == 0) continue;
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < kPanelRows; ++c) tile.values[r][c] += part.values[r][c];
    }
  }
}

/// `linear` with one of the interleaving kernel families.
template <class Family, class T, class W, class Out>
void linear_interleaved(const LinearArgs<T, PackedMatrix<W>, Out>& args, const Context& context) {
  using Operand = typename Family::Operand;
  const PackedMatrix<W>& weight = *args.weight;
  const std::int64_t n = args.x.extent(0);
  const std::int64_t operands =
      weight.num_words() * (std::is_same_v<Operand, float> ? PackedMatrix<W>::kPerWord : 1);
  const RowBlocks blocks{n, ceil_div<std::int64_t>(n, Family::kMaxRows)};
  const std::int64_t block_size = operands * Family::kMaxRows;
  Operand* const x = scratch<Family, Operand>(blocks.count * block_size);
  share(context, blocks.count, 2, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      interleave(args.x.slice(blocks.begin(b), blocks.begin(b + 1)), operands, x + b * block_size);
    }
  });
  share_queue(context, weight.num_panels(), [&](IndexQueue& queue) {
    Tile tile;
    drain_panels(queue, weight, [&](const Panel<W>& panel, std::int64_t first) {
      const auto cols = static_cast<int>(std::min<std::int64_t>(kPanelRows, weight.rows() - first));
      for (std::int64_t b = 0; b < blocks.count; ++b) {
        const int rows = blocks.rows(b);
        multiply_chains<Family, chain_words<T, W>()>(rows, x + b * block_size, panel, operands,
                                                     tile);
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
  share_queue(context, weight.num_panels(), [&](IndexQueue& queue) {
    op.configure();
    drain_panels(queue, weight, [&](const Panel<bf16>& panel, std::int64_t first) {
      const auto width = std::min<std::int64_t>(kPanelRows, weight.rows() - first);
      op.multiply(panel, first, static_cast<int>(width));
    });
    amx_release();
  });
}
#endif

/// `linear` for one pass of rows, with the widest kernels that `isa` has for these types.
template <class T, class W, class Out>
void linear_pass(const LinearArgs<T, PackedMatrix<W>, Out>& args, const Context& context,
                 [[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if constexpr (std::is_same_v<T, bf16> && std::is_same_v<W, bf16>) {
    if (isa >= Isa::amx) return linear_tiles(args, context);
    if (isa >= Isa::avx512_bf16) return linear_interleaved<Avx512Bf16Linear>(args, context);
  }
  if constexpr (kLeastIsa >= Isa::avx512) {
    return linear_interleaved<Avx512Linear>(args, context);
  } else {
    if (isa >= Isa::avx512) return linear_interleaved<Avx512Linear>(args, context);
  }
  if constexpr (kLeastIsa == Isa::avx2) {
    return linear_interleaved<Avx2Linear>(args, context);
  } else if constexpr (kLeastIsa == Isa::portable) {
    if (isa >= Isa::avx2) return linear_interleaved<Avx2Linear>(args, context);
  }
#elif defined(__aarch64__)
  if constexpr (std::is_same_v<T, bf16> && std::is_same_v<W, bf16>) {
    if (isa >= Isa::neon_bf16) return linear_interleaved<NeonBf16Linear>(args, context);
  }
  return linear_interleaved<NeonLinear>(args, context);
#endif
  if constexpr (kLeastIsa == Isa::portable) linear_interleaved<PortableLinear>(args, context);
}

}  // namespace detail

/// Contract: ops/linear.hpp. `Out` is T or float. With x and weights of different types the result
/// is, bit for bit, that of float32 weights of the same values. x and y may have any alignment, but
/// must not overlap. A `context.isa` that the machine lacks counts as the widest that it has. The
/// bf16 instructions flush denormals to zero. Keeps scratch of at most a few MiB in the calling
/// thread.
template <Element T, Element W, Element Out>
void linear(const LinearArgs<T, PackedMatrix<W>, Out>& args, const Context& context) {
  check<ShapeError>(args.weight != nullptr, "linear: no weight given");
  validate(args);
  if (args.weight->rows() == 0) return;
  const Isa isa = has(context.isa) ? context.isa : best_isa();
  const std::int64_t n = args.x.extent(0);
  const std::int64_t row_bytes = args.x.extent(1) * static_cast<std::int64_t>(sizeof(T));
  const std::int64_t step = detail::rows_per_pass(row_bytes);
  for (std::int64_t begin = 0; begin < n; begin += step) {
    LinearArgs<T, PackedMatrix<W>, Out> pass = args;
    pass.x = args.x.slice(begin, std::min(begin + step, n));
    pass.y = args.y.slice(begin, std::min(begin + step, n));
    detail::linear_pass(pass, context, isa);
  }
}

template <Element T, Element W, Element Out>
void run_op(const LinearArgs<T, PackedMatrix<W>, Out>& args, Context& context) {
  linear(args, context);
}

NANOVLLM_COMPILED_TEMPLATE(void linear(const LinearArgs<float, PackedMatrix<float>, float>&,
                                       const Context&))
NANOVLLM_COMPILED_TEMPLATE(void linear(const LinearArgs<bf16, PackedMatrix<bf16>, bf16>&,
                                       const Context&))
NANOVLLM_COMPILED_TEMPLATE(void linear(const LinearArgs<bf16, PackedMatrix<bf16>, float>&,
                                       const Context&))

}  // namespace nanovllm::cpu
