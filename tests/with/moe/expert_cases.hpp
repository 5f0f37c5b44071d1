#pragma once
/// Cases of the ops of a mixture of experts: `route_experts` and `expert_mlp`.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/with/moe/ops.hpp"
#include "ops/rig.hpp"

namespace nanovllm::test::ops {

/// Which experts a row goes to, and with what weights, by sorting all of them in float64.
template <class B>
void route_experts_case(B& backend, std::int64_t n, std::int64_t experts, std::int64_t k,
                        bool normalise, double range) {
  INFO(n << " rows, " << k << " of " << experts << (normalise ? ", normalised" : ""));
  auto logits = Array<B, float>::random(backend, n * experts, 31, -range, range);
  for (std::size_t i = 0; i < logits.host.size(); i += 3)  // ties
    logits.host[i] = std::round(logits.host[i]);
  logits.upload();
  Array<B, std::int32_t> ids(backend, n * k);
  Array<B, float> weights(backend, n * k);
  backend.run(RouteExpertsArgs{.logits = logits.matrix(experts),
                               .ids = ids.matrix(k),
                               .weights = weights.matrix(k),
                               .normalise = normalise});
  ids.download(), weights.download();
  Worst worst;
  for (std::int64_t i = 0; i < n; ++i) {
    std::vector<std::int32_t> order(static_cast<std::size_t>(experts));
    std::iota(order.begin(), order.end(), 0);
    const auto logit = [&](std::int32_t e) { return logits[i * experts + e]; };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t a, std::int32_t b) { return logit(a) > logit(b); });
    double all = 0, chosen = 0;
    for (std::int32_t e = 0; e < experts; ++e) {
      const double p = std::exp(logit(order[static_cast<std::size_t>(e)]) - logit(order[0]));
      all += p;
      if (e < k) chosen += p;
    }
    for (std::int64_t s = 0; s < k; ++s) {
      const std::int32_t expected = order[static_cast<std::size_t>(s)];
      REQUIRE(ids.host[static_cast<std::size_t>(i * k + s)] == expected);
      const double w = std::exp(logit(expected) - logit(order[0])) / (normalise ? chosen : all);
      const double bound = w * (4 * range + static_cast<double>(experts) + 8) * kFloatUnit + 1e-30;
      worst.add(weights[i * k + s], w, bound);
    }
  }
  REQUIRE(worst.ratio() <= 1);
}

template <class B>
void route_experts_cases(B& backend) {
  for (const bool normalise : {false, true}) {
    for (const std::int64_t n : {0, 1, 5, 70}) route_experts_case(backend, n, 128, 8, normalise, 6);
    route_experts_case(backend, 9, 1, 1, normalise, 2);
    route_experts_case(backend, 9, 7, 7, normalise, 2);  // all of them
    route_experts_case(backend, 9, 60, 4, normalise, 60);
    route_experts_case(backend, 9, 33, 1, normalise, 0.4);  // a third are equal
  }
}

[[nodiscard]] inline std::size_t elements_of(std::int64_t n) { return static_cast<std::size_t>(n); }

/// Equal logits, and logits that are no numbers.
template <class B>
void route_ties_case(B& backend) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), largest = 3e38f;
  std::vector<float> rows = {1,        1,       1,   1,   1,    // 0 1 2
                             0,        2,       1,   2,   1,    // 1 3 2
                             nan,      nan,     nan, nan, nan,  // any three
                             0,        nan,     3,   nan, 1,    // any three
                             1,        2,       3,   4,   nan,  // any three
                             -largest, largest, 0,   0,   0};   // 1 2 3
  Array<B, float> logits(backend, rows), weights(backend, 18);
  Array<B, std::int32_t> ids(backend, 18);
  backend.run(RouteExpertsArgs{logits.matrix(5), ids.matrix(3), weights.matrix(3), true});
  ids.download(), weights.download();
  const auto row = [&](std::int64_t i) {
    return std::vector<std::int32_t>(ids.host.begin() + 3 * i, ids.host.begin() + 3 * i + 3);
  };
  CHECK(row(0) == std::vector<std::int32_t>{0, 1, 2});
  CHECK(row(1) == std::vector<std::int32_t>{1, 3, 2});
  CHECK(row(5) == std::vector<std::int32_t>{1, 2, 3});
  CHECK(weights.host[0] == weights.host[2]);
  CHECK(weights.host[15] == 1.f);
  CHECK(weights.host[16] == 0.f);
  for (const std::int64_t i : {2, 3, 4}) {
    std::vector<std::int32_t> sorted = row(i);
    std::sort(sorted.begin(), sorted.end());
    CHECK(std::unique(sorted.begin(), sorted.end()) == sorted.end());
    CHECK((sorted.front() >= 0 && sorted.back() < 5));
    for (std::int64_t s = 0; s < 3; ++s)
      CHECK(std::isnan(weights.host[static_cast<std::size_t>(3 * i + s)]));
  }
}

/// Counts grow by the rows of each expert, padded rows aside, call by call.
template <class B>
void route_counts_case(B& backend, std::int64_t n, std::int64_t experts, std::int64_t k) {
  INFO(n << " rows, " << k << " of " << experts);
  auto logits = Array<B, float>::random(backend, n * experts, 31, -4, 4);
  Array<B, std::int32_t> ids(backend, n * k);
  Array<B, float> weights(backend, n * k);
  std::vector<Slot> places;
  for (std::int64_t i = 0; i < n; ++i) places.push_back(i % 3 == 1 ? kNoSlot : i);
  Array<B, Slot> slots(backend, places);
  Array<B, std::int64_t> counts(backend, std::vector<std::int64_t>(elements_of(experts), 5));
  RouteExpertsArgs args{.logits = logits.matrix(experts),
                        .ids = ids.matrix(k),
                        .weights = weights.matrix(k),
                        .counts = {counts.data(), {experts}}};
  backend.run(args);
  args.slots = {slots.data(), {n}};
  backend.run(args);
  ids.download(), counts.download();
  std::vector<std::int64_t> expected(counts.host.size(), 5);
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t s = 0; s < k; ++s)
      expected[elements_of(ids.host[elements_of(i * k + s)])] += i % 3 == 1 ? 1 : 2;
  }
  CHECK(counts.host == expected);
  std::vector<std::int64_t> early(counts.host.size());
  backend.download_early(counts.data(), early.data(), early.size());
  CHECK(early == expected);
}

template <class B>
void route_counts_cases(B& backend) {
  route_counts_case(backend, 1, 5, 2);
  route_counts_case(backend, 70, 128, 8);
  route_counts_case(backend, 33, 600, 40);
}

template <class B>
void route_shape_cases(B& backend) {
  Array<B, float> logits(backend, 12), weights(backend, 15);
  Array<B, std::int32_t> ids(backend, 15);
  const auto refused = [&](std::int64_t experts, std::int64_t k, std::int64_t weights_k) {
    CHECK_THROWS_AS(backend.run(RouteExpertsArgs{.logits = {logits.data(), {3, experts}},
                                                 .ids = {ids.data(), {3, k}},
                                                 .weights = {weights.data(), {3, weights_k}}}),
                    ShapeError);
  };
  refused(4, 5, 5), refused(4, 0, 0), refused(4, 2, 3);
  RouteExpertsArgs args{.logits = {logits.data(), {3, 4}},
                        .ids = {ids.data(), {3, 2}},
                        .weights = {weights.data(), {3, 2}}};
  Array<B, std::int64_t> longs(backend, 5);
  args.counts = {longs.data(), {5}};
  CHECK_THROWS_WITH(backend.run(args), Catch::Matchers::Contains("'counts'"));
  args.counts = {longs.data(), {4}}, args.slots = {longs.data(), {2}};
  CHECK_THROWS_WITH(backend.run(args), Catch::Matchers::Contains("'slots'"));
}

/// Experts of random elements, and those elements. `list` has `here` of them from `first` on, all
/// without it.
template <class B, class T>
struct TestExperts {
  struct Elements {
    std::vector<T> host;
    std::int64_t cols;
    [[nodiscard]] double operator()(std::int64_t i, std::int64_t j) const {
      return static_cast<float>(host[static_cast<std::size_t>(i * cols + j)]);
    }
  };
  std::vector<Elements> gate_up, down;
  std::vector<Expert<typename B::template Matrix<T>>> list;

  TestExperts(B& backend, std::int64_t count, std::int64_t in, std::int64_t width,
              std::int64_t first = 0, std::int64_t here = 0)
      : list(make_experts<typename B::template Matrix<T>>(here > 0 ? here : count, in, width)) {
    std::uint64_t seed = 100;
    const auto fill = [&](auto* matrix, std::int64_t rows, std::int64_t cols,
                          std::vector<Elements>& elements) {
      elements.push_back({Array<B, T>::random(backend, rows * cols, seed++).host, cols});
      if (matrix == nullptr) return;
      backend.set_rows(*matrix, 0, MatrixView<const T>(elements.back().host.data(), {rows, cols}));
    };
    for (std::int64_t e = 0; e < count; ++e) {
      const bool is_here = e >= first && e < first + static_cast<std::int64_t>(list.size());
      auto* const expert = is_here ? &list[static_cast<std::size_t>(e - first)] : nullptr;
      fill(is_here ? &expert->gate_up : nullptr, 2 * width, in, gate_up);
      fill(is_here ? &expert->down : nullptr, in, width, down);
    }
  }
};

/// Sizes of a case, and where rows go: to k experts of their own, or all to the same. With `here`
/// only so many experts from `first` on are given.
struct ExpertCase {
  std::int64_t n, in, width, experts, k;
  bool together = false;
  std::int64_t first = 0, here = 0;
  std::int64_t step = 1;  ///< of the rows that are compared with the formula

  [[nodiscard]] bool has(std::int64_t expert) const {
    return here == 0 || (expert >= first && expert < first + here);
  }
};

/// The ids of a case: different ones in a row, in no order.
inline std::vector<std::int32_t> expert_ids(const ExpertCase& c) {
  std::vector<std::int32_t> out;
  for (std::int64_t i = 0; i < c.n; ++i) {
    const std::int64_t start = c.together ? 0 : i * i * 5 + i;
    for (std::int64_t s = 0; s < c.k; ++s)
      out.push_back(static_cast<std::int32_t>((start + c.k - s) % c.experts));
  }
  return out;
}

/// Leaves results that are no numbers in the backend's scratch memory.
template <class T, class B>
void expert_mlp_of_nan(B& backend, const ExpertCase& c) {
  const TestExperts<B, T> experts(backend, c.experts, c.in, c.width);
  const auto size = static_cast<std::size_t>(c.n * c.in);
  Array<B, T> x(backend, std::vector<T>(size, T(std::numeric_limits<float>::quiet_NaN())));
  auto weights = Array<B, float>::random(backend, c.n * c.k, 2);
  Array<B, std::int32_t> ids(backend, expert_ids(c));
  backend.run(ExpertMlpArgs<T, typename B::template Matrix<T>>{.x = x.matrix(c.in),
                                                               .ids = ids.matrix(c.k),
                                                               .weights = weights.matrix(c.k),
                                                               .experts = experts.list,
                                                               .out = x.matrix(c.in)});
}

/// The op that gave `out` of `x`, once more in place of x, and added to what is there.
template <class T, class B, class Matrix>
void expert_mlp_in_place_case(B& backend, ExpertMlpArgs<T, Matrix> args, Array<B, T>& x,
                              const Array<B, T>& out) {
  const std::int64_t in = args.x.extent(1);
  Array<B, T> sums(backend, x.host);
  args.out = x.matrix(in);
  backend.run(args);
  x.download();
  REQUIRE(same_bits(x.host, out.host));

  // x again, and rounded twice.
  std::vector<T> expected_sums;
  for (std::int64_t i = 0; i < args.x.extent(0) * in; ++i)
    expected_sums.push_back(T(static_cast<float>(sums[i]) + static_cast<float>(out[i])));
  args.x = sums.matrix(in), args.out = sums.matrix(in), args.accumulate = true;
  backend.run(args);
  sums.download();
  REQUIRE(same_bits(sums.host, expected_sums));
}

/// With the experts of a case: `list` of those that are here, and the elements `gate_up` and
/// `down` of all.
template <class T, class B, class Experts>
void expert_mlp_case_of(B& backend, const ExpertCase& c, const Experts& experts) {
  auto x = Array<B, T>::random(backend, c.n * c.in, 1);
  auto weights = Array<B, float>::random(backend, c.n * c.k, 2, 0.05, 1);
  Array<B, std::int32_t> ids(backend, expert_ids(c));
  Array<B, T> out(backend, c.n * c.in);
  using Matrix = decltype(experts.list.front().down);
  ExpertMlpArgs<T, Matrix> args{.x = x.matrix(c.in),
                                .ids = ids.matrix(c.k),
                                .weights = weights.matrix(c.k),
                                .experts = experts.list,
                                .out = out.matrix(c.in),
                                .first_expert = c.first,
                                .num_experts = c.experts};
  backend.run(args);
  out.download();

  Worst worst;
  std::vector<double> hidden(static_cast<std::size_t>(c.width)), of_hidden(hidden);
  for (std::int64_t i = 0; i < c.n; i += c.step) {
    std::vector<double> expected(static_cast<std::size_t>(c.in)), bound(expected), sizes(expected);
    for (std::int64_t s = 0; s < c.k; ++s) {
      const auto e = static_cast<std::size_t>(ids.host[static_cast<std::size_t>(i * c.k + s)]);
      if (!c.has(static_cast<std::int64_t>(e))) continue;
      const auto product = [&](std::int64_t row, double& slack) {
        double y = 0, size = 0;
        for (std::int64_t j = 0; j < c.in; ++j) {
          y += x[i * c.in + j] * experts.gate_up[e](row, j);
          size += std::abs(x[i * c.in + j] * experts.gate_up[e](row, j));
        }
        slack = size * static_cast<double>(c.in + 1) * kFloatUnit + 1.01 * kUnit<T> * std::abs(y) +
                kTiny<T>;
        return y;
      };
      for (std::int64_t j = 0; j < c.width; ++j) {
        double of_gate = 0, of_up = 0;
        const double gate = product(j, of_gate), up = product(c.width + j, of_up);
        const double silu = gate / (1 + std::exp(-gate));
        const double of_silu = 1.1 * of_gate + 1.01 * kUnit<T> * std::abs(silu) +
                               (8 + 2 * std::abs(gate)) * kFloatUnit * std::abs(silu) + kTiny<T>;
        const auto at = static_cast<std::size_t>(j);
        hidden[at] = silu * up;
        of_hidden[at] = std::abs(up) * of_silu + std::abs(silu) * of_up + of_silu * of_up +
                        1.01 * kUnit<T> * std::abs(silu * up) + kTiny<T>;
      }
      const double w = weights[i * c.k + s];
      for (std::int64_t o = 0; o < c.in; ++o) {
        double y = 0, size = 0, of_y = 0;
        for (std::int64_t j = 0; j < c.width; ++j) {
          const double element = experts.down[e](o, j);
          y += element * hidden[static_cast<std::size_t>(j)];
          size += std::abs(element * hidden[static_cast<std::size_t>(j)]);
          of_y += std::abs(element) * of_hidden[static_cast<std::size_t>(j)];
        }
        of_y +=
            size * static_cast<double>(c.width + 1) * kFloatUnit + 1.01 * kUnit<T> * std::abs(y);
        const auto at = static_cast<std::size_t>(o);
        expected[at] += w * y, bound[at] += w * of_y, sizes[at] += std::abs(w * y);
      }
    }
    for (std::int64_t o = 0; o < c.in; ++o) {
      const auto at = static_cast<std::size_t>(o);
      worst.add(out[i * c.in + o], expected[at],
                bound[at] + sizes[at] * static_cast<double>(c.k + 1) * kFloatUnit +
                    1.01 * kUnit<T> * std::abs(expected[at]) + kTiny<T>);
    }
  }
  REQUIRE(worst.ratio() <= 1);
  expert_mlp_in_place_case<T>(backend, args, x, out);
}

template <class T, class B>
void expert_mlp_case(B& backend, const ExpertCase& c) {
  INFO(c.n << " x " << c.in << " -> 2 x " << c.width << ", " << c.k << " of " << c.experts << ", "
           << c.here << " here, from " << c.first << " on");
  if (c.here > 0) expert_mlp_of_nan<T>(backend, c);
  expert_mlp_case_of<T>(backend, c,
                        TestExperts<B, T>(backend, c.experts, c.in, c.width, c.first, c.here));
}

template <class T, class B>
void expert_mlp_cases(B& backend) {
  for (const std::int64_t n : {0, 1, 3, 17, 70}) expert_mlp_case<T>(backend, {n, 64, 32, 12, 3});
  expert_mlp_case<T>(backend, {1, 33, 7, 60, 8});
  expert_mlp_case<T>(backend, {9, 33, 7, 5, 5});           // all experts
  expert_mlp_case<T>(backend, {9, 40, 24, 1, 1});          // there is one
  expert_mlp_case<T>(backend, {40, 40, 24, 16, 2, true});  // 14 have no token
  // Some of the experts: the first, those in the middle, the last; none that a row goes to.
  expert_mlp_case<T>(backend, {17, 64, 32, 12, 3, false, 0, 5});
  expert_mlp_case<T>(backend, {70, 64, 32, 12, 3, false, 5, 4});
  expert_mlp_case<T>(backend, {1, 33, 7, 60, 8, false, 20, 40});
  expert_mlp_case<T>(backend, {9, 33, 7, 5, 5, false, 4, 1});
  expert_mlp_case<T>(backend, {9, 40, 24, 16, 2, true, 2, 3});
  expert_mlp_case<T>(backend, {9, 40, 24, 16, 2, true, 10, 6});
  // More rows than are multiplied at a time: 1 MiB of floats.
  if (std::is_same_v<T, float>) expert_mlp_case<T>(backend, {70, 8192, 3, 2, 1, true});
}

template <class T, class B>
void expert_mlp_shape_cases(B& backend) {
  const ExpertCase c{4, 16, 8, 3, 2};
  TestExperts<B, T> experts(backend, c.experts, c.in, c.width);
  auto x = Array<B, T>::random(backend, c.n * c.in, 1);
  auto weights = Array<B, float>::random(backend, c.n * c.k, 2);
  Array<B, std::int32_t> ids(backend, expert_ids(c));
  using Args = ExpertMlpArgs<T, typename B::template Matrix<T>>;
  const Args good{.x = x.matrix(c.in),
                  .ids = ids.matrix(c.k),
                  .weights = weights.matrix(c.k),
                  .experts = experts.list,
                  .out = x.matrix(c.in)};
  const auto refused = [&](auto change, const char* text) {
    Args args = good;
    change(args);
    CHECK_THROWS_WITH(backend.run(args), Catch::Matchers::Contains(text));
  };
  refused([](Args& a) { a.experts = {}; }, "there are no experts");
  refused([](Args& a) { a.out = a.out.slice(0, 3); }, "'out'");
  refused([](Args& a) { a.ids = a.ids.slice(0, 3); }, "'ids'");
  refused([](Args& a) { a.weights = a.weights.slice(0, 3); }, "'weights'");
  refused([](Args& a) { a.first_expert = -1; },
          "the 3 experts from -1 on must be among the layer's 3");
  refused([](Args& a) { a.first_expert = 2, a.num_experts = 4; },
          "the 3 experts from 2 on must be among the layer's 4");
  refused([](Args& a) { a.num_experts = 2; }, "among the layer's 2");
  experts.list[2].down = {c.in, c.width + 1};
  refused([](Args&) {}, "expert 2 must have matrices [16, 16] and [16, 8]");
}

}  // namespace nanovllm::test::ops
