#pragma once
/// A capability that the library has no word of: texts as bins of their last hidden state. It has a
/// setting, a statistic, a kernel, rows of its own in steps, and watches steps; no file of the
/// library is edited for it.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/cpu.hpp"
#include "nanovllm/cpu/backend.hpp"
#include "nanovllm/engine.hpp"
#include "nanovllm/engine/tiers/no_tiers.hpp"
#include "nanovllm/policy.hpp"

namespace toy_wing {

/// One of `EngineConfig::extras`.
struct BinOptions {
  std::int64_t num_bins = 4;

  [[nodiscard]] static std::string unread(const std::string& reader) {
    return "BinOptions is set, but the policy's Tiers, " + reader + ", has no bins";
  }
  void validate() const {
    nanovllm::check<nanovllm::ConfigError>(num_bins >= 1, "num_bins must be >= 1, got ", num_bins);
  }
};

/// One of `EngineStats::extras`.
struct BinCounts {
  std::int64_t num_bins = 0;
  std::int64_t num_rows = 0;  ///< of hidden states that steps gave
};

/// The kernel: bins[i] is the largest magnitude of the i-th equal part of x, the last one longer.
struct BinRowArgs {
  std::span<const float> x;
  std::span<float> bins;
};

inline void run_op(const BinRowArgs& args, nanovllm::cpu::Context&) {
  const std::size_t width = args.x.size() / args.bins.size();
  for (std::size_t i = 0; i < args.bins.size(); ++i) {
    const std::size_t end = i + 1 < args.bins.size() ? (i + 1) * width : args.x.size();
    args.bins[i] = 0;
    for (std::size_t k = i * width; k < end; ++k)
      args.bins[i] = std::max(args.bins[i], std::abs(args.x[k]));
  }
}

/// What asks for the rows.
class BinPooler final : public nanovllm::Pooler {
 public:
  explicit BinPooler(std::int64_t num_bins) : num_bins_(num_bins) {}

  [[nodiscard]] std::vector<float> pool(std::span<const float> hidden) const override {
    std::vector<float> bins(static_cast<std::size_t>(num_bins_));
    nanovllm::CpuBackend backend({.num_threads = 1});
    backend.run(BinRowArgs{hidden, bins});
    return bins;
  }

 private:
  std::int64_t num_bins_;
};

class BinObserver final : public nanovllm::StepObserver {
 public:
  explicit BinObserver(BinOptions options) : counts_{.num_bins = options.num_bins} {}

  void commit(const nanovllm::StepPlan& plan, std::uint64_t) noexcept override {
    for (const nanovllm::PlannedSequence& planned : plan.sequences)
      counts_.num_rows += planned.rows.count(nanovllm::RowKind::hidden);
  }
  void fill(nanovllm::EngineStats& stats) const override { stats.extras.update(counts_); }

 private:
  BinCounts counts_;
};

/// A policy's `Tiers`, which brings the observer.
struct Observed : nanovllm::NoTiers {
  static void validate(const nanovllm::EngineConfig& config) {
    static_cast<void>(config.extras.find<BinOptions>());
  }

  template <class Blocks, class Identity>
  [[nodiscard]] static nanovllm::ObserverMaker<Blocks> observer(const nanovllm::TierSetup& setup,
                                                                const Identity&) {
    return [options = setup.config.extras.of<BinOptions>()](nanovllm::StepRunner&, Blocks&) {
      nanovllm::StepObservers observers;
      observers.add(std::make_unique<BinObserver>(options));
      return observers;
    };
  }
};

struct Policy : nanovllm::Float32Policy {
  using Tiers = Observed;
};

/// The bins of each text, as many as the engine's setting says.
inline std::vector<std::vector<float>> bins(nanovllm::AnyEngine& engine,
                                            const std::vector<nanovllm::Prompt>& texts) {
  const auto pooler = std::make_shared<BinPooler>(engine.stats().of<BinCounts>().num_bins);
  std::vector<std::vector<float>> out;
  for (nanovllm::Output& output : engine.generate(texts, {.pooler = pooler}))
    out.push_back(std::move(output.pooled));
  return out;
}

}  // namespace toy_wing
