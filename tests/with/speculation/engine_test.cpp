// Engines with drafters: what steps compute and count, what settings do, and what a drafter is told.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "engine/odd_and_even.hpp"
#include "with/speculation/drafters.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

/// Right, and notes what it is asked and told.
struct NotingDrafter : RightDrafter {
  static constexpr std::string_view kMethod = "noting";
  using RightDrafter::RightDrafter;

  void propose(std::span<const DraftRequest> requests, std::span<Draft> drafts) override {
    for (const DraftRequest& request : requests)
      asked.push_back({request.tokens.size(), request.max_tokens, request.num_accepted});
    RightDrafter::propose(requests, drafts);
  }
  void forget(std::uint64_t) noexcept override { ++num_forgotten; }

  struct Asked {
    std::size_t num_tokens;
    std::int32_t max_tokens, num_accepted;
    friend bool operator==(const Asked&, const Asked&) = default;
  };
  inline static std::vector<Asked> asked;
  inline static int num_forgotten = 0;
};

struct Policy : Float32Policy {
  using Guesses =
      DraftedBy<RightDrafter, WrongDrafter, NotingDrafter, NgramDrafter, ThrowingDrafter>;
};
using TestEngine = Engine<AnyModel, Policy>;

EngineConfig config(SpeculativeConfig options) {
  EngineConfig out{.model = model_directory("fairytale"),
                   .num_threads = 1,
                   .max_num_seqs = 2,
                   .max_model_len = 128};
  options.adaptive = false;
  out.extras.set(std::move(options));
  return out;
}

const std::vector<TokenId> kPrompt = random_prompt(3, 5, 4000);

/// The answer without drafts, which is known from then on.
std::vector<TokenId> answer_to(const std::vector<TokenId>& prompt, const SamplingParams& params) {
  TestEngine plain(config({.num_speculative_tokens = 0}));
  CHECK(plain.stats().extras.find<SpeculationStats>() == nullptr);
  known_texts().clear();
  std::vector<TokenId> answer = plain.generate(prompt, params).token_ids;
  know(prompt, answer);
  return answer;
}

SpeculationStats stats_of(const TestEngine& engine) {
  return engine.stats().of<SpeculationStats>();
}

std::string error_of(SpeculativeConfig options) {
  try {
    const TestEngine engine(config(std::move(options)));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("right drafts take as many steps as there are tokens by drafts and one",
          "[speculation]") {
  const SamplingParams params{.temperature = 0, .max_tokens = 21, .ignore_eos = true};
  const std::vector<TokenId> answer = answer_to(kPrompt, params);
  TestEngine engine(config({.method = "right", .num_speculative_tokens = 4}));
  CHECK(engine.generate(kPrompt, params).token_ids == answer);
  const EngineStats stats = engine.stats();
  const SpeculationStats drafts = stats_of(engine);
  CHECK(stats.num_steps == 5);  // the prompt's token, then 5 tokens a step
  CHECK(stats.num_sampled_tokens == 21);
  CHECK(drafts.num_steps == 4);
  CHECK(drafts.num_drafts == 4);
  CHECK(drafts.num_drafted == 16);
  CHECK(drafts.num_accepted == 16);
  CHECK(drafts.accepted_by_position == std::vector<std::int64_t>{4, 4, 4, 4});
  CHECK(stats.num_decode_tokens == 20);
  CHECK(stats.num_prefill_tokens == 5);
}

TEST_CASE("wrong drafts take a step a token, and their blocks are no one's prefix",
          "[speculation]") {
  const SamplingParams params{.temperature = 0, .max_tokens = 40, .ignore_eos = true};
  const std::vector<TokenId> answer = answer_to(kPrompt, params);
  TestEngine engine(config({.method = "wrong", .num_speculative_tokens = 3}));
  CHECK(engine.generate(kPrompt, params).token_ids == answer);
  CHECK(engine.stats().num_steps == 40);
  CHECK(stats_of(engine).num_accepted == 0);
  // 38 tokens after the first have room for drafts, the last one's last places do not.
  CHECK(stats_of(engine).num_drafted >= 3 * 35);
  // All of the sequence that was computed is found again, and nothing else.
  std::vector<TokenId> whole = kPrompt;
  whole.insert(whole.end(), answer.begin(), answer.end());
  const Output again = engine.generate(whole, params);
  CHECK(again.num_cached_tokens == static_cast<std::int32_t>(whole.size() - 1) /
                                       Policy::kv.block_size * Policy::kv.block_size);
}

TEST_CASE("speeds count the tokens that decodes emit, and no draft that is refused",
          "[speculation]") {
  const SamplingParams params{.temperature = 0, .max_tokens = 20, .ignore_eos = true};
  const std::vector<TokenId> answer = answer_to(kPrompt, params);
  const std::string method = GENERATE("wrong", "right");
  CAPTURE(method);
  EngineConfig c = config({.method = method, .num_speculative_tokens = 3});
  GenerateProgress last;
  c.on_generate = [&](const GenerateProgress& progress) { last = progress; };
  TestEngine engine(std::move(c));
  // Prompts of several lengths, of which two run at a time: some end while others decode.
  std::vector<Prompt> prompts(3, kPrompt);
  prompts.emplace_back(random_prompt(4, 30, 4000));
  for (const Output& output : engine.generate(prompts, params))
    CHECK(output.token_ids.size() == 20);
  const EngineStats stats = engine.stats();
  CHECK(stats.num_sampled_tokens == 80);
  CHECK(stats.num_sampled_by_decodes == 76);  // a prompt draws the first
  if (method == "wrong") CHECK(stats.num_decode_tokens > 76);
  CHECK(last.decode_tokens_per_second * stats.decode_seconds == Approx(76));
}

TEST_CASE("a drafter is told how much was right, and asked for what has room", "[speculation]") {
  const SamplingParams params{.temperature = 0, .max_tokens = 9, .ignore_eos = true};
  const std::vector<TokenId> answer = answer_to(kPrompt, params);
  NotingDrafter::asked.clear();
  NotingDrafter::num_forgotten = 0;
  TestEngine engine(config({.method = "noting", .num_speculative_tokens = 4}));
  CHECK(engine.generate(kPrompt, params).token_ids == answer);
  // 6 tokens are there after the prompt's, then 11; of 14 the last is never computed.
  CHECK(NotingDrafter::asked == std::vector<NotingDrafter::Asked>{{6, 4, 0}, {11, 2, 4}});
  CHECK(NotingDrafter::num_forgotten == 1);
}

TEST_CASE("a drafter that throws loses the step's drafts and no request", "[speculation]") {
  const SamplingParams params{.temperature = 0, .max_tokens = 12, .ignore_eos = true};
  const std::vector<TokenId> answer = answer_to(kPrompt, params);
  TestEngine engine(config({.method = "throwing"}));
  const Output output = engine.generate(kPrompt, params);
  CHECK(output.error == "");
  CHECK(output.token_ids == answer);
  CHECK(stats_of(engine).num_failed == 10);
  CHECK(stats_of(engine).num_drafted == 0);
}

TEST_CASE("an end token inside an accepted run ends it", "[speculation]") {
  SamplingParams params{.temperature = 0, .max_tokens = 20, .ignore_eos = true};
  const std::vector<TokenId> answer = answer_to(kPrompt, params);
  params.stop_token_ids = {answer[7]};
  const auto end = std::find(answer.begin(), answer.end(), answer[7]) + 1;
  TestEngine engine(config({.method = "right", .num_speculative_tokens = 5}));
  std::vector<TokenId> streamed;
  Output output;
  engine.submit(kPrompt, params, [&](const TokenEvent& event) {
    if (event.token != nullptr) streamed.push_back(*event.token);
    if (event.output != nullptr) output = *event.output;
  });
  while (engine.step()) engine.check_invariants();
  CHECK(output.token_ids == std::vector<TokenId>(answer.begin(), end));
  CHECK(streamed == output.token_ids);
  CHECK(output.finish_reason == FinishReason::stop);
}

TEST_CASE("guesses that a mask refuses are not checked, and cost no request", "[speculation]") {
  SamplingParams params{.temperature = 0.8f, .seed = 4, .max_tokens = 24};
  params.token_masks = std::make_shared<OddAndEven>(4096);
  params.stop_token_ids = {4095};
  const std::vector<TokenId> answer = answer_to(kPrompt, params);
  for (const char* method : {"right", "wrong"}) {
    TestEngine engine(config({.method = method, .num_speculative_tokens = 4}));
    const Output output = engine.generate(kPrompt, params);
    CAPTURE(method, output.error);
    CHECK(output.token_ids == answer);
    CHECK(stats_of(engine).num_drafted > 0);
  }
}

TEST_CASE("steps overlap where nothing is drafted, and wait where something is", "[speculation]") {
  const SamplingParams params{.temperature = 0, .max_tokens = 21, .ignore_eos = true};
  const std::vector<TokenId> answer = answer_to(kPrompt, params);
  EngineConfig overlapped = config({.method = "right", .num_speculative_tokens = 4});
  overlapped.overlap = true;
  TestEngine engine(overlapped);
  CHECK(engine.generate(kPrompt, params).token_ids == answer);
  CHECK(stats_of(engine).num_accepted == 16);
  CHECK(engine.stats().num_steps == 5);
}

TEST_CASE("the settings are checked", "[speculation]") {
  CHECK(error_of({}) == "");
  CHECK(error_of({.method = "ngram"}) == "");
  CHECK(error_of({.method = "eagle3"}) ==
        "SpeculativeConfig::method must be empty or one of the policy's: right, wrong, noting, "
        "ngram, "
        "throwing; got 'eagle3'");
  CHECK(error_of({.num_speculative_tokens = 64}) ==
        "SpeculativeConfig::num_speculative_tokens must be in [0, 63], got 64");
  EngineConfig unread = config({});
  CHECK_THROWS_WITH(
      (Engine<AnyModel, Float32Policy>(unread)),
      Catch::Matchers::Contains("SpeculativeConfig is set, but the policy has no drafters"));
  unread = config({.num_speculative_tokens = 0});
  CHECK_NOTHROW(Engine<AnyModel, Float32Policy>(unread));
}
