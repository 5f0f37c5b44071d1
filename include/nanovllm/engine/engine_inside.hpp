#pragma once
/// The inside of an engine of whatever model and policy, for what is added to one from outside:
/// requests that continue others, and keys and values in files.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>

#include "nanovllm/engine/extras.hpp"
#include "nanovllm/engine/kv_identity.hpp"
#include "nanovllm/engine/runner/step_runner.hpp"
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

 protected:
  ~SchedulerInside() = default;
};

/// What is inside an engine. Who holds a pointer to it for more than a call holds a weak one: the
/// engine's end waits for all others. Thread-safe.
struct EngineInside {
  using Use = std::function<void(SchedulerInside&)>;

  EngineInside(Frontend& text, Inbox& requests, StepRunner& steps, KvIdentity of)
      : frontend(text), inbox(requests), runner(steps), identity(std::move(of)) {}
  EngineInside(const EngineInside&) = delete;
  EngineInside& operator=(const EngineInside&) = delete;
  virtual ~EngineInside() {
    gone->store(true);
    gone->notify_all();
  }

  /// One step of the engine, callbacks included.
  virtual void step() = 0;
  /// Calls `use` while no thread is in a step.
  virtual void with_scheduler(const Use& use) = 0;
  /// The same with no step under way: keys and values may be read and written.
  virtual void between_steps(const Use& use) = 0;

  /// Set when this has ended; outlives it.
  const std::shared_ptr<std::atomic<bool>> gone = std::make_shared<std::atomic<bool>>(false);
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
      gone_ = inside_->gone;
    }
    return inside_;
  }

  /// Gives up the inside: later calls of `get` make another.
  void close() { inside_.reset(); }
  /// After `close`: waits until no call uses the inside any more.
  void wait() {
    if (gone_ != nullptr) gone_->wait(false);
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<EngineInside> inside_;
  std::shared_ptr<std::atomic<bool>> gone_;  ///< set when `inside_` is gone, here and in all calls
};

}  // namespace nanovllm
