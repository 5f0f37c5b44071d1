// Sessions: conversations that keep their blocks from turn to turn.

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "kv_stats.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"
#include "nanovllm/with/radix/radix_prefix_cache.hpp"
#include "nanovllm/with/sessions.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

/// A CPU that fails in the step after `steps_left` more.
class FailingBackend : public CpuBackend {
 public:
  using CpuBackend::CpuBackend;
  using CpuBackend::run;

  template <class T, class Matrix>
  void run(const EmbeddingArgs<T, Matrix>& args) {
    if (steps_left-- == 0) throw Error("the machine is on fire");
    CpuBackend::run(args);
  }

  inline static int steps_left = -1;
};

template <class Cache>
struct CachePolicy : Float32Policy {
  using Backend = FailingBackend;
  template <int>
  using PrefixCache = Cache;
  static constexpr KvConfig kv{.block_size = 16};
};
using HashPolicy = CachePolicy<HashPrefixCache<16>>;
using RadixPolicy = CachePolicy<RadixPrefixCache<16>>;
using UncachedPolicy = CachePolicy<NoPrefixCache<16>>;
template <class Policy>
using TestEngine = Engine<AnyModel, Policy>;

EngineConfig config(bool overlap = false) {
  return {.model = model_directory("fairytale"),
          .num_threads = 2,
          .max_model_len = 256,
          .kv_size = KvSize::blocks(64),
          .overlap = overlap};
}

SamplingParams sampled(std::int32_t max_tokens = 9) {
  return {
      .temperature = 1.f, .seed = 7, .max_tokens = max_tokens, .ignore_eos = true, .logprobs = 0};
}

std::vector<TokenId> tokens_of(std::uint64_t seed, std::size_t length) {
  return random_prompt(seed, length, 4000);
}

std::vector<TokenId> with(std::vector<TokenId> tokens, const std::vector<TokenId>& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

void check_same(const Output& output, const Output& expected) {
  CHECK(output.error == "");
  CHECK(output.token_ids == expected.token_ids);
  CHECK(output.text == expected.text);
  CHECK(output.finish_reason == expected.finish_reason);
  REQUIRE(output.logprobs.size() == expected.logprobs.size());
  for (std::size_t i = 0; i < output.logprobs.size(); ++i)
    CHECK(output.logprobs[i].logprob == Approx(expected.logprobs[i].logprob).margin(1e-5));
}

template <class Policy>
void serve(TestEngine<Policy>& engine) {
  while (engine.step()) engine.check_invariants();
}

}  // namespace

TEMPLATE_TEST_CASE("a turn is what the whole conversation gives, and computes what is new",
                   "[session]", HashPolicy, RadixPolicy, UncachedPolicy) {
  EngineConfig c = config(GENERATE(false, true));
  c.max_num_batched_tokens = GENERATE(256, 11);
  c.max_num_seqs = 8;
  TestEngine<TestType> engine(c);
  EngineConfig plain_config = config();
  plain_config.prefix_caching = false;
  TestEngine<UncachedPolicy> plain(plain_config);
  Session session(engine);
  std::vector<TokenId> all;
  std::int64_t num_new = 0;
  std::uint64_t seed = 0;
  for (const std::size_t length : {23u, 1u, 16u, 40u, 0u, 3u}) {
    const std::vector<TokenId> more = tokens_of(++seed, length);
    const std::size_t num_before = all.size();
    all = with(all, more);
    const Output output = session.generate(more, sampled());
    check_same(output, plain.generate(all, sampled()));
    CHECK(output.num_prompt_tokens == static_cast<std::int32_t>(all.size()));
    const auto num_computed_before = static_cast<std::int32_t>(num_before) - 1;
    CHECK(output.num_cached_tokens == std::max(0, num_computed_before));
    num_new += static_cast<std::int64_t>(length) + (num_before > 0 ? 1 : 0);
    all = with(all, output.token_ids);
    CHECK(session.tokens() == all);
    engine.check_invariants();
  }
  const EngineStats stats = engine.stats();
  const std::int64_t num_computed = stats.num_prefill_tokens + stats.num_decode_tokens;
  CHECK(num_computed == num_new + 6 * 8);
  CHECK(session_kv(stats).num_blocks == static_cast<std::int64_t>((all.size() + 14) / 16));
}

TEST_CASE("what a stop cut off is not part of the conversation", "[session]") {
  TestEngine<HashPolicy> engine(config(GENERATE(false, true)));
  Session session(engine);
  const auto& tokenizer = engine.tokenizer();
  const std::string text = "Once upon a time there was a";
  const std::vector<TokenId> prompt = tokenizer.encode(text);
  SamplingParams params{.temperature = 0.f, .max_tokens = 30, .ignore_eos = true};
  const Output whole = engine.generate(text, params);
  REQUIRE(whole.token_ids.size() == 30);

  SECTION("a stop token") {
    params.stop_token_ids = {whole.token_ids[12]};
    const Output output = session.generate(text, params);
    REQUIRE(output.finish_reason == FinishReason::stop);
    std::vector<TokenId> kept = output.token_ids;
    REQUIRE(kept.back() == whole.token_ids[12]);
    const std::vector<TokenId> stopped = kept;
    kept.pop_back();
    CHECK(session.tokens() == with(prompt, kept));
    // It stays where its text does.
    session.clear();
    params.include_stop_str_in_output = true;
    CHECK(session.generate(text, params).text == tokenizer.decode(stopped));
    CHECK(session.tokens() == with(prompt, stopped));
  }
  SECTION("a stop string, perhaps from inside a token on") {
    for (std::size_t i = 1; i + 3 < whole.text.size() && i < 40; ++i) {
      params.stop = {whole.text.substr(i, 3)};
      params.include_stop_str_in_output = i % 2 == 0;
      session.clear();
      const Output output = session.generate(text, params);
      REQUIRE(output.finish_reason == FinishReason::stop);
      const std::vector<TokenId> tokens = session.tokens();
      const std::vector<TokenId> kept(tokens.begin() + std::ssize(prompt), tokens.end());
      REQUIRE(kept.size() <= output.token_ids.size());
      CHECK(std::equal(kept.begin(), kept.end(), output.token_ids.begin()));
      CHECK(output.text.starts_with(tokenizer.decode(kept)));
      if (kept.size() == output.token_ids.size()) continue;
      const auto longer = std::vector<TokenId>(output.token_ids.begin(),
                                               output.token_ids.begin() + std::ssize(kept) + 1);
      CHECK_FALSE(output.text.starts_with(tokenizer.decode(longer)));
    }
  }
  const std::vector<TokenId> before = session.tokens();
  const Output next = session.generate(" The end", sampled());
  check_same(next, engine.generate(with(before, tokenizer.encode(" The end")), sampled()));
  CHECK(next.num_cached_tokens >= static_cast<std::int32_t>(before.size()) - 1);
}

TEST_CASE("a conversation of messages is rendered as a whole", "[session]") {
  TestEngine<RadixPolicy> engine(config());
  TestEngine<RadixPolicy> plain(config());
  Session session(engine);
  std::vector<ChatMessage> history{{"system", "You tell tales."}};
  session.append(history);
  for (const char* question : {"Who are you?", "And then?", "Why?"}) {
    history.emplace_back("user", question);
    const Output output =
        session.generate(std::vector<ChatMessage>{{"user", question}}, sampled(12));
    const Output expected = plain.generate(history, sampled(12));
    check_same(output, expected);
    history.emplace_back("assistant", output.text);
    REQUIRE(session.messages().size() == history.size());
    CHECK(session.messages().back().find("content")->string() == output.text);
  }
  CHECK(session.generate("text", sampled()).error ==
        "session: text and tokens cannot be put after a conversation of 7 messages; clear it "
        "first");
  session.clear();
  session.append("text");
  CHECK_THROWS_WITH(session.append(std::vector<ChatMessage>{{"user", "hello"}}),
                    Catch::Matchers::Contains("messages cannot be put after a conversation of"));
}

TEMPLATE_TEST_CASE("a fork shares the blocks and goes its own way", "[session]", HashPolicy,
                   RadixPolicy, UncachedPolicy) {
  TestEngine<TestType> engine(config(GENERATE(false, true)));
  Session first(engine);
  first.generate(tokens_of(1, 37), sampled());
  const std::vector<TokenId> before = first.tokens();
  const std::int64_t num_held = session_kv(engine.stats()).num_blocks;
  Session second = first.fork();
  CHECK(second.tokens() == before);
  CHECK(session_kv(engine.stats()).num_blocks == num_held);
  const Output a = first.generate(tokens_of(2, 5), sampled());
  const Output b = second.generate(tokens_of(3, 5), sampled());
  for (const Output* output : {&a, &b})
    CHECK(output->num_cached_tokens >= static_cast<std::int32_t>(before.size()) - 1);
  check_same(a, engine.generate(with(before, tokens_of(2, 5)), sampled()));
  check_same(b, engine.generate(with(before, tokens_of(3, 5)), sampled()));
  {
    const Session moved = std::move(first);
    CHECK_THROWS_WITH(first.tokens(), "session: it was moved from");
    CHECK(moved.tokens().size() == before.size() + 5 + 9);
  }
  engine.check_invariants();
  CHECK(second.generate(tokens_of(4, 2), sampled()).num_cached_tokens ==
        static_cast<std::int32_t>(before.size()) + 5 + 9 - 1);
  second.clear();
  CHECK(second.tokens().empty());
  CHECK(session_kv(engine.stats()).num_blocks == 0);
  CHECK(engine.stats().num_free_kv_blocks == 64);
  engine.check_invariants();
}

TEMPLATE_TEST_CASE("a turn that is aborted, fails or is refused leaves the session as it was",
                   "[session]", HashPolicy, RadixPolicy, UncachedPolicy) {
  TestEngine<TestType> engine(config(GENERATE(false, true)));
  Session session(engine);
  session.generate(tokens_of(1, 37), sampled());
  const std::vector<TokenId> before = session.tokens();
  FinishReason expected = FinishReason::error;
  Output output;
  SECTION("aborted") {
    int num_tokens = 0;
    output = session.generate(tokens_of(2, 5), sampled(20), [&](const TokenEvent& event) {
      if (++num_tokens == 4) engine.abort(event.id);
    });
    expected = FinishReason::abort;
  }
  SECTION("its callback throws") {
    output = session.generate(tokens_of(2, 5), sampled(20), [](const TokenEvent& event) {
      if (event.output == nullptr) throw std::runtime_error("enough");
    });
    CHECK(output.error == "the request's callback threw: enough");
  }
  SECTION("a step fails") {
    FailingBackend::steps_left = GENERATE(0, 1, 5);
    output = session.generate(tokens_of(2, 5), sampled(20));
    FailingBackend::steps_left = -1;
    CHECK(output.error == "the machine is on fire");
  }
  SECTION("refused") {
    output = session.generate(std::vector<TokenId>{-1}, sampled());
    CHECK(output.error == "token id -1 in the prompt is not in [0, vocab_size = 4096)");
  }
  SECTION("several samples") {
    SamplingParams params = sampled();
    params.n = 2;
    output = session.generate(tokens_of(2, 5), params);
    CHECK(output.error == "session: a turn has one sample, got n = 2 and best_of = 2");
  }
  SECTION("beams") {
    output = session.generate(tokens_of(2, 5), SamplingParams{.beam_width = 1});
    CHECK(output.error == "session: a turn is no beam search, got beam_width = 1");
  }
  SECTION("too long") {
    output = session.generate(tokens_of(2, 300), sampled());
    CHECK_THROWS_AS(session.append(tokens_of(2, 300)), RequestError);
  }
  CHECK(output.finish_reason == expected);
  CHECK(session.tokens() == before);
  CHECK_FALSE(session.is_busy());
  const Output next = session.generate(tokens_of(3, 5), sampled());
  CHECK(next.num_cached_tokens >= static_cast<std::int32_t>(before.size()) - 1);
  check_same(next, engine.generate(with(before, tokens_of(3, 5)), sampled()));
  engine.check_invariants();
}

TEMPLATE_TEST_CASE("sessions never keep requests from being served", "[session]", HashPolicy,
                   RadixPolicy, UncachedPolicy) {
  EngineConfig c = config(GENERATE(false, true));
  c.kv_size = KvSize::blocks(10);
  const int most = GENERATE(10, 5, 2, 0);
  c.extras.set(SessionOptions{.max_blocks = most});
  TestEngine<TestType> engine(c);
  TestEngine<UncachedPolicy> plain(config());
  Session a(engine), b(engine);
  std::vector<TokenId> of_a, of_b;
  for (std::uint64_t i = 0; i < 4; ++i) {
    for (auto [session, tokens] : {std::pair(&a, &of_a), std::pair(&b, &of_b)}) {
      const std::vector<TokenId> more = tokens_of(10 * i + (session == &a ? 1 : 2), 11);
      *tokens = with(*tokens, more);
      const Output output = session->generate(more, sampled());
      check_same(output, plain.generate(*tokens, sampled()));
      *tokens = with(*tokens, output.token_ids);
      CHECK(session_kv(engine.stats()).num_blocks <= most);
      engine.check_invariants();
    }
    // As long as the pool has room for.
    const Output big = engine.generate(tokens_of(i, 140), sampled(21));
    CHECK(big.error == "");
    CHECK(big.token_ids.size() == 21);
  }
}

TEST_CASE("a beam search that waits for places takes no blocks from sessions", "[session][beams]") {
  EngineConfig c = config(GENERATE(false, true));
  c.max_num_seqs = 2;
  TestEngine<RadixPolicy> engine(c);
  Session session(engine);
  session.generate(tokens_of(1, 50), sampled());
  const std::int64_t num_held = session_kv(engine.stats()).num_blocks;
  REQUIRE(num_held == 4);
  const Output output = engine.generate(
      tokens_of(2, 20), SamplingParams{.max_tokens = 12, .ignore_eos = true, .beam_width = 5});
  CHECK(output.error == "");
  CHECK(engine.stats().num_preemptions > 0);
  CHECK(session_kv(engine.stats()).num_blocks == num_held);
  CHECK(session.generate(tokens_of(3, 1), sampled()).num_cached_tokens == 58);
  engine.check_invariants();
}

TEST_CASE("turns of several sessions are served together, and each by its callback", "[session]") {
  TestEngine<HashPolicy> engine(config(GENERATE(false, true)));
  TestEngine<HashPolicy> plain(config());
  std::vector<Session> sessions;
  std::vector<std::vector<TokenId>> expected(4);
  for (std::uint64_t i = 0; i < 4; ++i) {
    sessions.emplace_back(engine);
    for (int turn = 0; turn < 3; ++turn) {
      expected[i] = with(expected[i], tokens_of(i, 7 + static_cast<std::size_t>(turn)));
      expected[i] = with(expected[i], plain.generate(expected[i], sampled()).token_ids);
    }
  }
  std::vector<int> num_turns(4, 0);
  const std::function<void(std::size_t)> submit = [&](std::size_t i) {
    const auto length = static_cast<std::size_t>(7 + num_turns[i]);
    sessions[i].submit(tokens_of(i, length), sampled(), [&, i](const TokenEvent& event) {
      if (event.output == nullptr) {
        CHECK_THROWS_AS(sessions[i].submit("more"), RequestError);  // a turn is under way
      } else if (++num_turns[i] < 3) {
        submit(i);
      }
    });
  };
  for (std::size_t i = 0; i < 4; ++i) submit(i);
  CHECK(sessions[0].is_busy());
  serve(engine);
  for (std::size_t i = 0; i < 4; ++i) CHECK(sessions[i].tokens() == expected[i]);
  CHECK(engine.stats().num_finished == 12);
}

TEST_CASE("defect: a turn throws what Engine::generate puts into the output", "[session]") {
  struct Faulty final : TokenMaskSource {
    [[nodiscard]] std::unique_ptr<TokenMatcher> matcher() const override {
      throw std::runtime_error("no matcher today");
    }
    [[nodiscard]] int vocab_size() const override { return 64; }
  };
  TestEngine<HashPolicy> engine(config());
  Session session(engine);
  const std::vector<TokenId> before = tokens_of(1, 20);
  session.append(before);
  SamplingParams params = sampled();
  params.stop_token_ids = {3};
  params.token_masks = std::make_shared<Faulty>();
  const Output alone = engine.generate(tokens_of(2, 5), params);
  const Output turn = session.generate(tokens_of(2, 5), params);
  for (const Output* output : {&alone, &turn}) {
    CHECK(output->finish_reason == FinishReason::error);
    CHECK(output->error == "no matcher today");
  }
  CHECK_FALSE(session.is_busy());
  CHECK(session.tokens() == before);
  CHECK(session.generate(tokens_of(2, 5), sampled()).finish_reason == FinishReason::length);
  Session moved_to = std::move(session);
  CHECK_THROWS_WITH(session.generate("x"), "session: it was moved from");  // NOLINT
}

TEST_CASE("sessions may be used by a thread each", "[session]") {
  TestEngine<RadixPolicy> engine(config(true));
  std::vector<std::vector<TokenId>> results(3);
  {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < 3; ++i) {
      threads.emplace_back([&, i] {
        Session session(engine);
        for (std::uint64_t turn = 0; turn < 3; ++turn)
          session.generate(tokens_of(i, 10 + turn), sampled());
        const Session fork = session.fork();
        results[i] = fork.tokens();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  engine.check_invariants();
  for (std::size_t i = 0; i < 3; ++i) {
    std::vector<TokenId> all;
    for (std::uint64_t turn = 0; turn < 3; ++turn) {
      all = with(all, tokens_of(i, 10 + turn));
      all = with(all, engine.generate(all, sampled()).token_ids);
    }
    CHECK(results[i] == all);
  }
  CHECK(engine.stats().num_free_kv_blocks == 64);
}

TEST_CASE("a session that goes in its turn aborts it", "[session]") {
  TestEngine<HashPolicy> engine(config(GENERATE(false, true)));
  const int num_steps = GENERATE(0, 1, 3);
  Output output;
  {
    Session session(engine);
    session.generate(tokens_of(1, 37), sampled());
    session.submit(tokens_of(2, 5), sampled(50), [&](const TokenEvent& event) {
      if (event.output != nullptr) output = *event.output;
    });
    for (int i = 0; i < num_steps; ++i) engine.step();
  }
  engine.check_invariants();
  serve(engine);
  CHECK(output.finish_reason == FinishReason::abort);
  CHECK(engine.stats().num_free_kv_blocks == 64);
}

TEST_CASE("a session without its engine says so", "[session]") {
  std::optional<TestEngine<HashPolicy>> engine(config());
  Session session(*engine);
  session.generate(tokens_of(1, 20), sampled());
  const std::vector<TokenId> tokens = session.tokens();
  FinishReason reason = FinishReason::none;
  session.submit(tokens_of(2, 5), sampled(50), [&](const TokenEvent& event) {
    if (event.output != nullptr) reason = event.finish_reason;
  });
  engine->step();
  engine.reset();
  CHECK(reason == FinishReason::abort);
  CHECK(session.tokens() == tokens);
  CHECK_THROWS_WITH(session.submit("more"), "session: its engine is gone");
  CHECK_THROWS_WITH(session.generate("more"), "session: its engine is gone");
  CHECK_THROWS_WITH(session.fork(), "session: its engine is gone");
  CHECK_THROWS_WITH(session.clear(), "session: its engine is gone");
}
