#pragma once
/// The inside of an engine of whatever model and policy, for what is added to one from outside:
/// requests that continue others, and keys and values in files.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/engine/extras.hpp"
#include "nanovllm/engine/kv_identity.hpp"
#include "nanovllm/engine/runner/step_runner.hpp"
#include "nanovllm/kv/cached_block.hpp"
#include "nanovllm/sched/block_owner.hpp"

namespace nanovllm {

class Frontend;
class Inbox;

/// A scheduler and its block manager, during a call of EngineInside.
class SchedulerInside {
 public:
  /// Who keeps blocks while no request is under way; to be added to.
  [[nodiscard]] virtual BlockOwners& owners() = 0;
  /// For a new owner. Must not outlive the engine.
  [[nodiscard]] virtual std::unique_ptr<BlockPool> pool() = 0;
  /// EngineConfig::extras.
  [[nodiscard]] virtual const Extras& extras() const = 0;

  // The prefix cache.
  [[nodiscard]] virtual bool keeps_prefixes() const = 0;
  /// What it has; unset for a cache that cannot be listed.
  [[nodiscard]] virtual std::optional<std::vector<CachedBlock>> entries() const = 0;
  /// As `restore_cached`.
  virtual std::int32_t restore(
      std::span<const CachedBlock> entries,
      const std::function<void(std::span<const BlockId>, std::span<const std::size_t>)>& write) = 0;

 protected:
  ~SchedulerInside() = default;
};

/// What is inside an engine. Who holds a pointer to it for more than a call holds a weak one: the
/// engine's end waits for all others. Thread-safe.
struct EngineInside {
  using Use = std::function<void(SchedulerInside&)>;

  EngineInside(Frontend& text, Inbox& requests, StepRunner& steps, KvIdentity of)
      : frontend(text), inbox(requests), runner(steps), identity(std::move(of)) {}
  virtual ~EngineInside() = default;

  /// One step of the engine, callbacks included.
  virtual void step() = 0;
  /// Calls `use` while no thread is in a step.
  virtual void with_scheduler(const Use& use) = 0;
  /// The same with no step under way: keys and values may be read and written.
  virtual void between_steps(const Use& use) = 0;

  std::promise<void> in_use{};  ///< broken with this
  Frontend& frontend;
  Inbox& inbox;
  StepRunner& runner;
  const KvIdentity identity;  ///< of its keys and values
};

/// `SchedulerInside` of a `Scheduler`.
template <class Scheduler>
class SchedulerInsideOf final : public SchedulerInside {
 public:
  /// Both must outlive this.
  SchedulerInsideOf(Scheduler& scheduler, const Extras& extras)
      : scheduler_(scheduler), extras_(extras) {}

  [[nodiscard]] BlockOwners& owners() override { return scheduler_.owners(); }
  [[nodiscard]] std::unique_ptr<BlockPool> pool() override {
    using Blocks = std::remove_reference_t<decltype(scheduler_.blocks())>;
    return std::make_unique<BlockPoolOf<Blocks>>(scheduler_.blocks());
  }
  [[nodiscard]] const Extras& extras() const override { return extras_; }

  [[nodiscard]] bool keeps_prefixes() const override {
    return scheduler_.blocks().keeps_prefixes();
  }
  [[nodiscard]] std::optional<std::vector<CachedBlock>> entries() const override {
    if constexpr (requires { scheduler_.blocks().cache().entries(); })
      return scheduler_.blocks().cache().entries();
    return std::nullopt;
  }
  std::int32_t restore(std::span<const CachedBlock> entries,
                       const std::function<void(std::span<const BlockId>,
                                                std::span<const std::size_t>)>& write) override {
    return restore_cached(scheduler_.blocks(), entries, write);
  }

 private:
  Scheduler& scheduler_;
  const Extras& extras_;
};

/// `EngineInside` of an engine with this `Core`.
template <class Core>
class EngineInsideOf final : public EngineInside {
 public:
  /// Everything must outlive this.
  EngineInsideOf(Core& core, const Extras& extras, Frontend& text, Inbox& requests, KvIdentity of,
                 std::function<void()> step)
      : EngineInside(text, requests, core.runner(), std::move(of)),
        core_(core),
        extras_(extras),
        step_(std::move(step)) {}

  void step() override { step_(); }
  void with_scheduler(const Use& use) override {
    core_.with_scheduler([&](auto& scheduler) { call(use, scheduler); });
  }
  void between_steps(const Use& use) override {
    core_.between_steps([&](auto& scheduler) { call(use, scheduler); });
  }

 private:
  template <class Scheduler>
  void call(const Use& use, Scheduler& scheduler) {
    SchedulerInsideOf<Scheduler> inside(scheduler, extras_);
    use(inside);
  }

  Core& core_;
  const Extras& extras_;
  std::function<void()> step_;
};

/// An engine's own pointer to its inside, which is made when it is first asked for. Thread-safe.
class InsideOwner {
 public:
  /// @param make  is called once.
  template <class Make>
  [[nodiscard]] std::shared_ptr<EngineInside> get(const Make& make) {
    const std::lock_guard lock(mutex_);
    if (inside_ == nullptr) {
      inside_ = make();
      gone_ = inside_->in_use.get_future();
    }
    return inside_;
  }

  /// Gives up the inside: later calls of `get` make another.
  void close() { inside_.reset(); }
  /// After `close`: waits until no call uses the inside any more.
  void wait() {
    if (gone_.valid()) gone_.wait();
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<EngineInside> inside_;
  std::future<void> gone_;  ///< ready when `inside_` is gone, here and in all calls
};

}  // namespace nanovllm
