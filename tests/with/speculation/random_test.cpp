// Thousands of random requests, of every kind that there is, mixed in small pools: each gives with
// drafts what it gives without, to the last bit of its log-probabilities.
// NANOVLLM_TEST_REQUESTS=100000 for a long run; NANOVLLM_TEST_SEED for others.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/grammar.hpp"
#include "nanovllm/with/beams.hpp"
#include "nanovllm/with/sessions.hpp"
#include "nanovllm/with/tiers.hpp"
#include "with/speculation/drafters.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

/// Blocks in host memory and files, swapped sequences, priorities.
struct Policy : Drafted<FullFloat32Policy> {
  using Preemption = SwapPreemption;
  using Scheduling = Priority;
  static constexpr KvConfig kv{.block_size = 8};
};
using TestEngine = Engine<AnyModel, Policy>;

/// Reproducible numbers.
class Random {
 public:
  explicit Random(std::uint64_t seed) : seed_(seed) {}
  /// In [0, n).
  std::uint32_t below(std::uint32_t n) { return philox4x32(seed_, {++count_, 0, 0, 11})[0] % n; }
  bool one_in(std::uint32_t n) { return below(n) == 0; }

 private:
  std::uint64_t seed_;
  std::uint32_t count_ = 0;
};

const std::array kTexts = {
    "Once upon a time there was a king who had a daughter, and the king",
    "The fox said to the wolf: come with me. The wolf said to the fox: come with me. The fox",
    "Then she went into the forest, and the old woman said",
    "a b c d e a b c d e a b c d e a b c",
    "There was once a poor man",
};

std::filesystem::path temporary_folder() {
  return std::filesystem::temp_directory_path() / ("drafted_" + std::to_string(std::rand()));
}

EngineConfig base_config() {
  return {.model = model_directory("fairytale"), .num_threads = 1, .max_model_len = 160, .seed = 9};
}

/// Constraints of the model's vocabulary.
struct Constraints {
  explicit Constraints(const TestEngine& engine)
      : vocabulary(std::make_shared<const GrammarVocabulary>(engine.tokenizer(),
                                                             engine.model_config().eos_token_ids)) {
    for (const char* pattern : {"(the (fox|wolf|king)( and )?){1,6}\\.", "\\d{4}-\\d{2}-\\d{2}",
                                "[a-z ]{3,40}(said|went)[^q]*"})
      all.push_back(std::make_shared<const RegexSource>(vocabulary, pattern));
    all.push_back(JsonSchemaCompiler(vocabulary)
                      .json_schema(R"({"type": "object", "properties": {"name": {"type": "string",
                          "maxLength": 12}, "age": {"type": "integer"}}, "required": ["name"]})"));
  }
  std::shared_ptr<const GrammarVocabulary> vocabulary;
  std::vector<std::shared_ptr<const TokenMaskSource>> all;
};

void add_rules(SamplingParams& params, Random& random, const Constraints& constraints,
               std::int64_t vocab) {
  if (random.one_in(5)) params.repetition_penalty = 1.f + static_cast<float>(random.below(5)) / 10;
  if (random.one_in(5)) params.frequency_penalty = static_cast<float>(random.below(20)) / 10 - 1;
  if (random.one_in(6)) params.presence_penalty = static_cast<float>(random.below(20)) / 10 - 1;
  if (random.one_in(6)) params.bad_words = {" said", " the king", "wolf", " to the"};
  if (random.one_in(6))
    params.logit_bias = {{static_cast<TokenId>(random.below(500)), 3.f}, {7, -2.f}};
  if (random.one_in(4)) params.token_masks = constraints.all[random.below(4)];
  if (random.one_in(16)) params.allowed_token_ids = random_prompt(random.below(99), 60, vocab);
  if (random.one_in(4))
    params.min_tokens = std::min(params.max_tokens, static_cast<std::int32_t>(random.below(6)));
  if (random.one_in(5)) params.stop = {" and", "wolf", "e, t"};
  if (random.one_in(8)) params.include_stop_str_in_output = true;
  if (random.one_in(6)) params.stop_token_ids = random_prompt(random.below(99), 40, vocab);
  params.ignore_eos = params.token_masks == nullptr && random.one_in(4);
}

SamplingParams random_params(Random& random, const Constraints& constraints, std::int64_t vocab) {
  SamplingParams params{.max_tokens = 1 + static_cast<std::int32_t>(random.below(24))};
  if (random.one_in(20)) {
    params.temperature = 0;
    params.beam_width = 2;
    return params;
  }
  params.temperature = random.one_in(2) ? 0.f : 0.3f + static_cast<float>(random.below(10)) / 10;
  if (random.one_in(3)) params.top_k = 1 + static_cast<std::int32_t>(random.below(40));
  if (random.one_in(4)) params.top_p = 0.8f;
  if (random.one_in(6)) params.min_p = 0.05f;
  params.seed = random.below(1000);
  params.priority = static_cast<std::int32_t>(random.below(3)) - 1;
  if (random.one_in(8)) params.n = 1 + static_cast<std::int32_t>(random.below(3));
  if (random.one_in(16)) params.best_of = params.n + 1;
  if (random.one_in(3)) params.logprobs = static_cast<std::int32_t>(random.below(4));
  if (random.one_in(8)) params.logprob_token_ids = {3, 5, 8};
  if (random.one_in(8)) params.prompt_logprobs = static_cast<std::int32_t>(random.below(3));
  add_rules(params, random, constraints, vocab);
  return params;
}

bool operator==(const TokenLogprobs& a, const TokenLogprobs& b) {
  return a.token_id == b.token_id && a.logprob == b.logprob && a.top == b.top &&
         a.chosen == b.chosen;
}

void check_same(const Completion& got, const Completion& expected) {
  CHECK(got.token_ids == expected.token_ids);
  CHECK(got.text == expected.text);
  CHECK(got.finish_reason == expected.finish_reason);
  CHECK(got.stop_string == expected.stop_string);
  CHECK(got.cumulative_logprob == expected.cumulative_logprob);
  REQUIRE(got.logprobs.size() == expected.logprobs.size());
  for (std::size_t i = 0; i < got.logprobs.size(); ++i)
    CHECK((got.logprobs[i] == expected.logprobs[i]));
}

/// What an error ends, and when of several samples, depends on the steps that they are in; so does
/// which of those of `best_of` or of a search is the likeliest then.
void check_same_error(const Output& got, const Output& expected, bool is_streamed) {
  CHECK(got.error == expected.error);
  if (!is_streamed) return;
  const std::vector<TokenId>&a = got.token_ids, &b = expected.token_ids;
  if (expected.alternatives.empty()) CHECK(a == b);
  CHECK(std::equal(a.begin(), a.begin() + std::min(std::ssize(a), std::ssize(b)), b.begin()));
}

void check_same(const Output& got, const Output& expected) {
  CHECK(got.error == expected.error);
  check_same(static_cast<const Completion&>(got), static_cast<const Completion&>(expected));
  REQUIRE(got.alternatives.size() == expected.alternatives.size());
  for (std::size_t i = 0; i < got.alternatives.size(); ++i)
    check_same(got.alternatives[i], expected.alternatives[i]);
  REQUIRE(got.prompt_logprobs.size() == expected.prompt_logprobs.size());
  for (std::size_t i = 0; i < got.prompt_logprobs.size(); ++i) {
    REQUIRE(got.prompt_logprobs[i].has_value() == expected.prompt_logprobs[i].has_value());
    if (got.prompt_logprobs[i]) CHECK((*got.prompt_logprobs[i] == *expected.prompt_logprobs[i]));
  }
}

struct Work {
  std::vector<std::vector<TokenId>> prompts;
  std::vector<SamplingParams> params;
  std::vector<Output> expected;
};

Work random_work(Random& random, TestEngine& plain, const Constraints& constraints) {
  Work work;
  known_texts().clear();
  for (int i = 0; i < 64; ++i) {
    std::vector<TokenId> prompt = plain.encode(kTexts[random.below(kTexts.size())]);
    if (random.one_in(3))
      prompt.resize(1 + random.below(static_cast<std::uint32_t>(prompt.size())));
    work.prompts.push_back(std::move(prompt));
    work.params.push_back(random_params(random, constraints, plain.vocab_size()));
  }
  work.expected = plain.generate_each(std::vector<Prompt>(work.prompts.begin(), work.prompts.end()),
                                      work.params);
  for (std::size_t i = 0; i < work.expected.size(); ++i) {
    know(work.prompts[i], work.expected[i].token_ids);
    for (const Completion& other : work.expected[i].alternatives)
      know(work.prompts[i], other.token_ids);
  }
  return work;
}

EngineConfig random_config(Random& random, const std::filesystem::path& disk) {
  EngineConfig config = base_config();
  config.max_num_seqs = 1 + static_cast<int>(random.below(12));
  config.max_num_batched_tokens = config.max_num_seqs + 4 + static_cast<int>(random.below(60));
  config.kv_size = KvSize::blocks(random.one_in(4) ? 200 : 21 + static_cast<int>(random.below(16)));
  config.overlap = random.one_in(2);
  config.prefix_caching = !random.one_in(4);
  config.prefix_wait_tokens = random.one_in(2) ? 8 : 0;
  config.extras.set(HostKv{KvSize::blocks(1 + static_cast<int>(random.below(30)))});
  if (config.prefix_caching && random.one_in(3))
    config.extras.set(DiskKv{.path = disk, .min_tokens = 8});
  config.extras.set(
      SpeculativeConfig{.method = kAllMethods[random.below(std::size(kAllMethods))],
                        .num_speculative_tokens = 1 + static_cast<std::int32_t>(random.below(8)),
                        .prompt_lookup_min = 1 + static_cast<std::int32_t>(random.below(2)),
                        .adaptive = random.one_in(3)});
  return config;
}

/// What a request's callback has heard.
struct Heard {
  std::vector<TokenId> tokens;
  std::string text;
  std::optional<Output> output;
};

/// Two turns of a conversation.
std::vector<Output> talk(TestEngine& engine, std::uint64_t seed) {
  Session session(engine);
  std::vector<Output> out;
  for (const char* text : {kTexts[1], " and the fox said to the wolf: come"}) {
    out.push_back(session.generate(
        text,
        {.temperature = 0.7f, .seed = seed, .max_tokens = 14, .stop = {"king"}, .logprobs = 1}));
  }
  return out;
}

void check_round(Random& random, TestEngine& engine, const Work& work, TestEngine& plain) {
  std::vector<Heard> heard(work.prompts.size());
  std::vector<RequestId> ids(work.prompts.size());
  std::size_t num_submitted = 0, num_steps = 0;
  std::optional<std::size_t> aborted;
  const std::size_t talk_at = random.below(60);
  for (bool goes_on = true; goes_on || num_submitted < ids.size();) {
    while (num_submitted < ids.size() && random.one_in(2)) {
      const std::size_t i = num_submitted++;
      const auto hear = [&heard, i](const TokenEvent& event) {
        if (event.sample == 0 && event.token != nullptr) heard[i].tokens.push_back(*event.token);
        if (event.sample == 0) heard[i].text += event.text;
        if (event.output != nullptr) heard[i].output = *event.output;
      };
      try {
        ids[i] = engine.submit(work.prompts[i], work.params[i], hear);
      } catch (const RequestError& error) {
        heard[i].output = Output{};
        heard[i].output->error = error.what();
      }
    }
    goes_on = engine.step();
    engine.check_invariants();
    if (++num_steps == 30 && num_submitted > 0) {
      aborted = random.below(static_cast<std::uint32_t>(num_submitted));
      engine.abort(ids[*aborted]);
    }
    if (num_steps != talk_at) continue;
    const std::vector<Output> got = talk(engine, num_steps), expected = talk(plain, num_steps);
    for (std::size_t i = 0; i < got.size(); ++i) check_same(got[i], expected[i]);
  }
  for (std::size_t i = 0; i < heard.size(); ++i) {
    CAPTURE(i);
    const Output& expected = work.expected[i];
    REQUIRE(heard[i].output);
    const Output& got = *heard[i].output;
    const bool is_streamed = !work.params[i].beam_width && !work.params[i].best_of;
    if (is_streamed) CHECK((heard[i].text == got.text && heard[i].tokens == got.token_ids));
    if (i == aborted) {  // of several samples some may have ended
      if (!is_streamed) continue;
      CHECK(got.token_ids.size() <= expected.token_ids.size());
      CHECK(std::equal(got.token_ids.begin(), got.token_ids.end(), expected.token_ids.begin()));
    } else if (!expected.error.empty()) {
      check_same_error(got, expected, is_streamed);
    } else {
      check_same(got, expected);
    }
  }
}

}  // namespace

TEST_CASE("drafted = undrafted: random requests of every kind", "[speculation][laws]") {
  const auto setting = [](const char* name, int otherwise) {
    const char* const value = std::getenv(name);
    return value != nullptr ? std::atoi(value) : otherwise;
  };
  const int num_rounds = std::max(1, setting("NANOVLLM_TEST_REQUESTS", 3000) / 64);
  const int seed = setting("NANOVLLM_TEST_SEED", 1000);
  EngineConfig config = base_config();
  config.max_num_seqs = 32;
  config.extras.set(SpeculativeConfig{.num_speculative_tokens = 0});
  TestEngine plain(config);
  const Constraints constraints(plain);
  std::int64_t num_drafted = 0, num_accepted = 0, num_failed = 0, num_preemptions = 0,
               num_ended = 0;
  for (int round = 0; round < num_rounds; ++round) {
    CAPTURE(seed, round);
    Random random(static_cast<std::uint64_t>(seed + round));
    const Work work = random_work(random, plain, constraints);
    const std::filesystem::path disk = temporary_folder();
    {
      TestEngine engine(random_config(random, disk));
      check_round(random, engine, work, plain);
      const EngineStats stats = engine.stats();
      const auto drafts = stats.of<SpeculationStats>();
      num_drafted += drafts.num_drafted, num_accepted += drafts.num_accepted;
      num_failed += drafts.num_failed, num_preemptions += stats.num_preemptions;
      CHECK(stats.num_free_kv_blocks == stats.num_kv_blocks);
    }
    std::filesystem::remove_all(disk);
    for (const Output& output : work.expected)
      num_ended += output.finish_reason == FinishReason::stop ? 1 : 0;
  }
  CAPTURE(num_drafted, num_accepted, num_failed, num_preemptions, num_ended);
  // Each of them is needed for the law to say something.
  CHECK(num_accepted > num_rounds);
  CHECK(num_drafted > num_accepted + num_rounds);
  CHECK(num_preemptions > num_rounds / 8);
  CHECK(num_ended > num_rounds);
}
