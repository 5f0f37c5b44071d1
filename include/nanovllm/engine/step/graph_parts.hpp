#pragma once
/// What a GraphExecutor is made of: the largest step, which shows what memory steps take; what
/// steps draw; a step's memory on both sides; and its graphs, by what they compute and by size.

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/limits.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/engine/step/step_batch.hpp"
#include "nanovllm/engine/step/step_inputs.hpp"
#include "nanovllm/engine/step/step_results.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/ops/publish_results.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {

/// The inputs of a step of whole prompts, as many and as long as `limits` allow, that all write to
/// block 0 of the pool. `max_blocks` are the blocks of a sequence, `block_size` the tokens of one.
[[nodiscard]] inline StepInputs largest_step(const StepLimits& limits, std::int64_t max_blocks,
                                             std::int64_t block_size) {
  const std::int64_t length = std::min(limits.max_num_batched_tokens, limits.max_model_len);
  const std::int64_t count = std::min(limits.max_num_batched_tokens / length, limits.max_num_seqs);
  std::vector<Sequence> sequences(static_cast<std::size_t>(count));
  StepPlan plan;
  HostSamplingBatch sampling;
  for (Sequence& sequence : sequences) {
    sequence.tokens.assign(static_cast<std::size_t>(length), TokenId{0});
    sequence.block_table.assign(static_cast<std::size_t>(max_blocks), BlockId{0});
    const std::int32_t end = sequence.num_tokens();
    plan.sequences.push_back({.sequence = &sequence, .end = end, .rows = sequence.rows_in(0, end)});
    append_sample(sampling, {});
  }
  plan.num_tokens = static_cast<std::int32_t>(count * length);
  StepInputs inputs;
  inputs.build(plan, block_size, sampling);
  return inputs;
}

/// Device memory for the tokens and log-probabilities of up to `max_rows` rows. The next step finds
/// there the tokens that the host does not know yet.
///
/// Of a row's most likely tokens, graphs give up to kGraphLogprobs in memory that never moves;
/// other steps give as many as are asked for, in memory that grows.
template <class Backend>
class DrawnRows {
  template <class U>
  using Buffer = typename Backend::template Buffer<U>;

 public:
  using Results = StepResultsMemory<Backend::template HostBuffer>;

  /// Most likely tokens of a row that graphs can give; steps that want more get no graph.
  static constexpr std::int64_t kGraphLogprobs = 20;

  /// `backend` must outlive this.
  DrawnRows(Backend& backend, std::int64_t max_rows) : backend_(backend), max_rows_(max_rows) {
    drawn_.resize(max_rows, kGraphLogprobs);
  }

  /// What the step before drew.
  [[nodiscard]] VectorView<const TokenId> previous() const {
    return {drawn_.tokens.data(), {max_rows_}};
  }
  /// Where a graph of `m` rows writes.
  [[nodiscard]] DrawnViews of_graph(std::int64_t m) { return drawn_.drawn(m); }
  /// Where another step of `m` rows writes; `reserve_top(m * top)` came before.
  [[nodiscard]] DrawnViews of_step(std::int64_t m, std::int64_t top) {
    DrawnViews views = drawn_.drawn(m);
    views.top_tokens = {wide_top_tokens_.data(), {m, top}};
    views.top_logprobs = {wide_top_logprobs_.data(), {m, top}};
    return views;
  }

  /// What tells a graph to write what it has drawn to the host's memory, at `place`.
  [[nodiscard]] PublishResultsArgs publication(const ResultsPlace* place, std::int64_t m) {
    const DrawnViews views = of_graph(m);
    return {place, views.tokens, views.logprobs, views.top_tokens, views.top_logprobs};
  }

  /// Makes room for `count` likeliest tokens, and waits for the device if it has to grow.
  void reserve_top(std::int64_t count) {
    if (static_cast<std::int64_t>(wide_top_tokens_.size()) >= count) return;
    backend_.synchronize();
    discard_and_grow(wide_top_tokens_, count);
    discard_and_grow(wide_top_logprobs_, count);
  }

  /// Makes room on the host for what a step draws, by a graph or not.
  template <class Inputs>  // StepInputs or SampleInputs
  static void reserve(const Inputs& inputs, bool graph, Results& results) {
    const std::int64_t top = inputs.max_logprobs();
    results.resize(inputs.num_samples(), graph && top > 0 ? kGraphLogprobs : top);
  }

  /// Enqueues the copy of what a step draws to the host, of log-probabilities only what was asked
  /// for.
  template <class Inputs>
  void fetch(const Inputs& inputs, bool graph, Results& to) {
    const auto m = static_cast<std::size_t>(inputs.num_samples());
    reserve(inputs, graph, to);
    const std::size_t top = m * static_cast<std::size_t>(to.num_top);
    backend_.download_later(drawn_.tokens.data(), to.tokens.data(), m);
    if (inputs.wants_logprobs())
      backend_.download_later(drawn_.logprobs.data(), to.logprobs.data(), m);
    if (top > 0) {
      backend_.download_later((graph ? drawn_.top_tokens : wide_top_tokens_).data(),
                              to.top_tokens.data(), top);
      backend_.download_later((graph ? drawn_.top_logprobs : wide_top_logprobs_).data(),
                              to.top_logprobs.data(), top);
    }
  }

 private:
  Backend& backend_;
  std::int64_t max_rows_;
  StepResultsMemory<Backend::template Buffer> drawn_;
  Buffer<TokenId> wide_top_tokens_;
  Buffer<float> wide_top_logprobs_;
};

/// Memory of a step on both sides, which later steps in the same slot use again.
template <class Backend>
struct StepMemorySlot {
  typename Backend::template HostBuffer<std::byte> inputs;
  typename Backend::template Buffer<std::byte> arena;      ///< the inputs on the device
  typename Backend::template HostBuffer<std::byte> draws;  ///< SampleInputs of a deferred step
  StepResultsMemory<Backend::template HostBuffer> results;
  typename Backend::Event done;
  bool uploading = false;  ///< `inputs` or `draws` is being read, and `done` is not after that yet

  /// Copies a step's inputs to the device, and returns where they begin there. Waits for the step
  /// that used this memory before.
  const std::byte* upload(Backend& backend, std::span<const std::byte> bytes) {
    const auto size = static_cast<std::int64_t>(bytes.size());
    done.synchronize();                    // of the step that used this memory before
    if (uploading) backend.synchronize();  // it got no further, or there is no result of it
    discard_and_grow(inputs, size);
    discard_and_grow(arena, size);
    std::memcpy(inputs.data(), bytes.data(), bytes.size());
    uploading = true;
    if constexpr (UploadsEarly<Backend>) {
      backend.upload_early(inputs.data(), arena.data(), bytes.size());
    } else {
      backend.upload(inputs.data(), arena.data(), bytes.size());
    }
    return arena.data();
  }

  /// Copies what a deferred step is drawn by to the device, to the beginning of `to`.
  void upload_draws(Backend& backend, std::span<const std::byte> bytes,
                    typename Backend::template Buffer<std::byte>& to) {
    const auto size = static_cast<std::int64_t>(bytes.size());
    if (static_cast<std::int64_t>(draws.size()) < size ||
        static_cast<std::int64_t>(to.size()) < size) {
      backend.synchronize();  // what is under way may read them
      discard_and_grow(draws, size);
      discard_and_grow(to, size);
    }
    std::memcpy(draws.data(), bytes.data(), bytes.size());
    uploading = true;
    backend.upload(draws.data(), to.data(), bytes.size());
  }

  /// What was enqueued so far is all of the step.
  void finish(Backend& backend) {
    backend.record(done);
    uploading = false;
  }
};

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

/// What a graph computes: a step, one whose rows are all plain for the sampler, one whose decodes
/// read shared prefixes once, one whose decodes see keys of others in it, or logits alone; and in
/// which of a sampler's ways it draws.
struct Recorded {
  enum Kind : std::uint8_t { step, plain_step, sharing_step, step_of_chunk_rows, logits };
  Kind kind = step;
  int way = 0;
  auto operator<=>(const Recorded&) const = default;
};

/// Graphs by what they compute and by size.
template <class Graph>
class StepGraphs {
 public:
  using Sized = std::pair<std::int64_t, Graph>;  ///< rows, and the graph

  void clear() { lists_.clear(); }

  /// Adds one of a size that there is none of; returns it.
  const Sized& add(Recorded what, std::int64_t size, Graph graph) {
    std::vector<Sized>& list = lists_[what];
    const auto larger = std::find_if(list.begin(), list.end(),
                                     [&](const Sized& other) { return other.first <= size; });
    return *list.emplace(larger, size, std::move(graph));
  }

  /// The smallest of `rows` rows or more, or null.
  [[nodiscard]] const Sized* find(Recorded what, std::int64_t rows) const {
    const auto found = lists_.find(what);
    if (found == lists_.end()) return nullptr;
    const std::vector<Sized>& list = found->second;
    const auto smaller = std::find_if(list.begin(), list.end(),
                                      [&](const Sized& graph) { return graph.first < rows; });
    return smaller == list.begin() ? nullptr : &*std::prev(smaller);
  }

  /// The one of `rows` rows, or null.
  [[nodiscard]] const Sized* find_exactly(Recorded what, std::int64_t rows) const {
    const Sized* const found = find(what, rows);
    return found != nullptr && found->first == rows ? found : nullptr;
  }

 private:
  std::map<Recorded, std::vector<Sized>> lists_;  ///< each by size, descending
};

}  // namespace nanovllm
