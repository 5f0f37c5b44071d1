#pragma once
/// Events on their way to callbacks.

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/request/request.hpp"

namespace nanovllm {

/// Steps put events in, in the order of their tokens; `deliver` calls the callbacks, holding no
/// lock. Thread-safe.
///
/// One thread delivers at a time; what others put in meanwhile, it delivers too. A callback may
/// deliver itself (it called `step`, say): then events of other requests reach theirs inside it,
/// and events of the request whose callback it is wait until it returns.
class EventQueue {
 public:
  using OnThrow = std::function<void(const std::shared_ptr<Request>&, const std::string&)>;

  /// `count` events to be filled and put in.
  [[nodiscard]] EventList allocate(std::size_t count);

  /// Events whose request has no callback are left out.
  void push(EventList&& events) noexcept;

  /// Calls the callbacks of all events, unless another thread is at it. What one throws is passed
  /// to `on_throw(request, message)`, which must not throw, once for a request.
  void deliver(const OnThrow& on_throw);

  /// Whether another thread calls callbacks. Waits a moment for it to be done, if so.
  [[nodiscard]] bool is_delivered_elsewhere();

 private:
  static constexpr std::size_t kMaxSpare = 1024;

  static void call(Event& event, const OnThrow& on_throw) noexcept;
  /// The text of `event`, whose request's callback has thrown, is kept for the last event.
  static void keep_text(Request& request, const Event& event) noexcept;

  std::mutex mutex_;
  std::condition_variable idle_;
  EventList queue_;
  EventList spare_;
  std::thread::id deliverer_;
  int depth_ = 0;  // calls of deliver inside each other
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <utility>

#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/request/output.hpp"

namespace nanovllm {

NANOVLLM_INLINE EventList EventQueue::allocate(std::size_t count) {
  EventList out;
  {
    const std::lock_guard lock(mutex_);
    auto end = spare_.begin();
    for (; count > 0 && end != spare_.end(); --count) ++end;
    out.splice(out.begin(), spare_, spare_.begin(), end);
  }
  for (; count > 0; --count) out.emplace_back();
  return out;
}

NANOVLLM_INLINE void EventQueue::push(EventList&& events) noexcept {
  for (auto event = events.begin(); event != events.end();) {
    event =
        event->request && event->request->has_callback() ? std::next(event) : events.erase(event);
  }
  const std::lock_guard lock(mutex_);
  queue_.splice(queue_.end(), events);
}

NANOVLLM_INLINE void EventQueue::deliver(const OnThrow& on_throw) {
  std::unique_lock lock(mutex_);
  if (depth_ > 0 && deliverer_ != std::this_thread::get_id()) return;
  deliverer_ = std::this_thread::get_id();
  ++depth_;
  EventList event, heard;  // one each
  while (true) {
    if (!heard.empty() && spare_.size() < kMaxSpare) spare_.splice(spare_.begin(), heard);
    const auto next = std::find_if(queue_.begin(), queue_.end(), [](const Event& waiting) {
      return !waiting.request->is_in_callback_;
    });
    if (next == queue_.end()) break;
    event.splice(event.begin(), queue_, next);
    const std::shared_ptr<Request> request = event.front().request;
    request->is_in_callback_ = true;
    lock.unlock();
    call(event.front(), on_throw);
    event.front() = Event{};
    lock.lock();
    request->is_in_callback_ = false;
    heard.clear();
    heard.splice(heard.begin(), event);
  }
  --depth_;
  if (depth_ == 0) idle_.notify_all();
}

NANOVLLM_INLINE bool EventQueue::is_delivered_elsewhere() {
  std::unique_lock lock(mutex_);
  const auto elsewhere = [this] { return depth_ > 0 && deliverer_ != std::this_thread::get_id(); };
  if (elsewhere()) idle_.wait_for(lock, std::chrono::milliseconds(1), [&] { return !elsewhere(); });
  return elsewhere();
}

namespace detail {

/// Inside a `catch`: what a callback threw, for people. Not empty.
NANOVLLM_INLINE std::string callback_error() noexcept {
  try {
    try {
      throw;
    } catch (const std::exception& e) {
      return concat("the request's callback threw: ", e.what());
    } catch (...) {
      return "the request's callback threw";
    }
  } catch (...) {
    return "callback threw";  // short enough to need no memory
  }
}

}  // namespace detail

NANOVLLM_INLINE void EventQueue::keep_text(Request& request, const Event& event) noexcept {
  try {
    request.unheard_texts_[static_cast<std::size_t>(event.sample)] += event.update.text;
  } catch (...) {  // out of memory: this piece is in no event
  }
}

NANOVLLM_INLINE void EventQueue::call(Event& event, const OnThrow& on_throw) noexcept {
  Request& request = *event.request;
  const bool has_thrown = !request.thrown_.empty();
  if (has_thrown) {
    // It ends: the rest comes with the last event.
    keep_text(request, event);
    if (event.finish_reason == FinishReason::none) return;
    event.update.text = std::move(request.unheard_texts_[static_cast<std::size_t>(event.sample)]);
    // It may have ended by itself, in steps that the callback called or that were ahead of it.
    event.finish_reason = FinishReason::error;
    event.stop_string = {};
    if (event.is_last) request.fail_output(request.thrown_);
  }
  // The engine's thread writes the prompt's log-probabilities while it computes the prompt of this
  // request's sample 0, all of it before that sample's first token: from here on they are only
  // read.
  const auto& prompt_logprobs = std::as_const(request).output().prompt_logprobs;
  const bool has_prompt = event.update.token && event.sample == 0 && !prompt_logprobs.empty();
  const TokenEvent view{
      .id = request.id(),
      .sample = event.sample,
      .finish_reason = event.finish_reason,
      .stop_string = event.stop_string,
      .token = event.update.token ? &*event.update.token : nullptr,
      .text = event.update.text,
      .logprobs = event.update.logprobs ? &*event.update.logprobs : nullptr,
      .output = event.is_last ? &std::as_const(request).output() : nullptr,
      .prompt_logprobs = has_prompt ? &prompt_logprobs : nullptr,
  };
  std::string error;
  try {
    request.callback_(view);
  } catch (...) {
    error = detail::callback_error();
  }
  if (event.is_last) request.callback_ = nullptr;
  if (error.empty() || event.is_last || has_thrown) return;
  request.thrown_ = std::move(error);
  on_throw(event.request, request.thrown_);
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
