#pragma once
/// Runs steps on every rank: weights, KV pool, forward pass and sampler, without a word of queues.

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/core/type_name.hpp"
#include "nanovllm/engine/runner/health.hpp"
#include "nanovllm/engine/runner/one_rank.hpp"
#include "nanovllm/engine/runner/rank.hpp"
#include "nanovllm/engine/runner/rank_group.hpp"
#include "nanovllm/engine/runner/step_runner.hpp"
#include "nanovllm/engine/step/sample_batch.hpp"
#include "nanovllm/engine/step/step_inputs.hpp"
#include "nanovllm/engine/step/step_kv.hpp"
#include "nanovllm/engine/step/step_results.hpp"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/model/model.hpp"
#include "nanovllm/ops/elements.hpp"

namespace nanovllm {

/// Owner of one model on all ranks of this process.
///
/// `launch` hands over a step and `wait` gives the results of the oldest that was launched. Up to
/// two steps may be under way, so that one can be planned while the other is computed; steps are
/// computed in the order of their launches. `GraphExecutor` and `DirectExecutor` say what a rank
/// does with a step.
///
/// With ranks in several processes (ProcessRanks), every process makes the same runner with the
/// same calls up to `allocate_kv`. Then rank 0's computes steps and the others `run_worker`. A rank
/// that throws ends the job.
///
/// Without others the process lives whatever a rank throws, at any point: the rank releases the
/// others of this process, and the steps under way throw what the first failing rank threw. Of
/// several ranks so do all later steps, until `reset`. A rank that hangs fails when `step_timeout`
/// has passed. One thread at a time calls a runner, except `health`.
///
/// @tparam Policy  a policy, or what `RunnerPolicyOf` leaves of it.
template <class Model, class Policy>
class Runner : public StepRunner, PoolContents {
  using Group = RankGroup<Model, Policy>;
  using Rank = typename Group::Rank;
  using Peers = typename Policy::Ranks::Peers;
  friend Peers;

 public:
  using Config = typename Model::Config;
  using Elements = typename Group::Elements;
  using KvElement = typename Group::KvElement;
  using Stored = typename Rank::Stored;
  using Backend = typename Group::Backend;
  using Communicator = typename Group::Communicator;
  using Network = typename Group::Network;
  static constexpr bool kCounts = requires(const Network& network, Extras& to) {
    network.add_statistics(to, to);
  };
  using Pool = typename Group::Pool;
  using Weights = typename Network::Weights;

  /// Allocates everything but the KV pool. `fill(weights, backend, rank)` is called on each rank,
  /// at the same time, to give the weights their values.
  Runner(const Config& model, const RunnerConfig& config,
         const std::function<void(Weights&, Backend&, int rank)>& fill);

  /// The same from a checkpoint, or noise.
  Runner(const Config& model, const RunnerConfig& config, const WeightSource& source);

  ~Runner() override;

  /// One rank's part of a KV block.
  [[nodiscard]] KvShape kv_shape() const override {
    const Network& network = ranks_[0].network;
    return {.num_layers = network.num_layers(),
            .num_kv_heads = network.num_kv_heads(),
            .head_dim = network.head_dim(),
            .block_size = config_.block_size,
            .element_bytes = sizeof(Stored),
            .scale_bytes = kKvScaleBytes<KvElement>};
  }

  /// Bytes that any rank's KV pool may count on. A backend that runs ahead first computes the
  /// largest step there can be, on a pool of one block, so that everything which takes memory when
  /// it is first used has it; what the graphs will take is measured and left out.
  [[nodiscard]] std::size_t available_memory() override {
    ranks_.begin_stage("sizing the KV pool");
    std::size_t least = 0;
    guard([&] { least = ranks_.measure_memory(kv_shape()); });
    if (Backend::kSharedMemory) least /= static_cast<std::size_t>(peers_.ranks_on_host(config_));
    return static_cast<std::size_t>(peers_.minimum(static_cast<std::int64_t>(least)));
  }

  /// Makes every rank's KV pool of `num_blocks` blocks, and `num_outside` outside of it, and what
  /// depends on where they are. Rank 0's numbers count for all. Throws ConfigError for blocks
  /// outside where the pool has none, or the backend cannot copy them.
  void allocate_kv(std::int32_t num_blocks, std::int32_t num_outside = 0) override {
    std::array<std::int32_t, 2> numbers{num_blocks, num_outside};
    peers_.share(numbers);
    OutsideCopies<Backend, Pool>::check(numbers[1]);
    ranks_.begin_stage("recording graphs");
    guard([&] {
      ranks_.on_all([&](Rank& rank) { rank.make_pool(kv_shape(), numbers[0], numbers[1]); });
      if constexpr (kCounts) ranks_[0].network.add_statistics(at_start_, {});
    });
  }

  /// Of rank 0. Nothing where its device reports an error. From any thread; waits for the copy, and
  /// not for steps under way.
  void add_statistics(Extras& to) const override {
    if constexpr (kCounts) {
      try {
        ranks_[0].network.add_statistics(to, at_start_);
      } catch (const Error&) {  // there are none
      }
    }
  }

  /// Begins a step. `inputs` may be changed or go as soon as this returns. Its tokens may be those
  /// that the step launched just before draws (`TokenSource::sampled`).
  ///
  /// What goes wrong in the step is thrown by its `wait`. A step launched while one that failed is
  /// still under way fails with it, for it may build on what that one did not compute. If two
  /// steps are under way, throws Error and begins none.
  void launch(const StepInputs& inputs) override {
    check_first("launch");
    check(slots_.num_under_way() < 2, "launch: two steps are under way, wait for the first");
    const int slot = begin_step();
    std::exception_ptr& error = slots_.error(slot);
    if (broken_) error = broken_;
    if (error) return;
    try {
      peers_.send_step(inputs);
      ranks_.launch(slot, inputs);
    } catch (...) {
      error = abandon();
    }
  }

  [[nodiscard]] bool edits_logits() const override { return Group::kEditsLogits; }
  [[nodiscard]] bool gives_hidden() const override { return Group::kGivesHidden; }

  /// Draws for the step that was launched last, a deferred one. `inputs` may be changed or go as
  /// soon as this returns. What goes wrong is thrown by the step's `wait`. A deferred step may be
  /// waited for without it, by those who do not want its results.
  void sample(const SampleInputs& inputs) override {
    check_first("sample");
    check(slots_.num_under_way() > 0, "sample: no step is under way");
    std::exception_ptr& error = slots_.error(slots_.newest());
    if (!error) error = broken_;
    if (error) return;
    try {
      peers_.send_sample(inputs);
      ranks_.sample(slots_.newest(), inputs);
    } catch (...) {
      error = abandon();
    }
  }

  /// Ends the oldest step under way and returns its results. Throws what the first failing rank
  /// threw, or an Error that names the rank that hangs and the time; the step has ended then, too.
  StepResults wait() override {
    check(slots_.num_under_way() > 0, "wait: no step is under way");
    const int slot = slots_.oldest();
    std::exception_ptr& error = slots_.error(slot);
    if (!error) error = broken_;  // by the step after this one
    try {
      if (error) std::rethrow_exception(error);
      const auto active = ranks_[0].backend->activate();
      ranks_.wait(slot);
      const StepResults results = ranks_[0].executor->wait(slot);
      ranks_.throw_if_late();
      end_step(nullptr);
      return results;
    } catch (...) {
      if (!error) error = abandon();  // for the step after it
      end_step(error);
      std::rethrow_exception(error);
    }
  }

  /// Computes one step. No other may be under way.
  StepResults run(const StepInputs& inputs) {
    check(slots_.num_under_way() == 0, "run: a step is under way");
    launch(inputs);
    return wait();
  }

  /// Computes one step and copies the logits of its wanted rows to `out`, [m, vocab_size], without
  /// sampling. For evaluation; rows are limited by max_num_seqs.
  void run_logits(const StepInputs& inputs, MatrixView<float> out) {
    check_first("run_logits");
    check_shape("run_logits", "out", out, {inputs.num_samples(), ranks_[0].network.vocab_size()});
    peers_.send_logits(inputs);
    guard([&] { ranks_.run_logits(inputs, &out); });
  }

  [[nodiscard]] int num_under_way() const override { return slots_.num_under_way(); }

  [[nodiscard]] PoolContents& pool() override { return *this; }
  void on_parts(const std::function<void(int rank, RankPart& part)>& call) override {
    check(config_.processes == nullptr, "on_parts: ranks are in other processes");
    check(slots_.num_under_way() == 0, "on_parts: a step is under way");
    guard([&] { ranks_.on_parts(call); });
  }

  /// In a process of another rank than 0: computes this rank's part of rank 0's steps, and returns
  /// when rank 0's runner goes. Throws Error where there is no other process.
  void run_worker() override {
    check(peers_.rank() > 0, "run_worker: this is rank 0, which the others follow");
    try {
      peers_.follow(*this);
    } catch (...) {
      const std::exception_ptr error = abandon();
      ranks_.watchdog().failed(error);
      std::rethrow_exception(error);
    }
  }

  /// How the ranks are. From any thread, at any time.
  [[nodiscard]] Health health() const override { return ranks_.watchdog().health(); }

  /// Makes the ranks of this process able to compute again after a failure: new communicators and
  /// new executors on the same weights. Steps under way are dropped, results are gone, and what the
  /// KV pool holds is garbage: a caller that shares prefixes must forget them. Throws Error when
  /// that cannot be done: a rank or its device hangs, the device is lost, or there are ranks in
  /// other processes; then the runner stays as it was, or fails with that error.
  void reset() override {
    check(!peers_.exist(),
          "reset: the ranks are in several processes; all of them have to be started anew");
    ranks_.come_to_rest();
    slots_.drop_all();
    broken_ = nullptr;
    ranks_.watchdog().end_step(false);
    try {
      ranks_.renew();
    } catch (...) {
      broken_ = std::current_exception();
      ranks_.watchdog().failed(broken_);
      throw;
    }
    ranks_.watchdog().renewed();
  }

  [[nodiscard]] bool is_asynchronous() const override { return Backend::kAsynchronous; }
  [[nodiscard]] std::optional<std::int64_t> share_reads_from() const override {
    if constexpr (requires { Backend::may_share_prefixes(); }) {
      if (!Backend::may_share_prefixes()) return {};
    }
    if constexpr (requires { requires Backend::kSharesPrefixes; }) return config_.share_reads_from;
    return {};
  }
  [[nodiscard]] int num_ranks() const override { return config_.num_ranks; }
  [[nodiscard]] int rank() const override { return peers_.rank(); }
  [[nodiscard]] const Backend& backend() const { return *ranks_[0].backend; }
  [[nodiscard]] std::string describe_backend() const override { return backend().describe(); }
  [[nodiscard]] std::string executor_name() const override {
    return std::string(template_name<typename Group::Executor>());
  }

 private:
  /// Before anything is made whose size depends on it.
  [[nodiscard]] static const RunnerConfig& checked(const Config& model,
                                                   const RunnerConfig& config) {
    validate(config);
    Policy::Ranks::validate(config);
    if constexpr (requires { Model::check_ranks(model, config.num_ranks); })
      Model::check_ranks(model, config.num_ranks);
    return config;
  }

  // ---- The pool's contents ----

  void read_blocks(std::span<const BlockId> blocks, std::span<std::byte> bytes) override {
    check_copy("read_blocks", blocks, bytes.size());
    const auto read = [&](Backend& backend, const Stored* tile, std::size_t at, std::size_t count) {
      backend.download(tile, reinterpret_cast<Stored*>(bytes.data() + at), count);
    };
    guard([&] { ranks_.on_all([&](Rank& rank) { rank.for_each_tile(blocks, read); }); });
  }

  void write_blocks(std::span<const BlockId> blocks, std::span<const std::byte> bytes) override {
    check_copy("write_blocks", blocks, bytes.size());
    const auto write = [&](Backend& backend, Stored* tile, std::size_t at, std::size_t count) {
      backend.upload(reinterpret_cast<const Stored*>(bytes.data() + at), tile, count);
    };
    guard([&] { ranks_.on_all([&](Rank& rank) { rank.for_each_tile(blocks, write); }); });
  }

  [[nodiscard]] std::vector<std::span<std::byte>> outside_block(BlockId block) override {
    check(!peers_.exist(), "outside_block: ranks are in other processes");
    std::vector<std::span<std::byte>> pieces;
    for (int r = 0; r < ranks_.size(); ++r) {
      [[maybe_unused]] Rank& rank = ranks_[r];
      bool is_there = false;
      if constexpr (requires { rank.kv->append_outside(block, pieces); })
        is_there = rank.kv && rank.kv->append_outside(block, pieces);
      check<ShapeError>(is_there, "outside_block: there is no block ", block);
    }
    return pieces;
  }

  /// Throws unless `call` may copy `blocks` from or to `num_bytes` now.
  void check_copy(const char* call, std::span<const BlockId> blocks, std::size_t num_bytes) const {
    check(!peers_.exist(), call,
          ": ranks are in other processes, and their part of the KV pool cannot be "
          "reached from here");
    check(slots_.num_under_way() == 0, call, ": a step is under way");
    const std::size_t expected =
        blocks.size() * static_cast<std::size_t>(kv_shape().block_bytes() * ranks_.size());
    check<ShapeError>(num_bytes == expected, call, ": expected ", expected, " bytes for ",
                      blocks.size(), " blocks, got ", num_bytes);
    for (const BlockId block : blocks) {
      check<ShapeError>(ranks_[0].kv && block >= 0 && block < ranks_[0].kv->num_blocks(), call,
                        ": there is no block ", block);
    }
  }

  void check_first(const char* call) const {
    check(peers_.rank() == 0, call, ": rank ", peers_.rank(),
          " computes the steps of rank 0; call run_worker()");
  }

  [[nodiscard]] int begin_step() noexcept {
    if (slots_.num_under_way() == 0) ranks_.watchdog().begin_step();
    return slots_.begin();
  }
  void end_step() noexcept {
    slots_.end();
    ranks_.watchdog().end_step(slots_.num_under_way() > 0);
  }
  /// The same, and what became of the step: `error`, or null for success.
  void end_step(const std::exception_ptr& error) noexcept {
    end_step();
    error ? ranks_.watchdog().failed(error) : ranks_.watchdog().recovered();
  }

  /// Calls `work`, unless the ranks are broken already. When it throws, it is the end for all
  /// ranks, or for one rank's step.
  template <class Work>
  void guard(const Work& work) {
    if (broken_) std::rethrow_exception(broken_);
    try {
      work();
    } catch (...) {
      std::rethrow_exception(abandon());
    }
  }

  /// The same for all ranks of this process. Returns what to throw: of several ranks the first
  /// error, wherever it was, counts until `reset`, and so does that of one that hangs.
  [[nodiscard]] std::exception_ptr abandon() noexcept {
    if (config_.num_ranks == 1 && !ranks_.watchdog().has_fired()) return std::current_exception();
    if (!broken_) broken_ = std::current_exception();
    try {
      ranks_.release();
    } catch (...) {  // the first error is the one to know
    }
    return broken_;
  }

  RunnerConfig config_;
  StepSlots slots_;
  std::exception_ptr broken_;  // of the rank that failed first, if there are several, or hangs
  Group ranks_;
  Extras at_start_;  // of the start-up's steps
  Peers peers_;      // last: the others hear of the end before ranks go
};

// Not inline: a program does not compile these again where nanovllm::nanovllm has.

template <class Model, class Policy>
Runner<Model, Policy>::Runner(const Config& model, const RunnerConfig& config,
                              const std::function<void(Weights&, Backend&, int rank)>& fill)
    : config_(checked(model, config)), ranks_(config), peers_(config) {
  if (peers_.exist()) peers_.compare(Rank::shared_settings(model, config_));
  guard([&] { ranks_.start(peers_, model, fill); });
}

template <class Model, class Policy>
Runner<Model, Policy>::Runner(const Config& model, const RunnerConfig& config,
                              const WeightSource& source)
    : Runner(model, config, [&](Weights& weights, Backend& backend, int rank) {
        source.fill(weights, backend, rank);
      }) {}

template <class Model, class Policy>
Runner<Model, Policy>::~Runner() = default;

}  // namespace nanovllm
