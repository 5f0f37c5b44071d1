#pragma once
/// Runs steps on a backend that works behind the host's back: one copy in, one graph or a chain of
/// launches, one copy out.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/limits.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/engine/draw/step_sampler.hpp"
#include "nanovllm/engine/step/edit_chain.hpp"
#include "nanovllm/engine/step/graph_parts.hpp"
#include "nanovllm/engine/step/sample_batch.hpp"
#include "nanovllm/engine/step/step_inputs.hpp"
#include "nanovllm/engine/step/step_kv.hpp"
#include "nanovllm/engine/step/step_memory.hpp"
#include "nanovllm/engine/step/step_results.hpp"
#include "nanovllm/model/forward_batch.hpp"
#include "nanovllm/model/model.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/ops/copy_blocks.hpp"
#include "nanovllm/ops/logits_functor.hpp"
#include "nanovllm/ops/publish_results.hpp"
#include "nanovllm/ops/unpack_step.hpp"

namespace nanovllm {

/// One rank's steps. The life of a step:
///
///     launch   inputs → pinned memory → device           one copy, beside the step under way where
///                                                        the backend has UploadsEarly
///              decodes alone: the graph of their size: unpack_step (ahead of it unless the
///              backend ReplaysWithInputs), forward, sample, and publish_results where the
///              backend has it
///              otherwise: unpack_step, forward, sample, kernel by kernel
///              what was drawn → pinned memory, unless published; an event after it
///     sample   for deferred steps, which end with the logits: SampleInputs → device, the ops
///              of EditChain, what was drawn → pinned memory
///     wait     until the event
///
/// What a step draws stays on the device, too, where the next step finds the tokens that the host
/// does not know yet. All ranks of a group draw the same tokens.
template <class Network, class Backend, class Pool, class Functor = NoLogitsFunctor,
          class Draws = WholeRows>
class GraphExecutor {
  template <class U>
  using Buffer = typename Backend::template Buffer<U>;
  /// A graph, and whether it unpacks its inputs itself.
  struct StepGraph {
    typename Backend::Graph graph;
    bool unpacks = false;
  };
  using SizedGraph = typename StepGraphs<StepGraph>::Sized;
  using Drawn = DrawnRows<Backend>;
  using Slot = StepMemorySlot<Backend>;

  /// Whether graphs write what they draw to the host's memory themselves.
  static constexpr bool kPublishes = RunsOp<Backend, PublishResultsArgs>;

  /// Whether graphs may unpack their inputs themselves.
  static constexpr bool kUnpacksInGraphs = ReplaysWithInputs<Backend>;

  /// Whether steps whose rows are all plain have graphs of their own, with a faster sampler.
  static constexpr bool kHasPlainSteps = requires { requires Backend::kSamplesPlainRows; };

 public:
  static constexpr bool kGivesHidden = GivesHiddenRows<Network>;
  /// Allocates for steps within `limits` of sequences of `max_blocks` blocks. `network` and
  /// `backend` must outlive the executor.
  GraphExecutor(Network& network, Backend& backend, const StepLimits& limits,
                std::int64_t max_blocks)
      : network_(network),
        backend_(backend),
        limits_(limits),
        max_blocks_(max_blocks),
        sampler_(network, backend, limits.max_num_seqs),
        memory_({.limits = limits, .max_blocks = max_blocks, .list_room = kGraphListRoom}),
        drawn_(backend, limits.max_num_seqs),
        hidden_(network, backend),
        edits_(limits, network.vocab_size()) {
    for (Slot& slot : slots_) slot.results.resize(limits_.max_num_seqs, 0);
    if constexpr (kPublishes) place_ = Buffer<ResultsPlace>(1);
  }

  /// Waits for what is under way: it uses this executor's memory, the network's and the pool's.
  ~GraphExecutor() {
    try {
      backend_.synchronize();
    } catch (...) {  // the step's error was for `wait`
    }
  }

  GraphExecutor(const GraphExecutor&) = delete;
  GraphExecutor& operator=(const GraphExecutor&) = delete;

  /// Records graphs for every size of `graph_sizes(max_num_seqs)`, the largest first. Each is run
  /// once on padding before, which loads its kernels. `kv` must stay where it is.
  void capture(Pool& kv) {
    // Page-locked memory that grows waits for the device: as much as the largest step has needed.
    discard_and_grow(slots_[1].inputs, static_cast<std::int64_t>(slots_[0].inputs.size()));
    graphs_.clear();
    for (const std::int64_t size : graph_sizes(limits_.max_num_seqs)) {
      for (const Recorded& what : kinds_of(size)) graphs_.add(what, size, record(size, kv, what));
    }
    backend_.synchronize();
  }

  /// Computes the largest step there can be, so that whatever takes memory at its first use has
  /// it, and returns the bytes that `capture` will take. `scratch` is a pool of one block.
  [[nodiscard]] std::size_t profile_run(Pool& scratch) {
    launch(0, largest_step(limits_, max_blocks_, scratch.shape().block_size), scratch);
    static_cast<void>(wait(0));
    discard_and_grow(slots_[1].arena, static_cast<std::int64_t>(slots_[0].arena.size()));
    std::size_t num_graphs = 0;
    for (const std::int64_t size : graph_sizes(limits_.max_num_seqs))
      num_graphs += kinds_of(size).size();
    return graph_bytes(scratch) * num_graphs;
  }

  /// Enqueues a step in `slot`, 0 and 1 in turn. `inputs` may change as soon as this returns. The
  /// step before may still be under way, the one before that not.
  void launch(int slot, const StepInputs& inputs, Pool& kv) {
    check_samples(inputs);
    Slot& mine = slots_[static_cast<std::size_t>(slot)];
    const auto* graph = inputs.is_deferred() ? deferred_graph(inputs, kv) : find_graph(inputs, kv);
    const std::byte* const base = mine.upload(backend_, inputs.bytes());
    StepKv<Backend, Pool> step_kv(backend_, kv, copies_of(inputs, base, kv));
    if (graph != nullptr) {
      if (!inputs.is_deferred()) Drawn::reserve(inputs, true, mine.results);
      const UnpackStepArgs unpack =
          padded_inputs(inputs, base, graph->first, mine.results.place(inputs.wants_logprobs()));
      if (!graph->second.unpacks) backend_.run(unpack);
      step_kv.finish();
      replay(graph->second, unpack);
    } else {
      run_eagerly(inputs, base, step_kv);
    }
    if (inputs.is_deferred()) {
      mine.results.resize(inputs.num_samples(), 0);
    } else if (graph == nullptr || !kPublishes) {
      drawn_.fetch(inputs, graph != nullptr, mine.results);
    }
    hidden_.fetch(slot, inputs.num_hidden());
    mine.finish(backend_);
  }

  /// Enqueues the draw for the step in `slot`, a deferred one that was launched last. `inputs` may
  /// change as soon as this returns.
  void sample(int slot, const SampleInputs& inputs) requires EditOpsLike<Backend> {
    Slot& mine = slots_[static_cast<std::size_t>(slot)];
    const std::int64_t m = inputs.num_samples(), top = inputs.max_logprobs();
    check<ShapeError>(mine.results.num_samples == m, "sample: the step has ",
                      mine.results.num_samples, " rows of logits, but ", m,
                      " are to be drawn from");
    mine.upload_draws(backend_, inputs.bytes(), draws_);
    drawn_.reserve_top(m * top);
    if (static_cast<std::int64_t>(chosen_.size()) < inputs.num_chosen()) {
      backend_.synchronize();
      discard_and_grow(chosen_, inputs.num_chosen());
    }
    MatrixView<float> logits = sampler_.logits(m, 0);
    logits.extents[1] = network_.vocab_size();
    DrawnViews out = drawn_.of_step(m, top);
    out.chosen = {chosen_.data(), {inputs.num_chosen()}};
    edits_.run(backend_, inputs, draws_.data(), drawn_.previous(), logits, out,
               [this] { backend_.synchronize(); });
    drawn_.fetch(inputs, false, mine.results);
    if (inputs.num_chosen() > 0) {
      mine.results.resize_chosen(
          lists_at<TokenId>(inputs.bytes().data(), inputs.fields().edits.chosen).starts);
      backend_.download_later(chosen_.data(), mine.results.chosen_logprobs.data(),
                              elements(inputs.num_chosen()));
    }
    mine.finish(backend_);
  }

  /// Whether the step launched in `slot` is done, or there was none. Throws when it has failed.
  [[nodiscard]] bool is_done(int slot) const {
    return slots_[static_cast<std::size_t>(slot)].done.is_done();
  }

  /// Waits for the step launched in `slot` and gives what it drew, valid until the slot's next
  /// launch.
  [[nodiscard]] StepResults wait(int slot) {
    Slot& mine = slots_[static_cast<std::size_t>(slot)];
    mine.done.synchronize();
    StepResults results = mine.results.view();
    results.hidden = hidden_.view(slot);
    return results;
  }

  /// Computes a step without drawing and copies its logits to `out`, [m, vocab_size], in host
  /// memory. No other step may be under way.
  void run_logits(const StepInputs& inputs, Pool& kv, MatrixView<float> out) {
    check_samples(inputs);
    const std::byte* base = slots_[0].upload(backend_, inputs.bytes());
    const MatrixView<float> logits = sampler_.logits(inputs.num_samples(), 0);
    StepKv<Backend, Pool> step_kv(backend_, kv, copies_of(inputs, base, kv));
    UnpackStepArgs unpack{.previous = drawn_.previous()};
    const StepBatch<ViewOf> step = memory_.views(inputs.fields(), base, unpack);
    backend_.run(unpack);
    hidden_.forward(network_, forward_batch(step, inputs), step_kv, logits);
    for (std::int64_t i = 0; i < logits.extent(0); ++i)
      backend_.download(logits.at(i), out.at(i), elements(out.extent(1)));
  }

 private:
  /// Elements of a row's list (of banned tokens) that graphs have room for, on average.
  static constexpr std::int64_t kGraphListRoom = 16;

  [[nodiscard]] static std::size_t elements(std::int64_t n) { return static_cast<std::size_t>(n); }

  void check_samples(const StepInputs& inputs) const {
    check<ShapeError>(inputs.num_samples() <= limits_.max_num_seqs, "run: at most ",
                      limits_.max_num_seqs, " samples a step, got ", inputs.num_samples());
  }

  /// The block copies of a step whose inputs are on the device, at `base`. Throws ShapeError for
  /// those within the device that leave the pool.
  [[nodiscard]] StepCopies copies_of(const StepInputs& inputs, const std::byte* base,
                                     const Pool& kv) const {
    const StepBatch<PackedOf>& fields = inputs.fields();
    const auto on_host = [&](const PackedArray& list) {
      return array_at<BlockCopy>(inputs.bytes().data(), list);
    };
    const auto inside = on_host(fields.block_copies);
    check_block_copies({inside.data, elements(inside.extent(0))}, kv.num_blocks());
    return {.down = on_host(fields.copies_down),
            .inside = array_at<BlockCopy>(base, fields.block_copies),
            .up = on_host(fields.copies_up)};
  }

  /// Bytes of device memory that one graph takes, measured with the largest.
  [[nodiscard]] std::size_t graph_bytes(Pool& kv) {
    static_cast<void>(record(limits_.max_num_seqs, kv, {}));  // loads kernels
    backend_.synchronize();
    const std::size_t before = backend_.available_memory();
    const StepGraph graph = record(limits_.max_num_seqs, kv, {});
    backend_.synchronize();
    return before - std::min(before, backend_.available_memory());
  }

  /// The smallest graph that can run this step, with its size, or null.
  [[nodiscard]] const SizedGraph* find_graph(const StepInputs& inputs, Pool& kv) {
    const std::int64_t n = inputs.num_decodes();
    if (!is_decode_step(inputs) || inputs.max_logprobs() > Drawn::kGraphLogprobs ||
        !memory_.has_room(inputs.fields()))
      return nullptr;
    const int way = sampler_.way_of(inputs);
    if (inputs.fields().forward.shared_prefixes.size > 0)
      return inputs.has_chunk_rows() ? nullptr : graphs_.find({Recorded::sharing_step, way}, n);
    if (inputs.has_chunk_rows()) return graph_at_need({Recorded::step_of_chunk_rows, way}, n, kv);
    if (kHasPlainSteps && inputs.all_plain()) return graphs_.find(plain_step(), n);
    return graphs_.find({Recorded::step, way}, n);
  }

  /// The graph for the logits of a deferred step; null if it has none.
  [[nodiscard]] const SizedGraph* deferred_graph(const StepInputs& inputs, Pool& kv) {
    if (!is_decode_step(inputs) || inputs.has_chunk_rows()) return nullptr;
    return graph_at_need({Recorded::logits}, inputs.num_decodes(), kv);
  }

  [[nodiscard]] static bool is_decode_step(const StepInputs& inputs) {
    const std::int64_t n = inputs.num_decodes();
    return n > 0 && n == inputs.num_tokens() && n == inputs.num_samples();
  }

  /// One that not every engine uses, recorded at first need; null if none has so many rows.
  [[nodiscard]] const SizedGraph* graph_at_need(Recorded what, std::int64_t rows, Pool& kv) {
    const SizedGraph* const step = graphs_.find({}, rows);
    if (step == nullptr) return nullptr;
    const std::int64_t size = step->first;
    const SizedGraph* const recorded = graphs_.find_exactly(what, size);
    return recorded != nullptr ? recorded : &graphs_.add(what, size, record(size, kv, what));
  }

  /// What puts a decode step into the arrays that the graph of `size` rows reads, and tells the
  /// graph where the host wants its results.
  [[nodiscard]] UnpackStepArgs padded_inputs(const StepInputs& inputs, const std::byte* base,
                                             std::int64_t size, const ResultsPlace& place) {
    UnpackStepArgs unpack{.previous = drawn_.previous()};
    memory_.unpack_padded(inputs.fields(), base, size, unpack);
    if constexpr (kPublishes) {  // as padding: it comes with the launch, not with the inputs
      unpack.add_column(VectorView<const ResultsPlace>{},
                        VectorView<ResultsPlace>(place_.data(), {1}), place);
    }
    return unpack;
  }

  /// Whether a graph of `size` rows reads shared prefixes once. Fewer sizes do: recording takes
  /// time, and padding costs little where prefixes are long.
  [[nodiscard]] bool shares_prefixes(std::int64_t size) const {
    if constexpr (requires { requires Backend::kSharesPrefixes; }) {
      return limits_.shares_prefixes && size >= 2 &&
             (size == limits_.max_num_seqs || size % 32 == 0 || (size & (size - 1)) == 0);
    }
    return false;
  }

  /// Steps of plain rows, which the last way takes.
  [[nodiscard]] Recorded plain_step() const {
    return {Recorded::plain_step, sampler_.num_ways() - 1};
  }
  /// The graphs of a size: for any step; for steps of plain rows, where the backend has a shorter
  /// way for them; and for steps whose sequences share prefixes, where the limits allow for such;
  /// each of the ways to draw. The one that gathers most comes first.
  [[nodiscard]] std::vector<Recorded> kinds_of(std::int64_t size) const {
    std::vector<Recorded> out{Recorded{}};
    if (kHasPlainSteps) out.push_back(plain_step());
    for (int way = 1; way < sampler_.num_ways(); ++way) out.push_back({Recorded::step, way});
    for (int way = 0; way < sampler_.num_ways() && shares_prefixes(size); ++way)
      out.push_back({Recorded::sharing_step, way});
    return out;
  }

  /// Runs a decode step of `size` padded rows, and then records it.
  [[nodiscard]] StepGraph record(std::int64_t size, Pool& kv, Recorded what) {
    StepInputs nothing;
    nothing.build({}, 1, {});
    const UnpackStepArgs unpack =
        padded_inputs(nothing, slots_[0].upload(backend_, nothing.bytes()), size, {});
    backend_.run(unpack);
    decode(size, kv, what);
    if constexpr (kUnpacksInGraphs) {
      StepGraph out{backend_.capture([&] {
                      backend_.run(unpack);
                      decode(size, kv, what);
                    }),
                    true};
      if (backend_.takes_inputs(out.graph)) return out;
    }
    return {backend_.capture([&] { decode(size, kv, what); }), false};
  }

  void replay(const StepGraph& step, const UnpackStepArgs& unpack) {
    if constexpr (kUnpacksInGraphs) {
      if (step.unpacks) return backend_.replay(step.graph, unpack);
    }
    backend_.replay(step.graph);
  }

  /// What a graph holds after unpack_step: forward pass and, unless the step is deferred, sampler.
  void decode(std::int64_t size, Pool& kv, Recorded what) {
    const StepBatch<ViewOf> step = memory_.padded_views(size);
    ForwardBatch batch{step.forward, size};
    if (what.kind != Recorded::sharing_step) batch.shared_prefixes = {}, batch.prefix_members = {};
    batch.logit_rows = {nullptr, {size}};  // all
    batch.has_chunk_rows = what.kind == Recorded::step_of_chunk_rows;
    const bool plain = what.kind == Recorded::plain_step;
    const MatrixView<float> logits = sampler_.logits(size, what.way);
    StepKv<Backend, Pool> step_kv(backend_, kv);
    hidden_.forward(network_, batch, step_kv, logits);
    if (what.kind == Recorded::logits) return;
    sampler_.run(drawn_.of_graph(size).draw(logits, step.sampling, plain), what.way);
    if constexpr (kPublishes) {
      backend_.run(drawn_.publication(place_.data(), size));
    }
  }

  /// Everything, kernel by kernel.
  void run_eagerly(const StepInputs& inputs, const std::byte* base, StepKv<Backend, Pool>& kv) {
    const std::int64_t m = inputs.num_samples(), top = inputs.max_logprobs();
    const bool is_drawn = m > 0 && !inputs.is_deferred();
    if (is_drawn) drawn_.reserve_top(m * top);
    UnpackStepArgs unpack{.previous = drawn_.previous()};
    const StepBatch<ViewOf> step = memory_.views(inputs.fields(), base, unpack);
    backend_.run(unpack);
    const int way = is_drawn ? sampler_.way_of(inputs) : 0;
    const MatrixView<float> logits = sampler_.logits(m, way);
    hidden_.forward(network_, forward_batch(step, inputs), kv, logits);
    if (!is_drawn) return;
    sampler_.run(drawn_.of_step(m, top).draw(logits, step.sampling, inputs.all_plain()), way);
  }

  Network& network_;
  Backend& backend_;
  StepLimits limits_;
  std::int64_t max_blocks_;
  typename Draws::template Sampler<Network, Backend> sampler_;
  StepMemory<Backend::template Buffer, /*kPadded=*/true> memory_;
  std::array<Slot, 2> slots_;
  Drawn drawn_;
  HiddenRows<Network, Backend> hidden_;
  Buffer<ResultsPlace> place_;  // of the step whose graph runs; one, or none without kPublishes

  // Of deferred steps.
  Buffer<std::byte> draws_;  // the arena of SampleInputs
  Buffer<float> chosen_;
  EditChain<Backend, Functor> edits_;

  StepGraphs<StepGraph> graphs_;  // they go first
};

}  // namespace nanovllm
