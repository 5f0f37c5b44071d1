#pragma once
/// Drafts of an EAGLE-3 head for the sequences of a step: batches of pairs, then of further tokens.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/limits.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/kv/kv_pool.hpp"
#include "nanovllm/model/forward_batch.hpp"
#include "nanovllm/ops/copy_blocks.hpp"
#include "nanovllm/ops/embedding.hpp"
#include "nanovllm/ops/kv_format.hpp"
#include "nanovllm/with/speculation/eagle3/head.hpp"

namespace nanovllm {

/// What a step of the target has computed of a sequence, and how many tokens are to be drafted.
struct Eagle3Request {
  /// The first of the step's rows that is the sequence's, and the position of its token.
  std::int32_t first_row = 0;
  std::int32_t begin = 0;
  /// The tokens after those of its rows, at least one. Rows after these are of refused guesses.
  std::span<const TokenId> next{};
  /// Blocks of its tokens up to the last of these rows at least, as in the target's block table.
  std::span<const BlockId> blocks{};
  std::int32_t num_drafts = 0;  ///< none while a prompt is not whole
};

/// One rank's drafts. Owns the head's KV pool, whose first blocks are those of the target's ids.
/// The keys of drafted tokens that have no block yet go to blocks behind them, until the next call.
///
/// Who copies blocks of the target's pool, or moves them out and in, does so with `pool()` too, or
/// drafts are worse. Which tokens the target draws never depends on it.
template <class ElementsT, class Backend>
class Eagle3Chains {
  using A = typename ElementsT::Activation;
  using Kv = typename ElementsT::KvElement;
  template <class T>
  using Buffer = typename Backend::template Buffer<T>;

 public:
  using Head = Eagle3Head<ElementsT, Backend>;
  using Pool = KvPool<Kv, Buffer<KvStored<Kv>>>;

  /// @param limits      of the target's steps, and of the head.
  /// @param num_blocks  of the target's pool.
  /// @param max_drafts  most tokens that are drafted of a sequence, ≥ 1.
  /// `head` and `backend` must outlive this.
  Eagle3Chains(Head& head, Backend& backend, const StepLimits& limits, std::int64_t block_size,
               std::int32_t num_blocks, std::int32_t max_drafts)
      : head_(head),
        backend_(backend),
        limits_(limits),
        block_size_(block_size),
        num_blocks_(num_blocks),
        max_drafts_(max_drafts),
        num_own_blocks_(ceil_div(std::int64_t{max_drafts}, block_size)),
        pool_(head.kv_shape(block_size),
              static_cast<std::int32_t>(num_blocks + limits.max_num_seqs * num_own_blocks_)),
        streams_(static_cast<std::size_t>(limits.max_num_batched_tokens * head.streams_width())),
        logits_(static_cast<std::size_t>(limits.max_num_seqs * head.vocab_size())),
        drafted_(static_cast<std::size_t>(limits.max_num_seqs * max_drafts)) {
    clear_pool();
  }

  [[nodiscard]] Pool& pool() { return pool_; }

  /// Copies blocks of the pool, of whole ones the pairs of all their tokens. See CopyBlocksArgs.
  void copy_blocks(std::span<const BlockCopy> copies) {
    if (copies.empty()) return;
    copies_.host.assign(copies.begin(), copies.end());
    backend_.run(CopyBlocksArgs<Kv>{
        .first_layer = pool_.layer(0), .num_layers = 1, .copies = copies_.upload(backend_)});
  }

  /// Stores the pairs of all requests, and drafts: out[i] gets `num_drafts` tokens of request i.
  /// @param streams  of all rows of the step, [rows, s · H]: `StreamTaps::rows`.
  template <class Target>
  void draft(MatrixView<const A> streams, std::span<const Eagle3Request> requests, Target& target,
             std::vector<std::vector<TokenId>>& out) {
    check(requests.size() <= static_cast<std::size_t>(limits_.max_num_seqs),
          "EAGLE-3 drafts: at most ", limits_.max_num_seqs, " sequences, got ", requests.size());
    out.assign(requests.size(), {});
    if (requests.empty()) return;
    order(requests);
    lay_out_pairs(requests);
    const auto n = static_cast<std::int64_t>(tokens_.host.size());
    const MatrixView<A> chosen(streams_.data(), {n, head_.streams_width()});
    backend_.run(GatherRowsArgs<A>{.x = streams, .rows = rows_.upload(backend_), .out = chosen});
    head_.forward(chosen, batch(), target, pool_.layer(0), logits());
    const std::vector<std::size_t> all = drafting_;
    std::vector<std::size_t> counts;  // of the sequences that draft i is for: the first of `all`
    while (!drafting_.empty()) {
      const auto i = static_cast<std::int32_t>(counts.size());
      const VectorView<TokenId> drafted = drafted_at(i);
      head_.likeliest(logits(), drafted);
      counts.push_back(drafting_.size());
      while (!drafting_.empty() && requests[drafting_.back()].num_drafts <= i + 1)
        drafting_.pop_back();
      if (drafting_.empty()) break;
      lay_out_step(requests, i);
      ForwardBatch next = batch();
      next.tokens = drafted.slice(0, std::ssize(drafting_));
      head_.step(next, target, pool_.layer(0), logits());
    }
    take(all, counts, out);
  }

 private:
  /// An array of a batch, on the host and where the backend reads it.
  template <class T>
  struct Field {
    std::vector<T> host;
    Buffer<T> there{0};

    VectorView<const T> upload(Backend& backend) {
      const auto count = std::ssize(host);
      if (std::cmp_less(there.size(), count)) there = Buffer<T>(host.size() + host.size() / 2);
      backend.upload(host.data(), there.data(), host.size());
      return {there.data(), {count}};
    }
  };

  /// Blocks that were never stored to, e.g. of a prefix from elsewhere, may be read.
  void clear_pool() {
    const KvView<Kv> layer = pool_.layer(0);
    const std::vector<KvStored<Kv>> zeros(static_cast<std::size_t>(pool_.shape().layer_bytes()) /
                                          sizeof(KvStored<Kv>));
    backend_.upload(zeros.data(), layer.k(0, 0), zeros.size());
    std::vector<BlockCopy> copies;
    for (BlockId block = 1; block < pool_.num_blocks(); ++block) copies.push_back({0, block});
    copy_blocks(copies);
  }

  /// Decodes come first in a batch; those that draft most, first in the rows of logits.
  void order(std::span<const Eagle3Request> requests) {
    decodes_first_.clear();
    drafting_.clear();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const Eagle3Request& request = requests[i];
      check(!request.next.empty() && request.num_drafts >= 0 && request.num_drafts <= max_drafts_,
            "EAGLE-3 drafts: a sequence has rows, and at most ", max_drafts_, " drafts, got ",
            request.next.size(), " and ", request.num_drafts);
      decodes_first_.push_back(i);
      if (request.num_drafts > 0) drafting_.push_back(i);
    }
    const auto chunks = std::ranges::stable_partition(
        decodes_first_, [&](std::size_t i) { return is_decode(requests[i]); });
    num_decodes_ = std::ssize(decodes_first_) - std::ssize(chunks);
    std::ranges::stable_sort(drafting_, std::greater{},
                             [&](std::size_t i) { return requests[i].num_drafts; });
  }
  [[nodiscard]] static bool is_decode(const Eagle3Request& request) {
    return request.next.size() == 1 && request.begin > 0;
  }

  void clear() {
    tokens_.host.clear();
    positions_.host.clear();
    slots_.host.clear();
    rows_.host.clear();
    query_starts_.host.assign(1, 0);
    kv_lens_.host.clear();
    tables_.host.clear();
    logit_rows_.host.clear();
  }

  /// A row at `position` of request `i`.
  void add_row(const Eagle3Request& request, std::size_t i, std::int32_t position) {
    const auto place = static_cast<std::size_t>(position / block_size_);
    positions_.host.push_back(position);
    slots_.host.push_back(Slot{block_of(request, i, place)} * block_size_ + position % block_size_);
  }
  /// The block at `place` of its table, or one of its own behind the table.
  [[nodiscard]] BlockId block_of(const Eagle3Request& request, std::size_t i,
                                 std::size_t place) const {
    if (place < request.blocks.size()) return request.blocks[place];
    const auto first = num_blocks_ + static_cast<std::int64_t>(i) * num_own_blocks_;
    return static_cast<BlockId>(first + static_cast<std::int64_t>(place - request.blocks.size()));
  }
  /// A sequence whose rows end at `end`; after its rows.
  void end_sequence(const Eagle3Request& request, std::size_t i, std::int32_t end) {
    kv_lens_.host.push_back(end);
    const auto width = static_cast<std::size_t>(table_width_);
    for (std::size_t place = 0; place < width; ++place)
      tables_.host.push_back(place < request.blocks.size() +
                                         static_cast<std::size_t>(num_own_blocks_)
                                 ? block_of(request, i, place)
                                 : BlockId{0});
  }

  void lay_out_pairs(std::span<const Eagle3Request> requests) {
    clear();
    table_width_ = 0;
    for (const Eagle3Request& request : requests)
      table_width_ = std::max(table_width_, std::ssize(request.blocks) + num_own_blocks_);
    last_rows_.assign(requests.size(), 0);
    has_prefix_ = false;
    for (const std::size_t i : decodes_first_) {
      const Eagle3Request& request = requests[i];
      const auto count = static_cast<std::int32_t>(request.next.size());
      for (std::int32_t row = 0; row < count; ++row) {
        rows_.host.push_back(request.first_row + row);
        tokens_.host.push_back(request.next[static_cast<std::size_t>(row)]);
        add_row(request, i, request.begin + row);
      }
      end_sequence(request, i, request.begin + count);
      last_rows_[i] = static_cast<std::int32_t>(tokens_.host.size()) - 1;
      if (is_decode(request)) continue;
      query_starts_.host.push_back(query_starts_.host.back() + count);
      has_prefix_ = has_prefix_ || request.begin > 0;
    }
    for (const std::size_t i : drafting_) logit_rows_.host.push_back(last_rows_[i]);
  }

  /// Draft i + 1 follows draft i of the sequences that go on.
  void lay_out_step(std::span<const Eagle3Request> requests, std::int32_t i) {
    clear();
    for (std::size_t j = 0; j < drafting_.size(); ++j) {
      const Eagle3Request& request = requests[drafting_[j]];
      const std::int32_t position =
          request.begin + static_cast<std::int32_t>(request.next.size()) + i;
      add_row(request, drafting_[j], position);
      end_sequence(request, drafting_[j], position + 1);
      logit_rows_.host.push_back(static_cast<std::int32_t>(j));
    }
    num_decodes_ = std::ssize(drafting_);
  }

  [[nodiscard]] ForwardBatch batch() {
    ForwardBatch out;
    out.tokens = tokens_.upload(backend_);
    out.positions = positions_.upload(backend_);
    out.slots = slots_.upload(backend_);
    out.query_starts = query_starts_.upload(backend_);
    out.kv_lens = kv_lens_.upload(backend_);
    out.block_tables = {tables_.upload(backend_).data, {std::ssize(kv_lens_.host), table_width_}};
    out.logit_rows = logit_rows_.upload(backend_);
    out.num_decodes = num_decodes_;
    out.has_prefix = has_prefix_;
    return out;
  }
  [[nodiscard]] MatrixView<float> logits() {
    return {logits_.data(), {std::ssize(drafting_), head_.vocab_size()}};
  }
  /// Where draft i of all sequences is, in the backend's memory.
  [[nodiscard]] VectorView<TokenId> drafted_at(std::int32_t i) {
    return {drafted_.data() + i * limits_.max_num_seqs, {std::ssize(drafting_)}};
  }
  /// Waits for all drafts, and gives draft i to the first counts[i] of `sequences`.
  void take(const std::vector<std::size_t>& sequences, const std::vector<std::size_t>& counts,
            std::vector<std::vector<TokenId>>& out) {
    if (counts.empty()) return;
    const auto stride = static_cast<std::size_t>(limits_.max_num_seqs);
    std::vector<TokenId> all((counts.size() - 1) * stride + counts.back());
    backend_.download(drafted_.data(), all.data(), all.size());
    for (std::size_t i = 0; i < counts.size(); ++i) {
      for (std::size_t j = 0; j < counts[i]; ++j) out[sequences[j]].push_back(all[i * stride + j]);
    }
  }

  Head& head_;
  Backend& backend_;
  StepLimits limits_;
  std::int64_t block_size_;
  std::int32_t num_blocks_;
  std::int32_t max_drafts_;
  std::int64_t num_own_blocks_;  // of a sequence
  Pool pool_;
  Buffer<A> streams_;        // [rows, s · H], those of pairs
  Buffer<float> logits_;     // [sequences, V]
  Buffer<TokenId> drafted_;  // [drafts, sequences]
  std::vector<std::size_t> decodes_first_;
  std::vector<std::size_t> drafting_;  // those that the next draft is for, most drafts first
  std::vector<std::int32_t> last_rows_;
  std::int64_t num_decodes_ = 0;
  std::int64_t table_width_ = 0;
  bool has_prefix_ = false;
  Field<TokenId> tokens_;
  Field<std::int32_t> positions_, rows_, query_starts_, kv_lens_, logit_rows_;
  Field<Slot> slots_;
  Field<BlockId> tables_;
  Field<BlockCopy> copies_;
};

}  // namespace nanovllm
