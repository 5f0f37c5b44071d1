// Speed of the engine on the CPU, and the least time that the machine needs. `engine_bench
// --help` says how to use it.
#include <algorithm>
#include <thread>

#include "../cpu_ops/ceilings.hpp"
#include "nanovllm/full_policy.hpp"
#include "nanovllm/with/eight_bits/cpu/linear.hpp"
#include "nanovllm/with/eight_bits/weights.hpp"
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

/// An element takes its bits and its part of the scale of a group.
struct Int8Policy : nv::FullPolicy {
  using Weight = nv::Int8Group32;
  static constexpr double kHeadBytes = 8.5 / 8, kLayerBytes = 8.5 / 8;
};
struct Int4Policy : nv::FullPolicy {
  using Weight = nv::Int4Group32;
  static constexpr double kHeadBytes = 8.5 / 8, kLayerBytes = 4.5 / 8;
};

struct CpuPolicies {
  using Float32 = nv::FullFloat32Policy;
  using Bfloat16 = nv::FullPolicy;
  using Int8 = Int8Policy;
  using Int4 = Int4Policy;
};

}  // namespace engine_bench

int main(int argc, char** argv) {
  return engine_bench::run_main<engine_bench::CpuPolicies, engine_bench::CpuProber>(argc, argv);
}
