#pragma once
/// What computes steps, seen from the engine: `Runner`, whatever its model and its backend are.

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/engine/extras.hpp"
#include "nanovllm/engine/runner/health.hpp"
#include "nanovllm/engine/step/rank_part.hpp"
#include "nanovllm/engine/step/sample_batch.hpp"
#include "nanovllm/engine/step/step_inputs.hpp"
#include "nanovllm/engine/step/step_results.hpp"
#include "nanovllm/kv/kv_config.hpp"

namespace nanovllm {

/// The pools of all ranks, to be read and written. Every call throws Error where ranks are in other
/// processes, and ShapeError for a block that is not there.
class PoolContents {
 public:
  PoolContents() = default;
  PoolContents(const PoolContents&) = delete;
  PoolContents& operator=(const PoolContents&) = delete;
  virtual ~PoolContents() = default;

  /// Copies `blocks` out of the device's pools, `[rank][block][layer][K | V][head][slot][head_dim]`
  /// with each rank's heads: ranks · blocks.size() · KvShape::block_bytes() bytes. No step may be
  /// under way.
  virtual void read_blocks(std::span<const BlockId> blocks, std::span<std::byte> bytes) = 0;
  /// The reverse.
  virtual void write_blocks(std::span<const BlockId> blocks, std::span<const std::byte> bytes) = 0;

  /// The memory of a block outside of the pools, a piece for each layer of each rank, `[K |
  /// V][head][slot][head_dim]`. It may be read and written while no step copies the block.
  [[nodiscard]] virtual std::vector<std::span<std::byte>> outside_block(BlockId block) = 0;
};

/// Steps take slots 0 and 1 alternately and end in the order in which they began.
class StepSlots {
 public:
  [[nodiscard]] int num_under_way() const { return static_cast<int>(num_begun_ - num_ended_); }
  /// The slot of the oldest step under way.
  [[nodiscard]] int oldest() const { return static_cast<int>(num_ended_ % 2); }
  /// The slot of the step that began last.
  [[nodiscard]] int newest() const { return static_cast<int>((num_begun_ + 1) % 2); }
  [[nodiscard]] std::exception_ptr& error(int slot) {
    return errors_[static_cast<std::size_t>(slot)];
  }

  /// A step begins; returns its slot. It has the error of the step before, if that is under way.
  int begin() {
    const auto slot = static_cast<int>(num_begun_ % 2);
    error(slot) = num_under_way() == 0 ? nullptr : error(1 - slot);
    ++num_begun_;
    return slot;
  }
  void end() { ++num_ended_; }

  /// None is under way any more.
  void drop_all() {
    errors_ = {};
    num_ended_ = num_begun_;
  }

 private:
  std::array<std::exception_ptr, 2> errors_;  // of the last two
  std::uint64_t num_begun_ = 0;
  std::uint64_t num_ended_ = 0;
};

/// See `Runner` for what each call does. A virtual call a step costs nothing compared with the
/// step, and saves a user the compilation of the engine's core for every model, and of the model
/// for every scheduling policy.
class StepRunner {
 public:
  StepRunner() = default;
  StepRunner(const StepRunner&) = delete;
  StepRunner& operator=(const StepRunner&) = delete;
  virtual ~StepRunner() = default;

  // ---- Start-up ----
  [[nodiscard]] virtual KvShape kv_shape() const = 0;
  [[nodiscard]] virtual std::size_t available_memory() = 0;
  virtual void allocate_kv(std::int32_t num_blocks, std::int32_t num_outside = 0) = 0;

  // ---- Steps ----
  // These guarantee which step is whose: `launch` has begun a step when it returns and none when it
  // throws, `wait` has ended the oldest in either case, and `sample` changes none of that.
  virtual void launch(const StepInputs& inputs) = 0;
  /// Whether there may be deferred steps (`StepInputs::is_deferred`), which `sample` draws for.
  [[nodiscard]] virtual bool edits_logits() const { return false; }
  /// Whether steps give hidden states (`StepInputs::num_hidden`).
  [[nodiscard]] virtual bool gives_hidden() const { return false; }
  virtual void sample(const SampleInputs&) { throw Error("sample: there are no deferred steps"); }
  virtual StepResults wait() = 0;
  /// Steps that were launched and not waited for, 0 to 2.
  [[nodiscard]] virtual int num_under_way() const = 0;
  /// Whether steps are computed behind the host's back, and not by `launch` itself.
  [[nodiscard]] virtual bool is_asynchronous() const = 0;
  /// From how many keys saved on the next step makes use of what `StepInputs` finds that decodes
  /// have in common; unset: not at all.
  [[nodiscard]] virtual std::optional<std::int64_t> share_reads_from() const { return {}; }

  /// What is in the KV pools, for what writes blocks to files and reads them.
  [[nodiscard]] virtual PoolContents& pool() = 0;

  /// Calls `call(rank, part)` on the thread of every rank that the policy has added a part to, with
  /// its device being the current one, and returns when all have. Throws Error where a step is
  /// under way or ranks are in other processes, and what `call` throws.
  virtual void on_parts(const std::function<void(int rank, RankPart& part)>& /*call*/) {}

  /// Adds what the network counts, of the steps since the KV pool was made. From any thread.
  virtual void add_statistics(Extras& /*to*/) const {}

  virtual void run_worker() = 0;

  // ---- How it is ----
  [[nodiscard]] virtual Health health() const = 0;
  virtual void reset() = 0;
  [[nodiscard]] virtual int num_ranks() const = 0;
  [[nodiscard]] virtual int rank() const { return 0; }  ///< the first of this process
  [[nodiscard]] virtual std::string describe_backend() const = 0;
  [[nodiscard]] virtual std::string executor_name() const = 0;
};

}  // namespace nanovllm
