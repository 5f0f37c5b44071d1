// Checkpoints without lm_head: embedding models, and classifiers, whose labels and scores are those
// of transformers and sentence-transformers.

#include "nanovllm/with/pooling/score_head.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/with/sessions.hpp"
#include "with/pooling/headless_models.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
using Catch::Matchers::Contains;
using Vector = std::vector<float>;

namespace {

using PoolingEngine = Engine<AnyModel, Float32Policy>;

EngineConfig config_of(Checkpoint checkpoint) {
  return {.checkpoint = std::move(checkpoint), .num_threads = 2, .max_model_len = 256};
}

void check_close(const Vector& got, const Vector& expected) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - expected[i]) <= 1e-5f);
}

const std::vector<TokenId> kTokens = {5, 6, 7, 300, 4000};
constexpr const char* kNoText =
    "this model generates no text: its checkpoint has no lm_head; it is for embeddings or scores";

}  // namespace

TEST_CASE("labels and scores are transformers' and CrossEncoder's", "[pooling][labels]") {
  const Json oracle = score_head_oracle();
  for (const std::size_t head : {0, 1}) {
    PoolingEngine engine(config_of(classifier_model(head)));
    const Json& cases = oracle["heads"][head]["classify"];
    std::vector<Prompt> inputs;
    for (const Json& one : cases) inputs.emplace_back(numbers<TokenId>(one["ids"]));
    for (int round = 0; round < 2; ++round) {  // the second finds what the first has cached
      const auto logits = classify(engine, inputs, {.activate = false});
      const auto labels = classify(engine, inputs);
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        CAPTURE(head, round, i);
        check_close(logits[i], numbers<float>(cases[i]["logits"]));
        check_close(labels[i], numbers<float>(cases[i]["probabilities"]));
        CHECK(classify(engine, {inputs[i]}, {.activate = false})[0] == logits[i]);  // alone
      }
    }
    CHECK(score_head(engine)->num_labels() == (head == 0 ? 1 : 3));
  }
  PoolingEngine engine(config_of(classifier_model(0)));
  const Json& scores = oracle["scores"];
  Vector expected;
  for (const Json& one : scores["cases"]) expected.push_back(one["score"].get<float>());
  const std::vector<std::string> documents = strings(scores["cases"], "document");
  check_close(score(engine, scores["query"].string(), documents), expected);
  check_close(score(engine, scores["query"].string(), documents, {.yes = 3, .no = 4}), expected);
  check_close({score(engine, scores["query"].string(), {documents[1]})[0]}, {expected[1]});
}

TEST_CASE("probabilities of labels", "[pooling][labels]") {
  CHECK(label_probabilities(Vector{}).empty());
  check_close(label_probabilities(Vector{0.f}), {0.5f});
  check_close(label_probabilities(Vector{-1000.f}), {0.f});
  check_close(label_probabilities(Vector{1000.f, 1000.f, -1000.f}), {0.5f, 0.5f, 0.f});
}

TEST_CASE("an untied checkpoint that was saved without a head embeds and does not generate",
          "[pooling][headless]") {
  const Vector expected = embed(PoolingEngine(config_of(embedding_model())), kTokens);
  for (const auto& form : {Headless{},  // as Qwen3-Embedding-8B was saved
                           Headless{.architecture = "Qwen3Model"},
                           Headless{.architecture = "Qwen3Model", .has_prefix = true},
                           Headless{.architecture = "Qwen3Model", .tied = true},
                           Headless{.architecture = "Qwen3Model", .has_lm_head = true}}) {
    CAPTURE(form.architecture, form.has_prefix, form.tied, form.has_lm_head);
    PoolingEngine engine(config_of(headless_model(form)));
    CHECK(engine.model_config().head == ModelHead::none);
    CHECK(embed(engine, kTokens) == expected);
    CHECK_THROWS_WITH(engine.submit(kTokens), kNoText);
    const std::vector<Output> outputs =
        engine.generate({Prompt(kTokens)}, {.max_tokens = 3, .ignore_eos = true});
    CHECK(outputs[0].finish_reason == FinishReason::error);
    CHECK(outputs[0].error == kNoText);
    CHECK_THROWS_WITH(score(engine, "Who?", {"He."}, {.yes = 1, .no = 2}),
                      Contains("score: document 0: ") && Contains(kNoText));
    Session session(engine);
    CHECK(session.generate("Once").error == kNoText);
    CHECK_THROWS_WITH(classify(engine, {Prompt(kTokens)}), Contains("has no score head"));
    CHECK(embed(engine, kTokens) == expected);  // others are served
    engine.check_invariants();
  }
  // What an lm_head would take is neither allocated nor counted.
  const Qwen3Config with = Qwen3Config::load(headless_model({.has_lm_head = true}));
  const Qwen3Config without = Qwen3Config::load(headless_model({}));
  CHECK(num_parameters(with) - num_parameters(without) == 4096 * 256);
  using Weights = Qwen3Weights<float, CpuBackend, float>;
  CHECK(Weights(with, 0, 1).lm_head().rows() == 4096);
  CHECK(Weights(without, 0, 1).lm_head().rows() == 0);
}

TEST_CASE("a model for text must have its lm_head", "[pooling][headless]") {
  CHECK_THROWS_WITH(PoolingEngine(config_of(headless_model({.has_prefix = true}))),
                    Contains("'lm_head.weight' is missing"));
  const SamplingParams greedy{.temperature = 0, .max_tokens = 8, .ignore_eos = true};
  const auto expected = PoolingEngine(config_of(embedding_model())).generate(kTokens, greedy);
  for (const auto& form : {Headless{.has_lm_head = true}, Headless{.tied = true},
                           Headless{.has_prefix = true, .has_lm_head = true}}) {
    PoolingEngine engine(config_of(headless_model(form)));
    CHECK(engine.generate(kTokens, greedy).token_ids == expected.token_ids);
    CHECK(score_head(engine) == nullptr);
  }
}

TEST_CASE("a head of the rows of yes and no scores as the model's own", "[pooling][labels]") {
  const Checkpoint files = embedding_model();
  const Checkpoint own = headless_model({.tied = true, .has_prefix = true});
  PoolingEngine by_tokens(config_of(own));
  const ScoreOptions answers{.yes = 300, .no = 4000};
  const CheckpointTensor* const table = files.find("model.embed_tokens.weight");
  const std::vector<std::string> documents = {"He was a fox.", "A hare in the wood", "x"};
  const auto expected = score(by_tokens, "Who is he?", documents, answers);
  for (const bool yes_first : {true, false}) {
    Headless form{.architecture = "Qwen3ForSequenceClassification", .tied = true};
    form.has_prefix = true;
    auto files_of_head = headless_files(form);
    std::vector<float> rows(2 * 256);
    const std::size_t ids[] = {yes_first ? 300u : 4000u, yes_first ? 4000u : 300u};
    for (const std::size_t row : {0, 1})
      detail::convert(table->dtype, table->data.data() + 2 * 256 * ids[row], &rows[256 * row], 256);
    files_of_head.add("score.weight", FileDType::f32, {2, 256}, bytes_of(rows));
    Json config = parse_json(files_of_head.texts["config.json"], "config.json");
    config["id2label"] = parse_json(
        yes_first ? R"({"0": "yes", "1": "no"})" : R"({"1": "yes", "0": "no"})", "labels");
    files_of_head.texts["config.json"] = config.dump();
    PoolingEngine by_head(config_of(Checkpoint(std::move(files_of_head))));
    check_close(score(by_head, "Who is he?", documents), expected);
    CHECK(score_head(by_head)->find_label("yes") == (yes_first ? 0 : 1));
  }
  const ScoreHead biased({1, 0, 0, 1}, 2, 2, {0.5f, -1}, {"a", "b"});
  CHECK(biased.pool(Vector{2, 3}) == Vector{2.5f, 2});
  CHECK_THROWS_AS(ScoreHead({1, 2}, 2, 1, {1}), ConfigError);
}

TEST_CASE("what a classifier cannot do is refused by name", "[pooling][labels]") {
  PoolingEngine engine(config_of(classifier_model(1)));
  CHECK_THROWS_WITH(engine.generate({Prompt(kTokens)}).at(0).error.empty()
                        ? throw Error("it generated")
                        : score(engine, "Who?", {"He."}),
                    "score: a reranker has one label, or \"yes\" and \"no\", but the checkpoint's "
                    "score.weight has 3");
  CHECK_THROWS_WITH(classify(engine, {Prompt("Once")}, {.max_prompt_tokens = 1}),
                    "classify: max_prompt_tokens must be at least 2, got 1");
  CHECK(classify(engine, {Prompt("Once upon a time")}, {.max_prompt_tokens = 2}).size() == 1);

  Headless form{.architecture = "Qwen3ForSequenceClassification", .has_prefix = true};
  CHECK_THROWS_WITH(PoolingEngine(config_of(headless_model(form))),
                    "'memory' is of a classifier, but 'score.weight' is missing");
  form.score = {Vector(255)};
  CHECK_THROWS_WITH(PoolingEngine(config_of(headless_model(form))),
                    "'memory': 'score.weight' must have shape [labels, 256], got [1, 255]");
  form.score = {};
  auto files = headless_files(form);
  files.add("score.weight", FileDType::i32, {1, 256}, std::string(1024, '\0'));
  CHECK_THROWS_WITH(PoolingEngine(config_of(Checkpoint(std::move(files)))),
                    "'memory': 'score.weight' must be F32, F16 or BF16, or of blocks, got I32");
  // A model for text does not need it.
  form = {.has_prefix = true, .has_lm_head = true, .score = {Vector(256)}};
  const Checkpoint for_text = headless_model(form);
  CHECK(score_head(PoolingEngine(config_of(for_text))) == nullptr);
  REQUIRE(for_text.warnings().size() == 1);
  CHECK_THAT(for_text.warnings()[0], Contains("the tensors 'score.*' are ignored"));
  CHECK_THROWS_AS(ScoreHead(Vector(7), 2, 4), ConfigError);
  CHECK_THROWS_AS(ScoreHead(Vector(8), 2, 4).pool(Vector(3)), ShapeError);
  check_close(ScoreHead({1, 2, 3, 4}, 2, 2).pool(Vector{1, 10}), {21, 43});
}
