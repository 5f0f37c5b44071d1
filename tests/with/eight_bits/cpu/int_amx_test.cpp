// The kernel for tiles with AMX's instructions in C++, on CPUs that have AVX-512 VNNI but no AMX.
// On a CPU that has AMX, int_kernels_test.cpp runs it as it is.

#include "with/eight_bits/cpu/emulated_tiles.hpp"
// The instructions come first.
#include "nanovllm/with/eight_bits/cpu/int_amx.hpp"

#include <cstdio>

#include "catch.hpp"
#include "nanovllm/with/eight_bits/cpu/linear.hpp"
#include "with/eight_bits/cpu/int_products.hpp"

using namespace nanovllm;

TEST_CASE("emulated tile products of bytes have the bits of the portable kernel", "[quantized]") {
#if defined(__x86_64__)
  if (cpu::detail::has_avx512_vnni()) {
    return test::for_each_product({16, 17, 31, 32, 33, 100}, [](const auto& product) {
      product.check_bits("amx", [](const auto&... args) { cpu::detail::multiply_tiles(args...); });
    });
  }
#endif
  std::puts("skipped: this CPU has no AVX-512 VNNI");
}
