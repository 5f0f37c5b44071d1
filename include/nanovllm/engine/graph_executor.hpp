#pragma once
/// Runs steps on a backend that works behind the host's back: one copy in, one graph or a chain of
/// launches, one copy out.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/engine/step_inputs.hpp"
#include "nanovllm/engine/step_results.hpp"
#include "nanovllm/model/forward_inputs.hpp"
#include "nanovllm/model/model.hpp"
#include "nanovllm/ops/sampler.hpp"
#include "nanovllm/ops/unpack_step.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {

/// Sizes of decode steps that get a graph, descending: 1, 2, 4, then multiples of 8 up to 128, of
/// 16 up to 256, of 32 up to 512 and of 64 beyond, and always `most` itself. A step takes the next
/// size up; the rows that it does not need are padding.
[[nodiscard]] inline std::vector<std::int64_t> graph_sizes(std::int64_t most) {
  std::vector<std::int64_t> out;
  const auto spacing = [](std::int64_t size) {
    return size < 4 ? size : size < 8 ? 4 : size < 128 ? 8 : size < 256 ? 16 : size < 512 ? 32 : 64;
  };
  for (std::int64_t size = 1; size < most; size += spacing(size)) out.push_back(size);
  out.push_back(most);
  std::reverse(out.begin(), out.end());
  return out;
}

/// One rank's steps. The life of a step:
///
///     launch   inputs → pinned memory → device           one copy
///              decodes alone: unpack_step, then the graph of their size: forward, sample
///              otherwise: resolve_tokens, forward, sample, kernel by kernel
///              what was drawn → pinned memory            and an event behind it
///     wait     until the event
///
/// What a step draws stays on the device, too, where the next step finds the tokens that the host
/// does not know yet. All ranks of a group have the same logits and draw the same tokens.
template <class Network, class Backend, class Pool>
class GraphExecutor {
  template <class U>
  using Buffer = typename Backend::template Buffer<U>;
  template <class U>
  using HostBuffer = typename Backend::template HostBuffer<U>;
  using Graph = typename Backend::Graph;

 public:
  /// Allocates for steps within `limits` of sequences of `max_blocks` blocks. `network` and
  /// `backend` must outlive the executor.
  GraphExecutor(Network& network, Backend& backend, const NetworkLimits& limits,
                std::int64_t max_blocks)
      : network_(network),
        backend_(backend),
        limits_(limits),
        max_samples_(limits.max_samples),
        max_blocks_(max_blocks),
        logits_(elements(max_samples_ * network.padded_vocab_size())),
        drawn_tokens_(elements(max_samples_)),
        drawn_logprobs_(elements(max_samples_)),
        top_tokens_(elements(max_samples_ * kGraphLogprobs)),
        top_logprobs_(elements(max_samples_ * kGraphLogprobs)),
        tokens_(elements(max_samples_)),
        positions_(elements(max_samples_)),
        slots_(elements(max_samples_)),
        kv_lens_(elements(max_samples_)),
        block_tables_(elements(max_samples_ * max_blocks)),
        rows_(elements(max_samples_)),
        banned_starts_(elements(max_samples_ + 1)),
        banned_tokens_(elements(max_samples_ * kGraphBanned)) {}

  /// Waits for what is under way: it uses this executor's memory, the network's and the pool's.
  ~GraphExecutor() {
    try {
      backend_.synchronize();
    } catch (const Error&) {  // the step's error was for `wait`
    }
  }

  GraphExecutor(const GraphExecutor&) = delete;
  GraphExecutor& operator=(const GraphExecutor&) = delete;

  /// Records a graph for every size of `graph_sizes(max_samples)`, the largest first. Each is run
  /// once on padding before, which loads its kernels. `kv` must stay where it is.
  void capture(Pool& kv) {
    graphs_.clear();
    for (const std::int64_t size : graph_sizes(max_samples_)) {
      graphs_.emplace_back(size, record(size, kv));
    }
    backend_.synchronize();
  }

  /// Computes the largest step there can be, so that whatever takes memory at its first use has
  /// it, and returns the bytes that `capture` will take. `scratch` is a pool of one block.
  [[nodiscard]] std::size_t profile_run(Pool& scratch) {
    const std::int64_t length = std::min(limits_.max_tokens, limits_.max_context);
    std::vector<Sequence> sequences(elements(limits_.max_tokens / length));
    StepPlan plan;
    for (Sequence& sequence : sequences) {
      sequence.tokens.assign(elements(length), TokenId{0});
      sequence.block_table.assign(elements(max_blocks_), BlockId{0});  // all write to the same
      plan.sequences.push_back(
          {.sequence = &sequence, .end = static_cast<std::int32_t>(length), .samples = true});
      plan.num_tokens += static_cast<std::int32_t>(length);
    }
    if (plan.sequences.size() > elements(max_samples_)) {
      plan.sequences.resize(elements(max_samples_));
      plan.num_tokens = static_cast<std::int32_t>(max_samples_ * length);
    }
    StepInputs inputs;
    const std::vector<StepInputs::Sample> samples(plan.sequences.size());
    inputs.build(plan, scratch.shape().block_size, samples);
    launch(0, inputs, scratch);
    static_cast<void>(wait(0));
    return graph_bytes(scratch) * graph_sizes(max_samples_).size();
  }

  /// Enqueues a step in `slot`, 0 and 1 in turn. `inputs` may change as soon as this returns. The
  /// step before may still be under way, the one before that not.
  void launch(int slot, const StepInputs& inputs, Pool& kv) {
    check_samples(inputs);
    Transfer& transfer = transfers_[static_cast<std::size_t>(slot)];
    std::byte* const base = stage(inputs, transfer);
    const auto* graph = find_graph(inputs);
    if (graph != nullptr) {
      backend_.run(unpack_args(inputs, base, graph->first));
      backend_.replay(graph->second);
    } else {
      run_eagerly(inputs, base, kv);
    }
    fetch(inputs, graph != nullptr, transfer);
  }

  /// Whether the step launched in `slot` is done, or there was none. Throws when it has failed.
  [[nodiscard]] bool is_done(int slot) const {
    return transfers_[static_cast<std::size_t>(slot)].done.is_done();
  }

  /// Waits for the step launched in `slot` and gives what it drew, valid until the slot's next
  /// launch.
  [[nodiscard]] StepResults wait(int slot) {
    Transfer& transfer = transfers_[static_cast<std::size_t>(slot)];
    transfer.done.synchronize();
    const std::int64_t m = transfer.num_samples, top = transfer.num_top;
    return {.tokens = {transfer.tokens.data(), {m}},
            .logprobs = {transfer.logprobs.data(), {m}},
            .top_tokens = {transfer.top_tokens.data(), {m, top}},
            .top_logprobs = {transfer.top_logprobs.data(), {m, top}}};
  }

  /// Computes a step without drawing and copies its logits to `out`, [m, vocab_size], in host
  /// memory. No other step may be under way.
  void run_logits(const StepInputs& inputs, Pool& kv, MatrixView<float> out) {
    check_samples(inputs);
    const std::byte* base = stage(inputs, transfers_[0]);
    const MatrixView<float> logits = logits_view(inputs.num_samples());
    network_.forward(inputs.forward_inputs(base), kv, logits);
    for (std::int64_t i = 0; i < logits.extent(0); ++i)
      backend_.download(logits.at(i), out.at(i), elements(out.extent(1)));
  }

 private:
  /// Most likely tokens of a row that graphs can give; steps that want more get no graph.
  static constexpr std::int64_t kGraphLogprobs = 20;
  /// Banned tokens of a row that graphs have room for, on average.
  static constexpr std::int64_t kGraphBanned = 16;

  /// A step's way to the device and back, in pinned memory.
  struct Transfer {
    HostBuffer<std::byte> inputs;
    HostBuffer<TokenId> tokens;
    HostBuffer<float> logprobs;
    HostBuffer<TokenId> top_tokens;
    HostBuffer<float> top_logprobs;
    std::int64_t num_samples = 0;
    std::int64_t num_top = 0;
    typename Backend::Event done;
  };

  [[nodiscard]] static std::size_t elements(std::int64_t n) { return static_cast<std::size_t>(n); }

  /// Makes `buffer` hold at least `size` elements. Growth is rare and by half at least.
  template <class AnyBuffer>
  static void grow(AnyBuffer& buffer, std::size_t size) {
    if (buffer.size() >= size) return;
    const std::size_t new_size = std::max(size, buffer.size() + buffer.size() / 2);
    buffer = AnyBuffer();
    buffer = AnyBuffer(new_size);
  }

  void check_samples(const StepInputs& inputs) const {
    check<ShapeError>(inputs.num_samples() <= max_samples_, "run: at most ", max_samples_,
                      " samples a step, got ", inputs.num_samples());
  }

  /// Copies the inputs to the device and returns where they begin there.
  std::byte* stage(const StepInputs& inputs, Transfer& transfer) {
    const std::span<const std::byte> bytes = inputs.bytes();
    transfer.done.synchronize();  // of the step that used this memory before
    grow(transfer.inputs, bytes.size());
    if (arena_.size() < bytes.size()) backend_.synchronize();  // the step under way may read it
    grow(arena_, bytes.size());
    std::memcpy(transfer.inputs.data(), bytes.data(), bytes.size());
    backend_.upload(transfer.inputs.data(), arena_.data(), bytes.size());
    return arena_.data();
  }

  /// Bytes of device memory that one graph takes, measured with the largest.
  [[nodiscard]] std::size_t graph_bytes(Pool& kv) {
    static_cast<void>(record(max_samples_, kv));  // loads kernels
    backend_.synchronize();
    const std::size_t before = backend_.available_memory();
    const Graph graph = record(max_samples_, kv);
    backend_.synchronize();
    return before - std::min(before, backend_.available_memory());
  }

  /// The smallest graph that can run this step, with its size, or null.
  [[nodiscard]] const std::pair<std::int64_t, Graph>* find_graph(const StepInputs& inputs) const {
    const std::int64_t n = inputs.num_decodes();
    const std::int64_t num_banned = inputs.banned_tokens().extent(0);
    if (n == 0 || n != inputs.num_tokens() || inputs.max_logprobs() > kGraphLogprobs ||
        num_banned > static_cast<std::int64_t>(banned_tokens_.size())) {
      return nullptr;
    }
    const auto smaller = std::find_if(graphs_.begin(), graphs_.end(),
                                      [&](const auto& graph) { return graph.first < n; });
    return smaller == graphs_.begin() ? nullptr : &*std::prev(smaller);
  }

  /// The fixed arrays, cut to `size` rows.
  [[nodiscard]] DecodeStepArrays arrays(std::int64_t size) {
    return {.tokens = {tokens_.data(), {size}},
            .positions = {positions_.data(), {size}},
            .slots = {slots_.data(), {size}},
            .kv_lens = {kv_lens_.data(), {size}},
            .block_tables = {block_tables_.data(), {size, max_blocks_}},
            .rows = {rows_.data(), {size}},
            .banned_starts = {banned_starts_.data(), {size + 1}},
            .banned_tokens = {banned_tokens_.data(),
                              {static_cast<std::int64_t>(banned_tokens_.size())}}};
  }

  [[nodiscard]] UnpackStepArgs unpack_args(const StepInputs& inputs, const std::byte* base,
                                           std::int64_t size) {
    const ForwardInputs in = inputs.forward_inputs(base);
    return {.tokens = in.tokens,
            .positions = in.positions,
            .slots = in.slots,
            .kv_lens = in.kv_lens,
            .block_tables = in.block_tables,
            .rows = inputs.rows(base),
            .banned_starts = inputs.banned_starts(base),
            .banned_tokens = inputs.banned_tokens(base),
            .previous = {drawn_tokens_.data(), {max_samples_}},
            .out = arrays(size)};
  }

  /// Runs a decode step of `size` padded rows, and then records it.
  [[nodiscard]] Graph record(std::int64_t size, Pool& kv) {
    StepInputs nothing;
    nothing.build({}, 1, {});
    backend_.run(unpack_args(nothing, stage(nothing, transfers_[0]), size));
    decode(size, kv);
    return backend_.capture([&] { decode(size, kv); });
  }

  /// What a graph holds: forward pass and sampler over the fixed arrays.
  void decode(std::int64_t size, Pool& kv) {
    const DecodeStepArrays in = arrays(size);
    ForwardInputs forward;
    forward.num_decodes = size;
    forward.tokens = in.tokens;
    forward.positions = in.positions;
    forward.slots = in.slots;
    forward.kv_lens = in.kv_lens;
    forward.block_tables = in.block_tables;
    forward.logit_rows = {nullptr, {size}};  // all
    const MatrixView<float> logits = logits_view(size);
    network_.forward(forward, kv, logits);
    sample(logits, in.rows, in.banned_starts, in.banned_tokens,
           {top_tokens_.data(), {size, kGraphLogprobs}},
           {top_logprobs_.data(), {size, kGraphLogprobs}});
  }

  void run_eagerly(const StepInputs& inputs, std::byte* base, Pool& kv) {
    const ForwardInputs in = inputs.forward_inputs(base);
    if (inputs.has_pending_tokens()) {
      const std::int64_t offset = reinterpret_cast<const std::byte*>(in.tokens.data) - base;
      backend_.run(ResolveTokensArgs{
          .tokens = {reinterpret_cast<TokenId*>(base + offset), in.tokens.extents},
          .previous = {drawn_tokens_.data(), {max_samples_}}});
    }
    const std::int64_t m = inputs.num_samples(), top = inputs.max_logprobs();
    const MatrixView<float> logits = logits_view(m);
    network_.forward(in, kv, logits);
    if (m == 0) return;
    if (static_cast<std::int64_t>(wide_top_tokens_.size()) < m * top) {
      backend_.synchronize();
      grow(wide_top_tokens_, elements(m * top));
      grow(wide_top_logprobs_, elements(m * top));
    }
    sample(logits, inputs.rows(base), inputs.banned_starts(base), inputs.banned_tokens(base),
           {wide_top_tokens_.data(), {m, top}}, {wide_top_logprobs_.data(), {m, top}});
  }

  [[nodiscard]] MatrixView<float> logits_view(std::int64_t m) {
    return {logits_.data(), {m, network_.padded_vocab_size()}};
  }

  void sample(MatrixView<float> logits, VectorView<const SamplingRow> rows,
              VectorView<const std::int32_t> banned_starts, VectorView<const TokenId> banned_tokens,
              MatrixView<TokenId> top_tokens, MatrixView<float> top_logprobs) {
    const std::int64_t m = logits.extent(0);
    logits.extents[1] = network_.vocab_size();
    backend_.run(SampleArgs{.logits = logits,
                            .rows = rows,
                            .banned_starts = banned_starts,
                            .banned_tokens = banned_tokens,
                            .tokens = {drawn_tokens_.data(), {m}},
                            .logprobs = {drawn_logprobs_.data(), {m}},
                            .top_tokens = top_tokens,
                            .top_logprobs = top_logprobs});
  }

  /// Copies what the step draws to the host, of log-probabilities only what was asked for.
  void fetch(const StepInputs& inputs, bool graph, Transfer& transfer) {
    const std::int64_t m = inputs.num_samples();
    transfer.num_samples = m;
    transfer.num_top = graph && inputs.max_logprobs() > 0 ? kGraphLogprobs : inputs.max_logprobs();
    const std::size_t top = elements(m * transfer.num_top);
    grow(transfer.tokens, elements(m));
    grow(transfer.logprobs, elements(m));
    grow(transfer.top_tokens, top);
    grow(transfer.top_logprobs, top);
    backend_.download_later(drawn_tokens_.data(), transfer.tokens.data(), elements(m));
    if (inputs.wants_logprobs())
      backend_.download_later(drawn_logprobs_.data(), transfer.logprobs.data(), elements(m));
    if (top > 0) {
      backend_.download_later((graph ? top_tokens_ : wide_top_tokens_).data(),
                              transfer.top_tokens.data(), top);
      backend_.download_later((graph ? top_logprobs_ : wide_top_logprobs_).data(),
                              transfer.top_logprobs.data(), top);
    }
    backend_.record(transfer.done);
  }

  Network& network_;
  Backend& backend_;
  NetworkLimits limits_;
  std::int64_t max_samples_;
  std::int64_t max_blocks_;
  Buffer<float> logits_;  // [max_samples, padded vocab]
  Buffer<std::byte> arena_;
  std::array<Transfer, 2> transfers_;

  // What is drawn: [max_samples], [max_samples, kGraphLogprobs], and wider where asked for.
  Buffer<TokenId> drawn_tokens_;
  Buffer<float> drawn_logprobs_;
  Buffer<TokenId> top_tokens_;
  Buffer<float> top_logprobs_;
  Buffer<TokenId> wide_top_tokens_;
  Buffer<float> wide_top_logprobs_;

  // What graphs read: `DecodeStepArrays` of max_samples rows.
  Buffer<TokenId> tokens_;
  Buffer<std::int32_t> positions_;
  Buffer<Slot> slots_;
  Buffer<std::int32_t> kv_lens_;
  Buffer<BlockId> block_tables_;
  Buffer<SamplingRow> rows_;
  Buffer<std::int32_t> banned_starts_;
  Buffer<TokenId> banned_tokens_;

  std::vector<std::pair<std::int64_t, Graph>> graphs_;  // by size, descending; goes first
};

}  // namespace nanovllm
