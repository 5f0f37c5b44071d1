#pragma once
/// Settings that the benchmarks of all ops share, and the context made from them.

#include <benchmark/benchmark.h>

#include <chrono>

#include "nanovllm/cpu/context.hpp"

namespace cpu_ops {

struct Options {
  std::optional<int> num_threads{};  ///< unset: all
  nanovllm::cpu::Isa isa = nanovllm::cpu::best_isa();
};

/// Set by main before any benchmark runs.
inline Options& options() {
  static Options instance;
  return instance;
}

/// The context to call ops with.
inline const nanovllm::cpu::Context& context() {
  static nanovllm::cpu::ThreadPool pool(options().num_threads);
  static const nanovllm::cpu::Context instance{.pool = &pool, .isa = options().isa};
  return instance;
}

/// Runs `body` for as long as Google Benchmark asks, with the ceiling probed before and after, as
/// a shared machine's ceilings move. Reports the rate, the ceiling and the rate's share of it.
/// @param work     bytes or operations of one call of `body`
/// @param unit     "GB/s" or "GFLOP/s"
/// @param ceiling  returns bytes or operations per second
template <class Ceiling, class Body>
void measure(benchmark::State& state, double work, const char* unit, const Ceiling& ceiling,
             const Body& body) {
  body();
  const double before = ceiling();
  const auto start = std::chrono::steady_clock::now();
  for (auto _ : state) body();
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  const double top = (before + ceiling()) / 2;
  const double rate = work * static_cast<double>(state.iterations()) / time.count();
  state.counters[unit] = rate * 1e-9;
  state.counters["ceiling"] = top * 1e-9;
  state.counters["share"] = rate / top;
}

}  // namespace cpu_ops
