// examples/models/fairytale_embedding on the CPU finds tales in examples/tales.txt, as it does with
// Hugging Face transformers (tests/oracle/make_fairytale_models_fixtures.py).

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/io/mapped_file.hpp"
#include "weights_there.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
using Vector = std::vector<float>;

namespace {

constexpr const char* kModel = "examples/models/fairytale_embedding";
constexpr const char* kTask = "Given a question, find the passage that answers it";

/// The lines of examples/tales.txt that are not empty: a tale each.
std::vector<std::string> tales() {
  std::ifstream file("examples/tales.txt");
  std::vector<std::string> out;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) out.push_back(line);
  }
  return out;
}

template <class Policy>
void check_search(float bound) {
  const Json oracle = parse_json(MappedFile("tests/fixtures/fairytale_search.json").text(),
                                 "fairytale_search.json");
  Engine<AnyModel, Policy> engine({.model = kModel, .num_threads = 2, .max_model_len = 512});
  const std::vector<Vector> vectors = embed(engine, tales());
  const Json& queries = oracle["queries"];
  REQUIRE(queries.size() == vectors.size());
  std::size_t num_right = 0;
  for (std::size_t q = 0; q < queries.size(); ++q) {
    const Json& expected = queries[q];
    const std::string text = embedding_query(kTask, expected["query"].string());
    CAPTURE(text);
    const std::vector<TokenId> ids = engine.encode(text);
    REQUIRE(ids.size() == expected["ids"].size());
    for (std::size_t i = 0; i < ids.size(); ++i)
      CHECK(ids[i] == expected["ids"][i].template get<TokenId>());
    const Vector query = embed(engine, text);
    Vector cosines;
    for (const Vector& vector : vectors)
      cosines.push_back(std::inner_product(vector.begin(), vector.end(), query.begin(), 0.f));
    for (std::size_t t = 0; t < cosines.size(); ++t)
      CHECK(std::abs(cosines[t] - expected["cosines"][t].template get<float>()) <= bound);
    const auto best = std::max_element(cosines.begin(), cosines.end()) - cosines.begin();
    num_right += best == expected["tale"].template get<std::ptrdiff_t>() ? 1 : 0;
  }
  INFO(num_right << " of " << queries.size() << " queries find their tale");
  CHECK(num_right * 4 >= queries.size() * 3);
}

}  // namespace

TEST_CASE("in float32, searches have transformers' cosines and find the right tales", "[pooling]") {
  if (!weights_there("fairytale_embedding")) return;
  check_search<Float32Policy>(1e-5f);
}

TEST_CASE("in bfloat16, searches have nearly transformers' cosines and find the right tales",
          "[pooling]") {
  if (!weights_there("fairytale_embedding")) return;
  check_search<DefaultPolicy>(3e-2f);
}

TEST_CASE("an embedding model refuses to write text", "[pooling]") {
  if (!weights_there("fairytale_embedding")) return;
  Engine<AnyModel, DefaultPolicy> engine({.model = kModel, .num_threads = 2});
  CHECK_THROWS_AS(engine.submit("Once", {.max_tokens = 1}), RequestError);
  CHECK(embed(engine, "Once").size() == 256);
}
