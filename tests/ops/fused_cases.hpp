#pragma once
/// Cases of the ops that are made of others: `gated_linear` and `project_qkv`, on every backend, by
/// its own op where it has one and by the parts where it has none. The bounds leave a backend the
/// choice that the contracts do: to round what lies between the parts, or not.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "nanovllm/ops/backend.hpp"
#include "nanovllm/ops/gated_linear.hpp"
#include "nanovllm/ops/project_qkv.hpp"
#include "ops/rig.hpp"

namespace nanovllm::test::ops {

/// n(x) · Wᵀ in float64, and how far a backend may be from each of its elements.
struct ReferenceProduct {
  std::vector<double> y, slack;  ///< [n, out]

  template <class B, class T>
  ReferenceProduct(const Array<B, T>& x, std::int64_t in, const Weight<B, T>& weight,
                   const Array<B, T>* norm, double eps) {
    const auto n = static_cast<std::int64_t>(x.host.size()) / in;
    // Two roundings of a normed element, and float32 arithmetic around them.
    const double of_norm =
        norm == nullptr ? 0 : 2.02 * kUnit<T> + static_cast<double>(in + 8) * kFloatUnit;
    for (std::int64_t i = 0; i < n; ++i) {
      double squares = 0;
      for (std::int64_t j = 0; j < in; ++j) squares += x[i * in + j] * x[i * in + j];
      const double inverse = 1 / std::sqrt(squares / static_cast<double>(in) + eps);
      for (std::int64_t o = 0; o < weight.matrix.rows(); ++o) {
        double product = 0, size = 0;
        for (std::int64_t j = 0; j < in; ++j) {
          const double element =
              norm == nullptr ? x[i * in + j] : x[i * in + j] * inverse * (*norm)[j];
          product += element * weight(o, j), size += std::abs(element * weight(o, j));
        }
        y.push_back(product);
        slack.push_back(size * (of_norm + static_cast<double>(in + 1) * kFloatUnit) +
                        1.01 * kUnit<T> * std::abs(product) + kTiny<T>);
      }
    }
  }
};

/// Sizes of a case; `normed` says whether the op norms its input.
struct FusedCase {
  std::int64_t n, in, width;
  bool normed;
};

template <class T, class B>
void gated_linear_case(B& backend, const FusedCase& c) {
  INFO(c.n << " x " << c.in << " -> 2 x " << c.width << (c.normed ? ", normed" : ""));
  auto x = Array<B, T>::random(backend, c.n * c.in, 1);
  auto norm = Array<B, T>::random(backend, c.in, 2);
  Weight<B, T> weight(backend, 2 * c.width, c.in, 3);
  Array<B, T> out(backend, c.n * c.width), normed(backend, c.n * c.in),
      gate_up(backend, c.n * 2 * c.width);
  const float eps = 1e-5f;
  const std::vector<T> before = x.host;
  GatedLinearArgs<T, typename B::template Matrix<T>> args{.x = x.matrix(c.in),
                                                          .weight = &weight.matrix,
                                                          .out = out.matrix(c.width),
                                                          .normed = normed.matrix(c.in),
                                                          .gate_up = gate_up.matrix(2 * c.width)};
  if (c.normed) args.norm = {norm.vector(), eps};
  run_or_compose(backend, args);
  out.download(), x.download();
  REQUIRE(same_bits(x.host, before));
  const ReferenceProduct both(x, c.in, weight, c.normed ? &norm : nullptr, eps);
  Worst worst;
  for (std::int64_t i = 0; i < c.n; ++i) {
    for (std::int64_t j = 0; j < c.width; ++j) {
      const auto g = static_cast<std::size_t>(i * 2 * c.width + j);
      const auto u = g + static_cast<std::size_t>(c.width);
      const double gate = both.y[g], up = both.y[u], silu = gate / (1 + std::exp(-gate));
      // The slope of silu is below 1.1.
      const double of_silu = 1.1 * both.slack[g] + 1.01 * kUnit<T> * std::abs(silu) +
                             (8 + 2 * std::abs(gate)) * kFloatUnit * std::abs(silu) + kTiny<T>;
      const double bound = std::abs(up) * of_silu + std::abs(silu) * both.slack[u] +
                           of_silu * both.slack[u] + 1.01 * kUnit<T> * std::abs(silu * up) +
                           kTiny<T>;
      worst.add(out[i * c.width + j], silu * up, bound);
    }
  }
  REQUIRE(worst.ratio() <= 1);
}

template <class T, class B>
void gated_linear_cases(B& backend) {
  for (const bool normed : {false, true}) {
    for (const std::int64_t n : {1, 3, 8, 17, 70})
      gated_linear_case<T>(backend, {n, 256, 96, normed});
    gated_linear_case<T>(backend, {1, 1024, 200, normed});
    gated_linear_case<T>(backend, {20, 1024, 65, normed});
    gated_linear_case<T>(backend, {5, 33, 7, normed});
    gated_linear_case<T>(backend, {130, 64, 32, normed});
    gated_linear_case<T>(backend, {260, 64, 32, normed});
  }
}

/// Heads of a case after its sizes, `width` of which is head_dim.
struct QkvCase : FusedCase {
  std::int64_t heads, kv_heads;
};

template <class T, class B>
void project_qkv_case(B& backend, const QkvCase& c) {
  const std::int64_t d = c.width, all = c.heads + 2 * c.kv_heads, block_size = 16;
  const std::int64_t blocks = (c.n + block_size - 1) / block_size + 1, positions = 64;
  INFO(c.n << " x " << c.in << " -> " << c.heads << "/" << c.kv_heads << " heads of " << d
           << (c.normed ? ", normed" : ""));
  auto x = Array<B, T>::random(backend, c.n * c.in, 1);
  auto norm = Array<B, T>::random(backend, c.in, 2);
  Weight<B, T> weight(backend, all * d, c.in, 3);
  auto q_norm = Array<B, T>::random(backend, d, 4), k_norm = Array<B, T>::random(backend, d, 5);
  auto table = Array<B, float>::random(backend, positions * d, 6, -1, 1);
  // Every third token has no slot; the others' are in descending order.
  std::vector<std::int32_t> at;
  std::vector<Slot> to;
  for (std::int64_t i = 0; i < c.n; ++i) {
    at.push_back(static_cast<std::int32_t>(i * 7 % positions));
    to.push_back(i % 3 == 2 ? kNoSlot : static_cast<Slot>(c.n - i));
  }
  Array<B, std::int32_t> places(backend, at);
  Array<B, Slot> slots(backend, to);
  Array<B, T> cache(backend, blocks * 2 * c.kv_heads * block_size * d), qkv(backend, c.n * all * d),
      normed(backend, c.n * c.in);
  const float eps = 1e-5f;
  ProjectQkvArgs<T, typename B::template Matrix<T>> args{
      .x = x.matrix(c.in),
      .weight = &weight.matrix,
      .heads = {q_norm.vector(), k_norm.vector(), eps, places.vector(), table.matrix(d),
                slots.vector()},
      .kv = {cache.data(), blocks, block_size, c.kv_heads, d},
      .qkv = qkv.matrix(all * d),
      .normed = normed.matrix(c.in)};
  if (c.normed) args.norm = {norm.vector(), eps};
  std::vector<T> expected_cache = cache.host;
  run_or_compose(backend, args);
  qkv.download(), cache.download();

  const ReferenceProduct product(x, c.in, weight, c.normed ? &norm : nullptr, eps);
  Worst worst;
  for (std::int64_t i = 0; i < c.n; ++i) {
    for (std::int64_t h = 0; h < all; ++h) {
      const std::int64_t first = (i * all + h) * d;
      const double* const y = product.y.data() + first;
      const double* const slack = product.slack.data() + first;
      if (h >= c.heads + c.kv_heads) {  // v
        for (std::int64_t j = 0; j < d; ++j) worst.add(qkv[first + j], y[j], slack[j]);
        continue;
      }
      const Array<B, T>& head_norm = h < c.heads ? q_norm : k_norm;
      double squares = 0, moved = 0;
      for (std::int64_t j = 0; j < d; ++j) {
        squares += y[j] * y[j];
        moved += 2 * std::abs(y[j]) * slack[j] + slack[j] * slack[j];
      }
      const double mean = squares / static_cast<double>(d) + eps;
      const double inverse = 1 / std::sqrt(mean);
      // Half the relative change of the mean square, and a good deal for what is not linear in it.
      const double of_inverse = std::min(1., moved / static_cast<double>(d) / mean) +
                                static_cast<double>(d + 8) * kFloatUnit;
      std::vector<double> z, of_z;
      for (std::int64_t j = 0; j < d; ++j) {
        const double w = head_norm[j];
        z.push_back(y[j] * inverse * w);
        of_z.push_back(std::abs(w) * inverse *
                           (slack[j] + (std::abs(y[j]) + slack[j]) * of_inverse) +
                       2.02 * kUnit<T> * std::abs(z.back()) + kTiny<T>);
      }
      const std::int64_t p = at[static_cast<std::size_t>(i)];
      for (std::int64_t j = 0; j < d / 2; ++j) {
        const auto a = static_cast<std::size_t>(j), b = static_cast<std::size_t>(j + d / 2);
        const double cosine = table[p * d + j], sine = table[p * d + d / 2 + j];
        const double low = z[a] * cosine - z[b] * sine, high = z[b] * cosine + z[a] * sine;
        const double of_low = of_z[a] * std::abs(cosine) + of_z[b] * std::abs(sine);
        const double of_high = of_z[b] * std::abs(cosine) + of_z[a] * std::abs(sine);
        const double slack_of_float = 4 * kFloatUnit * (std::abs(z[a]) + std::abs(z[b])) + kTiny<T>;
        worst.add(qkv[first + j], low, of_low + 1.01 * kUnit<T> * std::abs(low) + slack_of_float);
        worst.add(qkv[first + d / 2 + j], high,
                  of_high + 1.01 * kUnit<T> * std::abs(high) + slack_of_float);
      }
    }
  }
  REQUIRE(worst.ratio() <= 1);

  // The cache has the k and v that were written, bit for bit, and nothing else.
  for (std::int64_t i = 0; i < c.n; ++i) {
    const Slot slot = to[static_cast<std::size_t>(i)];
    if (slot == kNoSlot) continue;
    for (std::int64_t h = 0; h < 2 * c.kv_heads; ++h) {
      const auto from = qkv.host.begin() + (i * all + c.heads + h) * d;
      const std::int64_t tile = slot / block_size * 2 * c.kv_heads + h;
      std::copy(from, from + d,
                expected_cache.begin() + (tile * block_size + slot % block_size) * d);
    }
  }
  REQUIRE(same_bits(cache.host, expected_cache));
}

template <class T, class B>
void project_qkv_cases(B& backend) {
  for (const bool normed : {false, true}) {
    for (const std::int64_t n : {1, 3, 8, 17, 70})
      project_qkv_case<T>(backend, {{n, 256, 128, normed}, 2, 1});
    project_qkv_case<T>(backend, {{2, 1024, 128, normed}, 4, 2});
    project_qkv_case<T>(backend, {{9, 96, 64, normed}, 3, 1});
    project_qkv_case<T>(backend, {{4, 40, 10, normed}, 1, 1});
    project_qkv_case<T>(backend, {{140, 64, 128, normed}, 2, 1});
    project_qkv_case<T>(backend, {{260, 64, 128, normed}, 1, 1});
  }
}

}  // namespace nanovllm::test::ops
