#pragma once
/// A backend that runs ahead of the host without a device: what `GraphExecutor` does on one is
/// tested by it where there is none.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/cpu/backend.hpp"
#include "nanovllm/ops/publish_results.hpp"

namespace nanovllm::test {

/// `CpuBackend`, but every op waits in a queue until the host needs its results, as late as a
/// device could be. It counts what a host that runs ahead must not do.
class DeferredBackend : public CpuBackend {
  using Op = std::function<void()>;

  struct Queue {
    std::deque<Op> ops;
    std::size_t num_done = 0;

    [[nodiscard]] std::size_t end() const { return num_done + ops.size(); }
    void run_until(std::size_t mark) {
      while (num_done < mark && !ops.empty()) {
        const Op op = std::move(ops.front());
        ops.pop_front();
        ++num_done;
        run_op(op);
      }
    }
  };

 public:
  using CpuBackend::CpuBackend;

  static constexpr bool kAsynchronous = true;
  static constexpr bool kSamplesPlainRows = true;
  template <class T>
  using HostBuffer = cpu::AlignedBuffer<T>;
  using Graph = std::vector<Op>;

  class Event {
   public:
    void synchronize() const {
      if (queue_) queue_->run_until(mark_);
    }
    [[nodiscard]] bool is_done() const { return !queue_ || queue_->num_done >= mark_; }

   private:
    friend class DeferredBackend;
    std::shared_ptr<Queue> queue_;
    std::size_t mark_ = 0;
  };

  /// How the device runs an op.
  inline static void (*run_op)(const std::function<void()>&) = [](const Op& op) { op(); };
  /// Inputs that were overwritten by the host before the device had copied them.
  inline static int num_overwritten = 0;
  inline static int num_replays = 0;
  inline static int num_block_copies = 0;
  /// Draws with the promise that all rows are plain, and those of them whose rows are not.
  inline static int num_plain = 0, num_broken_promises = 0;

  template <class Args>
  requires RunsOp<CpuBackend, Args>
  void run(const Args& args) {
    enqueue([this, args] { CpuBackend::run(args); });
  }
  void run(const SampleArgs& args) {
    enqueue([this, args] {
      if (args.plain) {
        const SamplingBatch& batch = args.batch;
        const std::span rows(batch.rows.data, static_cast<std::size_t>(batch.rows.extent(0)));
        const bool has_bans = batch.banned.starts.data[rows.size()] != 0;
        const bool is_kept =
            !has_bans && std::all_of(rows.begin(), rows.end(),
                                     [](const SamplingRow& row) { return is_plain(row); });
        ++num_plain;
        num_broken_promises += is_kept ? 0 : 1;
      }
      CpuBackend::run(args);
    });
  }
  template <class T>
  void run(const CopyBlocksArgs<T>& args) {
    ++num_block_copies;
    enqueue([this, args] { CpuBackend::run(args); });
  }

  /// A layer is swapped as late as it may be: when it is awaited.
  template <class T>
  void run(const SwapBlocksArgs<T>& args) {
    validate(args);
    const auto list = [](const VectorView<const BlockCopy>& copies) {
      return std::vector<BlockCopy>(copies.data, copies.data + copies.extent(0));
    };
    swap_layer_ = [this, args, down = list(args.down), up = list(args.up)](std::int64_t layer) {
      SwapBlocksArgs<T> one = args;
      one.device.data += layer * args.device_stride;
      one.host.data += layer * args.host_stride;
      one.num_layers = 1;
      one.down = {down.data(), {std::ssize(down)}};
      one.up = {up.data(), {std::ssize(up)}};
      CpuBackend::run(one);
    };
  }
  void run(const AwaitSwapArgs& args) {
    enqueue([swap = swap_layer_, layer = args.layer] { swap(layer); });
  }

  /// Weights: read before the call returns.
  template <class T>
  void upload(const T* from, T* to, std::size_t count) {
    synchronize();
    CpuBackend::upload(from, to, count);
  }
  /// The inputs of a step, from memory that is page-locked: read when their turn comes.
  void upload(const std::byte* from, std::byte* to, std::size_t count) {
    enqueue([from, to, seen = std::vector<std::byte>(from, from + count)] {
      num_overwritten += std::memcmp(from, seen.data(), seen.size()) != 0 ? 1 : 0;
      std::copy_n(from, seen.size(), to);
    });
  }
  template <class T>
  void download(const T* from, T* to, std::size_t count) {
    synchronize();
    CpuBackend::download(from, to, count);
  }
  template <class T>
  void download_later(const T* from, T* to, std::size_t count) {
    enqueue([=] { std::copy_n(from, count, to); });
  }

  void record(Event& event) {
    event.queue_ = queue_;
    event.mark_ = queue_->end();
  }
  void synchronize() const { queue_->run_until(queue_->end()); }

  template <class Work>
  [[nodiscard]] Graph capture(const Work& work) {
    Graph graph;
    captured_ = &graph;
    try {
      work();
    } catch (...) {
      captured_ = nullptr;
      throw;
    }
    captured_ = nullptr;
    return graph;
  }
  void replay(const Graph& graph) {
    ++num_replays;
    for (const Op& op : graph) queue_->ops.push_back(op);
  }

 protected:
  void enqueue(Op op) {
    if (captured_) return captured_->push_back(std::move(op));
    queue_->ops.push_back(std::move(op));
  }

 private:
  std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
  Graph* captured_ = nullptr;
  std::function<void(std::int64_t)> swap_layer_;
};

static_assert(BackendLike<DeferredBackend, float>);

/// One whose copies of inputs do not wait for ops, and whose graphs unpack them and write to the
/// host's memory: the first as early as a device could do it, the last as late.
class BesideBackend : public DeferredBackend {
 public:
  using DeferredBackend::DeferredBackend;
  using DeferredBackend::replay;
  using DeferredBackend::run;

  inline static int num_early = 0;
  inline static int num_with_inputs = 0;
  inline static bool graphs_take_inputs = true;
  inline static int num_published = 0;

  [[nodiscard]] static bool takes_inputs(const Graph& graph) {
    return graphs_take_inputs && !graph.empty();
  }
  void replay(const Graph& graph, const UnpackStepArgs& inputs) {
    ++num_with_inputs;
    run(inputs);
    replay(Graph(graph.begin() + 1, graph.end()));
  }

  void upload_early(const std::byte* from, std::byte* to, std::size_t count) {
    ++num_early;
    std::copy_n(from, count, to);
  }
  void run(const PublishResultsArgs& args) {
    validate(args);
    enqueue([args] {
      const ResultsPlace& place = *args.place;
      const auto copy = [](const auto* from, auto* host, std::int64_t size) {
        if (host != nullptr) std::copy_n(from, size, host);
      };
      const std::int64_t top = args.top_tokens.extent(1);
      copy(args.tokens.data, place.tokens, place.num_rows);
      copy(args.logprobs.data, place.logprobs, place.num_rows);
      copy(args.top_tokens.data, place.top_tokens, place.num_rows * top);
      copy(args.top_logprobs.data, place.top_logprobs, place.num_rows * top);
      num_published += place.tokens != nullptr ? 1 : 0;
    });
  }
};

static_assert(UploadsEarly<BesideBackend> && ReplaysWithInputs<BesideBackend> &&
              RunsOp<BesideBackend, PublishResultsArgs>);
static_assert(!UploadsEarly<DeferredBackend> && !ReplaysWithInputs<DeferredBackend> &&
              !RunsOp<DeferredBackend, PublishResultsArgs>);

}  // namespace nanovllm::test
