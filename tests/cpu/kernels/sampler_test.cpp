#include "nanovllm/cpu/kernels/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "catch.hpp"
#include "cpu/op_test.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/cpu/kernels/sampler_filters.hpp"

namespace nv = nanovllm;
using nv::SamplingRow;
using nv::TokenId;
using nv::cpu::Isa;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<Isa> isas() { return nv::test::available_isas(); }

/// Rows of one call and what it wrote, poisoned before.
struct Batch {
  std::int64_t vocab;
  std::vector<float> logits;
  std::vector<SamplingRow> rows;
  std::vector<std::int32_t> banned_starts{0};
  std::vector<TokenId> banned;
  std::int64_t width = 0;  ///< of the top tokens

  std::vector<TokenId> tokens, top_tokens;
  std::vector<float> logprobs, top_logprobs;

  explicit Batch(std::int64_t size) : vocab(size) {}

  void add(const std::vector<float>& row, const SamplingRow& settings,
           const std::vector<TokenId>& bans = {}) {
    REQUIRE(static_cast<std::int64_t>(row.size()) == vocab);
    logits.insert(logits.end(), row.begin(), row.end());
    rows.push_back(settings);
    banned.insert(banned.end(), bans.begin(), bans.end());
    banned_starts.push_back(static_cast<std::int32_t>(banned.size()));
    width = std::max<std::int64_t>(width, settings.num_logprobs);
  }

  void sample(nv::cpu::ThreadPool& pool, Isa isa) {
    const auto n = static_cast<std::int64_t>(rows.size());
    std::vector<float> scratch = logits;
    tokens.assign(rows.size(), -7);
    logprobs.assign(rows.size(), 7.f);
    top_tokens.assign(static_cast<std::size_t>(n * width), -7);
    top_logprobs.assign(static_cast<std::size_t>(n * width), 7.f);
    nv::SampleArgs args;
    args.logits = {scratch.data(), {n, vocab}};
    args.batch.rows = {rows.data(), {n}};
    args.batch.banned.starts = {banned_starts.data(), {n + 1}};
    args.batch.banned.values = {banned.data(), {banned_starts.back()}};
    args.tokens = {tokens.data(), {n}};
    args.logprobs = {logprobs.data(), {n}};
    args.top_tokens = {top_tokens.data(), {n, width}};
    args.top_logprobs = {top_logprobs.data(), {n, width}};
    nv::cpu::sample(args, {.pool = &pool, .isa = isa});
  }
};

nv::cpu::ThreadPool& one_thread() {
  static nv::cpu::ThreadPool pool(1);
  return pool;
}

TokenId sample_one(const std::vector<float>& row, const SamplingRow& settings,
                   const std::vector<TokenId>& bans = {}, Isa isa = nv::cpu::best_isa()) {
  Batch batch(static_cast<std::int64_t>(row.size()));
  batch.add(row, settings, bans);
  batch.sample(one_thread(), isa);
  return batch.tokens[0];
}

/// The contract's rule 3, word by word in float64: the ids kept, best first.
std::vector<TokenId> kept_by_contract(const std::vector<float>& x, const SamplingRow& s) {
  std::vector<TokenId> ids(x.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto logit = [&](TokenId id) { return x[static_cast<std::size_t>(id)]; };
  std::sort(ids.begin(), ids.end(), [&](TokenId a, TokenId b) {
    return logit(a) > logit(b) || (logit(a) == logit(b) && a < b);
  });
  while (ids.size() > 1 && logit(ids.back()) == -kInfinity) ids.pop_back();
  if (s.top_k > 0 && static_cast<std::size_t>(s.top_k) < ids.size()) {
    const float kth = logit(ids[static_cast<std::size_t>(s.top_k) - 1]);
    while (logit(ids.back()) < kth) ids.pop_back();
  }
  std::vector<double> mass;
  for (TokenId id : ids) {
    mass.push_back(std::exp((double{logit(id)} - double{logit(ids[0])}) / double{s.temperature}));
  }
  if (s.top_p < 1) {
    const double total = std::accumulate(mass.begin(), mass.end(), 0.);
    double sum = mass[0];
    std::size_t kept = 1;
    while (kept < ids.size() && sum < double{s.top_p} * total) sum += mass[kept++];
    ids.resize(kept);
  }
  while (s.min_p > 0 && ids.size() > 1 && mass[ids.size() - 1] < double{s.min_p} * mass[0]) {
    ids.pop_back();
  }
  return ids;
}

/// Rules 1, 2 and 4, for rows with a finite logit that is not banned.
TokenId token_by_contract(std::vector<float> x, const SamplingRow& s,
                          const std::vector<TokenId>& bans) {
  for (TokenId id : bans) x[static_cast<std::size_t>(id)] = -kInfinity;
  if (s.temperature == 0) {
    return static_cast<TokenId>(std::max_element(x.begin(), x.end()) - x.begin());
  }
  double best = -std::numeric_limits<double>::infinity();
  TokenId token = -1;
  for (TokenId id : kept_by_contract(x, s)) {
    const double u =
        nv::to_unit_interval(nv::sampling_bits(s.seed, s.position, static_cast<std::uint32_t>(id)));
    const double score =
        double{x[static_cast<std::size_t>(id)]} / double{s.temperature} - std::log(-std::log1p(-u));
    if (score > best || (score == best && id < token)) {
      best = score;
      token = id;
    }
  }
  return token;
}

/// What the filters of `sample` keep, ascending.
std::vector<TokenId> kept_by_sampler(std::vector<float> x, const SamplingRow& s, Isa isa) {
  using namespace nv::cpu::detail;
  const auto vocab = static_cast<std::int64_t>(x.size());
  const std::int64_t tiles = nv::ceil_div(vocab, kLogitTile);
  std::vector<float> maxima(x.size()), sorted(x.size());
  std::vector<Candidate> candidates(x.size());
  const LogitRow row{x.data(), vocab, tiles, maxima.data(), sorted.data(), candidates.data()};
  const SamplerKernels kernels(isa);
  kernels.find_tile_maxima(row, 0, tiles);
  const float largest = largest_logit(row);
  const Cut cut = find_cut(row, s, largest, kernels);
  const bool has_nucleus = has_nucleus_of_all(s, vocab);
  const TokenId first = first_of(row, largest);
  const Nucleus nucleus{row, s, kernels, largest,
                        has_nucleus ? kernels.sum_exp(row, largest, inverse(s.temperature)) : 0};
  std::vector<Candidate> all;
  for (TokenId id = 0; id < vocab; ++id) {
    const float logit = x[static_cast<std::size_t>(id)];
    if (cut.keeps(logit, id)) all.push_back({logit, id});
  }
  const auto is_kept = [&](const Candidate& token) {
    return !has_nucleus || token.id == first || nucleus.keeps(token);
  };
  if (vocab > 1000) {  // asking for each of them takes its time
    std::sort(all.begin(), all.end());
    all.erase(std::partition_point(all.begin(), all.end(), is_kept), all.end());
  } else {
    all.erase(std::remove_if(all.begin(), all.end(), std::not_fn(is_kept)), all.end());
  }
  std::vector<TokenId> out;
  for (const Candidate& token : all) out.push_back(token.id);
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<TokenId> ascending(std::vector<TokenId> ids) {
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::vector<float> logs(const std::vector<float>& probabilities) {
  std::vector<float> out;
  for (float p : probabilities) out.push_back(std::log(p));
  return out;
}

enum class Shape { normal, ties, flat, peaked };

std::vector<float> random_row(std::size_t size, Shape shape, std::mt19937& random) {
  std::normal_distribution<float> normal(0.f, 3.f);
  std::vector<float> out(size);
  for (float& x : out) {
    x = normal(random);
    if (shape == Shape::ties) x = std::round(x);
    if (shape == Shape::flat) x = 1.25f;
  }
  if (shape == Shape::peaked) out[random() % size] = 25.f;
  return out;
}

const std::vector<SamplingRow>& filters() {
  static const std::vector<SamplingRow> all = [] {
    std::vector<SamplingRow> out;
    for (float temperature : {1e-6f, 0.6f, 1.f, 3.f}) {
      for (std::int32_t top_k : {-1, 1, 5, 40, 100000}) {
        for (float top_p : {1.f, 0.999999f, 0.95f, 0.5f, 1e-9f}) {
          for (float min_p : {0.f, 1e-4f, 0.2f, 1.f}) {
            out.push_back(
                {.temperature = temperature, .top_k = top_k, .top_p = top_p, .min_p = min_p});
          }
        }
      }
    }
    return out;
  }();
  return all;
}

}  // namespace

TEST_CASE("nano-vllm bug 18: top_p keeps the token that reaches it, and none after", "[sampler]") {
  const std::vector<float> x = logs({.1f, .2f, .3f, .4f});
  for (Isa isa : isas()) {
    CAPTURE(name(isa));
    CHECK(kept_by_sampler(x, {.top_p = .6f}, isa) == std::vector<TokenId>{2, 3});
    CHECK(kept_by_sampler(x, {.top_p = .71f}, isa) == std::vector<TokenId>{1, 2, 3});
    CHECK(kept_by_sampler(x, {.top_p = .39f}, isa) == std::vector<TokenId>{3});
    CHECK(kept_by_sampler(x, {.top_p = .89f}, isa) == std::vector<TokenId>{1, 2, 3});
    CHECK(kept_by_sampler(x, {.top_p = .91f}, isa) == std::vector<TokenId>{0, 1, 2, 3});
    CHECK(kept_by_sampler(x, {.top_p = 1.f}, isa) == std::vector<TokenId>{0, 1, 2, 3});
  }
  std::vector<int> drawn(4);
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    ++drawn[static_cast<std::size_t>(sample_one(x, {.top_p = .6f, .seed = seed}))];
  }
  CHECK(drawn[0] == 0);
  CHECK(drawn[1] == 0);
  CHECK(drawn[2] > 700);
  CHECK(drawn[3] > 1000);
}

TEST_CASE("Filters cut exactly at their boundaries", "[sampler]") {
  using Ids = std::vector<TokenId>;
  const std::vector<float> equal(8, 0.5f);  // masses are exact
  const std::vector<float> x{3, 1, 3, 2, 2, 2, 0};
  for (Isa isa : isas()) {
    CAPTURE(name(isa));
    CHECK(kept_by_sampler(equal, {.top_p = .5f}, isa) == Ids{0, 1, 2, 3});
    CHECK(kept_by_sampler(equal, {.top_p = std::nextafter(.5f, 1.f)}, isa) == Ids{0, 1, 2, 3, 4});
    CHECK(kept_by_sampler(equal, {.top_p = std::nextafter(.5f, 0.f)}, isa) == Ids{0, 1, 2, 3});
    CHECK(kept_by_sampler(equal, {.top_p = 0.f}, isa) == Ids{0});
    CHECK(kept_by_sampler(equal, {.min_p = 1.f}, isa).size() == 8);
    CHECK(kept_by_sampler(x, {.min_p = 2.f}, isa) == Ids{0, 2});
    CHECK(kept_by_sampler(x, {.top_k = 1}, isa) == Ids{0, 2});
    CHECK(kept_by_sampler(x, {.top_k = 3}, isa) == Ids{0, 2, 3, 4, 5});
    CHECK(kept_by_sampler(x, {.top_k = 6}, isa) == Ids{0, 1, 2, 3, 4, 5});
    CHECK(kept_by_sampler(x, {.top_k = 7}, isa).size() == 7);
    CHECK(kept_by_sampler(x, {.top_k = 700}, isa).size() == 7);
    const auto above = static_cast<float>(std::exp(-1.));
    REQUIRE(double{above} > std::exp(-1.));
    CHECK(kept_by_sampler(x, {.min_p = std::nextafter(above, 0.f)}, isa) == Ids{0, 2, 3, 4, 5});
    CHECK(kept_by_sampler(x, {.min_p = above}, isa) == Ids{0, 2});
  }
}

TEST_CASE("A top_p that float32 sums cannot tell from a prefix's mass is decided in float64",
          "[sampler]") {
  std::mt19937 random(12);
  int decided = 0;
  for (std::size_t size : {5, 100, 1000, 6000}) {
    for (int trial = 0; trial < 40; ++trial) {
      const std::vector<float> x = random_row(size, Shape::normal, random);
      std::vector<double> mass;
      for (float logit : x) mass.push_back(std::exp(double{logit} - double{x[0]}));
      std::sort(mass.begin(), mass.end(), std::greater<>());
      const double total = std::accumulate(mass.begin(), mass.end(), 0.);
      const std::size_t prefix = 1 + random() % (size / 2);
      const double share = std::accumulate(mass.begin(), mass.begin() + prefix, 0.) / total;
      const auto top_p = static_cast<float>(share);
      if (top_p >= 1 || std::abs(top_p - share) < 1e-11) continue;
      ++decided;
      for (Isa isa : isas()) {
        CAPTURE(size, trial, name(isa));
        CHECK(kept_by_sampler(x, {.top_p = top_p}, isa).size() == prefix + (top_p > share));
      }
    }
  }
  CHECK(decided > 100);
}

TEST_CASE("top_p keeps what sorting, summing and cutting keep", "[sampler]") {
  std::mt19937 random(41);
  const std::vector<float> shares{0.f, 1e-9f, 0.01f, .3f, .5f, .9f, .95f, .999f, .999999f, 1.f};
  for (int trial = 0; trial < 3000; ++trial) {
    const std::size_t size = 1 + random() % (trial % 10 == 0 ? 300 : 40);
    const auto shape = static_cast<Shape>(random() % 4);
    std::vector<float> x = random_row(size, shape, random), plain = x;
    for (std::size_t i = 0; trial % 3 == 0 && i < size / 3; ++i) {
      const std::size_t at = random() % size;
      x[at] = random() % 2 == 0 ? kNaN : -kInfinity;
      plain[at] = -kInfinity;
    }
    if (std::count(plain.begin(), plain.end(), -kInfinity) == static_cast<std::int64_t>(size))
      continue;
    const SamplingRow s{.temperature = trial % 7 == 0   ? 1e-39f
                                       : trial % 2 == 0 ? 1.f
                                                        : 0.7f,
                        .top_p = shares[random() % shares.size()],
                        .min_p = trial % 5 == 0 ? 0.1f : 0.f,
                        .seed = random()};
    for (Isa isa : isas()) {
      CAPTURE(trial, size, static_cast<int>(shape), s.temperature, s.top_p, s.min_p, name(isa));
      REQUIRE(kept_by_sampler(x, s, isa) == ascending(kept_by_contract(plain, s)));
      REQUIRE(sample_one(x, s, {}, isa) == token_by_contract(plain, s, {}));
    }
  }
}

namespace {

/// Rows as long as vocabularies are, for `guess_bound` to take samples of.
std::vector<float> long_row(const std::string& kind, std::mt19937& random) {
  constexpr std::size_t kSize = 70'001, kSampled = 64;
  std::vector<float> out = random_row(kSize, kind == "ties" ? Shape::ties : Shape::normal, random);
  for (std::size_t i = 0; i < kSize; ++i) {
    const bool is_sampled = i / nv::cpu::detail::kLogitTile % kSampled == 0;
    if (kind == "equal") out[i] = 1.25f;
    if (kind == "flat") out[i] *= 0.03f;
    if (kind == "peaked") out[i] = i == 777 ? 25.f : i < 40 ? 20.f : out[i];
    if (kind == "sampled tiles are likelier") out[i] = is_sampled ? 9.f : out[i] * 0.1f;
    if (kind == "sampled tiles are unlikely") out[i] = is_sampled ? -9.f : out[i] * 0.1f;
    if (kind == "sampled tiles have nothing") out[i] = is_sampled ? kNaN : out[i];
  }
  return out;
}

}  // namespace

TEST_CASE("top_p of long rows: the edge of what is kept, and draws", "[sampler]") {
  std::mt19937 random(70);
  for (const std::string kind :
       {"normal", "ties", "flat", "equal", "peaked", "sampled tiles are likelier",
        "sampled tiles are unlikely", "sampled tiles have nothing"}) {
    std::vector<float> x = long_row(kind, random), plain = x;
    for (float& logit : plain) logit = std::isnan(logit) ? -kInfinity : logit;
    for (float top_p : {1e-4f, .5f, .9f, .95f, .999f}) {
      SamplingRow s{.top_p = top_p};
      SamplingRow all{};
      const std::vector<TokenId> kept = kept_by_contract(plain, s);
      const std::vector<TokenId> order = kept_by_contract(plain, all);
      using namespace nv::cpu::detail;
      const auto vocab = static_cast<std::int64_t>(x.size());
      const std::int64_t tiles = nv::ceil_div(vocab, kLogitTile);
      std::vector<float> maxima(x.size()), sorted(x.size());
      std::vector<Candidate> candidates(x.size());
      const LogitRow row{x.data(), vocab, tiles, maxima.data(), sorted.data(), candidates.data()};
      const std::vector<Isa> sets = isas();
      for (Isa isa : {sets.front(), sets[sets.size() / 2], sets.back()}) {
        CAPTURE(kind, top_p, name(isa), kept.size());
        const SamplerKernels kernels(isa);
        kernels.find_tile_maxima(row, 0, tiles);
        const float largest = largest_logit(row);
        const Nucleus nucleus{row, s, kernels, largest, kernels.sum_exp(row, largest, 1)};
        const std::size_t begin = std::max<std::size_t>(kept.size(), 4) - 3;
        for (std::size_t i = begin; i < std::min(order.size(), kept.size() + 3); ++i) {
          const Candidate token{x[static_cast<std::size_t>(order[i])], order[i]};
          CHECK(nucleus.keeps(token) == (i < kept.size()));
          CHECK(nucleus.keeps_exactly(token) == (i < kept.size()));
        }
        for (std::uint64_t seed = 0; seed < 6; ++seed) {
          s.seed = seed;
          double best = -std::numeric_limits<double>::infinity();
          TokenId token = -1;
          for (TokenId id : kept) {
            const double score = score_of(s, x[static_cast<std::size_t>(id)], id);
            if (score > best || (score == best && id < token)) {
              best = score;
              token = id;
            }
          }
          CHECK(sample_one(x, s, {}, isa) == token);
        }
      }
    }
  }
}

TEST_CASE("A min_p boundary near zero, where floats lie dense, is found", "[sampler]") {
  const float largest = std::log(2.f);
  std::vector<float> x{largest, -1e-3f, 1e-3f, 1e-30f, -1e-30f, 1e-6f, -1e-6f};
  for (Isa isa : isas()) {
    CHECK(kept_by_sampler(x, {.min_p = .5f}, isa) ==
          ascending(kept_by_contract(x, {.min_p = .5f})));
  }
}

TEST_CASE("The filters keep what transformers keeps", "[sampler]") {
  std::ifstream file("tests/fixtures/sampling.json");
  REQUIRE(file);
  const auto fixture = nlohmann::json::parse(file);
  REQUIRE(fixture.at("cases").size() > 30);
  for (const auto& c : fixture.at("cases")) {
    CAPTURE(c.at("name").get<std::string>());
    const auto x = c.at("logits").get<std::vector<float>>();
    const auto allowed = c.at("allowed").get<std::vector<TokenId>>();
    auto log_probs = c.at("log_probs").get<std::vector<double>>();
    const SamplingRow s{.temperature = c.at("temperature"),
                        .top_k = c.at("top_k"),
                        .top_p = c.at("top_p"),
                        .min_p = c.at("min_p")};
    for (Isa isa : isas()) {
      CAPTURE(name(isa));
      const std::vector<TokenId> kept = kept_by_sampler(x, s, isa);
      std::vector<double> ours;
      for (TokenId id : kept)
        ours.push_back(double{x[static_cast<std::size_t>(id)]} / s.temperature);
      const double largest = *std::max_element(ours.begin(), ours.end());
      double total = 0;
      for (double z : ours) total += std::exp(z - largest);
      for (double& z : ours) z -= largest + std::log(total);
      if (c.at("boundary_tie").get<bool>()) {
        std::sort(ours.begin(), ours.end());
        std::sort(log_probs.begin(), log_probs.end());
      } else {
        CHECK(kept == allowed);
      }
      REQUIRE(ours.size() == log_probs.size());
      for (std::size_t i = 0; i < ours.size(); ++i) {
        CHECK(std::abs(ours[i] - log_probs[i]) < 2e-6 * std::max(1., std::abs(log_probs[i])));
      }
    }
  }
}

TEST_CASE("Draws are those of the contract's formula in float64", "[sampler]") {
  std::mt19937 random(18);
  for (std::size_t size : {1, 2, 7, 16, 17, 63, 64, 65, 300, 4099}) {
    for (Shape shape : {Shape::normal, Shape::ties, Shape::flat, Shape::peaked}) {
      Batch batch(static_cast<std::int64_t>(size));
      std::vector<TokenId> expected;
      const std::vector<float> x = random_row(size, shape, random);
      std::size_t turn = 0;
      for (SamplingRow s : filters()) {
        if (size > 1000 && ++turn % 5 != 0) continue;  // sorting them all takes its time
        s.seed = random();
        s.position = random() * std::uint64_t{0x100000001};
        std::vector<TokenId> bans;
        for (std::size_t i = 0; i < std::min<std::size_t>(4, size - 1); ++i) {
          bans.push_back(static_cast<TokenId>(random() % (size - 1)));
        }
        if (size > 4 && random() % 2 == 0) bans.clear();
        expected.push_back(token_by_contract(x, s, bans));
        batch.add(x, s, bans);
      }
      for (Isa isa : isas()) {
        CAPTURE(size, static_cast<int>(shape), name(isa));
        batch.sample(one_thread(), isa);
        CHECK(batch.tokens == expected);
      }
    }
  }
}

TEST_CASE("A whole vocabulary of 151,936 gives the contract's draws", "[sampler]") {
  std::mt19937 random(151936);
  const std::vector<float> x = random_row(151936, Shape::normal, random);
  Batch batch(151936);
  std::vector<TokenId> expected;
  for (const SamplingRow& s :
       std::vector<SamplingRow>{{.temperature = 0.f},
                                {.temperature = .6f, .top_k = 20, .top_p = .95f},
                                {.seed = 1},
                                {.temperature = .3f, .seed = 2},
                                {.top_p = .9f, .seed = 3},
                                {.top_k = 5000, .seed = 4},
                                {.min_p = .01f, .seed = 5}}) {
    batch.add(x, s);
    expected.push_back(token_by_contract(x, s, {}));
  }
  for (Isa isa : isas()) {
    CAPTURE(name(isa));
    batch.sample(one_thread(), isa);
    CHECK(batch.tokens == expected);
  }
}

TEST_CASE("Frequencies of a million draws are the probabilities", "[sampler]") {
  const std::vector<float> weights{.05f, .3f, .1f, .25f, .02f, .28f};
  const std::vector<float> x = logs(weights);
  constexpr std::int64_t kDraws = 1'000'000, kChunk = 50'000;
  std::vector<double> seen(weights.size());
  for (std::int64_t begin = 0; begin < kDraws; begin += kChunk) {
    Batch batch(static_cast<std::int64_t>(x.size()));
    batch.logits.reserve(static_cast<std::size_t>(kChunk) * x.size());
    for (std::int64_t i = 0; i < kChunk; ++i) {
      // Neighbouring seeds and neighbouring positions must both be independent.
      const auto draw = static_cast<std::uint64_t>(begin + i);
      batch.logits.insert(batch.logits.end(), x.begin(), x.end());
      batch.rows.push_back({.seed = draw / 1000, .position = draw % 1000});
      batch.banned_starts.push_back(0);
    }
    batch.sample(one_thread(), nv::cpu::best_isa());
    for (TokenId token : batch.tokens) ++seen[static_cast<std::size_t>(token)];
  }
  double chi_square = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double expected = double{weights[i]} * kDraws;
    chi_square += (seen[i] - expected) * (seen[i] - expected) / expected;
  }
  CHECK(chi_square < 20.5);  // five degrees of freedom: p > 0.001
  CHECK(chi_square > 0.2);   // and not too good to be true: p < 0.999
}

TEST_CASE("A row's result depends neither on the batch, its order nor the threads", "[sampler]") {
  std::mt19937 random(5);
  struct Row {
    std::vector<float> x;
    SamplingRow settings;
    std::vector<TokenId> bans;
  };
  std::vector<Row> rows;
  for (std::uint64_t i = 0; i < 24; ++i) {
    SamplingRow s = filters()[random() % filters().size()];
    if (i % 6 == 0) s.temperature = 0;
    s.seed = random();
    s.position = i;
    s.num_logprobs = static_cast<std::int32_t>(i % 5) - 1;
    rows.push_back({random_row(1000, Shape::normal, random), s, {static_cast<TokenId>(i)}});
  }
  nv::cpu::ThreadPool four(4);
  for (Isa isa : isas()) {
    Batch forward(1000), backward(1000);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      forward.add(rows[i].x, rows[i].settings, rows[i].bans);
      const Row& mirrored = rows[rows.size() - 1 - i];
      backward.add(mirrored.x, mirrored.settings, mirrored.bans);
    }
    forward.sample(four, isa);
    backward.sample(four, isa);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      CAPTURE(i);
      Batch alone(1000);
      alone.add(rows[i].x, rows[i].settings, rows[i].bans);
      alone.sample(one_thread(), isa);
      const std::size_t mirrored = rows.size() - 1 - i;
      CHECK(forward.tokens[i] == alone.tokens[0]);
      CHECK(backward.tokens[mirrored] == alone.tokens[0]);
      CHECK(forward.logprobs[i] == alone.logprobs[0]);
      CHECK(backward.logprobs[mirrored] == alone.logprobs[0]);
      for (std::size_t j = 0; j < alone.top_tokens.size(); ++j) {
        CHECK(forward.top_tokens[i * static_cast<std::size_t>(forward.width) + j] ==
              alone.top_tokens[j]);
        CHECK(forward.top_logprobs[i * static_cast<std::size_t>(forward.width) + j] ==
              alone.top_logprobs[j]);
      }
    }
  }
}

TEST_CASE("Low temperatures end in the greedy choice", "[sampler]") {
  std::mt19937 random(6);
  for (int trial = 0; trial < 20; ++trial) {
    const std::vector<float> x = random_row(777, Shape::normal, random);
    const TokenId greedy = sample_one(x, {.temperature = 0.f});
    for (float temperature : {1e-6f, 1e-20f, 1e-38f, std::numeric_limits<float>::denorm_min()}) {
      CHECK(sample_one(x, {.temperature = temperature, .seed = random()}) == greedy);
      CHECK(sample_one(x, {.temperature = temperature, .top_p = .9f, .seed = random()}) == greedy);
      CHECK(sample_one(x, {.temperature = temperature, .min_p = .1f, .seed = random()}) == greedy);
    }
  }
}

TEST_CASE("Equal logits: greedy takes the lowest id, a draw takes any", "[sampler]") {
  std::vector<float> x(200, 1.f);
  x[70] = x[150] = x[199] = 4.f;
  CHECK(sample_one(x, {.temperature = 0.f}) == 70);
  CHECK(sample_one(x, {.temperature = 0.f}, {70}) == 150);
  CHECK(sample_one({-0.f, 0.f}, {.temperature = 0.f}) == 0);
  CHECK(sample_one({0.f, -0.f}, {.temperature = 0.f}) == 0);
  // So cold that the noise is lost in rounding: equal scores, the lowest id again.
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    CHECK(sample_one(x, {.temperature = 1e-20f, .seed = seed}) == 70);
  }
  std::vector<int> drawn(200);
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    ++drawn[static_cast<std::size_t>(sample_one(x, {.temperature = 1e-6f, .seed = seed}))];
  }
  CHECK(drawn[70] > 60);
  CHECK(drawn[150] > 60);
  CHECK(drawn[199] > 60);
  CHECK(drawn[70] + drawn[150] + drawn[199] == 300);
}

TEST_CASE("NaN counts as the lowest logit and infinity wins", "[sampler]") {
  for (Isa isa : isas()) {
    CAPTURE(name(isa));
    for (const SamplingRow& s : std::vector<SamplingRow>{{.temperature = 0.f},
                                                         {.seed = 1},
                                                         {.top_k = 2, .seed = 2},
                                                         {.top_p = .5f, .seed = 3},
                                                         {.top_k = 3, .top_p = .9f, .min_p = .1f},
                                                         {.min_p = .1f, .seed = 5}}) {
      CHECK(sample_one({kNaN, 1.f, kNaN}, s, {}, isa) == 1);
      CHECK(sample_one({kNaN, -kInfinity, -3e38f, kNaN}, s, {}, isa) == 2);
      CHECK(sample_one({kNaN, 1.f, kInfinity, kInfinity, 2.f}, s, {}, isa) == 2);
      CHECK(sample_one({kNaN, kNaN}, s, {}, isa) == 0);
      CHECK(sample_one({-kInfinity, kNaN, -kInfinity}, s, {}, isa) == 0);
      CHECK(sample_one({-kInfinity, kNaN, -kInfinity}, s, {0, 0}, isa) == 1);
      std::vector<float> long_row(1000, kNaN);
      CHECK(sample_one(long_row, s, {}, isa) == 0);
      long_row[999] = -5;
      CHECK(sample_one(long_row, s, {}, isa) == 999);
      CHECK(sample_one(long_row, s, {999}, isa) == 0);
      // Differences that overflow float32.
      CHECK(sample_one({-3e38f, 3e38f, kNaN}, s, {}, isa) == 1);
    }
  }
}

TEST_CASE("Banned tokens are never drawn", "[sampler]") {
  const std::vector<float> x{9, 8, 7, 6};
  for (const SamplingRow& s :
       std::vector<SamplingRow>{{.temperature = 0.f}, {}, {.top_k = 1}, {.top_p = .1f}}) {
    CHECK(sample_one(x, s, {0, 1, 2}) == 3);
    CHECK(sample_one(x, s, {2, 0, 2, 1, 0, 0}) == 3);
    CHECK(sample_one(x, s, {3, 1, 0}) == 2);
    CHECK(sample_one(x, s, {0, 1, 2, 3}) == 0);
    CHECK(sample_one({1, -kInfinity, -kInfinity}, s, {0}) == 1);
    CHECK(sample_one({1, -kInfinity, -kInfinity}, s, {0, 1}) == 2);
  }
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const TokenId token = sample_one(x, {.temperature = 5.f, .seed = seed}, {1});
    CHECK(token != 1);
  }
}

TEST_CASE("Log-probabilities are those of the logits as they came", "[sampler]") {
  std::mt19937 random(8);
  for (std::size_t size : {1, 5, 64, 300, 5000}) {
    for (Shape shape : {Shape::normal, Shape::ties, Shape::flat, Shape::peaked}) {
      const std::vector<float> x = random_row(size, shape, random);
      double total = 0;
      for (float logit : x) total += std::exp(double{logit});
      const double log_total = std::log(total);
      std::vector<TokenId> order(size);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
        return x[static_cast<std::size_t>(a)] > x[static_cast<std::size_t>(b)];
      });
      for (std::int32_t count : {-1, 0, 1, 5, 20, 100}) {
        for (Isa isa : isas()) {
          CAPTURE(size, static_cast<int>(shape), count, name(isa));
          Batch batch(static_cast<std::int64_t>(size));
          batch.add(x, {.temperature = .5f, .top_k = 3, .num_logprobs = count}, {order[0]});
          batch.sample(one_thread(), isa);
          if (count < 0) {
            CHECK(batch.logprobs[0] == 7.f);
            continue;
          }
          const auto logprob = [&](TokenId id) {
            return double{x[static_cast<std::size_t>(id)]} - log_total;
          };
          CHECK(std::abs(batch.logprobs[0] - logprob(batch.tokens[0])) < 1e-5);
          for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
            if (i >= size) {
              CHECK(batch.top_tokens[i] == -7);
              CHECK(batch.top_logprobs[i] == 7.f);
              continue;
            }
            CHECK(batch.top_tokens[i] == order[i]);
            CHECK(std::abs(batch.top_logprobs[i] - logprob(order[i])) < 1e-5);
          }
        }
      }
    }
  }
}

TEST_CASE("Log-probabilities of rows with infinities and NaN", "[sampler]") {
  const auto top3 = [](const std::vector<float>& x, const std::vector<TokenId>& bans = {}) {
    Batch batch(static_cast<std::int64_t>(x.size()));
    batch.add(x, {.temperature = 0.f, .num_logprobs = 3}, bans);
    batch.sample(one_thread(), nv::cpu::best_isa());
    return batch;
  };
  const Batch nan = top3({kNaN, 2.f, -kInfinity, kNaN});
  CHECK(nan.top_tokens == std::vector<TokenId>{1, 0, 2});
  CHECK(nan.top_logprobs == std::vector<float>{0.f, -kInfinity, -kInfinity});
  CHECK(nan.logprobs[0] == 0.f);
  const Batch infinite = top3({1.f, kInfinity, 2.f, kInfinity});
  CHECK(infinite.top_tokens == std::vector<TokenId>{1, 3, 2});
  CHECK(infinite.top_logprobs[1] == Approx(-std::log(2.)));
  CHECK(infinite.top_logprobs[2] == -kInfinity);
  CHECK(infinite.logprobs[0] == Approx(-std::log(2.)));
  const Batch none = top3({kNaN, -kInfinity, kNaN});
  CHECK(none.top_tokens == std::vector<TokenId>{0, 1, 2});
  CHECK(none.logprobs[0] == -kInfinity);
  const Batch all_banned = top3({1.f, 1.f, -kInfinity}, {0, 1, 2});
  CHECK(all_banned.tokens[0] == 0);
  CHECK(all_banned.logprobs[0] == Approx(-std::log(2.)));
}

TEST_CASE("No rows are no work, and bad operands are named", "[sampler]") {
  Batch(5).sample(one_thread(), nv::cpu::best_isa());
  const auto error_of = [](const Batch& batch) {
    try {
      Batch(batch).sample(one_thread(), nv::cpu::best_isa());
    } catch (const nv::Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  Batch batch(3);
  batch.add({1, 2, 3}, {.num_logprobs = 2}, {0});
  CHECK(error_of(batch).empty());
  Batch outside = batch;
  outside.banned[0] = 3;
  CHECK(error_of(outside) == "sample: banned token 0 must be in [0, 3), got 3");
  outside.banned[0] = -1;
  CHECK(error_of(outside) == "sample: banned token 0 must be in [0, 3), got -1");
  Batch narrow = batch;
  narrow.width = 1;
  CHECK(error_of(narrow) ==
        "sample: row 0 asks for 2 log-probabilities, 'top_tokens' has room for 1");
  for (float temperature : {-1.f, kNaN, kInfinity}) {
    Batch cold = batch;
    cold.rows[0].temperature = temperature;
    CHECK(error_of(cold).find("temperature of row 0 must be finite and >= 0") != std::string::npos);
  }
  Batch descending(3);
  descending.add({1, 2, 3}, {}, {0, 1});
  descending.add({1, 2, 3}, {}, {});
  descending.banned_starts = {0, 3, 2};
  CHECK(error_of(descending) == "sample: 'banned.starts' must ascend, got 3 then 2");
  descending.banned_starts = {1, 1, 2};
  CHECK(error_of(descending) ==
        "sample: 'banned.starts' must run from 0 to 2 at the most, got 1 to 2");
}
