#pragma once
/// Hopper's tables: which forms of its own kernels start-up times. For the host; nothing here needs
/// CUDA.

#include <cstdint>
#include <vector>

#include "nanovllm/cuda/architecture.hpp"
#include "nanovllm/cuda/hopper/linear/mid_m/tuning.hpp"
#include "nanovllm/cuda/hopper/linear/tuning.hpp"
#include "nanovllm/cuda/hopper/linear/wide_m/tuning.hpp"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/runtime/device_features.hpp"

namespace nanovllm::cuda {

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
