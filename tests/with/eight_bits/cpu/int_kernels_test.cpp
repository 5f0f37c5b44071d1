// Every kernel for matrices of integers that this machine can run, by itself, whatever
// `detail::multiply_rows` would choose: the bits are those of the kernel in standard C++.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "catch.hpp"
#include "nanovllm/cpu/isa.hpp"
#include "nanovllm/with/eight_bits/cpu/linear.hpp"
#include "with/eight_bits/cpu/int_products.hpp"

using namespace nanovllm;
using cpu::Isa;

namespace {

/// Calls `check(name, multiply)` for each kernel of this machine but the portable one and that for
/// tiles; `multiply(x, weight, y, accumulate, context)` is as detail::multiply_rows.
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

}  // namespace

TEST_CASE("each kernel for integers has the bits of the portable one", "[quantized]") {
  test::for_each_product({1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 31, 33}, [](const auto& product) {
    for_each_kernel(
        [&](const char* name, const auto& multiply) { product.check_bits(name, multiply); });
  });
}

TEST_CASE("tile products of bytes have the bits of the portable kernel", "[quantized]") {
#if defined(__x86_64__)
  if (cpu::detail::has_amx_int8()) {
    return test::for_each_product({16, 17, 31, 32, 33, 64, 100}, [](const auto& product) {
      product.check_bits("amx", [](const auto&... args) { cpu::detail::multiply_tiles(args...); });
    });
  }
#endif
  std::puts("skipped: this CPU has no AMX-INT8");
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

// Milliseconds of one thread for a matrix of Qwen3-0.6B, the least of several times in turn.
TEST_CASE("time of the kernels for integers", "[.][timing]") {
  const auto weight = test::random_matrix<8>(3072, 1024, false);
  for (const std::int64_t n : {1, 8, 16, 32, 64, 512}) {
    const std::vector<cpu::ActivationGroup> x = test::random_activations(n, weight.num_groups());
    std::vector<float> y(static_cast<std::size_t>(n * weight.rows()));
    const auto time = [&](const char* name, const auto& multiply) {
      double least = 1e9;
      for (int i = 0; i < 20; ++i) {
        const auto start = std::chrono::steady_clock::now();
        multiply(x.data(), weight, MatrixView<float>(y.data(), {n, weight.rows()}), false,
                 cpu::Context{});
        const std::chrono::duration<double, std::milli> passed =
            std::chrono::steady_clock::now() - start;
        least = std::min(least, passed.count());
      }
      std::printf("%3d rows, %s: %.3f ms\n", static_cast<int>(n), name, least);
    };
    for_each_kernel(time);
#if defined(__x86_64__)
    if (cpu::detail::has_amx_int8() && n >= cpu::detail::AmxInt::kRows)
      time("amx", [](const auto&... args) { cpu::detail::multiply_tiles(args...); });
#endif
  }
}
