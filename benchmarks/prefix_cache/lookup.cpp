// What the prefix caches themselves cost, without an engine: `prefix_cache_lookup`, with Google
// Benchmark's flags. Each of them has some 10^6 tokens: eight texts of 2,048 tokens that all
// prompts begin with; after them half the tokens in prompts of 32,765, half in prompts of 2,301,
// so that a text has a few hundred continuations. A prompt's last block is not full.
//   match   one of the long prompts, all of which is there
//   insert  a long prompt, published 2,048 tokens at a time; only its first text is there
//   evict   the blocks that it needs, each taken from what was used least recently
// Times are the processor's for a prompt, tokens_per_second of what was matched or had to be
// inserted.

#include <benchmark/benchmark.h>
#include <time.h>  // clock_gettime

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/kv/block_manager.hpp"
#include "nanovllm/kv/prefix/hash_prefix_cache.hpp"
#include "nanovllm/with/radix/radix_prefix_cache.hpp"

namespace {

namespace nv = nanovllm;
using Tokens = std::vector<nv::TokenId>;

constexpr std::int32_t kCachedTokens = 1'000'000, kNumTexts = 8, kTextTokens = 2048;
constexpr std::int32_t kLong = 32'765, kShort = 2'301, kChunk = 2048, kVocab = 151'936;

/// Prompts as the comment above has them.
class Prompts {
 public:
  Prompts() {
    for (std::int32_t i = 0; i < kNumTexts; ++i) texts_.push_back(continued({}, kTextTokens));
  }

  Tokens next(std::int32_t length) { return continued(texts_[random_() % kNumTexts], length); }
  std::size_t below(std::size_t n) { return random_() % n; }

 private:
  Tokens continued(Tokens tokens, std::int32_t length) {
    while (static_cast<std::int32_t>(tokens.size()) < length)
      tokens.push_back(static_cast<nv::TokenId>(random_() % kVocab));
    return tokens;
  }

  std::mt19937 random_{1};
  std::vector<Tokens> texts_;
};

/// A pool in which kCachedTokens are cached and whose other blocks are just enough for one long
/// prompt. Short and long prompts come in turn.
template <int kBlockSize, class Cache>
class CachedPool {
 public:
  using Blocks = nv::BlockManager<kBlockSize, Cache>;

  CachedPool() : blocks_(Blocks::blocks_for(kCachedTokens + kLong), true) {
    for (std::int32_t long_ones = 0, short_ones = 0;;) {
      const bool is_long = long_ones <= short_ones;
      const std::int32_t length = is_long ? kLong : kShort;
      const Tokens prompt = prompts_.next(length);
      const std::int32_t fresh = length - kTextTokens;
      if (long_ones + short_ones + fresh > kCachedTokens) break;
      std::vector<nv::BlockId> table = adopt(prompt);
      allocate(table, prompt);
      publish(table, prompt);
      blocks_.release(table);
      (is_long ? long_ones : short_ones) += fresh;
      if (is_long) long_prompts_.push_back(prompt);
    }
  }

  Blocks& blocks() { return blocks_; }
  Prompts& prompts() { return prompts_; }
  const Tokens& some_long_prompt() { return long_prompts_[prompts_.below(long_prompts_.size())]; }

  /// The blocks that are cached of `prompt`, in use.
  std::vector<nv::BlockId> adopt(const Tokens& prompt) {
    const nv::PrefixMatch match = blocks_.match(prompt);
    blocks_.adopt(match, static_cast<std::int32_t>(prompt.size()));
    if (match.copy_tail) blocks_.release(std::span(&*match.copy_tail, 1));
    num_cached_ = match.num_tokens;
    return match.blocks;
  }

  /// Makes `table` long enough for `prompt`.
  void allocate(std::vector<nv::BlockId>& table, const Tokens& prompt) {
    const auto length = static_cast<std::int32_t>(prompt.size());
    while (static_cast<std::int32_t>(table.size()) < Blocks::blocks_for(length)) {
      const std::optional<nv::BlockId> block = blocks_.allocate();
      nv::check(block.has_value(), "the pool is too small");
      table.push_back(*block);
    }
  }

  /// What is not cached of the prompt that was adopted last.
  void publish(const std::vector<nv::BlockId>& table, const Tokens& prompt) {
    const auto length = static_cast<std::int32_t>(prompt.size());
    for (std::int32_t begin = num_cached_; begin < length; begin += kChunk)
      blocks_.publish(table, prompt, begin, std::min(length, begin + kChunk));
  }

 private:
  Prompts prompts_;
  Blocks blocks_;
  std::vector<Tokens> long_prompts_;
  std::int32_t num_cached_ = 0;
};

void count_tokens(benchmark::State& state, std::int32_t num_tokens) {
  state.counters["tokens_per_second"] =
      benchmark::Counter(num_tokens, benchmark::Counter::kIsIterationInvariantRate);
}

/// Seconds that this thread has had the processor for: other programs on it do not count.
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <int kBlockSize, class Cache>
void match(benchmark::State& state) {
  CachedPool<kBlockSize, Cache> pool;
  for (auto _ : state) {
    const Tokens& prompt = pool.some_long_prompt();
    const double begin = processor_seconds();
    const nv::PrefixMatch match = pool.blocks().match(prompt);
    state.SetIterationTime(processor_seconds() - begin);
    nv::check(match.num_tokens >= kLong - kBlockSize, "match: found ", match.num_tokens,
              " tokens of ", kLong);
  }
  count_tokens(state, kLong);
}

enum class Part { insert, evict };

/// Serves new long prompts and times one part of it.
template <int kBlockSize, class Cache>
void serve(benchmark::State& state, Part part) {
  CachedPool<kBlockSize, Cache> pool;
  std::int64_t num_evicted = 0;
  const auto turn = [&] {
    const Tokens prompt = pool.prompts().next(kLong);
    const std::int64_t before = pool.blocks().stats().num_evictions;
    std::vector<nv::BlockId> table = pool.adopt(prompt);
    const double begin = processor_seconds();
    pool.allocate(table, prompt);
    const double middle = processor_seconds();
    pool.publish(table, prompt);
    const double end = processor_seconds();
    pool.blocks().release(table);
    num_evicted = pool.blocks().stats().num_evictions - before;
    return part == Part::insert ? end - middle : middle - begin;
  };
  // First what is free is used up. A block that is not full may not be entered, and stay so.
  constexpr std::int64_t kEvicted = (kLong - kTextTokens) / kBlockSize - 1;
  while (num_evicted < kEvicted) turn();
  for (auto _ : state) state.SetIterationTime(turn());
  nv::check(num_evicted >= kEvicted, "only ", num_evicted, " blocks were given up for a prompt");
  count_tokens(state, kLong - kTextTokens);
}

template <int kBlockSize, class Cache>
void add(const std::string& cache) {
  using benchmark::RegisterBenchmark;
  const std::string name = cache + "/" + std::to_string(kBlockSize);
  for (auto* each :
       {RegisterBenchmark(("match/" + name).c_str(), match<kBlockSize, Cache>),
        RegisterBenchmark(("insert/" + name).c_str(), serve<kBlockSize, Cache>, Part::insert),
        RegisterBenchmark(("evict/" + name).c_str(), serve<kBlockSize, Cache>, Part::evict)})
    each->Unit(benchmark::kMicrosecond)->UseManualTime();
}

template <int kBlockSize>
void add_both() {
  add<kBlockSize, nv::HashPrefixCache<kBlockSize>>("hash");
  add<kBlockSize, nv::RadixPrefixCache<kBlockSize>>("radix");
}

}  // namespace

int main(int argc, char** argv) {
  add_both<1>();
  add_both<4>();
  add_both<16>();
  add_both<64>();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
