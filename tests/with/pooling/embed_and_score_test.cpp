// `embed` and `score`: transformers' vectors and scores, alone and beside others.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/with/pooling/embedding.hpp"
#include "nanovllm/with/pooling/reranker.hpp"
#include "nanovllm/with/sessions.hpp"
#include "with/pooling/embedding_oracle.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
using Vector = std::vector<float>;

namespace {

using PoolingEngine = Engine<AnyModel, Float32Policy>;

EngineConfig pooling_config(bool prefix_caching = true) {
  EngineConfig config{.checkpoint = embedding_model(), .num_threads = 2, .max_model_len = 256};
  config.prefix_caching = prefix_caching;
  return config;
}

float largest_difference(const Vector& a, const Vector& b) {
  REQUIRE(a.size() == b.size());
  float out = 0;
  for (std::size_t i = 0; i < a.size(); ++i) out = std::max(out, std::abs(a[i] - b[i]));
  return out;
}

Vector unit(Vector v) {
  double sum = 0;
  for (const float x : v) sum += double{x} * x;
  for (float& x : v) x = static_cast<float>(x / std::sqrt(sum));
  return v;
}

ScoreOptions fairytale_answers(const Json& scores) {
  return {.yes = scores["yes"].get<TokenId>(), .no = scores["no"].get<TokenId>()};
}

}  // namespace

TEST_CASE("embeddings and scores are transformers', whatever is in the batch", "[pooling]") {
  const Json oracle = embedding_oracle();
  const Json& expected = oracle["embeddings"];
  const std::vector<std::string> texts = strings(expected, "text");
  const Json& scores = oracle["scores"];
  const std::vector<std::string> documents = strings(scores["cases"], "document");
  for (const bool caches : {false, true}) {
    PoolingEngine engine(pooling_config(caches));
    for (int round = 0; round < 2; ++round) {
      for (std::size_t i = 0; i < 3; ++i)
        engine.submit(random_prompt(i, 30 + i, 4000), {.max_tokens = 20, .ignore_eos = true});
      const auto plain = embed(engine, texts, {.normalize = false});
      const auto vectors = embed(engine, texts), few = embed(engine, texts, {.dimensions = 64});
      for (std::size_t i = 0; i < texts.size(); ++i) {
        CAPTURE(caches, round, texts[i]);
        const auto hidden = numbers<float>(expected[i]["hidden"]);
        const auto ids = numbers<TokenId>(expected[i]["ids"]);
        CHECK(largest_difference(unit(plain[i]), unit(hidden)) <= 1e-5f);
        CHECK(largest_difference(plain[i], hidden) <= 5e-5f);
        CHECK(largest_difference(vectors[i], unit(hidden)) <= 1e-5f);
        CHECK(largest_difference(few[i], unit(Vector(hidden.begin(), hidden.begin() + 64))) <=
              1e-5f);
        CHECK(largest_difference(embed(engine, texts[i]), vectors[i]) <= 1e-6f);  // alone
        CHECK(largest_difference(embed(engine, ids), vectors[i]) <= 1e-6f);
      }
      const Vector found =
          score(engine, scores["query"].string(), documents, fairytale_answers(scores));
      for (std::size_t i = 0; i < documents.size(); ++i) {
        CAPTURE(caches, round, documents[i]);
        CHECK(std::abs(found[i] - scores["cases"][i]["score"].get<float>()) <= 1e-5f);
      }
    }
    while (engine.step()) {
    }
    CHECK((engine.stats().num_hit_tokens > 0) == caches);
    CHECK(engine.stats().num_free_kv_blocks == engine.stats().num_kv_blocks);
    engine.check_invariants();
  }
}

TEST_CASE("tokens are added to texts, and not to conversations and later turns", "[pooling]") {
  PoolingEngine engine(pooling_config());
  const TokenId end = engine.tokenizer().sequence_template().behind.at(0);
  const std::vector<TokenId> once = engine.tokenizer().encode("Once");
  CHECK(engine.encode("Once") == engine.tokenizer().encode_with_template("Once"));
  CHECK(engine.encode("Once").back() == end);
  CHECK(engine.encode(once) == once);
  CHECK(engine.encode(std::vector<ChatMessage>{{"user", "Once"}}).back() != end);
  Session session(engine);
  const SamplingParams one{.max_tokens = 1, .ignore_eos = true};
  CHECK(session.generate("Once", one).num_prompt_tokens == std::ssize(once) + 1);
  const auto num_before = std::ssize(session.tokens());
  CHECK(session.generate("Once", one).num_prompt_tokens == num_before + std::ssize(once));
}

TEST_CASE("tensors may lack the prefix of a decoder with a head", "[pooling]") {
  const Checkpoint files("examples/models/fairytale");
  nanovllm_test::MemoryCheckpoint bare;
  for (const char* file : {"config.json", "tokenizer.json"}) bare.texts[file] = *files.text(file);
  for (const CheckpointTensor& tensor : files.tensors()) {
    const auto* bytes = reinterpret_cast<const char*>(tensor.data.data());
    REQUIRE(tensor.name.starts_with("model."));
    bare.add(tensor.name.substr(6), tensor.dtype, tensor.shape,
             std::string(bytes, tensor.data.size()));
  }
  EngineConfig config = pooling_config();
  const Vector expected = embed(PoolingEngine(config), std::vector<TokenId>{5, 6, 7});
  config.checkpoint = Checkpoint(std::move(bare));
  CHECK(embed(PoolingEngine(config), std::vector<TokenId>{5, 6, 7}) == expected);
}

TEST_CASE("long inputs are refused, or cut where it is asked for", "[pooling]") {
  PoolingEngine engine(pooling_config());
  std::string text;
  for (int i = 0; i < 100; ++i) text += "The old king went to the sea. ";
  CHECK_THROWS_WITH(embed(engine, {Prompt("Once"), Prompt(text)}),
                    Catch::Matchers::Contains("embed: input 1: the text of 3000 bytes has at") &&
                        Catch::Matchers::Contains("at most 255 are accepted"));
  std::vector<TokenId> all = engine.tokenizer().encode_with_template(text);
  const std::vector<TokenId> last(all.end() - 40, all.end());
  const EmbedOptions cut{.max_prompt_tokens = 40};
  CHECK(largest_difference(embed(engine, text, cut), embed(engine, last)) <= 1e-6f);
  CHECK(largest_difference(embed(engine, all, cut), embed(engine, last)) <= 1e-6f);
  CHECK(largest_difference(embed(engine, "Once", cut), embed(engine, "Once")) <= 1e-6f);
  CHECK_THROWS_WITH(embed(engine, text, {.max_prompt_tokens = 1}),
                    "embed: max_prompt_tokens must be at least 2, got 1");

  ScoreOptions options = fairytale_answers(embedding_oracle()["scores"]);
  CHECK_THROWS_WITH(score(engine, "Who?", {"He.", text}, options),
                    Catch::Matchers::Contains("score: document 1: the prompt has"));
  options.max_prompt_tokens = 160;
  const std::vector<TokenId> prompt = Reranker(engine.tokenizer(), options).prompt("Who?", text);
  CHECK(prompt.size() == 160);
  CHECK(engine.tokenizer().decode(prompt, false).ends_with("<think>\n\n</think>\n\n"));
  CHECK(score(engine, "Who?", {text}, options).size() == 1);
  options.max_prompt_tokens = 20;
  CHECK_THROWS_WITH(score(engine, "Who?", {"He."}, options),
                    Catch::Matchers::Contains("max_prompt_tokens must be at least") &&
                        Catch::Matchers::Contains("got 20"));
}

TEST_CASE("what cannot be embedded or scored is refused by name", "[pooling]") {
  PoolingEngine engine(pooling_config());
  CHECK_THROWS_WITH(embed(engine, "Once", {.dimensions = 0}),
                    "pooler: dimensions must be >= 1, got 0");
  CHECK_THROWS_WITH(embed(engine, "Once", {.dimensions = 257}),
                    "embed: input 0: pooler: dimensions must be at most 256, got 257");
  CHECK_THROWS_WITH(embed(engine, {std::vector<TokenId>{1}, std::vector<TokenId>{}}),
                    "embed: input 1: the prompt has no tokens");
  CHECK_THROWS_WITH(score(engine, "Who?", {"He."}),
                    "score: the tokeniser has no token 'yes', which a reranker answers with");
  CHECK(embed(engine, std::vector<std::string>{}).empty());
  CHECK(embedding_query("Find it", "Who?") == "Instruct: Find it\nQuery:Who?");
}
