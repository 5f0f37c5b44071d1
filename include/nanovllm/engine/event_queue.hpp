#pragma once
/// Events on their way to callbacks.

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/engine/request.hpp"

namespace nanovllm {

/// Steps put events in, in the order of their tokens; `deliver` calls the callbacks, holding no
/// lock. Thread-safe.
///
/// One thread delivers at a time; what others put in meanwhile, it delivers too. A callback may
/// deliver itself (it called `step`, say): then events of other requests reach theirs inside it,
/// and those of its own request wait until it returns.
class EventQueue {
 public:
  using OnThrow = std::function<void(const std::shared_ptr<Request>&, const std::string&)>;

  /// `count` events to be filled and put in.
  [[nodiscard]] EventList allocate(std::size_t count);

  /// Events whose request has no callback are left out.
  void push(EventList&& events) noexcept;

  /// Calls the callbacks of all events, unless another thread is at it. What one throws is passed
  /// to `on_throw(request, message)`, once for a request.
  void deliver(const OnThrow& on_throw);

  /// Whether another thread calls callbacks. Waits a moment for it to be done, if so.
  [[nodiscard]] bool is_delivered_elsewhere();

 private:
  static constexpr std::size_t kMaxSpare = 1024;

  static void call(Event& event, const OnThrow& on_throw);

  std::mutex mutex_;
  std::condition_variable idle_;
  EventList queue_;
  EventList spare_;
  std::thread::id deliverer_;
  int depth_ = 0;  // calls of deliver inside each other
};

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/engine/event_queue.inc"
#endif
