#pragma once
/// Cases of `linear_sample` on every backend: by its own op where it has one, after it has chosen its
/// way by time, or by the parts where it has none.

#include <cstdint>
#include <optional>
#include <vector>

#include "nanovllm/ops/compose.hpp"
#include "nanovllm/ops/linear_sample.hpp"
#include "ops/rig.hpp"
#include "ops/sample_cases.hpp"

namespace nanovllm::test::ops {

/// Greedy and drawn rows, different ones.
inline std::vector<SamplingRow> plain_rows(std::int64_t n) {
  std::vector<SamplingRow> out;
  for (std::int64_t i = 0; i < n; ++i) {
    SamplingRow row;
    row.temperature = i % 3 == 0 ? 0.f : i % 3 == 1 ? 1.f : 0.7f;
    row.seed = static_cast<std::uint64_t>(31 * i + 5);
    row.position = static_cast<std::uint64_t>(i);
    out.push_back(row);
  }
  return out;
}

template <class T, class B>
void linear_sample_case(B& backend, std::int64_t n, std::int64_t in, std::int64_t vocab) {
  INFO(n << " x " << in << " -> " << vocab);
  backend.reserve({.limits = {.max_num_batched_tokens = n, .max_num_seqs = n},
                   .vocab_size = vocab,
                   .num_heads = 1,
                   .num_kv_heads = 1,
                   .head_dim = 64});
  auto x = Array<B, T>::random(backend, n * in, 1);
  const std::vector<T> before = x.host;
  Weight<B, T> weight(backend, vocab, in, 2);
  if constexpr (TunesLinearSample<B, T>) backend.tune_linear_sample(weight.matrix, n);
  const std::vector<SamplingRow> rows = plain_rows(n);
  Array<B, SamplingRow> settings(backend, rows);
  Array<B, std::int32_t> starts(backend, std::vector<std::int32_t>(rows.size() + 1));
  Array<B, TokenId> banned(backend, 0), tokens(backend, n), general(backend, n), top(backend, 0);
  Array<B, float> logits(backend, n * vocab), logprobs(backend, n), top_logprobs(backend, 0);
  const auto sample = [&](Array<B, TokenId>& to) {
    return SampleArgs{logits.matrix(vocab),
                      {settings.vector(), {starts.vector(), banned.vector()}},
                      to.vector(),
                      logprobs.vector(),
                      {top.data(), {n, 0}},
                      {top_logprobs.data(), {n, 0}},
                      true};
  };
  using Matrix = typename B::template Matrix<T>;
  const LinearSampleArgs<T, Matrix> args{
      .x = x.matrix(in), .weight = &weight.matrix, .sample = sample(tokens)};
  run_or_compose(backend, args);
  compose(LinearSampleArgs<T, Matrix>{args.x, args.weight, sample(general)},
          [&](const auto& part) { backend.run(part); });
  tokens.download(), general.download(), x.download(), logprobs.download();
  REQUIRE(same_bits(x.host, before));
  REQUIRE(tokens.host == general.host);
  for (float logprob : logprobs.host) REQUIRE(std::isnan(logprob));
  std::int64_t decided = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    std::vector<double> exact;
    for (std::int64_t t = 0; t < vocab; ++t) {
      double sum = 0;
      for (std::int64_t c = 0; c < in; ++c) sum += x[i * in + c] * weight(t, c);
      exact.push_back(sum);
    }
    const auto row = static_cast<std::size_t>(i);
    if (rows[row].temperature == 0) {  // as good as the best, but for float32
      const double best = *std::max_element(exact.begin(), exact.end());
      REQUIRE(exact[static_cast<std::size_t>(tokens.host[row])] >= best - 1e-3);
      ++decided;
      continue;
    }
    const std::optional<std::size_t> expected = SampleOracle(exact, {}).draw(rows[row]);
    if (!expected) continue;
    REQUIRE(static_cast<std::size_t>(tokens.host[row]) == *expected);
    ++decided;
  }
  REQUIRE(decided >= n * 9 / 10);
}

template <class T, class B>
void linear_sample_cases(B& backend) {
  for (const std::int64_t n : {1, 3, 8, 17, 40, 70, 130})
    linear_sample_case<T>(backend, n, 64, 300);
  linear_sample_case<T>(backend, 5, 33, 7);
  linear_sample_case<T>(backend, 2, 128, 2001);
  linear_sample_case<T>(backend, 260, 16, 65);
}

}  // namespace nanovllm::test::ops
