// Benchmarks of the CPU backend's ops. Beside Google Benchmark's flags:
//   --isa=portable|avx2|avx512|avx512_bf16|amx   instruction set (default: the machine's widest)
//   --threads=N                                  threads (default: all)
// Every benchmark reports its rate beside the machine's ceiling, probed around it; on a machine
// that others use too, ask for --benchmark_repetitions and read the medians.

#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "ceilings.hpp"
#include "options.hpp"

namespace {

using nanovllm::cpu::Isa;

bool parse(std::string_view argument) {
  constexpr std::string_view kIsa = "--isa=", kThreads = "--threads=";
  if (argument.substr(0, kThreads.size()) == kThreads) {
    cpu_ops::options().num_threads = std::atoi(argument.substr(kThreads.size()).data());
    return true;
  }
  if (argument.substr(0, kIsa.size()) != kIsa) return false;
  for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx, Isa::neon,
                  Isa::neon_bf16}) {
    if (argument.substr(kIsa.size()) == nanovllm::cpu::name(isa) && nanovllm::cpu::has(isa)) {
      cpu_ops::options().isa = isa;
      return true;
    }
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (parse(argv[i])) continue;
    std::fprintf(stderr, "unknown flag, or an instruction set this machine lacks: %s\n", argv[i]);
    return 1;
  }
  const nanovllm::cpu::Context& context = cpu_ops::context();
  benchmark::AddCustomContext("isa", std::string(nanovllm::cpu::name(context.isa)));
  benchmark::AddCustomContext("threads", std::to_string(context.pool->num_threads()));
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
