#pragma once
/// Where other threads leave requests and aborts for the engine's next step, and read its counters.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stop_token>
#include <unordered_map>
#include <utility>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/request.hpp"

namespace nanovllm {

/// Thread-safe. A request is alive from `submit` until `retire`.
class Inbox {
 public:
  struct Content {
    RequestList submitted;
    RequestList aborted;  ///< alive when they were aborted
  };

  /// Throws RequestError once the inbox is closed.
  void submit(const std::shared_ptr<Request>& request) {
    RequestList entry{request};
    const std::lock_guard lock(mutex_);
    check<RequestError>(!is_closed_, "the engine is being destroyed and takes no more requests");
    alive_.emplace(request->id(), request);
    content_.submitted.splice(content_.submitted.end(), entry);
    news_.notify_one();
  }

  /// Returns whether the request is alive and was not aborted before.
  bool abort(RequestId id) {
    const std::lock_guard lock(mutex_);
    const auto found = alive_.find(id);
    if (found == alive_.end()) return false;
    content_.aborted.push_back(std::move(found->second));
    alive_.erase(found);
    news_.notify_one();
    return true;
  }

  /// The engine has ended the request: aborts come too late.
  void retire(RequestId id) noexcept {
    const std::lock_guard lock(mutex_);
    alive_.erase(id);
  }

  /// Adds everything that came since the last call to `content`. From here on `stats` counts the
  /// submitted ones as waiting because of this, not because they are in here.
  void take(Content& content) {
    const std::lock_guard lock(mutex_);
    stats_.num_waiting += static_cast<std::int64_t>(content_.submitted.size());
    content.submitted.splice(content.submitted.end(), content_.submitted);
    content.aborted.splice(content.aborted.end(), content_.aborted);
  }

  /// The engine's counters as they are now, all at once.
  void publish(const EngineStats& stats) noexcept {
    const std::lock_guard lock(mutex_);
    stats_ = stats;
  }

  /// The latest counters, and as waiting also what no step has taken yet: every request is counted
  /// once at any time.
  [[nodiscard]] EngineStats stats() const {
    const std::lock_guard lock(mutex_);
    EngineStats out = stats_;
    out.num_waiting += static_cast<std::int64_t>(content_.submitted.size());
    return out;
  }

  [[nodiscard]] bool empty() const {
    const std::lock_guard lock(mutex_);
    return is_empty();
  }

  /// Sleeps until there is something in here or `stop` is requested.
  void wait(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    news_.wait(lock, stop, [this] { return !is_empty(); });
  }

  /// From now on `submit` throws.
  void close() noexcept {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
  }

 private:
  [[nodiscard]] bool is_empty() const {
    return content_.submitted.empty() && content_.aborted.empty();
  }

  mutable std::mutex mutex_;
  std::condition_variable_any news_;
  std::unordered_map<RequestId, std::shared_ptr<Request>> alive_;
  Content content_;
  EngineStats stats_;
  bool is_closed_ = false;
};

}  // namespace nanovllm
