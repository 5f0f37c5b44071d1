#pragma once
/// Heads of tests/fixtures/eagle3 on the CPU, and what speculators expects of them.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "model/one_sequence.hpp"
#include "nanovllm/cpu/backend.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/io/safetensors.hpp"
#include "nanovllm/kv/kv_pool.hpp"
#include "nanovllm/with/speculation/eagle3/head.hpp"

namespace nanovllm::test {

inline constexpr std::array kHeads = {"speculators_llama", "speculators_qwen3", "angelslim",
                                      "safeailab"};

inline std::string head_directory(const std::string& name) {
  return "tests/fixtures/eagle3/" + name;
}

/// What tests/oracle/make_eagle3_fixtures.py has written.
class ExpectedDrafts {
 public:
  explicit ExpectedDrafts(const std::string& name)
      : file_(head_directory(name) + "/expected.safetensors"),
        streams(values<float>("streams")),
        tokens(ids("tokens")),
        logits(values<float>("logits")),
        drafts(ids("drafts")),
        chain_logits(values<float>("chain_logits")),
        embedding(file_.find("embedding") == nullptr ? std::vector<float>()
                                                     : values<float>("embedding")) {}

 private:
  template <class T>
  std::vector<T> values(const char* name) const {
    const TensorInfo* tensor = file_.find(name);
    REQUIRE(tensor != nullptr);
    const std::span<const std::byte> bytes = file_.data(*tensor);
    std::vector<T> out(bytes.size() / sizeof(T));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
  std::vector<TokenId> ids(const char* name) const {
    const auto wide = values<std::int64_t>(name);
    return {wide.begin(), wide.end()};
  }

  SafetensorsFile file_;

 public:
  std::vector<float> streams;       // [n, s · H]
  std::vector<TokenId> tokens;      // [n]
  std::vector<float> logits;        // [n, V]
  std::vector<TokenId> drafts;      // [k]
  std::vector<float> chain_logits;  // [k, V]
  std::vector<float> embedding;     // [vocabulary, H], or empty
};

/// Stands for a target of which a head wants the embedding alone.
template <Element T, class Backend>
class EmbeddingTarget {
 public:
  using Table = typename Backend::template Matrix<T>;
  struct Head {
    Single& communicator() { return comm; }
    Single comm{};
  };

  EmbeddingTarget(Backend& backend, std::int64_t vocab, std::int64_t width,
                  const std::vector<float>& rows)
      : table_(rows.empty() ? 0 : vocab, width) {
    const std::vector<T> values(rows.begin(), rows.end());
    if (!rows.empty())
      backend.set_rows(table_, 0, MatrixView<const T>(values.data(), {vocab, width}));
  }
  EmbeddingTarget& weights() { return *this; }
  const Table& embedding() const { return table_; }
  bool has_whole_embedding() const { return true; }
  RankSizes shard() const { return {}; }
  Head& lm_head() { return head_; }

 private:
  Table table_;
  Head head_;
};

/// A head with its KV pool of eight blocks of 16 tokens, on the CPU.
template <Element T>
struct HeadRig {
  explicit HeadRig(const std::string& name)
      : expected(name),
        checkpoint(head_directory(name)),
        config(Eagle3Config::load(checkpoint)),
        head(config, {config.layer.hidden_size, 9, config.layer.vocab_size},
             {.max_num_batched_tokens = 64, .max_num_seqs = 48, .max_model_len = 96}, backend),
        pool(head.kv_shape(OneSequence::kBlockSize), 8),
        target(backend, config.layer.vocab_size, config.layer.hidden_size, expected.embedding) {
    backend.reserve(head.reserve_args());
    head.weights().load(checkpoint, backend);
  }

  std::int64_t vocab() const { return head.vocab_size(); }
  /// The first `count` pairs from `begin` on, in the type of activations.
  std::vector<T> streams(std::int64_t begin, std::int64_t count) const {
    const auto first = expected.streams.begin() + begin * head.streams_width();
    return {first, first + count * head.streams_width()};
  }

  /// Logits of the batch's rows, [m, V].
  std::vector<float> forward(const std::vector<T>& rows, const ForwardBatch& batch) {
    std::vector<float> out(static_cast<std::size_t>(batch.logit_rows.extent(0) * vocab()));
    head.forward({rows.data(), {batch.tokens.extent(0), head.streams_width()}}, batch, target,
                 pool.layer(0), logits_of(out));
    return out;
  }
  std::vector<float> step(const ForwardBatch& batch) {
    std::vector<float> out(static_cast<std::size_t>(batch.logit_rows.extent(0) * vocab()));
    head.step(batch, target, pool.layer(0), logits_of(out));
    return out;
  }
  /// Those pairs of `sequence`, whose tokens are the expected ones.
  std::vector<float> pairs(OneSequence& sequence, std::int64_t begin, std::int64_t count,
                           bool last = false) {
    const auto first = expected.tokens.begin() + begin;
    return forward(streams(begin, count),
                   sequence.batch({first, first + count}, static_cast<std::int32_t>(begin), last));
  }
  std::vector<TokenId> likeliest(std::vector<float> logits) {
    std::vector<TokenId> out(logits.size() / static_cast<std::size_t>(vocab()));
    head.likeliest(logits_of(logits), {out.data(), {std::ssize(out)}});
    return out;
  }
  MatrixView<float> logits_of(std::vector<float>& rows) const {
    return {rows.data(), {static_cast<std::int64_t>(rows.size()) / vocab(), vocab()}};
  }

  ExpectedDrafts expected;
  Checkpoint checkpoint;
  Eagle3Config config;
  CpuBackend backend{BackendConfig{.num_threads = 2}};
  Eagle3Head<Elements<T>, CpuBackend> head;
  KvPool<T, CpuBackend::Buffer<T>> pool;
  EmbeddingTarget<T, CpuBackend> target;
};

}  // namespace nanovllm::test
