#pragma once
/// What a runner is made from: sizes that it allocates for, its ranks, and its weights.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <thread>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/limits.hpp"
#include "nanovllm/engine/extras.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/kv/kv_config.hpp"

namespace nanovllm {

class ProcessGroup;

struct RunnerConfig {
  int num_ranks = 1;
  std::optional<int> num_threads{};  ///< of all ranks on this host; unset: all of the machine's
  Extras extras{};                   ///< see EngineConfig
  int first_device = 0;  ///< of this host's first rank; the others take the following ones
  StepLimits limits{};
  int block_size = KvConfig{}.block_size;             ///< tokens of a KV block
  std::optional<std::int64_t> share_reads_from{};     ///< see EngineConfig
  std::function<void(const char* stage)> on_stage{};  ///< rank 0 begins a stage of the start-up
  std::shared_ptr<ProcessGroup> processes{};  ///< one rank each; unset: all are threads of this one
  /// If a step runs longer, the caller of `wait` gets an Error. Unset: there is no limit. Setting
  /// it gives rank 0 a separate thread, which costs a hand-over and a copy of the inputs a step.
  std::optional<std::chrono::duration<double>> step_timeout{};

  [[nodiscard]] int threads_of_a_rank(int ranks_on_host) const {
    const int all = num_threads.value_or(static_cast<int>(std::thread::hardware_concurrency()));
    return std::max(1, all / ranks_on_host);
  }
};

/// The settings of a communicator that takes some, its `Options`. Those that limit a time have a
/// member `allow_step(seconds)`, since no step may be cut short.
template <class Options>
[[nodiscard]] Options options_of(const RunnerConfig& config) {
  auto out = config.extras.of<Options>();
  if constexpr (requires { out.allow_step(1.); }) {
    if (config.step_timeout) out.allow_step(config.step_timeout->count());
  }
  return out;
}

/// A number that must be the same on all ranks.
struct SharedSetting {
  const char* name;
  std::int64_t value;
};

/// Throws ConfigError naming the first field that makes no sense.
inline void validate(const RunnerConfig& config) {
  check<ConfigError>(config.num_ranks >= 1, "tensor_parallel must be >= 1, got ", config.num_ranks);
  check<ConfigError>(config.first_device <= std::numeric_limits<int>::max() - config.num_ranks,
                     "device: there is no device ", config.first_device);
  const std::int64_t max_tokens = config.limits.max_num_batched_tokens;
  check<ConfigError>(max_tokens >= 1, "max_num_batched_tokens must be >= 1, got ", max_tokens);
  check<ConfigError>(config.block_size >= 1, "block_size must be >= 1, got ", config.block_size);
  const int num_threads = config.num_threads.value_or(1);
  check<ConfigError>(num_threads >= 1 && num_threads <= kMaxThreads,
                     "num_threads must be unset or in [1, ", kMaxThreads, "], got ", num_threads);
}

/// Where the weights of a runner come from: a checkpoint, or noise.
struct WeightSource {
  const Checkpoint* checkpoint = nullptr;  ///< null for noise; outlives the start-up
  std::uint64_t seed = 0;                  ///< of the noise
  /// Hears of rank 0's bytes: how many have been read, of how many.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress{};

  /// Gives the weights of one rank their values. Throws LoadError for what the checkpoint lacks.
  template <class Weights, class Backend>
  void fill(Weights& weights, Backend& backend, int rank) const {
    if (checkpoint == nullptr) {
      weights.randomize(seed, backend);
    } else {
      weights.load(*checkpoint, backend, rank == 0 ? progress : decltype(progress){});
    }
  }
};

}  // namespace nanovllm
