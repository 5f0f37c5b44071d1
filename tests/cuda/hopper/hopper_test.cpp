// Hopper's tables, and the choices of its kernels that follow from shapes alone.

#include "nanovllm/cuda/hopper/hopper.hpp"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "catch.hpp"

using namespace nanovllm::cuda;

namespace {
std::vector<int> range(int from, int to) {
  std::vector<int> out(static_cast<std::size_t>(to - from));
  std::iota(out.begin(), out.end(), from);
  return out;
}
}  // namespace

TEST_CASE("Start-up times the forms for some tens of rows, or those for some hundred") {
  const auto& forms = HopperTables::dense_forms;
  for (const ProductKind kind : {ProductKind::plain, ProductKind::normed, ProductKind::gated}) {
    const int mid = kMidMForms.size(kind), all = mid + kWideMForms.size(kind);
    CHECK(forms(kind, 4, 6144, 1024).empty());  // the kernels for few rows are faster
    CHECK(forms(kind, 4, 24576, 4096) == range(0, mid));
    CHECK(forms(kind, 64, 6144, 1024) == range(0, mid));
    CHECK(forms(kind, 65, 6144, 1024) == range(mid, all));
    CHECK(forms(kind, 256, 6144, 1024) == range(mid, all));
    CHECK(forms(kind, 257, 6144, 1024).empty());
  }
  CHECK(HopperTables::suits_heads(8, 4096, 1024));
  CHECK_FALSE(HopperTables::suits_heads(9, 4096, 1024));
  CHECK_FALSE(HopperTables::suits_heads(2, 24576, 4096));
}

TEST_CASE("Shares of K of the kernel for some tens of rows leave nothing out") {
  for (const ProductKind kind : {ProductKind::plain, ProductKind::normed, ProductKind::gated}) {
    for (int i = 0; i < kMidMForms.size(kind); ++i) {
      const MidMVariant form = kMidMForms.at(kind, i);
      for (std::int64_t k = 8; k <= 16384; k += 8) {
        const std::int64_t panels = mid_m_panels(2 * k, form);
        CHECK(panels % form.panels == 0);
        CHECK(panels * form.split * kMidMPanelBytes >= 2 * k);
        CHECK((panels - form.panels) * form.split * kMidMPanelBytes < 2 * k);
      }
    }
  }
  CHECK(fits_mid_m(64, 4096, 1024));
  CHECK_FALSE(fits_mid_m(65, 4096, 1024));
  CHECK(suits_mid_m(64, 6144, 1024));
  CHECK(suits_mid_m(64, 24576, 4096));
  CHECK(suits_mid_m(1, 24576, 4096));
  CHECK_FALSE(suits_mid_m(4, 6144, 1024));
  CHECK_FALSE(fits_mid_m(64, 4096, 1028));
}

TEST_CASE("Blocks of the cache that the copy engine brings are parts of a tile or whole tiles") {
  for (std::int64_t size = 1; size <= 1024; ++size) {
    const bool parts = size >= 8 && size <= 128 && (size & (size - 1)) == 0;
    CHECK(varlen_hopper_takes_block_size(size) == (parts || size % 128 == 0));
  }
  CHECK_FALSE(varlen_hopper_takes_block_size(0));
}

TEST_CASE("What the kernel of varlen attention for Hopper takes") {
  CHECK(fits_varlen_hopper(128, 64, true));
  CHECK(fits_varlen_hopper(64, 24, false));  // no key comes from the cache
  CHECK_FALSE(fits_varlen_hopper(64, 24, true));
  CHECK_FALSE(fits_varlen_hopper(96, 64, true));
}
