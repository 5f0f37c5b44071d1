// What engines with drafts give beside what others compute: the greedy texts that transformers
// drafts by n-grams (tests/oracle/make_prompt_lookup_fixture.py), and the model's own probabilities.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/policy.hpp"
#include "nanovllm/with/speculation.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

/// Answers without drafts, by the requests' seeds.
std::map<std::uint64_t, std::vector<TokenId>>& known_answers() {
  static std::map<std::uint64_t, std::vector<TokenId>> answers;
  return answers;
}

/// Each token is right as often as not.
struct HalfRightDrafter : Drafter {
  static constexpr std::string_view kMethod = "half right";
  explicit HalfRightDrafter(const DraftSetup& setup) : vocab_size(setup.vocab_size) {}
  void propose(std::span<const DraftRequest> requests, std::span<Draft> drafts) override {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const std::uint64_t seed = requests[i].sampling.seed;
      const std::vector<TokenId>& answer = known_answers().at(seed);
      const auto begin = static_cast<std::uint32_t>(requests[i].tokens.size()) -
                         static_cast<std::uint32_t>(requests[i].num_prompt_tokens);
      for (std::uint32_t j = begin; j < answer.size(); ++j) {
        const bool is_right = philox4x32(seed, {j, 0, 0, 5})[0] % 2 == 0;
        drafts[i].tokens.push_back(
            static_cast<TokenId>((answer[j] + (is_right ? 0 : 1)) % vocab_size));
      }
    }
  }
  std::int64_t vocab_size;
};

/// One token always, which knows of no seed.
struct SameDrafter : Drafter {
  static constexpr std::string_view kMethod = "same";
  explicit SameDrafter(const DraftSetup&) {}
  void propose(std::span<const DraftRequest> requests, std::span<Draft> drafts) override {
    for (std::size_t i = 0; i < requests.size(); ++i)
      drafts[i].tokens.assign(static_cast<std::size_t>(requests[i].max_tokens), 5);
  }
};

struct Policy : Float32Policy {
  using Guesses = DraftedBy<NgramDrafter, HalfRightDrafter, SameDrafter>;
  static constexpr KvConfig kv{.block_size = 4};
};
using TestEngine = Engine<AnyModel, Policy>;

using Distribution = std::vector<double>;

constexpr TokenId kVocab = 16;
constexpr std::uint64_t kSeeds = 4000;
constexpr std::size_t kPlaces = 3;
const std::vector<TokenId> kPrompt{3, 7, 1};

/// So wide that noise for weights makes logits that differ by more than their rounding.
Qwen3Config wide_model() {
  Qwen3Config out = Qwen3Config::load(model_directory("group1_tied_yarn"));
  out.hidden_size = 1024;
  out.num_hidden_layers = 1;
  out.vocab_size = kVocab;
  out.tie_word_embeddings = false;
  out.eos_token_ids = {};
  return out;
}

EngineConfig config_of(SpeculativeConfig options) {
  EngineConfig out{.num_threads = 1, .max_num_seqs = 32, .max_model_len = 16};
  options.adaptive = false;
  out.extras.set(std::move(options));
  return out;
}

/// The definition of the filters (ops/sampler.hpp) of log-probabilities, at temperature 1.
Distribution filtered(Distribution probabilities, const SamplingParams& params) {
  std::vector<std::size_t> order(probabilities.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::sort(order, [&](auto a, auto b) { return probabilities[a] > probabilities[b]; });
  order.resize(std::min(order.size(), static_cast<std::size_t>(params.top_k.value_or(kVocab))));
  const auto mass = [&](std::size_t count) {
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += probabilities[order[i]];
    return sum;
  };
  const double all = mass(order.size());
  std::size_t count = 1;
  while (count < order.size() && mass(count) < params.top_p.value_or(1) * all) ++count;
  const double kept = mass(count);
  Distribution out(probabilities.size());
  for (std::size_t i = 0; i < count; ++i) out[order[i]] = probabilities[order[i]] / kept;
  return out;
}

/// What is drawn after each of `prefixes`, by log-probabilities of the model without drafts.
std::vector<Distribution> drawn_after(TestEngine& plain,
                                      const std::vector<std::vector<TokenId>>& prefixes,
                                      const SamplingParams& params) {
  const std::vector<SamplingParams> all(
      prefixes.size(), {.temperature = 0, .max_tokens = 1, .ignore_eos = true, .logprobs = kVocab});
  std::vector<Distribution> out;
  for (const Output& output :
       plain.generate_each(std::vector<Prompt>(prefixes.begin(), prefixes.end()), all)) {
    Distribution probabilities(kVocab);
    for (const auto& [token, logprob] : output.logprobs.at(0).top)
      probabilities[static_cast<std::size_t>(token)] = std::exp(double{logprob});
    out.push_back(filtered(std::move(probabilities), params));
  }
  return out;
}

/// Probabilities of the token of each place, and of the last two together.
struct Expected {
  std::array<Distribution, kPlaces> places;
  Distribution last_two;
};

Expected expected_of(TestEngine& plain, const SamplingParams& params) {
  Expected out;
  std::vector<std::vector<TokenId>> prefixes{kPrompt};
  Distribution reached{1};
  out.last_two.resize(kVocab * kVocab);
  for (std::size_t place = 0; place < kPlaces; ++place) {
    const std::vector<Distribution> drawn = drawn_after(plain, prefixes, params);
    std::vector<std::vector<TokenId>> longer;
    Distribution reached_next;
    out.places[place].resize(kVocab);
    for (std::size_t i = 0; i < prefixes.size(); ++i) {
      for (TokenId token = 0; token < kVocab; ++token) {
        const auto t = static_cast<std::size_t>(token);
        const double p = reached[i] * drawn[i][t];
        out.places[place][t] += p;
        longer.push_back(prefixes[i]);
        longer.back().push_back(token);
        reached_next.push_back(p);
        const auto before = static_cast<std::size_t>(prefixes[i].back());
        if (place == kPlaces - 1) out.last_two[before * kVocab + t] += p;
      }
    }
    prefixes = std::move(longer);
    reached = std::move(reached_next);
  }
  return out;
}

/// How likely counts are as far from what is expected as these: Pearson's chi-square, whose
/// distribution is taken for normal as Wilson and Hilferty (1931) do. Cells of fewer than five are
/// one; 0 for a count of what cannot come.
double p_value(const Distribution& probabilities, const std::vector<std::int64_t>& counts) {
  double chi_square = 0, rest_expected = 0, rest_count = 0;
  int num_cells = 0;
  const auto add = [&](double expected, double count) {
    chi_square += (count - expected) * (count - expected) / expected;
    ++num_cells;
  };
  for (std::size_t i = 0; i < probabilities.size(); ++i) {
    const double expected = probabilities[i] * static_cast<double>(kSeeds);
    const auto count = static_cast<double>(counts[i]);
    if (expected == 0 && count > 0) return 0;
    if (expected >= 5) {
      add(expected, count);
    } else {
      rest_expected += expected, rest_count += count;
    }
  }
  if (rest_expected > 0) add(rest_expected, rest_count);
  REQUIRE(num_cells > 3);
  const double freedom = num_cells - 1, part = 2 / (9 * freedom);
  const double z = (std::cbrt(chi_square / freedom) - (1 - part)) / std::sqrt(part);
  return std::erfc(z / std::sqrt(2.)) / 2;
}

/// One request a seed; a last token more, as the last of a request is not drafted.
std::vector<Output> draw_all(TestEngine& engine, SamplingParams params) {
  params.max_tokens = kPlaces + 1;
  params.ignore_eos = true;
  std::vector<SamplingParams> all(kSeeds, params);
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) all[seed].seed = seed;
  return engine.generate_each(std::vector<Prompt>(kSeeds, kPrompt), all);
}

void check_probabilities(const std::vector<Output>& outputs, const Expected& expected) {
  std::array<std::vector<std::int64_t>, kPlaces> counts;
  counts.fill(std::vector<std::int64_t>(kVocab));
  std::vector<std::int64_t> last_two(kVocab * kVocab);
  for (const Output& output : outputs) {
    REQUIRE(output.token_ids.size() == kPlaces + 1);
    const auto token = [&](std::size_t i) { return static_cast<std::size_t>(output.token_ids[i]); };
    for (std::size_t place = 0; place < kPlaces; ++place) ++counts[place][token(place)];
    ++last_two[token(kPlaces - 2) * kVocab + token(kPlaces - 1)];
  }
  for (std::size_t place = 0; place < kPlaces; ++place) {
    CAPTURE(place);
    CHECK(p_value(expected.places[place], counts[place]) > 1e-4);
  }
  CHECK(p_value(expected.last_two, last_two) > 1e-4);
}

}  // namespace

TEST_CASE("greedy texts are those that transformers drafts by n-grams", "[speculation]") {
  std::ifstream file("tests/fixtures/prompt_lookup.json");
  const auto fixture = nlohmann::json::parse(file);
  REQUIRE(fixture.at("cases").size() >= 12);
  std::int64_t num_accepted = 0;
  for (std::size_t i = 0; i < fixture.at("cases").size(); ++i) {
    CAPTURE(i);
    const auto& entry = fixture.at("cases")[i];
    const auto prompt = entry.at("prompt").get<std::vector<TokenId>>();
    const auto expected = entry.at("tokens").get<std::vector<TokenId>>();
    EngineConfig config =
        config_of({.method = "ngram",
                   .num_speculative_tokens = entry.at("num_tokens").get<std::int32_t>(),
                   .prompt_lookup_max = entry.at("max_ngram").get<std::int32_t>(),
                   .prompt_lookup_min = 1});
    config.model = model_directory("fairytale");
    config.max_model_len = 256;
    TestEngine engine(config);
    const auto max_tokens = static_cast<std::int32_t>(expected.size());
    const Output output =
        engine.generate(prompt, {.temperature = 0, .max_tokens = max_tokens, .ignore_eos = true});
    CHECK(output.error == "");
    CHECK(output.token_ids == expected);
    const EngineStats stats = engine.stats();
    CHECK(stats.num_steps < max_tokens);  // the drafts were of use
    num_accepted += stats.of<SpeculationStats>().num_accepted;
  }
  CHECK(num_accepted > 200);
}

TEST_CASE("what is drawn with drafts has the model's probabilities", "[speculation][laws]") {
  const Qwen3Config model = wide_model();
  TestEngine plain(model, RandomWeights{3}, config_of({.num_speculative_tokens = 0}));
  for (const SamplingParams& params :
       {SamplingParams{.temperature = 1},
        SamplingParams{.temperature = 1, .top_k = 10, .top_p = 0.9f}}) {
    CAPTURE(params.top_k.value_or(0));
    const Expected expected = expected_of(plain, params);
    const std::vector<Output> outputs = draw_all(plain, params);
    check_probabilities(outputs, expected);
    for (const Output& output : outputs) {
      const auto seed = static_cast<std::uint64_t>(&output - outputs.data());
      known_answers()[seed] = output.token_ids;
    }
    for (const char* method : {"half right", "same"}) {
      CAPTURE(method);
      TestEngine engine(model, RandomWeights{3},
                        config_of({.method = method, .num_speculative_tokens = 2}));
      check_probabilities(draw_all(engine, params), expected);
      const auto stats = engine.stats().of<SpeculationStats>();
      CAPTURE(stats.num_drafted, stats.num_accepted, stats.num_failed);
      CHECK(stats.num_failed == 0);
      CHECK(stats.num_drafts >= static_cast<std::int64_t>(kSeeds));
      if (std::string_view(method) != "half right") continue;
      const double share = static_cast<double>(stats.accepted_by_position[0]) /
                           static_cast<double>(stats.num_drafts);
      CHECK(std::abs(share - 0.5) < 0.1);
    }
  }
}
