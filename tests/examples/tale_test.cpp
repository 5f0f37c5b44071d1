// What the quickstart's settings make of the fairytale model: tales that the model ends and that go
// on from sentence to sentence.

#include "../../examples/tale.hpp"

#include <nanovllm/engine.hpp>

#include <cctype>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"

using namespace nanovllm;

namespace {

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> out(1);
  for (const char letter : text) {
    if (std::isalpha(static_cast<unsigned char>(letter)) != 0) {
      out.back() += letter;
    } else if (!out.back().empty()) {
      out.emplace_back();
    }
  }
  if (out.back().empty()) out.pop_back();
  return out;
}

/// The share of four words in a row that were there before.
double repeated(const std::vector<std::string>& words) {
  std::map<std::vector<std::string>, int> seen;
  int count = 0, again = 0;
  for (std::size_t i = 0; i + 4 <= words.size(); ++i, ++count) {
    const auto at = words.begin() + static_cast<std::ptrdiff_t>(i);
    if (seen[{at, at + 4}]++ > 0) ++again;
  }
  return count > 0 ? static_cast<double>(again) / count : 0;
}

}  // namespace

TEST_CASE("Tales of twenty seeds end with a sentence and do not turn in circles") {
  Engine<Qwen3<shapes::qwen3_any>> engine({.model = examples::kFairytale});
  const std::string opening =
      GENERATE("Once upon a time there was a fox who", "Once upon a time there was a king who had",
               "A clockmaker lived", "The dragon");
  std::vector<std::string> prompts(20, opening);
  std::vector<SamplingParams> params;
  for (std::uint64_t seed = 0; seed < prompts.size(); ++seed) {
    params.push_back(examples::tale_params({}));
    params.back().seed = seed;
  }
  int num_cut = 0, num_circling = 0;
  for (const Output& output : engine.generate(prompts, params)) {
    INFO(output.text);
    CHECK(output.error.empty());
    CHECK(output.token_ids.size() <= 160);
    const std::vector<std::string> words = words_of(output.text);
    CHECK(words.size() >= 50);
    const bool ends = output.finish_reason == FinishReason::stop && !output.text.empty() &&
                      std::string_view(".!?\"'").find(output.text.back()) != std::string_view::npos;
    num_cut += ends ? 0 : 1;
    num_circling += repeated(words) > 0.15 ? 1 : 0;
  }
  // Other instruction sets round differently and may draw another tale.
  CHECK(num_cut <= 1);
  CHECK(num_circling <= 1);
}
