// Every kernel for matrices of integers that this machine can run, by itself, whatever
// `detail::multiply_rows` would choose: the bits are those of the kernel in standard C++.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/cpu/isa.hpp"
#include "nanovllm/cpu/quantized/linear.hpp"
#include "nanovllm/cpu/thread_pool.hpp"

using namespace nanovllm;
using cpu::ActivationGroup;
using cpu::Context;
using cpu::IntMatrix;
using cpu::Isa;

namespace {

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

std::uint32_t random_word(std::uint64_t seed, std::size_t i) {
  return philox4x32(seed, {static_cast<std::uint32_t>(i), 0, 0, 0})[0];
}

/// Codes of all values, and scales of both signs; with offsets if `is_shifted`.
template <int kBits>
IntMatrix<kBits> random_matrix(std::int64_t rows, std::int64_t cols, bool is_shifted) {
  IntMatrix<kBits> out(rows, cols);
  const auto random = [cols](std::int64_t i, std::int64_t j) {
    return random_word(7, size(i * cols + j));
  };
  IntRows stored{.rows = rows, .columns = cols, .bits = kBits, .group_columns = 32};
  stored.has_offsets = is_shifted;
  stored.read = [=](std::int64_t i, std::int8_t* codes) {
    for (std::int64_t j = 0; j < cols; ++j)
      codes[j] = static_cast<std::int8_t>(static_cast<int>(random(i, j) >> (32 - kBits)) -
                                          (1 << (kBits - 1)));
  };
  stored.group = [=](std::int64_t i, std::int64_t j) {
    const float scale = 0.01f * static_cast<float>(random(i, j) % 200) - 0.995f;
    return IntRows::Group{scale, is_shifted ? 0.3f * static_cast<float>(i % 7) : 0.f};
  };
  REQUIRE(out.set_rows(0, stored));
  return out;
}

/// Rows of x as `linear` rounds them, and one more; some groups with the largest codes there are.
std::vector<ActivationGroup> random_activations(std::int64_t n, std::int64_t groups) {
  std::vector<ActivationGroup> out(size((n + 1) * groups));
  for (std::size_t g = 0; g < size(n * groups); ++g) {
    ActivationGroup& group = out[g];
    group.sum = 0;
    for (std::size_t c = 0; c < 32; ++c) {
      const int code = static_cast<int>(random_word(9, 32 * g + c) % 255) - 127;
      group.codes[c] = static_cast<std::int8_t>(g % 5 == 3 ? 127 : g % 5 == 4 ? -127 : code);
      group.sum += group.codes[c];
    }
    group.scale = static_cast<float>(random_word(11, g) % 1000) * 0x1p-8f;
  }
  std::memset(static_cast<void*>(out.data() + n * groups), 0,
              size(groups) * sizeof(ActivationGroup));
  return out;
}

/// Calls `check(name, multiply)` for each kernel of this machine but the portable one;
/// `multiply(x, weight, y, accumulate, context)` is as detail::multiply_rows.
template <class Check>
void for_each_kernel(const Check& check) {
#define NANOVLLM_KERNEL(...) [](const auto&... args) { cpu::detail::__VA_ARGS__(args...); }
#if defined(__x86_64__)
  if (cpu::best_isa() >= Isa::avx2)
    check("avx2", NANOVLLM_KERNEL(multiply_rows<cpu::detail::Avx2Int>));
  if (cpu::detail::has_avx512_vnni())
    check("vnni", NANOVLLM_KERNEL(multiply_rows<cpu::detail::VnniInt>));
#elif defined(__aarch64__)
  const cpu::ArmFeatures features = cpu::best_arm_features();
  if (features.dotprod) check("dotprod", NANOVLLM_KERNEL(multiply_rows<cpu::detail::DotProdInt>));
  if (features.dotprod && features.i8mm)
    check("i8mm", NANOVLLM_KERNEL(multiply_rows<cpu::detail::I8mmInt>));
#endif
#undef NANOVLLM_KERNEL
}

template <int kBits>
void check_bits(std::int64_t n, const IntMatrix<kBits>& weight) {
  static cpu::ThreadPool pool(2);
  const Context context{.pool = &pool};
  const std::int64_t rows = weight.rows(), stride = rows + 3;
  const std::vector<ActivationGroup> x = random_activations(n, weight.num_groups());
  const std::vector<float> old(size(n * stride), 0.5f);
  for (const bool accumulate : {false, true}) {
    const auto run = [&, n = n](const auto& multiply) {
      std::vector<float> y = old;
      multiply(x.data(), weight, MatrixView<float>(y.data(), {n, rows}, {stride, 1}), accumulate,
               context);
      return y;
    };
    const std::vector<float> expected = run(
        [](const auto&... args) { cpu::detail::multiply_rows<cpu::detail::PortableInt>(args...); });
    for_each_kernel([&, n = n](const char* name, const auto& multiply) {
      CAPTURE(name, kBits, n, rows, weight.cols(), weight.shifts(0) != nullptr, accumulate);
      const std::vector<float> y = run(multiply);
      REQUIRE(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)) == 0);
    });
  }
}

}  // namespace

TEST_CASE("each kernel for integers has the bits of the portable one", "[quantized]") {
  for (const auto& [rows, cols] : {std::pair{1, 1}, {33, 96}, {70, 130}, {32, 512}}) {
    for (const bool is_shifted : {false, true}) {
      const IntMatrix<8> bytes = random_matrix<8>(rows, cols, is_shifted);
      const IntMatrix<4> nibbles = random_matrix<4>(rows, cols, is_shifted);
      for (const std::int64_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 31, 33}) {
        check_bits(n, bytes);
        check_bits(n, nibbles);
      }
    }
  }
}

// Whoever knows the machine, as cpu/aarch64/run_test.sh does, says what must be found.
TEST_CASE("the kernels for integers are those of the machine", "[quantized]") {
  std::string found;
  for_each_kernel([&](const char* name, const auto&) {
    found += (found.empty() ? "" : " ") + std::string(name);
  });
  CAPTURE(found);
  if (const char* const expected = std::getenv("NANOVLLM_TEST_INT_KERNELS"))
    CHECK(found == std::string(expected));
}
