// Logits processors: bans in any form, state of a sequence's own, and a user's processor in an
// engine.

#include "nanovllm/sampling/logits_processor.hpp"

#include <algorithm>
#include <array>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/sampling/standard_processors.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

/// A state machine: requests with seed 7 get odd and even tokens in turn, beginning with what their
/// prompt does not end with. It needs no header of the library to know of it.
class TakesTurns {
 public:
  static constexpr bool kReadsTokens = true;

  explicit TakesTurns(const LogitsProcessorSetup& setup)
      : is_active_(setup.params.seed == 7u), was_odd_(setup.prompt.back() % 2 != 0) {}

  void accept(TokenId token) { was_odd_ = token % 2 != 0; }
  void process(std::int32_t, TokenMask& mask) const {
    if (is_active_) mask.ban_if([this](TokenId token) { return (token % 2 != 0) == was_odd_; });
  }

 private:
  bool is_active_;
  bool was_odd_;
};

static_assert(LogitsProcessorLike<TakesTurns>);
static_assert(LogitsProcessorLike<MinTokensProcessor>);
static_assert(!LogitsProcessorLike<int>);

struct PlainPolicy : Float32Policy {
  static constexpr KvConfig kv{.block_size = 16};
};
struct TurnsPolicy : PlainPolicy {
  using LogitsProcessors = nanovllm::LogitsProcessors<MinTokensProcessor, TakesTurns>;
};
template <class Policy>
std::vector<Output> run(const std::vector<SamplingParams>& params, bool overlap = false) {
  Engine<AnyModel, Policy> engine({.model = model_directory("group1_tied_yarn"),
                                   .num_threads = 1,
                                   .max_model_len = 64,
                                   .overlap = overlap});
  std::vector<std::vector<TokenId>> prompts;
  for (std::size_t i = 0; i < params.size(); ++i) prompts.push_back(random_prompt(i, 3 + i, 100));
  return engine.generate(prompts, params);
}

/// A penalty of a user's own: what came among the last eight tokens is less likely to come again.
class Fading {
 public:
  static constexpr bool kReadsTokens = true;
  explicit Fading(const LogitsProcessorSetup&) {}
  void accept(TokenId token) { last_[static_cast<std::size_t>(count_++ % 8)] = token; }
  void process(std::int32_t, TokenMask& mask) const {
    for (std::int64_t i = 0; i < std::min<std::int64_t>(count_, 8); ++i)
      mask.add_bias(last_[static_cast<std::size_t>(i)], -2.f);
  }

 private:
  std::array<TokenId, 8> last_{};
  std::int64_t count_ = 0;
};
struct FadingPolicy : PlainPolicy {
  using LogitsProcessors = StandardLogitsProcessors<Fading>;
};

std::vector<SamplingParams> mixed_params() {
  std::vector<SamplingParams> params;
  for (std::uint64_t i = 0; i < 6; ++i) {
    params.push_back({.temperature = i < 3 ? 0.f : 1.f,
                      .seed = i % 2 == 0 ? 7 : 100 + i,
                      .max_tokens = 20,
                      .ignore_eos = true,
                      .logprobs = 0});
  }
  return params;
}

LogitsProcessorSetup setup_of(const SamplingParams& params, std::span<const TokenId> end_tokens,
                              std::span<const TokenId> prompt) {
  return {.params = params, .end_tokens = end_tokens, .prompt = prompt, .vocab_size = 10};
}

}  // namespace

TEST_CASE("a mask takes bans in any form", "[logits_processor]") {
  std::vector<TokenId> banned;
  TokenMask mask(banned, 6);
  mask.ban(3);
  const TokenId list[] = {0, 5};
  mask.ban(list);
  CHECK(banned == std::vector<TokenId>{3, 0, 5});
  banned.clear();
  mask.allow_only(list);
  CHECK(banned == std::vector<TokenId>{1, 2, 3, 4});
  banned.clear();
  mask.ban_if([](TokenId token) { return token > 3; });
  CHECK(banned == std::vector<TokenId>{4, 5});
  const TokenId wrong[] = {6};
  CHECK_THROWS_AS(mask.ban(-1), RequestError);
  CHECK_THROWS_AS(mask.ban(wrong), RequestError);
  CHECK_THROWS_WITH(mask.allow_only(wrong), Catch::Matchers::Contains("token 6 is not in [0, "));
}

TEST_CASE("a mask keeps a bitmap where one is read", "[logits_processor]") {
  constexpr std::int64_t kVocab = 70;
  std::vector<TokenId> banned;
  std::vector<std::uint32_t> bits{1, 2, 3};  // another row's
  TokenMask mask(banned, kVocab, &bits);
  const auto is_kept = [&](TokenId token) {
    return (bits[3 + static_cast<std::size_t>(token) / 32] >> (token % 32) & 1) != 0;
  };
  mask.ban(5);
  CHECK(!mask.has_bits());
  const TokenId list[] = {0, 5, 33, 69};
  mask.allow_only(list);
  REQUIRE(mask.has_bits());
  REQUIRE(bits.size() == 6);
  mask.ban_if([](TokenId token) { return token == 33; });
  for (TokenId token = 0; token < kVocab; ++token)
    CHECK(is_kept(token) == (token == 0 || token == 5 || token == 69));
  CHECK(banned == std::vector<TokenId>{5});
  // A bitmap of a smaller vocabulary allows none of the rest.
  const std::uint32_t small[] = {~std::uint32_t{0}};
  mask.keep(small);
  for (TokenId token = 0; token < kVocab; ++token)
    CHECK(is_kept(token) == (token == 0 || token == 5));
  CHECK(bits[0] == 1);
  CHECK(bits[2] == 3);
}

TEST_CASE("bad words are banned where they would be complete", "[logits_processor]") {
  const SamplingParams params;
  const TokenId prompt[] = {1, 2};
  const std::vector<std::vector<TokenId>> words{{7}, {2, 3}, {2, 3, 4}};
  LogitsProcessorSetup setup = setup_of(params, {}, prompt);
  setup.bad_words = words;
  const auto processors = StandardLogitsProcessors<>::make(setup);
  REQUIRE(processors != nullptr);
  CHECK(processors->reads_tokens());
  const auto banned_now = [&] {
    std::vector<TokenId> banned;
    TokenMask mask(banned, 10);
    processors->process(0, mask);
    std::sort(banned.begin(), banned.end());
    return banned;
  };
  CHECK(banned_now() == std::vector<TokenId>{7});  // the prompt's 2 does not count
  processors->accept(2);
  CHECK(banned_now() == std::vector<TokenId>{3, 7});
  processors->accept(3);  // of another draw
  CHECK(banned_now() == std::vector<TokenId>{4, 7});
  processors->accept(5);
  CHECK(banned_now() == std::vector<TokenId>{7});
  setup.bad_words = std::span(words).first(1);
  CHECK(!StandardLogitsProcessors<>::make(setup)->reads_tokens());
  setup.bad_words = {};
  CHECK(StandardLogitsProcessors<>::make(setup) == nullptr);
}

TEST_CASE("end tokens are banned until min_tokens are there", "[logits_processor]") {
  const SamplingParams params{.min_tokens = 2};
  const TokenId end[] = {4, 9}, prompt[] = {1};
  const auto processors = LogitsProcessors<MinTokensProcessor>::make(setup_of(params, end, prompt));
  for (const std::int32_t n : {0, 1, 2, 3}) {
    std::vector<TokenId> banned;
    TokenMask mask(banned, 10);
    processors->process(n, mask);
    CHECK(banned == (n < 2 ? std::vector<TokenId>{4, 9} : std::vector<TokenId>{}));
  }
}

TEST_CASE("a fork goes on from where it was made, on its own", "[logits_processor]") {
  const SamplingParams params{.seed = 7};
  const TokenId prompt[] = {1};
  const auto first = TurnsPolicy::LogitsProcessors::make(setup_of(params, {}, prompt));
  const auto banned_of = [](const SequenceProcessors& processors) {
    std::vector<TokenId> banned;
    TokenMask mask(banned, 4);
    processors.process(0, mask);
    return banned;
  };
  first->accept(2);
  const auto second = first->fork();
  CHECK(banned_of(*second) == std::vector<TokenId>{0, 2});
  second->accept(3);
  CHECK(banned_of(*first) == std::vector<TokenId>{0, 2});
  CHECK(banned_of(*second) == std::vector<TokenId>{1, 3});
}

TEST_CASE("a user's processor rules the requests it is for and no others", "[logits_processor]") {
  static_assert(TurnsPolicy::LogitsProcessors::kReadsTokens);
  static_assert(!LogitsProcessors<MinTokensProcessor>::kReadsTokens);
  const std::vector<SamplingParams> params = mixed_params();
  const auto plain = run<PlainPolicy>(params), turns = run<TurnsPolicy>(params);
  REQUIRE(turns.size() == params.size());
  bool changed = false;
  for (std::size_t i = 0; i < params.size(); ++i) {
    INFO("request " << i);
    REQUIRE(turns[i].error == "");
    if (i % 2 == 1) {
      CHECK(turns[i].token_ids == plain[i].token_ids);
      CHECK(trace_of(turns[i]).logprobs == trace_of(plain[i]).logprobs);
      continue;
    }
    changed |= turns[i].token_ids != plain[i].token_ids;
    TokenId last = random_prompt(i, 3 + i, 100).back();
    for (const TokenId token : turns[i].token_ids) {
      CHECK((token % 2 != 0) == (last % 2 == 0));
      last = token;
    }
  }
  CHECK(changed);
  // Where steps would be planned ahead, too: the processor has every token in time.
  const auto ahead = run<TurnsPolicy>(params, true);
  for (std::size_t i = 0; i < params.size(); ++i) CHECK(ahead[i].token_ids == turns[i].token_ids);
}

TEST_CASE("a user's penalty is a processor of ten lines", "[logits_processor]") {
  // On eight tokens without a repetition it is the presence penalty.
  std::vector<SamplingParams> params = mixed_params();
  for (SamplingParams& p : params) p.max_tokens = 8;
  const auto fading = run<FadingPolicy>(params, true);
  CHECK(run<FadingPolicy>(params, false)[1].token_ids == fading[1].token_ids);
  std::vector<SamplingParams> presence = params;
  for (SamplingParams& p : presence) p.presence_penalty = 2;
  const auto expected = run<PlainPolicy>(presence), plain = run<PlainPolicy>(params);
  std::size_t num_compared = 0, num_changed = 0;
  for (std::size_t i = 0; i < params.size(); ++i) {
    INFO("request " << i);
    REQUIRE(fading[i].error == "");
    std::vector<TokenId> sorted = expected[i].token_ids;
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) continue;
    CHECK(fading[i].token_ids == expected[i].token_ids);
    ++num_compared;
    num_changed += fading[i].token_ids != plain[i].token_ids ? 1 : 0;
  }
  CHECK(num_compared >= 3);
  CHECK(num_changed >= 1);
}

TEST_CASE("min_tokens is the work of a processor", "[logits_processor]") {
  std::vector<SamplingParams> params = mixed_params();
  const auto free_run = run<PlainPolicy>(params);
  for (std::size_t i = 0; i < params.size(); ++i) {
    params[i].stop_token_ids = {free_run[i].token_ids[1]};  // would end it after two tokens
    params[i].min_tokens = 5;
  }
  for (const bool overlap : {false, true}) {
    const auto outputs = run<PlainPolicy>(params, overlap);
    for (std::size_t i = 0; i < params.size(); ++i) {
      const auto begin = outputs[i].token_ids.begin();
      CHECK(std::find(begin, begin + 5, params[i].stop_token_ids[0]) == begin + 5);
    }
  }
  const TokenId end[] = {4}, prompt[] = {1};
  const SamplingParams ignored{.min_tokens = 2};
  CHECK(LogitsProcessors<>::make(setup_of(ignored, end, prompt)) == nullptr);
  CHECK(LogitsProcessors<MinTokensProcessor>::make(setup_of({}, end, prompt)) == nullptr);
}
