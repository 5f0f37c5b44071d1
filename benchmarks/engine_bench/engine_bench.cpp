// Speed of the engine on the CPU, and the least time that the machine needs. `engine_bench
// --help` says how to use it.
#include <algorithm>
#include <thread>

#include "../cpu_ops/ceilings.hpp"
#include "nanovllm/full_policy.hpp"
#include "program.hpp"

namespace engine_bench {

/// Threads that the engine has, and the ceilings they reach together.
class CpuProber {
 public:
  CpuProber(const ProbeOptions& o, nv::DType dtype) : pool_(num_threads(o)), dtype_(dtype) {}

  Ceilings operator()() {
    return {cpu_ops::read_bandwidth(context_), cpu_ops::arithmetic_rate(context_, dtype_)};
  }

 private:
  static int num_threads(const ProbeOptions& o) {
    const int all =
        o.num_threads != 0 ? o.num_threads : static_cast<int>(std::thread::hardware_concurrency());
    return std::max(1, all / o.num_ranks) * o.num_ranks;
  }

  nv::cpu::ThreadPool pool_;
  nv::cpu::Context context_{.pool = &pool_};
  nv::DType dtype_;
};

struct CpuPolicies {
  using Float32 = nv::FullFloat32Policy;
  using Bfloat16 = nv::FullPolicy;
};

}  // namespace engine_bench

int main(int argc, char** argv) {
  return engine_bench::run_main<engine_bench::CpuPolicies, engine_bench::CpuProber>(argc, argv);
}
