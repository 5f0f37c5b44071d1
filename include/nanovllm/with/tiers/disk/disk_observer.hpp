#pragma once
/// The part of DiskTier in the steps of an engine.

#include <cstdint>
#include <memory>
#include <utility>

#include "nanovllm/engine/core/step_observer.hpp"
#include "nanovllm/engine/runner/step_runner.hpp"
#include "nanovllm/sched/step_plan.hpp"
#include "nanovllm/with/tiers/disk/disk_loads.hpp"
#include "nanovllm/with/tiers/disk/disk_store.hpp"

namespace nanovllm {

/// Joins DiskLoads, which holds requests back until their blocks are read and writes what steps
/// copy to host memory, with the core.
template <class Blocks>
class DiskObserver final : public StepObserver {
 public:
  /// `runner` and `blocks` must outlive this.
  DiskObserver(std::unique_ptr<DiskStore> disk, StepRunner& runner, Blocks& blocks, int min_tokens)
      : loads_(std::move(disk), runner, blocks, min_tokens) {}

  void poll(std::uint64_t oldest, std::uint64_t newest, const Admit& admit) override {
    loads_.poll(oldest, newest, admit);
  }
  [[nodiscard]] bool holds_back(Request& request, std::uint64_t newest) override {
    return loads_.begin(request, newest);
  }
  [[nodiscard]] bool is_waiting() const override { return loads_.is_loading(); }
  void forget(const Request& request) noexcept override { loads_.forget(request); }

  void begin(const StepPlan& plan, std::uint64_t number) override {
    loads_.hold(plan.copies_down, number);
  }
  void end_launches() noexcept override { loads_.release_admitted(); }
  void commit(const StepPlan& plan, std::uint64_t number) noexcept override {
    loads_.save(plan.copies_down, number);
  }
  void cancel(const StepPlan& plan, std::uint64_t number) noexcept override {
    loads_.cancel(plan.copies_down, number);
  }

  bool idle() override {
    const bool waits = loads_.is_loading();
    waits ? loads_.wait() : loads_.save_parents();
    return waits;
  }

  void reset(const Admit& admit) override { loads_.reset(admit); }
  void finish() noexcept override { loads_.finish(); }
  void fill(EngineStats& stats) const override {
    loads_.fill(stats);
    stats.num_waiting += loads_.num_waiting();
  }
  void check_invariants() const override { loads_.check_invariants(); }

 private:
  DiskLoads<Blocks> loads_;
};

}  // namespace nanovllm
