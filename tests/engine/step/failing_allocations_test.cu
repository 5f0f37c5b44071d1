// The host's memory runs out anywhere in a step that a device computes: with graphs and kernel by
// kernel, one step after the other and planned ahead.

#include "cuda/gpu_test.cuh"
#include "engine/models.hpp"
#include "engine/step/allocation_cases.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

/// Does not time its kernels, so that all engines have the same.
struct UntunedBackend : CudaBackend {
  using CudaBackend::CudaBackend;
  template <class Network>
  requires TunableBackend<CudaBackend, Network>
  void tune(const Network&) {}
};

struct UntunedPolicy : CudaFloat32Policy {
  using Backend = UntunedBackend;
  static constexpr KvConfig kv{.block_size = 16};
};

}  // namespace

TEST_CASE("an allocation of the host that fails in a device's step costs its requests alone",
          "[cuda][engine][memory]") {
  if (!has_gpu()) return;
  check_all_kinds<Engine<AnyModel, UntunedPolicy>>(
      {.model = Qwen3Config::load(model_directory("group1_tied_yarn")),
       .config = {.max_num_seqs = 8,
                  .max_num_batched_tokens = 32,
                  .max_model_len = 64,
                  .kv_size = KvSize::blocks(40),
                  .share_reads_from = 1,
                  .seed = 1},
       .stride = 5,
       .cold_stride = 60});  // an engine takes a second, with its graphs
}
