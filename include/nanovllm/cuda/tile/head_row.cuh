#pragma once
/// One short row, of a head or a narrow norm, spread over a group of lanes; and the arithmetic of
/// RMSNorm and RoPE, which the single ops share with the fused one so that their bits agree.

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/reduce.cuh"
#include "nanovllm/cuda/tile/vec.cuh"

namespace nanovllm::cuda {

/// Elements of the longest row that a group of lanes holds.
inline constexpr int kMaxHeadRow = 512;

/// Σ x², in order.
template <int kCount>
__device__ __forceinline__ float sum_of_squares(const float (&x)[kCount]) {
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum = __fmaf_rn(x[i], x[i], sum);
  return sum;
}

/// 1 / sqrt(sum / width + eps), good to two units in the last place.
__device__ __forceinline__ float inverse_rms(float sum, float inverse_width, float eps) {
  return rsqrtf(__fmaf_rn(sum, inverse_width, eps));
}

/// x = round(x · inverse_rms) · weight; the product is left for the caller to round.
template <class T, int kCount>
__device__ __forceinline__ void normalise(float (&x)[kCount], float inverse_rms,
                                          const float (&weight)[kCount]) {
#pragma unroll
  for (float& v : x) v = __fmul_rn(v, inverse_rms);
  round_floats<T>(x);
#pragma unroll
  for (int i = 0; i < kCount; ++i) x[i] = __fmul_rn(x[i], weight[i]);
}

/// Cosines and sines of the angles by which RoPE turns a lane's pairs.
template <int kCount>
struct HeadAngles {
  float cosine[kCount];
  float sine[kCount];
};

/// A row of at most kMaxHeadRow elements in the registers of a group of lanes.
///
/// The row is cut in two halves, so that the pairs (j, j + width / 2) of RoPE meet in a lane. With
/// kLanes > 0, a row has 2 · kLanes vectors of 16 bytes, and lane l holds the l-th of each half.
/// With kLanes = 0 a whole warp takes a row of any width: lane l holds elements l, l + 32, … of
/// each half, the first half being the longer one of an odd width. Which of the two it is depends
/// on the element type and the width alone (`with_head_lanes`), so that sums over a row have one
/// order. kWhole promises that all rows, of elements and of angles, are whole 16-byte vectors; the
/// result is the same without.
template <Element T, int kLanes, bool kWhole>
class HeadRow {
 public:
  static constexpr int kGroup = kLanes > 0 ? kLanes : 32;                         ///< lanes a row
  static constexpr int kCount = kLanes > 0 ? kVecSize<T> : kMaxHeadRow / 2 / 32;  ///< of each half

  /// A lane's elements of a row as they lie in memory.
  struct Raw {
    std::conditional_t<(kLanes > 0), uint4, T[kCount]> half[2];
  };

  /// What this lane holds of a row of `width` elements.
  template <Load kLoad = Load::coherent>
  __device__ __forceinline__ static Raw load(const T* row, int width) {
    Raw raw{};
    if constexpr (kLanes > 0) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        raw.half[h] = load_first<kWhole, kLoad>(row + (h * kLanes + lane()) * kCount, kCount);
      }
    } else {
      for_each(width, [&](int h, int i, int j) { raw.half[h][i] = row[j]; });
    }
    return raw;
  }

  /// The counterpart of `load`.
  __device__ __forceinline__ static void store(const Raw& raw, T* row, int width) {
    if constexpr (kLanes > 0) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        store_first<kWhole>(row + (h * kLanes + lane()) * kCount, kCount, raw.half[h]);
      }
    } else {
      for_each(width, [&](int h, int i, int j) { row[j] = raw.half[h][i]; });
    }
  }

  __device__ __forceinline__ HeadRow(const Raw& raw, int width) : width_(width) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if constexpr (kLanes > 0) {
        unpack<T>(raw.half[h], x_[h]);
      } else {
#pragma unroll
        for (int i = 0; i < kCount; ++i) x_[h][i] = to_float(raw.half[h][i]);
      }
    }
  }

  /// The elements rounded to T.
  [[nodiscard]] __device__ __forceinline__ Raw rounded() const {
    Raw raw;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if constexpr (kLanes > 0) {
        raw.half[h] = pack<T>(x_[h]);
      } else {
#pragma unroll
        for (int i = 0; i < kCount; ++i) raw.half[h][i] = from_float<T>(x_[h][i]);
      }
    }
    return raw;
  }

  /// x = round(x).
  __device__ __forceinline__ void round() {
    round_floats<T>(x_[0]);
    round_floats<T>(x_[1]);
  }

  /// x = round(x + other).
  __device__ __forceinline__ void add(const HeadRow& other) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) x_[h][i] = __fadd_rn(x_[h][i], other.x_[h][i]);
    }
    round();
  }

  /// RMSNorm, left for the caller to round. All lanes of the warp take part.
  __device__ __forceinline__ void normalise(const Raw& weight, float eps) {
    const float sum = warp_sum<kGroup>(sum_of_squares(x_[0]) + sum_of_squares(x_[1]));
    const float inverse_width = kLanes > 0 ? 1.f / (2 * kLanes * kCount) : __frcp_rn(width_);
    const float inverse = inverse_rms(sum, inverse_width, eps);
    const HeadRow w(weight, width_);
#pragma unroll
    for (int h = 0; h < 2; ++h) cuda::normalise<T>(x_[h], inverse, w.x_[h]);
  }

  /// RoPE by one position's angles, left for the caller to round; the width is even.
  __device__ __forceinline__ void rotate(const HeadAngles<kCount>& angles) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float x1 = x_[0][i], x2 = x_[1][i], cosine = angles.cosine[i], sine = angles.sine[i];
      x_[0][i] = __fmaf_rn(x1, cosine, -__fmul_rn(x2, sine));
      x_[1][i] = __fmaf_rn(x2, cosine, __fmul_rn(x1, sine));
    }
  }

  /// The bits of the largest |x| of the row; of a NaN, if there is one. All lanes of the warp take
  /// part.
  [[nodiscard]] __device__ __forceinline__ std::uint32_t largest() const {
    std::uint32_t most = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (const float x : x_[h]) most = max(most, __float_as_uint(x) & 0x7fffffffu);
    }
    return warp_max<kGroup>(most);
  }

  /// Writes the row to `to`, 4-byte aligned if there are lanes, as format `F` keeps it by `scale`,
  /// and becomes what is read of it there.
  template <class F>
  __device__ __forceinline__ void quantise(float scale, typename F::Stored* to) {
    using Stored = typename F::Stored;
    const auto kept = [&](float& x) {
      const Stored out = F::quantised(scale > 0.f ? __fdiv_rn(x, scale) : 0.f);
      x = __fmul_rn(static_cast<float>(out), scale);
      return out;
    };
    if constexpr (kLanes > 0) {
      constexpr int kPerWord = 4 / static_cast<int>(sizeof(Stored));
      struct alignas(4) Word {
        Stored of[kPerWord];
      };
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        auto* const words = reinterpret_cast<Word*>(to + (h * kLanes + lane()) * kCount);
#pragma unroll
        for (int i = 0; i < kCount; i += kPerWord) {
          Word word;
#pragma unroll
          for (int j = 0; j < kPerWord; ++j) word.of[j] = kept(x_[h][i + j]);
          words[i / kPerWord] = word;
        }
      }
    } else {
      for_each(width_, [&](int h, int i, int j) { to[j] = kept(x_[h][i]); });
    }
  }

  /// The angles of the pairs that this lane holds. `cos_sin` is the position's row of the table:
  /// cosines, then sines.
  __device__ __forceinline__ static HeadAngles<kCount> load_angles(const float* cos_sin,
                                                                   int width) {
    HeadAngles<kCount> out;
    if constexpr (kLanes > 0) {
      load_run(cos_sin + lane() * kCount, out.cosine);
      load_run(cos_sin + (kLanes + lane()) * kCount, out.sine);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int j = lane() + 32 * i;
        out.cosine[i] = j < width / 2 ? cos_sin[j] : 0.f;
        out.sine[i] = j < width / 2 ? cos_sin[width / 2 + j] : 0.f;
      }
    }
    return out;
  }

 private:
  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % kGroup; }

  /// kCount consecutive floats.
  __device__ __forceinline__ static void load_run(const float* p, float (&out)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      float four[4];
      unpack<float>(load_first<kWhole>(p + i, 4), four);
#pragma unroll
      for (int j = 0; j < 4; ++j) out[i + j] = four[j];
    }
  }

  /// Calls `visit(half, i, j)` for each element j of a row without fixed lanes that this lane
  /// holds, as its i-th of the half.
  template <class Visit>
  __device__ __forceinline__ static void for_each(int width, Visit visit) {
    const int longer_half = (width + 1) / 2;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int in_half = lane() + 32 * i, j = h * longer_half + in_half;
        if (in_half < longer_half && j < width) visit(h, i, j);
      }
    }
  }

  int width_;
  float x_[2][kCount];
};

/// Calls `visit` with the template arguments (kLanes, kWhole) of rows of `width` ≤ kMaxHeadRow
/// elements: the usual sizes of attention heads have lanes of their own, all others share the
/// general layout, which knows no vectors.
template <Element T, class Visit>
void with_head_lanes(std::int64_t width, bool whole, Visit visit) {
  if (width == 128 && whole) return visit.template operator()<64 / kVecSize<T>, true>();
  if (width == 128) return visit.template operator()<64 / kVecSize<T>, false>();
  if (width == 64 && whole) return visit.template operator()<32 / kVecSize<T>, true>();
  if (width == 64) return visit.template operator()<32 / kVecSize<T>, false>();
  visit.template operator()<0, false>();
}

/// Threads of a block of the kernels whose groups of lanes take a row each.
inline constexpr int kHeadRowThreads = 128;

/// The token and the head of this thread's group, `heads` a token. There may be no such token.
struct HeadPlace {
  std::uint32_t token, head;
};
template <class Row>
__device__ __forceinline__ HeadPlace head_place(std::int64_t heads) {
  const std::uint32_t item = (blockIdx.x * kHeadRowThreads + threadIdx.x) / Row::kGroup;
  const auto count = static_cast<std::uint32_t>(heads);
  return {item / count, item % count};
}

/// Launches a kernel with a group of lanes for each of `heads` rows of `width` elements a token;
/// `kernel` gives it for the template arguments (kLanes, kWhole). Nothing where there are no
/// elements. Throws ShapeError for rows of more than kMaxHeadRow elements, and where 31 bits cannot
/// count the threads.
template <Element T, class Kernel, class... Args>
void for_head_rows(const char* op, std::int64_t tokens, std::int64_t heads, std::int64_t width,
                   bool whole, Kernel kernel, const Context& context, const Args&... args) {
  check<ShapeError>(width <= kMaxHeadRow, op, ": head_dim must be at most ", kMaxHeadRow, ", got ",
                    width);
  constexpr std::int64_t kMost = (1ll << 31) / 32;
  check<ShapeError>(tokens <= kMost && tokens * heads <= kMost, op, ": at most ", kMost,
                    " heads of all tokens, got ", tokens, " tokens of ", heads);
  if (tokens * heads * width == 0) return;
  with_head_lanes<T>(width, whole, [&]<int kLanes, bool kWhole>() {
    const std::int64_t threads = tokens * heads * HeadRow<T, kLanes, kWhole>::kGroup;
    launch(kernel.template operator()<kLanes, kWhole>(),
           {.grid = static_cast<unsigned>(ceil_div(threads, kHeadRowThreads)),
            .block = kHeadRowThreads},
           context, args...);
  });
}

}  // namespace nanovllm::cuda
