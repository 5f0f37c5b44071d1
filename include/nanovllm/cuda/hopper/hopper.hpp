#pragma once
/// Hopper's tables: what its kernels take, the forms that they are compiled in, and which of these
/// start-up times. For the host; nothing here needs CUDA.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "nanovllm/cuda/architecture.hpp"
#include "nanovllm/cuda/hopper/linear/mid_m/tuning.hpp"
#include "nanovllm/cuda/linear/small_m/tuning.hpp"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/runtime/device_features.hpp"

namespace nanovllm::cuda {

/// Where the kernel of `varlen_attention` for Hopper reads keys and values.
enum class VarlenSource : std::uint8_t {
  step,   ///< from this step's k and v, which hold all there are
  mixed,  ///< each sequence as `varlen_new_from` says
};

/// Whether the copy engine can bring tiles of 128 keys from blocks of this size.
[[nodiscard]] constexpr bool varlen_hopper_takes_block_size(std::int64_t block_size) {
  return block_size % 128 == 0 ? block_size > 0 : block_size >= 8 && 128 % block_size == 0;
}

/// Whether that kernel takes these shapes. `converts`: of a cache in 8 bits.
[[nodiscard]] constexpr bool fits_varlen_hopper(std::int64_t head_dim, std::int64_t block_size,
                                                bool has_prefix, bool converts = false) {
  const bool takes_blocks = converts ? block_size > 0 && block_size % 16 == 0
                                     : varlen_hopper_takes_block_size(block_size);
  return (head_dim == 64 || head_dim == 128) && (!has_prefix || takes_blocks);
}

/// Most rows of x that `small_m_project_qkv` takes. With 16, what its threads hold for the heads
/// costs the products more than a kernel of the heads takes.
inline constexpr std::int64_t kMaxSmallMHeadRows = 8;
static_assert(kMaxSmallMHeadRows <= kMaxFusedHeadRows);

/// Whether start-up should try `small_m_project_qkv`: by large weights it gains nothing.
[[nodiscard]] constexpr bool suits_small_m_heads(std::int64_t m, std::int64_t n, std::int64_t k) {
  return m <= kMaxSmallMHeadRows && suits_small_m(m, n, k);
}

/// How a block of `wide_m_linear` is cut.
struct WideMBlock {
  int rows;    ///< of W; half of them gates and half ups in a gated product
  int split;   ///< blocks that share K
  int stages;  ///< of the ring
};

/// All there are.
inline constexpr WideMBlock kWideMBlocks[] = {{64, 2, 6}, {64, 2, 10}, {32, 2, 8}};
inline constexpr WideMBlock kWideMNormedBlocks[] = {{64, 1, 6}, {96, 1, 5}, {128, 1, 4}};
inline constexpr WideMBlock kWideMGatedBlocks[] = {{96, 1, 5}, {96, 1, 4}};

inline constexpr ProductForms<WideMBlock> kWideMForms{
    .plain = kWideMBlocks, .normed = kWideMNormedBlocks, .gated = kWideMGatedBlocks};

/// Rows of x among which start-up tries `wide_m_linear`.
inline constexpr std::int64_t kMinWideMRows = 65;
inline constexpr std::int64_t kMaxWideMRows = 256;

[[nodiscard]] constexpr bool suits_wide_m_rows(std::int64_t m) {
  return m >= kMinWideMRows && m <= kMaxWideMRows;
}

/// Whether `wide_m_linear` does m rows of x by W, to n columns of y, as far as the extents go.
[[nodiscard]] constexpr bool fits_wide_m(std::int64_t m, std::int64_t n, std::int64_t k) {
  return m >= 1 && n >= 1 && k >= 8 && n % 4 == 0 && k % 8 == 0 &&
         std::max({2 * n, k, m}) <= kMaxLinearExtent;
}

/// Compute capability 9.0 with code for sm_90a: wgmma, copy engine, clusters.
struct HopperTables : OtherDevices {
  static constexpr const char* kName = "Hopper";
  static constexpr const char* kCode = "90a";
  static constexpr bool kKeepsOrder = true;

  [[nodiscard]] static constexpr bool is(const DeviceFeatures& device) {
    return device.compute_capability == 90;
  }
  [[nodiscard]] static constexpr bool has_code(const DeviceFeatures& device) {
    return device.native_code == 90;
  }

  /// Forms of `mid_m/`, then those of `wide_m/`.
  [[nodiscard]] static std::vector<int> dense_forms(ProductKind kind, std::int64_t m,
                                                    std::int64_t n, std::int64_t k) {
    std::vector<int> out;
    const int num_mid = kMidMForms.size(kind);
    for (int form = 0; form < num_mid; ++form) {
      if (suits_mid_m(m, n, k)) out.push_back(form);
    }
    for (int form = 0; form < kWideMForms.size(kind); ++form) {
      if (suits_wide_m_rows(m)) out.push_back(num_mid + form);
    }
    return out;
  }
  [[nodiscard]] static constexpr bool suits_heads(std::int64_t m, std::int64_t n, std::int64_t k) {
    return suits_small_m_heads(m, n, k);
  }
};

static_assert(kMaxMidMRows <= kMaxFusedRows && kMaxWideMRows <= kMaxFusedRows);

}  // namespace nanovllm::cuda
