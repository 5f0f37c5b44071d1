// What users do with an engine, on the fairytale model. Where GENERATE(false, true) makes the
// engine, steps follow each other or are planned ahead.

#include "nanovllm/engine.hpp"
#include "nanovllm/model/qwen3/qwen3.hpp"
#include "nanovllm/text/tokenizer.hpp"

#include <atomic>
#include <cmath>
#include <set>
#include <thread>

#include "catch.hpp"
#include "engine/models.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

using TestEngine = Engine<AnyModel, Float32Policy>;

EngineConfig small_config(bool overlap = false) {
  return {.model = model_directory("fairytale"),
          .num_threads = 2,
          .max_num_seqs = 16,
          .max_model_len = 256,
          .overlap = overlap,
          .seed = 1};
}

const SamplingParams kGreedy{.temperature = 0.f, .max_tokens = 16};

void run_until_idle(TestEngine& engine) {
  while (engine.step()) {
  }
}

}  // namespace

TEST_CASE("text, token ids and messages are prompts", "[engine]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  const auto outputs =
      engine.generate({"Once upon a time", engine.tokenizer().encode("Once upon a time"),
                       std::vector<ChatMessage>{{"user", "Tell me a story."}}},
                      kGreedy);
  REQUIRE(outputs.size() == 3);
  for (const Output& output : outputs) {
    INFO(output.error);
    CHECK(output.finish_reason == FinishReason::length);
    CHECK(output.token_ids.size() == 16);
    CHECK(!output.text.empty());
    CHECK(output.timings.finished >= output.timings.first_token);
    CHECK(output.timings.first_token >= output.timings.scheduled);
  }
  CHECK(outputs[0].text == outputs[1].text);
  CHECK(outputs[0].num_prompt_tokens == 4);
  CHECK(outputs[0].text == engine.tokenizer().decode(outputs[0].token_ids));
}

TEST_CASE("streamed text adds up to the output's text, token by token", "[engine]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  std::string text;
  std::vector<TokenId> tokens;
  std::optional<Output> output;
  const RequestId id = engine.submit("The fox", {.temperature = 0.8f, .seed = 3, .max_tokens = 30},
                                     [&](const TokenEvent& event) {
                                       CHECK(!output);  // nothing after the last event
                                       text += event.text;
                                       if (event.token) tokens.push_back(*event.token);
                                       if (event.output) output = *event.output;
                                     });
  run_until_idle(engine);
  REQUIRE(output);
  CHECK(output->id == id);
  CHECK(output->text == text);
  CHECK(output->token_ids == tokens);
}

TEST_CASE("a bad request costs itself alone", "[engine]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  std::vector<SamplingParams> params(5, kGreedy);
  params[3].top_p = 1.5f;
  const auto outputs =
      engine.generate(std::vector<Prompt>{"Once", "", std::vector<TokenId>{1, 4096}, "The",
                                          std::vector<TokenId>(300, 5)},
                      params);
  CHECK(outputs[0].error == "");
  CHECK_THAT(outputs[1].error, Catch::Matchers::Contains("no tokens"));
  CHECK_THAT(outputs[2].error, Catch::Matchers::Contains("4096"));
  CHECK_THAT(outputs[3].error, Catch::Matchers::Contains("top_p"));
  CHECK_THAT(outputs[4].error, Catch::Matchers::Contains("300 tokens"));
  for (int i = 1; i < 5; ++i)
    CHECK(outputs[static_cast<std::size_t>(i)].finish_reason == FinishReason::error);
  CHECK_THROWS_AS(engine.submit(""), RequestError);
  CHECK_THROWS_AS(engine.submit("x", {.max_tokens = 0}), RequestError);
  const std::string long_text(4000, 'x');
  for (const Prompt& prompt : {Prompt(std::vector<TokenId>(256, 5)), Prompt(long_text)}) {
    try {
      engine.submit(prompt);
      FAIL("a prompt that is too long was taken");
    } catch (const nanovllm::ContextLengthError& error) {
      CHECK(error.num_tokens >= 256);
      CHECK(error.max_tokens == engine.max_total_tokens() - 1);
    }
  }
  CHECK_THROWS_AS(engine.generate(std::vector<Prompt>{"a", "b"}, std::vector<SamplingParams>(1)),
                  RequestError);
  CHECK(engine.generate("Once", kGreedy).text == outputs[0].text);
}

TEST_CASE("a top_p of 0 is greedy, whatever the temperature", "[engine]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  const Output greedy = engine.generate("Once upon", {.temperature = 0.f, .max_tokens = 24});
  for (const float temperature : {0.f, 1.f, 100.f}) {
    const Output output = engine.generate(
        "Once upon", {.temperature = temperature, .top_k = 5, .top_p = 0.f, .max_tokens = 24});
    CHECK(output.error == "");
    CHECK(output.token_ids == greedy.token_ids);
  }
}

TEST_CASE("generation ends at stop strings, stop tokens and end tokens", "[engine]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  const Output whole = engine.generate("Once upon a time", {.temperature = 0.f, .max_tokens = 24});
  SamplingParams params{.temperature = 0.f, .max_tokens = 24};

  const std::string stop = whole.text.substr(whole.text.size() / 2, 5);
  params.stop = {stop, "never said"};
  const Output stopped = engine.generate("Once upon a time", params);
  CHECK(stopped.finish_reason == FinishReason::stop);
  CHECK(stopped.text == whole.text.substr(0, whole.text.find(stop)));
  CHECK(stopped.stop_string == stop);
  params.include_stop_str_in_output = true;
  CHECK(engine.generate("Once upon a time", params).text == stopped.text + stop);

  // The last event of each sample has it; all samples are greedy, and so the same.
  params.n = 2;
  std::vector<std::string> heard;
  engine.submit("Once upon a time", params, [&](const TokenEvent& event) {
    if (event.finish_reason != FinishReason::none) heard.emplace_back(event.stop_string);
    CHECK((event.finish_reason != FinishReason::none || event.stop_string.empty()));
  });
  run_until_idle(engine);
  CHECK(heard == std::vector<std::string>{stop, stop});
  // Of samples that are chosen from the output says it, for each.
  params.best_of = 3;
  heard.clear();
  Output chosen;
  engine.submit("Once upon a time", params, [&](const TokenEvent& event) {
    heard.emplace_back(event.stop_string);
    if (event.output != nullptr) chosen = *event.output;
  });
  run_until_idle(engine);
  CHECK(heard == std::vector<std::string>{""});
  CHECK((chosen.stop_string == stop && chosen.alternatives.at(0).stop_string == stop));

  const TokenId token = whole.token_ids[5];
  const auto first = static_cast<std::size_t>(
      std::find(whole.token_ids.begin(), whole.token_ids.end(), token) - whole.token_ids.begin());
  const Output by_token = engine.generate(
      "Once upon a time", {.temperature = 0.f, .max_tokens = 24, .stop_token_ids = {token}});
  CHECK(by_token.finish_reason == FinishReason::stop);
  CHECK(by_token.token_ids.size() == first + 1);
  CHECK(by_token.stop_string.empty());
  CHECK(by_token.text == engine.tokenizer().decode(std::span(whole.token_ids).first(first)));

  // Not before min_tokens: the stop token is banned, the stop string ignored.
  const Output late = engine.generate(
      "Once upon a time",
      {.temperature = 0.f, .max_tokens = 24, .min_tokens = 20, .stop_token_ids = {token}});
  CHECK(late.token_ids.size() >= 20);
  CHECK(std::find(late.token_ids.begin(), late.token_ids.begin() + 20, token) ==
        late.token_ids.begin() + 20);
  const Output late_string = engine.generate(
      "Once upon a time", {.temperature = 0.f, .max_tokens = 24, .min_tokens = 24, .stop = {stop}});
  CHECK(late_string.text == whole.text);
}

TEST_CASE("what ended a text is part of it if that is asked for, be it a token", "[engine]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  const std::string prompt = "Once upon a time";
  const auto& tokenizer = engine.tokenizer();
  SamplingParams params{.temperature = 0.f, .max_tokens = 24, .ignore_eos = true};
  const std::vector<TokenId> whole = engine.generate(prompt, params).token_ids;
  const auto end = std::find(whole.begin(), whole.end(), whole[5]);
  params.stop_token_ids = {*end};
  const std::string without = engine.generate(prompt, params).text;
  params.include_stop_str_in_output = true;

  const Output with = engine.generate(prompt, params);
  CHECK(with.finish_reason == FinishReason::stop);
  CHECK(with.token_ids == std::vector<TokenId>(whole.begin(), end + 1));
  CHECK(with.text == tokenizer.decode(with.token_ids));
  CHECK(with.text.size() > without.size());
  std::string heard;
  engine.submit(prompt, params, [&](const TokenEvent& event) { heard += event.text; });
  run_until_idle(engine);
  CHECK(heard == with.text);

  // A stop string that ends in that token is what stopped it.
  params.stop = {with.text.substr(without.size())};
  const Output by_string = engine.generate(prompt, params);
  CHECK(by_string.stop_string == params.stop[0]);
  CHECK(by_string.text == with.text);
  params.stop.clear();

  // The model's own end tokens are special: they have a text where special tokens have.
  params.ignore_eos = false;
  params.stop_token_ids.clear();
  params.allowed_token_ids = {engine.eos_token_ids().front()};
  CHECK(engine.generate(prompt, params).text == "");
  params.skip_special_tokens = false;
  CHECK(engine.generate(prompt, params).text == tokenizer.decode(params.allowed_token_ids, false));
  params.include_stop_str_in_output = false;
  CHECK(engine.generate(prompt, params).text == "");
}

TEST_CASE("log-probabilities are normalised, ordered and include the sampled token's", "[engine]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  const Output output =
      engine.generate("The king", {.temperature = 1.f, .seed = 8, .max_tokens = 10, .logprobs = 5});
  REQUIRE(output.logprobs.size() == output.token_ids.size());
  for (std::size_t i = 0; i < output.logprobs.size(); ++i) {
    const TokenLogprobs& entry = output.logprobs[i];
    CHECK(entry.token_id == output.token_ids[i]);
    REQUIRE(entry.top.size() == 5);
    double sum = 0;
    for (std::size_t k = 0; k < 5; ++k) {
      sum += std::exp(entry.top[k].second);
      if (k > 0) CHECK(entry.top[k].second <= entry.top[k - 1].second);
      if (entry.top[k].first == entry.token_id) CHECK(entry.top[k].second == entry.logprob);
    }
    CHECK(sum < 1.0001);
    CHECK(entry.logprob <= entry.top[0].second);
  }
  CHECK(engine.generate("The king", {.max_tokens = 3}).logprobs.empty());
}

TEST_CASE("the same seed gives the same sample, another one another", "[engine]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  const SamplingParams a{.temperature = 1.f, .seed = 11, .max_tokens = 24},
      b{.temperature = 1.f, .seed = 12, .max_tokens = 24};
  const Output first = engine.generate("Once", a);
  CHECK(engine.generate("Once", a).token_ids == first.token_ids);
  CHECK(engine.generate("Once", b).token_ids != first.token_ids);
  // Requests without a seed draw different ones.
  const auto unseeded =
      engine.generate(std::vector<std::string>(4, "Once"), {.temperature = 1.f, .max_tokens = 24});
  std::set<std::vector<TokenId>> distinct;
  for (const Output& output : unseeded) distinct.insert(output.token_ids);
  CHECK(distinct.size() == 4);
}

TEST_CASE("unset sampling fields come from generation_config.json", "[engine]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  const SamplingParams own{.seed = 4, .max_tokens = 24};
  const SamplingParams spelled{
      .temperature = 0.7f, .top_k = 40, .top_p = 0.95f, .min_p = 0.1f, .seed = 4, .max_tokens = 24};
  const SamplingParams other{
      .temperature = 1.5f, .top_k = 0, .top_p = 1.f, .seed = 4, .max_tokens = 24};
  const auto expected = engine.generate("The queen", spelled).token_ids;
  CHECK(engine.generate("The queen", own).token_ids == expected);
  CHECK(engine.generate("The queen", other).token_ids != expected);
}

TEST_CASE("abort ends a request wherever it is", "[engine]") {
  EngineConfig config = small_config(GENERATE(false, true));
  config.max_num_seqs = 1;
  TestEngine engine(std::move(config));
  std::optional<Output> running, waiting;
  const SamplingParams params{.temperature = 0.f, .max_tokens = 200, .ignore_eos = true};
  const RequestId a = engine.submit("Once", params, [&](const TokenEvent& e) {
    if (e.output) running = *e.output;
  });
  const RequestId b = engine.submit("The", params, [&](const TokenEvent& e) {
    if (e.output) waiting = *e.output;
  });
  for (int i = 0; i < 5; ++i) engine.step();
  CHECK(engine.abort(a));
  CHECK(engine.abort(b));
  CHECK(!engine.abort(a));
  CHECK(!engine.abort(12345));
  run_until_idle(engine);
  REQUIRE((running && waiting));
  CHECK(running->finish_reason == FinishReason::abort);
  CHECK(running->token_ids.size() == 5);
  CHECK(waiting->finish_reason == FinishReason::abort);
  CHECK(waiting->token_ids.empty());
  CHECK(engine.stats().num_finished == 2);
  engine.check_invariants();
}

namespace {

/// Allows every token, and throws at the fourth: when it is told of it, or asked what may follow.
class FailingMasks final : public nanovllm::TokenMaskSource {
 public:
  explicit FailingMasks(bool in_fill) : in_fill_(in_fill) {}
  [[nodiscard]] std::unique_ptr<nanovllm::TokenMatcher> matcher() const override {
    return std::make_unique<Matcher>(*this);
  }
  [[nodiscard]] int vocab_size() const override { return 4096; }

 private:
  struct Matcher final : nanovllm::TokenMatcher {
    explicit Matcher(const FailingMasks& masks) : in_fill(masks.in_fill_) {}
    [[nodiscard]] std::unique_ptr<nanovllm::TokenMatcher> clone() const override {
      return std::make_unique<Matcher>(*this);
    }
    [[nodiscard]] bool accept(TokenId) override {
      if (!in_fill && num_accepted == 3) throw RequestError("no way on");
      ++num_accepted;
      return true;
    }
    void fill(std::span<std::uint32_t> bits) const override {
      if (in_fill && num_accepted == 3) throw RequestError("no way on");
      for (TokenId token = 0; token < 4096; ++token) nanovllm::allow_token(bits, token);
    }
    [[nodiscard]] bool is_finished() const override { return false; }
    bool in_fill;
    int num_accepted = 0;
  };
  bool in_fill_;
};

}  // namespace

TEST_CASE("a token mask that throws ends its own request alone", "[engine]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  const bool in_fill = GENERATE(false, true);
  const Output whole = engine.generate("Once", {.temperature = 0.f, .max_tokens = 12});
  std::vector<SamplingParams> params(3, {.temperature = 0.f, .max_tokens = 12});
  params[1].token_masks = std::make_shared<const FailingMasks>(in_fill);
  const auto outputs = engine.generate(std::vector<Prompt>(3, "Once"), params);
  CHECK(outputs[1].finish_reason == FinishReason::error);
  CHECK_THAT(outputs[1].error, Catch::Matchers::Contains("no way on"));
  CHECK(outputs[0].token_ids == whole.token_ids);
  CHECK(outputs[2].token_ids == whole.token_ids);
  engine.check_invariants();
  CHECK(engine.generate("Once", {.temperature = 0.f, .max_tokens = 12}).text == whole.text);
}

TEST_CASE("a callback may submit and abort, and one that throws ends its own request alone",
          "[engine]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  std::optional<Output> follow_up, neighbour;
  int heard = 0;
  engine.submit("Once", kGreedy, [&](const TokenEvent&) {
    if (++heard == 3) throw std::runtime_error("tired of this");
  });
  engine.submit("The fox", kGreedy, [&](const TokenEvent& event) {
    if (!event.output) return;
    neighbour = *event.output;
    engine.submit("The end", kGreedy, [&](const TokenEvent& last) {
      if (last.output) follow_up = *last.output;
    });
  });
  RequestId self = 0;
  std::optional<Output> aborted;
  self = engine.submit("The wolf", {.temperature = 0.f, .max_tokens = 100, .ignore_eos = true},
                       [&](const TokenEvent& event) {
                         if (event.output)
                           aborted = *event.output;
                         else
                           engine.abort(self);
                       });
  run_until_idle(engine);
  CHECK(heard == 4);  // the third token, and the end with its error
  REQUIRE((follow_up && neighbour && aborted));
  CHECK(neighbour->token_ids.size() == 16);
  CHECK(follow_up->token_ids.size() == 16);
  CHECK(aborted->finish_reason == FinishReason::abort);
  CHECK(engine.stats().num_finished == 4);
  engine.check_invariants();
}

TEST_CASE("submit, abort, stats, step and generate from many threads", "[engine]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  std::atomic<bool> stop{false};
  std::atomic<int> num_ended{0}, num_submitted{0};
  std::thread stepper([&] {
    while (!stop || engine.step()) {
      if (!engine.step()) std::this_thread::yield();
    }
  });
  std::vector<std::thread> users;
  for (int t = 0; t < 3; ++t) {
    users.emplace_back([&, t] {
      for (int i = 0; i < 8; ++i) {
        const RequestId id = engine.submit("Once upon", {.temperature = 1.f, .max_tokens = 5 + t},
                                           [&](const TokenEvent& event) {
                                             if (event.output) ++num_ended;
                                           });
        ++num_submitted;
        if (i % 3 == 0) engine.abort(id);
        static_cast<void>(engine.stats());
      }
    });
  }
  const auto outputs = engine.generate(std::vector<std::string>(5, "The"), kGreedy);
  for (std::thread& user : users) user.join();
  stop = true;
  stepper.join();
  for (const Output& output : outputs) CHECK(output.token_ids == outputs[0].token_ids);
  CHECK(num_ended == num_submitted);
  engine.check_invariants();
  CHECK(engine.stats().num_free_kv_blocks == engine.stats().num_kv_blocks);
}

TEST_CASE("a callback hears nothing more once its request has ended, whatever is under way",
          "[engine]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  const SamplingParams params{.temperature = 0.f, .max_tokens = 100, .ignore_eos = true};
  std::vector<int> heard(4, 0);
  std::vector<FinishReason> reasons(4, FinishReason::none);
  std::vector<RequestId> ids;
  for (std::size_t i = 0; i < 4; ++i) {
    ids.push_back(engine.submit("Once upon", params, [&, i](const TokenEvent& event) {
      REQUIRE(reasons[i] == FinishReason::none);
      if (event.output) reasons[i] = event.output->finish_reason;
      heard[i] += event.token ? 1 : 0;
      if (i == 2 && heard[i] == 4) throw std::runtime_error("enough");
      if (i == 3 && heard[i] == 4 && !event.output) engine.abort(ids[0]);
    }));
  }
  for (int step = 0; step < 6; ++step) {
    CHECK(engine.step());
    if (step == 1) CHECK(engine.abort(ids[1]));
    engine.check_invariants();
  }
  CHECK(heard == std::vector<int>{4, 2, 4, 6});
  CHECK(reasons == std::vector<FinishReason>{FinishReason::abort, FinishReason::abort,
                                             FinishReason::error, FinishReason::none});
  CHECK(engine.abort(ids[3]));
  run_until_idle(engine);
  CHECK(reasons[3] == FinishReason::abort);
  CHECK(engine.stats().num_finished == 4);
  CHECK_FALSE(engine.step());
  engine.check_invariants();
}

TEST_CASE("every call of step delivers one step, planned ahead or not", "[engine]") {
  const bool overlap = GENERATE(false, true);
  TestEngine engine(small_config(overlap));
  int heard = 0;
  engine.submit("Once", {.temperature = 0.f, .max_tokens = 5, .ignore_eos = true},
                [&](const TokenEvent&) { ++heard; });
  for (int i = 1; i <= 5; ++i) {
    CHECK(engine.step());
    CHECK(heard == i);
    CHECK(engine.stats().num_steps == i);
    CHECK(engine.stats().num_sampled_tokens == i);
  }
  CHECK_FALSE(engine.step());  // that the fifth is the last was known: nothing was planned after
  // An end that nobody could foresee leaves a step that computed for nobody.
  const TokenId stop = engine.generate("Once", kGreedy).token_ids[2];
  const std::int64_t before = engine.stats().num_steps;
  const Output output = engine.generate(
      "Once", {.temperature = 0.f, .max_tokens = 16, .ignore_eos = true, .stop_token_ids = {stop}});
  CHECK(output.finish_reason == FinishReason::stop);
  const auto num_tokens = static_cast<std::int64_t>(output.token_ids.size());
  CHECK(engine.stats().num_steps == before + num_tokens);
  CHECK(engine.step() == overlap);
  CHECK_FALSE(engine.step());
  CHECK(engine.stats().num_sampled_tokens ==
        5 + 16 + static_cast<std::int64_t>(output.token_ids.size()));
  CHECK(engine.stats().num_free_kv_blocks == engine.stats().num_kv_blocks);
  engine.check_invariants();
}

TEST_CASE("the chat history is found in the prefix cache", "[engine]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  std::vector<ChatMessage> history{
      {"user", "Tell me a story about a fox and a goose, and make it long enough to fill blocks."}};
  const Output first = engine.generate(history, {.temperature = 0.f, .max_tokens = 40});
  history.emplace_back("assistant", first.text);
  history.emplace_back("user", "Go on.");
  const Output second = engine.generate(history, {.temperature = 0.f, .max_tokens = 8});
  CHECK(first.num_cached_tokens == 0);
  CHECK(second.num_cached_tokens >= first.num_prompt_tokens / 16 * 16);
  CHECK(engine.stats().num_hit_tokens == second.num_cached_tokens);
}

TEST_CASE("engines with wrong settings are refused with the setting's name", "[engine]") {
  using FullEngine = Engine<AnyModel, FullFloat32Policy>;
  const auto fails = [](auto change, const char* word) {
    EngineConfig config = small_config();
    change(config);
    CHECK_THROWS_WITH(FullEngine(std::move(config)), Catch::Matchers::Contains(word));
  };
  fails([](EngineConfig& c) { c.model = "no/such/folder"; }, "no/such/folder");
  fails([](EngineConfig& c) { c.max_num_seqs = 0; }, "max_num_seqs");
  fails([](EngineConfig& c) { c.max_num_batched_tokens = -1; }, "max_num_batched_tokens");
  fails([](EngineConfig& c) { c.max_model_len = 5000; }, "max_model_len");
  fails([](EngineConfig& c) { c.max_model_len = 0; }, "max_model_len");
  fails([](EngineConfig& c) { c.max_num_batched_tokens = 0; }, "max_num_batched_tokens");
  fails([](EngineConfig& c) { c.num_threads = 0; }, "num_threads");
  fails([](EngineConfig& c) { c.tensor_parallel = 0; }, "tensor_parallel");
  fails([](EngineConfig& c) { c.tensor_parallel = 3; }, "num_attention_heads");
  fails([](EngineConfig& c) { c.kv_size = KvSize::blocks(0); }, "KV cache");
  fails([](EngineConfig& c) { c.kv_size = KvSize::bytes(100); }, "KV cache");
  fails([](EngineConfig& c) { c.num_threads = -1; }, "num_threads");
}

TEST_CASE("a model without tokeniser serves token ids and says why it does not serve text",
          "[engine]") {
  Engine<AnyModel, Float32Policy> engine(
      {.model = model_directory("group4_untied_sharded"), .num_threads = 1});
  CHECK(engine.generate(std::vector<TokenId>{1, 2, 3}, kGreedy).token_ids.size() == 16);
  CHECK_THAT(engine.generate("text", kGreedy).error, Catch::Matchers::Contains("tokenizer.json"));
  CHECK_THROWS_AS(engine.tokenizer(), ConfigError);
}

TEST_CASE("random weights need no files", "[engine]") {
  const Qwen3Config model = Qwen3Config::load(model_directory("fairytale"));
  Engine<AnyModel> engine(model, RandomWeights{7}, {.num_threads = 2, .max_model_len = 128});
  Engine<AnyModel> same(model, RandomWeights{7}, {.num_threads = 1, .max_model_len = 128});
  const auto a =
      engine.generate(std::vector<TokenId>{5, 6, 7}, {.temperature = 0.f, .max_tokens = 8});
  CHECK(a.token_ids.size() == 8);
  CHECK(same.generate(std::vector<TokenId>{5, 6, 7}, {.temperature = 0.f, .max_tokens = 8})
            .token_ids == a.token_ids);
}

TEST_CASE("describe names what is in force", "[engine]") {
  TestEngine engine(small_config());
  CHECK_THAT(engine.describe(), Catch::Matchers::Contains("float32") &&
                                    Catch::Matchers::Contains("ContinuousBatching") &&
                                    Catch::Matchers::Contains("block_size = 16") &&
                                    Catch::Matchers::Contains("DirectExecutor\n"));
}
