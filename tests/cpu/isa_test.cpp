#include "nanovllm/cpu/isa.hpp"

#include <cstdlib>
#include <string>

#include "catch.hpp"
#include "cpu/op_test.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/cpu/backend.hpp"

using namespace nanovllm;
using cpu::Isa;

TEST_CASE("features of aarch64 are found in the words of Linux", "[isa]") {
  // AT_HWCAP and AT_HWCAP2 as Linux gives them on a Cortex-A72, and QEMU on three more.
  struct Machine {
    std::uint64_t hwcap, hwcap2;
    bool dotprod, bf16, i8mm;
    Isa isa;
  };
  for (const Machine& machine : {Machine{0x8ff, 0, false, false, false, Isa::neon},
                                 Machine{0x119ffb, 0, true, false, false, Isa::neon},
                                 Machine{0xecfffffb, 0x7f877fff, true, true, true, Isa::neon_bf16},
                                 Machine{0, 0x4000, false, true, false, Isa::neon_bf16}}) {
    CAPTURE(machine.hwcap, machine.hwcap2);
    const cpu::ArmFeatures features = cpu::arm_features(machine.hwcap, machine.hwcap2);
    CHECK(features.dotprod == machine.dotprod);
    CHECK(features.bf16 == machine.bf16);
    CHECK(features.i8mm == machine.i8mm);
    CHECK(cpu::arm_isa(features) == machine.isa);
  }
}

TEST_CASE("a machine has the instruction sets of its architecture alone", "[isa]") {
  CHECK(cpu::has(Isa::portable));
  CHECK(cpu::has(cpu::kLeastIsa));
  CHECK(cpu::has(cpu::best_isa()));
  for (const Isa isa : test::available_isas()) CHECK(cpu::has(isa));
#if defined(__aarch64__)
  CHECK(cpu::kLeastIsa == Isa::neon);
  const Isa foreign[] = {Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx};
#else
  const Isa foreign[] = {Isa::neon, Isa::neon_bf16};
#endif
  for (const Isa isa : foreign) {
    CAPTURE(name(isa));
    CHECK_FALSE(cpu::has(isa));
    CHECK_THROWS_WITH(CpuBackend({.num_threads = 1}, isa),
                      Catch::Matchers::Contains("this machine has no " + std::string(name(isa))));
  }
}

TEST_CASE("a backend is capped by the instruction set that it is given", "[isa]") {
  for (const Isa isa : test::available_isas()) {
    CpuBackend backend({.num_threads = 1}, isa);
    CHECK(backend.describe() == "cpu, 1 threads, " + std::string(name(isa)));
  }
  CHECK(CpuBackend({.num_threads = 1}, Isa::portable).describe() ==
        "cpu, 1 threads, " + std::string(name(cpu::kLeastIsa)));
}

// Whoever knows the machine, as cpu/aarch64/run_test.sh does, says what must be found.
TEST_CASE("the widest instruction set is that of the machine", "[isa]") {
  if (const char* const expected = std::getenv("NANOVLLM_TEST_ISA"))
    CHECK(name(cpu::best_isa()) == std::string(expected));
}
