// Memory that runs out anywhere in a step, on executors that compute at once and that run ahead.

#include "engine/models.hpp"
#include "engine/step/allocation_cases.hpp"
#include "engine/step/deferred_backend.hpp"
#include "nanovllm/full_policy.hpp"
#include "nanovllm/with/radix/radix_prefix_cache.hpp"
#include "safetensors_writer.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr std::int64_t kStride = 11;  // slower by as much
#else
constexpr std::int64_t kStride = 1;
#endif

/// Works behind the host's back, reads shared prefixes once, and has memory of its own.
struct DeviceBackend : BesideBackend {
  using BesideBackend::BesideBackend;
  static constexpr bool kSharesPrefixes = true;
};

struct DirectPolicy : Float32Policy {
  static constexpr KvConfig kv{.block_size = 8};
};
struct DevicePolicy : DirectPolicy {
  using Backend = DeviceBackend;
};

/// For pools that are too small: what is preempted or evicted is kept in host memory, and in files.
struct SwappingPolicy : DirectPolicy {
  using Preemption = SwapPreemption;
  using Tiers = DiskTier;
  template <int kBlockSize>
  using PrefixCache = RadixPrefixCache<kBlockSize>;
};

AllocationRig rig() {
  return {.model = Qwen3Config::load(model_directory("group1_tied_yarn")),
          .config = {.num_threads = 1,
                     .max_num_seqs = 8,
                     .max_num_batched_tokens = 32,
                     .max_model_len = 40,
                     .kv_size = KvSize::blocks(40),
                     .share_reads_from = 1,
                     .seed = 1},
          .stride = kStride};
}

}  // namespace

TEST_CASE("an allocation that fails in a step costs its requests, and no later one is wrong",
          "[engine][memory]") {
  AllocationRig all = rig();
  all.cold_stride = kStride;
  check_all_kinds<Engine<AnyModel, DirectPolicy>>(all);
}

TEST_CASE("an allocation that fails in a step beside swaps costs its requests alone",
          "[engine][memory]") {
  AllocationRig small = rig();
  small.config.kv_size = KvSize::blocks(5);
  small.config.extras.set(HostKv{KvSize::blocks(8)});
  check_all_kinds<Engine<AnyModel, SwappingPolicy>>(small);
}

TEST_CASE("an allocation that fails beside the reading and writing of files costs requests alone",
          "[engine][memory][disk]") {
  const nanovllm_test::TempDirectory directory;
  AllocationRig files = rig();
  files.config.kv_size = KvSize::blocks(5);
  files.config.extras.set(HostKv{KvSize::blocks(4)});
  files.config.extras.edit<DiskKv>().path = directory.path();
  files.config.extras.edit<DiskKv>().min_tokens = 1;
  files.stride = 5 * kStride;
  check_all_kinds<Engine<AnyModel, SwappingPolicy>>(files);
}

TEST_CASE("an allocation that fails while a step is enqueued costs its requests alone",
          "[engine][memory]") {
  DeferredBackend::run_op = [](const std::function<void()>& op) {
    const PausedFailures paused;  // the device takes none of the host's memory
    op();
  };
  AllocationRig ahead = rig();
  ahead.stride = 7 * kStride;
  ahead.cold_stride = 31 * kStride;  // every op that waits takes some
  check_all_kinds<Engine<AnyModel, DevicePolicy>>(ahead);
}
