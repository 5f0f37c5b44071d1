// Sessions on the CUDA backend: held, forked, saved and loaded.

#include <unistd.h>

#include <filesystem>
#include <optional>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "engine/models.hpp"
#include "nanovllm/with/sessions.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

struct UncachedPolicy : CudaFloat32Policy {
  template <int kBlockSize>
  using PrefixCache = NoPrefixCache<kBlockSize>;
};

/// Whole blocks are what the hash cache keeps: of 46 tokens two, of 16 tokens each.
struct SmallBlocks : CudaFloat32Policy {
  static constexpr KvConfig kv{.block_size = 16};
};

EngineConfig config(std::optional<bool> overlap = {}) {
  return {.model = model_directory("fairytale"),
          .max_num_seqs = 8,
          .max_model_len = 256,
          .kv_size = KvSize::blocks(64),
          .overlap = overlap};
}

SamplingParams greedy(std::int32_t max_tokens = 9) {
  return {.temperature = 0.f, .max_tokens = max_tokens, .ignore_eos = true, .logprobs = 0};
}

std::vector<TokenId> tokens_of(std::uint64_t seed, std::size_t length) {
  return random_prompt(seed, length, 4000);
}

/// The same tokens with the same log-probabilities, to the bit.
void check_equal(const Output& output, const Output& expected) {
  CHECK(output.error == "");
  CHECK(output.token_ids == expected.token_ids);
  REQUIRE(output.logprobs.size() == expected.logprobs.size());
  for (std::size_t i = 0; i < output.logprobs.size(); ++i)
    CHECK(output.logprobs[i].logprob == expected.logprobs[i].logprob);
}

}  // namespace

TEST_CASE("a session computes what is new, and its fork goes its own way", "[session][gpu]") {
  if (!has_gpu()) return;
  Engine<AnyModel, UncachedPolicy> engine(config(GENERATE(false, true)));
  Session session(engine);
  session.generate(tokens_of(1, 37), greedy());
  const std::vector<TokenId> before = session.tokens();
  REQUIRE(before.size() == 46);
  Session fork = session.fork();
  for (Session* s : {&session, &fork}) {
    const std::vector<TokenId> more = tokens_of(s == &fork ? 2 : 3, 7);
    std::vector<TokenId> all = before;
    all.insert(all.end(), more.begin(), more.end());
    const Output output = s->generate(more, greedy()), whole = engine.generate(all, greedy());
    CHECK(output.num_cached_tokens == 45);
    CHECK(output.error == "");
    REQUIRE(output.logprobs.size() == whole.logprobs.size());
    CHECK(output.token_ids == whole.token_ids);
    for (std::size_t i = 0; i < output.logprobs.size(); ++i)
      CHECK(output.logprobs[i].logprob == Approx(whole.logprobs[i].logprob).margin(1e-4));
  }
  engine.check_invariants();
}

TEST_CASE("a session and a prefix cache go on to the bit after a file", "[session][gpu]") {
  if (!has_gpu()) return;
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / concat("nanovllm_session_gpu_", ::getpid());
  std::filesystem::create_directories(folder);
  // In one engine, whose kernels were chosen once, without a prefix cache: the file alone brings
  // the keys and values.
  EngineConfig uncached = config();
  uncached.prefix_caching = false;
  Engine<AnyModel, SmallBlocks> engine(uncached);
  Session session(engine);
  session.generate(tokens_of(1, 37), greedy());
  session.save(folder / "session");
  const Output expected = session.generate(tokens_of(2, 7), greedy());
  session.clear();
  Session loaded = Session::load(engine, folder / "session");
  const Output output = loaded.generate(tokens_of(2, 7), greedy());
  CHECK(output.num_cached_tokens == 45);
  check_equal(output, expected);
  engine.check_invariants();

  {
    Engine<AnyModel, SmallBlocks> cached(config());
    cached.generate(tokens_of(1, 37), greedy());
    save_cache(cached, folder);
  }
  Engine<AnyModel, SmallBlocks> other(config());
  CHECK(load_cache(other, folder) >= 2);
  CHECK(other.generate(tokens_of(1, 37), greedy()).num_cached_tokens == 32);
  Session in_other = Session::load(other, folder / "session");
  const Output there = in_other.generate(tokens_of(2, 7), greedy());
  CHECK(there.num_cached_tokens == 45);
  CHECK(there.token_ids == expected.token_ids);
  other.check_invariants();
  std::filesystem::remove_all(folder);
}
