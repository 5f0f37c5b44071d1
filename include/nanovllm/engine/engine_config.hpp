#pragma once
/// Run-time settings of an engine, and its statistics.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "nanovllm/chat/chat_template.hpp"
#include "nanovllm/engine/extras.hpp"
#include "nanovllm/engine/request/latency.hpp"
#include "nanovllm/engine/request/progress.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/kv/kv_config.hpp"

namespace nanovllm {

class ProcessGroup;

/// The settings of an engine. Every field except `model` has a sensible default.
struct EngineConfig {
  std::filesystem::path model{};           ///< a Hugging Face directory or a GGUF file
  std::optional<Checkpoint> checkpoint{};  ///< is used instead of `model` if there is one
  /// Ranks; must divide heads, kv heads and intermediate size. More than one need `Ranks =
  /// ThreadRanks` in the policy.
  int tensor_parallel = 1;
  /// Settings of what is added to an engine by headers of with/, of a type each. One that nothing
  /// reads is a ConfigError.
  Extras extras{};
  int device = 0;  ///< CUDA: ordinal of the first rank's device; the other ranks take the next ones
  /// CPU threads of all ranks, 4096 at most; unset: all of the machine's.
  std::optional<int> num_threads{};
  int max_num_seqs = 256;  ///< most sequences in a step; no more than its tokens
  /// Most tokens in a step; unset: the backend's default, which is at least `max_num_seqs`.
  std::optional<int> max_num_batched_tokens{};
  std::optional<std::int64_t> max_model_len{};  ///< most tokens of a sequence; unset: the model's
  std::optional<KvSize> kv_size{};  ///< unset: for max_num_seqs, within the backend's share
  bool prefix_caching = true;       ///< false turns it off if the policy has it on
  /// A request is not admitted while an earlier one computes at least this many tokens of their
  /// common prefix that the prefix cache does not have; 0: it never waits. Waiting costs a step or
  /// two, so computing the tokens should take longer than a step with few tokens.
  int prefix_wait_tokens = 256;
  /// Decodes whose block tables begin with the same blocks read those once for all of them, on
  /// backends that can (CUDA), in steps in which that saves the reading of at least this many
  /// keys: fewer are read from a device's cache in less time than merging takes. Results are the
  /// same except for the order of sums. Unset: never. Nor while several engines of the process
  /// have several ranks on GPUs.
  std::optional<std::int64_t> share_reads_from = 32'768;
  std::optional<bool> overlap{};  ///< plan a step while another is computed; unset: on devices
  /// Tensor-parallel ranks in separate processes, e.g. `ProcessGroup::world()` of nanovllm/mpi.hpp;
  /// unset: threads of this process. Needs `Ranks = ProcessRanks` in the policy.
  std::shared_ptr<ProcessGroup> processes{};
  /// A step that runs longer ends its requests with an error; see Engine::health. Unset: there is
  /// no limit but the Communicator's, if it has one. Setting it costs a thread, and a hand-over
  /// between threads in every step. Needs `Ranks = ThreadRanks` in the policy.
  std::optional<std::chrono::duration<double>> step_timeout{};
  /// Of requests without their own, which draw by it and by the order in which they are submitted.
  /// Unset: a random one.
  std::optional<std::uint64_t> seed{};
  std::optional<ChatTemplate> chat_template{};  ///< instead of the checkpoint's
  LoadCallback on_load{};                       ///< e.g. load_progress_line()
  /// Called when all is loaded, by the thread that makes the engine, for each thing that was found
  /// in the checkpoint and is ignored, or missing: a line for people. Unset: dropped.
  WarningCallback on_warning{};    ///< e.g. warning_lines()
  GenerateCallback on_generate{};  ///< e.g. generate_progress_line()
};

/// The checkpoint of `config`.
[[nodiscard]] inline Checkpoint checkpoint_of(const EngineConfig& config) {
  return config.checkpoint ? *config.checkpoint : Checkpoint(config.model);
}

/// Weights without a checkpoint: reproducible noise, for benchmarks.
struct RandomWeights {
  std::uint64_t seed = 0;
};

/// Counters since the engine was made, and its state between two steps.
struct EngineStats {
  std::int64_t num_steps = 0;
  std::int64_t num_waiting = 0;  ///< requests; one of several samples counts as often
  std::int64_t num_running = 0;
  std::int64_t num_finished = 0;
  std::int64_t num_preemptions = 0;
  std::int64_t num_prefill_tokens = 0;      ///< computed in prompt chunks
  std::int64_t num_decode_tokens = 0;       ///< computed one at a time, and guesses after them
  std::int64_t num_sampled_tokens = 0;      ///< generated
  std::int64_t num_sampled_by_decodes = 0;  ///< of them, not drawn at the end of a prompt
  std::int64_t num_queried_tokens = 0;      ///< looked up in the prefix cache
  std::int64_t num_hit_tokens = 0;          ///< of them, found
  std::int64_t num_kv_blocks = 0;
  std::int64_t num_free_kv_blocks = 0;
  double prefill_seconds = 0;  ///< waiting for the results of steps, the prompt chunks' share
  double decode_seconds = 0;   ///< and that of the decodes
  double host_seconds = 0;     ///< the rest of the time in `step`: planning, delivering, callbacks
  // Of all requests since the engine was made; `Engine::latencies` has those of a stretch of time.
  Percentiles queue_seconds{};        ///< from submission until first computed in a step
  Percentiles first_token_seconds{};  ///< from submission until the first token
  Percentiles inter_token_seconds{};  ///< between two tokens of a sequence
  Percentiles end_to_end_seconds{};   ///< from submission to the end, if it came by stop or length
  Extras extras{};                    ///< of what headers of with/ add, of a type each

  /// Of these, the one of type T; T{} where there is none.
  template <class T>
  [[nodiscard]] T of() const {
    return extras.of<T>();
  }
};

}  // namespace nanovllm
