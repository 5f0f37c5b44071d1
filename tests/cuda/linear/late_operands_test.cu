// Dense kernels start while the one ahead is still at work. Here that one comes late: it looks at y,
// where nobody may have written yet, and only then writes x and what is added to. The result has the
// bits of a call after nothing.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "cuda/product.cuh"
#include "cuda/spend_time.cuh"
#include "nanovllm/with/batch_invariant/hopper/linear.cuh"

namespace nanovllm::test {
namespace {

struct Copy {
  const bf16* from;
  bf16* to;
  int size;
};

__device__ void copy_elements(const Copy& copy) {
  for (int i = static_cast<int>(threadIdx.x); i < copy.size; i += static_cast<int>(blockDim.x))
    copy.to[i] = copy.from[i];
}

/// Takes a fifth of a millisecond, and then copies, by one block.
__global__ void come_late_kernel(Copy look, Copy x, Copy y) {
  cuda::grid_dependency_launch();
  cuda::grid_dependency_wait();
  spend_time(200'000);
  copy_elements(look);
  __syncthreads();
  copy_elements(x);
  copy_elements(y);
}

/// Runs `op`, a product of `p` of one kernel, after nothing and after a kernel that comes late.
template <class Op>
void check_behind_late(const Gpu& gpu, Product& p, const Op& op) {
  static const auto copy = [](GpuArray<bf16>& from, GpuArray<bf16>& to) {
    return Copy{from.data(), to.data(), static_cast<int>(from.size())};
  };
  GpuArray<bf16> x(p.x.host), seen(p.y.size());
  auto old = GpuArray<bf16>::random(p.y.size(), 9);
  std::copy(old.host.begin(), old.host.end(), p.y.host.begin());
  p.x.upload();
  p.y.upload();
  op();
  gpu.sync();
  p.y.download();
  const std::vector<bf16> expected = p.y.host;

  poison(p.x.data(), static_cast<std::int64_t>(p.x.size()), gpu.context);
  poison(p.y.data(), static_cast<std::int64_t>(p.y.size()), gpu.context);
  gpu.sync();
  cuda::launch(come_late_kernel, {.grid = 1, .block = 512}, gpu.context, copy(p.y, seen),
               copy(x, p.x), copy(old, p.y));
  op();
  gpu.sync();
  seen.download();
  p.y.download();
  const auto is_poison = [](const bf16& value) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    return bits == 0xffff;
  };
  CHECK(std::all_of(seen.host.begin(), seen.host.end(), is_poison));
  CHECK(std::memcmp(p.y.host.data(), expected.data(), expected.size() * sizeof(bf16)) == 0);
  CHECK(p.y.guards_intact());
}

// Blocks that all fit beside the one that comes late.
constexpr std::int64_t kOut = 88, kIn = 1024;

}  // namespace

TEST_CASE("products of few rows after a kernel that comes late", "[late]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.context.can_overlap) return;
  for (const std::int64_t m : {1, 5, 13}) {
    Product p(m, kOut, kIn);
    for (const bool has_norm : {false, true}) {
      for (const bool accumulate : {false, true}) {
        CAPTURE(m, has_norm, accumulate);
        check_behind_late(gpu, p, [&] {
          REQUIRE(cuda::small_m_linear(p.layer(false, has_norm, accumulate), 4, gpu.context));
        });
      }
      check_behind_late(
          gpu, p, [&] { REQUIRE(cuda::small_m_linear(p.layer(true, has_norm), 4, gpu.context)); });
    }
  }
}

TEST_CASE("products of some tens and hundreds of rows after a kernel that comes late", "[late]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  cuda::TensorMaps maps;
  Product tens(33, kOut, kIn), hundreds(100, kOut, kIn);
  for (const cuda::ProductKind kind : kProductKinds) {
    for (const bool accumulate : {false, true}) {
      if (accumulate && kind == cuda::ProductKind::gated) continue;
      for (int form = 0; form < cuda::kMidMForms.size(kind); ++form) {
        CAPTURE(static_cast<int>(kind), accumulate, form);
        check_behind_late(gpu, tens, [&] {
          REQUIRE(cuda::mid_m_linear(tens.layer(kind, accumulate), form, maps, gpu.context));
        });
      }
      for (int form = 0; form < cuda::kWideMForms.size(kind); ++form) {
        CAPTURE(static_cast<int>(kind), accumulate, form);
        check_behind_late(gpu, hundreds, [&] {
          REQUIRE(cuda::wide_m_linear(hundreds.layer(kind, accumulate), form, maps, gpu.context));
        });
      }
    }
  }
}

TEST_CASE("products in one order after a kernel that comes late", "[late]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  cuda::TensorMaps maps;
  for (const std::int64_t m : {4, 70}) {
    Product p(m, kOut, kIn);
    for (const cuda::BatchInvariantBlock block : cuda::kBatchInvariantBlocks) {
      CAPTURE(m, block.rows, block.tokens, block.panels);
      for (const bool accumulate : {false, true}) {
        check_behind_late(gpu, p, [&] {
          cuda::batch_invariant_linear(p.rows(), p.matrix(false), p.out(), accumulate, block, maps,
                                       gpu.context);
        });
      }
    }
  }
}

}  // namespace nanovllm::test
