#pragma once
/// Draws against formulas: the frequencies of what `edit_logits` and `sample` draw together, by a
/// chi-square test against the probabilities that the parameters' definitions give. Those are
/// computed here in float64, from the logits on, and share nothing with the ops.
///
/// Rows are positions of one seed, as in a sequence, all with the same logits. Everything is a
/// function of seeds in the code: a p-value never changes.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "nanovllm/ops/logit_edits.hpp"
#include "nanovllm/ops/sampler.hpp"
#include "ops/logit_edits_cases.hpp"

namespace nanovllm::test::ops {

/// What a request asks for.
struct DrawSettings {
  double temperature = 1;
  std::int32_t top_k = 0;
  double top_p = 1, min_p = 0;
  double repetition = 1, frequency = 0, presence = 0;
  bool has_bias = false, has_mask = false;
};

struct DrawCase {
  const char* name;
  DrawSettings settings;
  std::int64_t vocab = 203;
};

inline const std::vector<DrawCase>& draw_cases() {
  static const std::vector<DrawCase> cases{
      {"as the model says", {}},
      {"as the model says, 2051 tokens", {}, 2051},
      {"temperature 0.6", {.temperature = 0.6}},
      {"temperature 1.7", {.temperature = 1.7}},
      {"top_k 20", {.top_k = 20}},
      {"top_p 0.9", {.top_p = 0.9}},
      {"top_p 0.9, 2051 tokens", {.top_p = 0.9}, 2051},
      {"min_p 0.05", {.min_p = 0.05}},
      {"temperature 0.7, top_k 40, top_p 0.8, min_p 0.02",
       {.temperature = 0.7, .top_k = 40, .top_p = 0.8, .min_p = 0.02}},
      {"repetition 1.4", {.repetition = 1.4}},
      {"repetition 0.8", {.repetition = 0.8}},
      {"frequency 0.4", {.frequency = 0.4}},
      {"presence 1.1", {.presence = 1.1}},
      {"all penalties", {.repetition = 1.2, .frequency = 0.3, .presence = 0.5}},
      {"bias", {.has_bias = true}},
      {"mask", {.has_mask = true}},
      {"bias, mask, all penalties",
       {.repetition = 1.3, .frequency = 0.3, .presence = 0.5, .has_bias = true, .has_mask = true}},
      {"everything",
       {.temperature = 1.4,
        .top_k = 60,
        .top_p = 0.93,
        .min_p = 0.03,
        .repetition = 1.3,
        .frequency = 0.2,
        .presence = 0.4,
        .has_bias = true,
        .has_mask = true}},
      {"everything, 2051 tokens",
       {.temperature = 1.2,
        .top_k = 300,
        .top_p = 0.95,
        .min_p = 0.001,
        .repetition = 1.3,
        .frequency = 0.2,
        .presence = 0.4,
        .has_bias = true,
        .has_mask = true},
       2051},
  };
  return cases;
}

/// Ways to misread the parameters. Each must be told from the truth.
enum class Misreading {
  none,
  top_p_before_temperature,
  top_p_before_top_k,
  min_p_before_top_p,
  penalties_after_temperature,
  bias_after_penalties,
  repetition_multiplies_all,
  repetition_spares_the_prompt,
  frequency_counts_the_prompt,
  presence_counts_the_prompt,
  frequency_counts_once,
};

/// What all rows of a case have in common, a function of the vocabulary.
struct DrawInputs {
  std::vector<float> logits;
  History history;
  std::vector<TokenBias> biases;
  std::vector<bool> mask;

  explicit DrawInputs(std::int64_t vocab) {
    for (std::int64_t i = 0; i < vocab; ++i) {
      const auto words = philox4x32(17, {static_cast<std::uint32_t>(i), 1, 2, 3});
      const double u = to_unit_interval(words[0]), v = to_unit_interval(words[1]);
      const double normal = std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v);
      logits.push_back(static_cast<float>(1.6 * normal + 0.4));
      mask.push_back(words[2] % 4 != 0);
      if (words[3] % 8 == 0) {
        biases.push_back({static_cast<TokenId>(i), words[3] / 8 % 2 == 0 ? 1.5f : -2.25f});
      }
    }
    history.prompt = random_tokens(60, vocab, 18);
    history.generated = random_tokens(90, vocab / 2, 19);
  }
};

/// Probabilities of all tokens.
class DrawFormula {
 public:
  DrawFormula(const DrawInputs& inputs, const DrawSettings& settings,
              Misreading misread = Misreading::none)
      : x_(inputs.logits.begin(), inputs.logits.end()) {
    const auto is = [misread](Misreading which) { return misread == which; };
    if (settings.has_mask) {
      for (std::size_t i = 0; i < x_.size(); ++i) x_[i] = inputs.mask[i] ? x_[i] : -kInf;
    }
    if (settings.has_bias && !is(Misreading::bias_after_penalties)) add(inputs.biases);
    if (is(Misreading::penalties_after_temperature)) divide(settings.temperature);
    penalise(inputs.history, settings, misread);
    if (settings.has_bias && is(Misreading::bias_after_penalties)) add(inputs.biases);
    if (is(Misreading::top_p_before_temperature)) keep_top_p(settings.top_p);
    if (!is(Misreading::penalties_after_temperature)) divide(settings.temperature);
    if (is(Misreading::top_p_before_top_k)) keep_top_p(settings.top_p);
    if (settings.top_k > 0) keep_first(static_cast<std::size_t>(settings.top_k));
    if (is(Misreading::min_p_before_top_p)) keep_min_p(settings.min_p);
    if (!is(Misreading::top_p_before_temperature) && !is(Misreading::top_p_before_top_k)) {
      keep_top_p(settings.top_p);
    }
    if (!is(Misreading::min_p_before_top_p)) keep_min_p(settings.min_p);
  }

  [[nodiscard]] std::vector<double> probabilities() const {
    const double largest = *std::max_element(x_.begin(), x_.end());
    std::vector<double> out;
    for (const double x : x_) out.push_back(std::exp(x - largest));
    const double sum = std::accumulate(out.begin(), out.end(), 0.);
    for (double& p : out) p /= sum;
    return out;
  }

 private:
  void add(const std::vector<TokenBias>& biases) {
    for (const TokenBias& bias : biases) x_[static_cast<std::size_t>(bias.token)] += bias.bias;
  }
  void divide(double temperature) {
    for (double& x : x_) x /= temperature;
  }
  void penalise(const History& history, const DrawSettings& settings, Misreading misread) {
    for (std::size_t i = 0; i < x_.size(); ++i) {
      const auto token = static_cast<TokenId>(i);
      const double in_prompt =
          static_cast<double>(std::count(history.prompt.begin(), history.prompt.end(), token));
      const double count = static_cast<double>(history.count(token));
      const bool repeats =
          misread == Misreading::repetition_spares_the_prompt ? count > 0 : count + in_prompt > 0;
      if (repeats) {
        const bool divides = x_[i] > 0 && misread != Misreading::repetition_multiplies_all;
        x_[i] = divides ? x_[i] / settings.repetition : x_[i] * settings.repetition;
      }
      const double frequency = misread == Misreading::frequency_counts_the_prompt
                                   ? count + in_prompt
                               : misread == Misreading::frequency_counts_once ? std::min(count, 1.)
                                                                              : count;
      x_[i] -= frequency * settings.frequency;
      const double presence =
          misread == Misreading::presence_counts_the_prompt ? count + in_prompt : count;
      if (presence > 0) x_[i] -= settings.presence;
    }
  }
  [[nodiscard]] std::vector<std::size_t> descending() const {
    std::vector<std::size_t> order(x_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return x_[a] > x_[b]; });
    return order;
  }
  void keep_first(std::size_t count) {
    const std::vector<std::size_t> order = descending();
    for (std::size_t i = count; i < order.size(); ++i) x_[order[i]] = -kInf;
  }
  void keep_top_p(double top_p) {
    if (top_p >= 1) return;
    const std::vector<std::size_t> order = descending();
    const std::vector<double> p = probabilities();
    double mass = 0;
    std::size_t count = 0;
    while (mass < top_p) mass += p[order[count++]];
    keep_first(count);
  }
  void keep_min_p(double min_p) {
    const std::vector<double> p = probabilities();
    const double least = min_p * *std::max_element(p.begin(), p.end());
    for (std::size_t i = 0; i < x_.size(); ++i) x_[i] = p[i] < least ? -kInf : x_[i];
  }

  std::vector<double> x_;
};

/// Q(a, x), the upper regularised incomplete gamma function: by its series or its continued
/// fraction (Lentz), whichever converges.
inline double gamma_q(double a, double x) {
  if (x <= 0) return 1;
  const double factor = std::exp(a * std::log(x) - x - std::lgamma(a));
  if (x < a + 1) {
    double term = 1 / a, sum = term;
    for (double n = a + 1; term > sum * 1e-17; ++n) sum += term *= x / n;
    return 1 - factor * sum;
  }
  double b = x + 1 - a, c = 1e300, d = 1 / b, fraction = d;
  for (double i = 1; i < 10000; ++i) {
    const double an = -i * (i - a);
    b += 2;
    d = 1 / (an * d + b);
    c = b + an / c;
    fraction *= d * c;
    if (std::abs(d * c - 1) < 1e-15) break;
  }
  return factor * fraction;
}

struct ChiSquare {
  double statistic = 0;
  std::int64_t degrees = 0;
  double p_value = 0;  ///< 0 also where something impossible was drawn
};

/// Tokens that are expected fewer than 25 times are put together, in descending order.
inline ChiSquare chi_square(const std::vector<std::int64_t>& counts,
                            const std::vector<double>& probabilities) {
  const double total =
      static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  std::vector<std::size_t> order(counts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return probabilities[a] > probabilities[b]; });
  std::vector<std::pair<double, double>> bins;  // expected, drawn
  for (const std::size_t i : order) {
    if (probabilities[i] == 0) {
      if (counts[i] > 0) return {};
      continue;
    }
    if (bins.empty() || bins.back().first >= 25) bins.emplace_back(0., 0.);
    bins.back().first += probabilities[i] * total;
    bins.back().second += static_cast<double>(counts[i]);
  }
  if (bins.size() > 1 && bins.back().first < 25) {
    const auto rest = bins.back();
    bins.pop_back();
    bins.back().first += rest.first, bins.back().second += rest.second;
  }
  ChiSquare out;
  for (const auto& [expected, drawn] : bins) {
    out.statistic += (drawn - expected) * (drawn - expected) / expected;
  }
  out.degrees = static_cast<std::int64_t>(bins.size()) - 1;
  out.p_value =
      out.degrees > 0 ? gamma_q(static_cast<double>(out.degrees) / 2, out.statistic / 2) : 1;
  return out;
}

/// How often each token comes in `draws` draws of a case.
template <class B>
std::vector<std::int64_t> draw_counts(B& backend, const DrawCase& which, std::int64_t draws,
                                      std::uint64_t seed) {
  const DrawSettings& settings = which.settings;
  const DrawInputs inputs(which.vocab);
  const std::int64_t vocab = which.vocab;
  const std::int64_t n = std::min<std::int64_t>(draws, vocab > 1000 ? 5000 : 10000);
  REQUIRE(draws % n == 0);
  reserve_rows(backend, n, vocab);
  const auto rows_of = [&](auto value) {
    return std::vector<decltype(value)>(static_cast<std::size_t>(n), value);
  };
  std::vector<float> all_logits;
  for (std::int64_t r = 0; r < n; ++r) {
    all_logits.insert(all_logits.end(), inputs.logits.begin(), inputs.logits.end());
  }
  MarkMemory<B> marks(backend, 1, vocab, 150);
  marks.fill({{0, inputs.history}});
  std::vector<std::uint32_t> bits(static_cast<std::size_t>((vocab + 31) / 32));
  for (std::size_t i = 0; i < inputs.mask.size(); ++i) {
    bits[i / 32] |= inputs.mask[i] ? 1u << (i % 32) : 0u;
  }
  EditRow edit{.repetition = static_cast<float>(settings.repetition),
               .frequency = static_cast<float>(settings.frequency),
               .presence = static_cast<float>(settings.presence),
               .marks = 0,
               .mask = settings.has_mask ? 0 : -1};
  SamplingRow sampling;
  sampling.temperature = static_cast<float>(settings.temperature);
  sampling.top_k = settings.top_k;
  sampling.top_p = static_cast<float>(settings.top_p);
  sampling.min_p = static_cast<float>(settings.min_p);
  sampling.seed = seed;

  Array<B, float> logits(backend, all_logits), logprobs(backend, n);
  Array<B, EditRow> edits(backend, rows_of(edit));
  Array<B, SamplingRow> rows(backend, rows_of(sampling));
  Array<B, std::uint32_t> masks(backend, bits);
  Lists<B, TokenBias> biases(backend,
                             rows_of(settings.has_bias ? inputs.biases : std::vector<TokenBias>{}));
  Lists<B, TokenId> no_bans(backend, rows_of(std::vector<TokenId>{}));
  Array<B, TokenId> tokens(backend, n);
  EditLogitsArgs edit_args;
  edit_args.logits = logits.matrix(vocab);
  edit_args.batch.rows = edits.vector();
  edit_args.batch.biases = biases.view();
  edit_args.batch.masks = masks.vector();
  edit_args.marks = marks.view();
  std::vector<std::int64_t> counts(static_cast<std::size_t>(vocab));
  for (std::int64_t first = 0; first < draws; first += n) {
    for (std::int64_t r = 0; r < n; ++r) {
      rows.host[static_cast<std::size_t>(r)].position = static_cast<std::uint64_t>(first + r);
    }
    rows.upload();
    logits.upload();
    backend.run(edit_args);
    backend.run(SampleArgs{logits.matrix(vocab),
                           {rows.vector(), no_bans.view()},
                           tokens.vector(),
                           logprobs.vector(),
                           {nullptr, {n, 0}},
                           {nullptr, {n, 0}}});
    tokens.download();
    const auto [least, most] = std::minmax_element(tokens.host.begin(), tokens.host.end());
    REQUIRE((*least >= 0 && *most < vocab));
    for (const TokenId token : tokens.host) ++counts[static_cast<std::size_t>(token)];
  }
  return counts;
}

/// Less is taken for a mistake. Of the many tests here one in thousands of suites would be, if the
/// draws were not always the same.
inline constexpr double kLeastPValue = 1e-6;

/// Every case with a moderate number of draws.
template <class B>
void draws_follow_formulas(B& backend) {
  for (const DrawCase& which : draw_cases()) {
    for (const std::uint64_t seed : {1, 2026, 987654321}) {
      const auto counts = draw_counts(backend, which, 20000, seed);
      const ChiSquare test =
          chi_square(counts, DrawFormula(DrawInputs(which.vocab), which.settings).probabilities());
      INFO(which.name << ", seed " << seed << ": chi-square " << test.statistic << " of "
                      << test.degrees << ", p = " << test.p_value);
      CHECK(test.degrees > 5);
      CHECK(test.p_value > kLeastPValue);
    }
  }
}

/// That the test above would see each of these mistakes.
template <class B>
void draws_refute_misreadings(B& backend) {
  struct Wrong {
    const char* name;
    Misreading misread;
    DrawSettings settings;
  };
  const DrawSettings filters{.temperature = 0.7, .top_k = 40, .top_p = 0.8, .min_p = 0.02};
  const DrawSettings penalties{
      .temperature = 0.6, .repetition = 1.3, .frequency = -0.35, .presence = 0.5, .has_bias = true};
  for (const Wrong& wrong : std::vector<Wrong>{
           {"top_p before temperature", Misreading::top_p_before_temperature, filters},
           {"top_p before top_k", Misreading::top_p_before_top_k, {.top_k = 10, .top_p = 0.8}},
           {"min_p before top_p", Misreading::min_p_before_top_p, {.top_p = 0.8, .min_p = 0.2}},
           {"penalties after temperature",
            Misreading::penalties_after_temperature,
            {.temperature = 0.6, .frequency = -0.4}},
           {"bias after penalties",
            Misreading::bias_after_penalties,
            {.repetition = 2, .has_bias = true}},
           {"repetition multiplies all", Misreading::repetition_multiplies_all, penalties},
           {"repetition spares the prompt", Misreading::repetition_spares_the_prompt, penalties},
           {"frequency counts the prompt", Misreading::frequency_counts_the_prompt, penalties},
           {"presence counts the prompt", Misreading::presence_counts_the_prompt, penalties},
           {"frequency counts once", Misreading::frequency_counts_once, penalties},
       }) {
    const auto counts = draw_counts(backend, {wrong.name, wrong.settings}, 20000, 3);
    const DrawInputs inputs(203);
    const auto p_value = [&](Misreading misread) {
      return chi_square(counts, DrawFormula(inputs, wrong.settings, misread).probabilities())
          .p_value;
    };
    INFO(wrong.name << ": p = " << p_value(wrong.misread) << ", read aright "
                    << p_value(Misreading::none));
    CHECK(p_value(Misreading::none) > kLeastPValue);
    CHECK(p_value(wrong.misread) < kLeastPValue);
  }
}

}  // namespace nanovllm::test::ops
