#pragma once
/// Where other threads leave requests and aborts for the engine's next step, and read its counters.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stop_token>
#include <unordered_map>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/request/latency.hpp"
#include "nanovllm/engine/request/request.hpp"
#include "nanovllm/kv/block_map.hpp"

namespace nanovllm {

/// Thread-safe. A request is alive from `submit` until `retire`.
class Inbox {
 public:
  struct Content {
    RequestList submitted;
    RequestList aborted;  ///< alive when they were aborted
  };

  /// Throws RequestError once the inbox is closed.
  void submit(const std::shared_ptr<Request>& request);

  /// Returns whether the request is alive and was not aborted before. Allocates nothing.
  bool abort(RequestId id) noexcept;

  /// The engine has ended the request: aborts come too late.
  void retire(RequestId id) noexcept;

  /// Adds everything that came since the last call to `content`. From here on `stats` counts the
  /// submitted ones as waiting because of this, not because they are in here. Until `publish` says
  /// otherwise, the engine has work.
  void take(Content& content);

  /// The engine's counters as they are now, all at once. Of `stats.extras`, what is there for the
  /// first time needs memory: without it, those of the last call stay.
  /// @param has_work  whether another step would find anything to do.
  /// @return whether somebody waits for `show_blocks`.
  bool publish(const EngineStats& stats, bool has_work) noexcept;
  void show_blocks(std::shared_ptr<const BlockMap> blocks) noexcept;  ///< null: later

  /// Until the next `show_blocks`, `publish` says that somebody waits for it.
  void ask_for_blocks() noexcept;
  /// What `show_blocks` was called with last; null before.
  [[nodiscard]] std::shared_ptr<const BlockMap> blocks() const noexcept;

  /// The latest counters, and as waiting also what no step has taken yet: every request is counted
  /// once at any time.
  [[nodiscard]] EngineStats stats() const;

  /// The same without percentiles, which take some microseconds.
  [[nodiscard]] EngineStats counters() const;

  /// To be added to by the engine's step alone.
  [[nodiscard]] Latencies& latencies() { return latencies_; }
  /// To be read and copied by any thread.
  [[nodiscard]] const Latencies& latencies() const { return latencies_; }

  [[nodiscard]] bool empty() const;

  /// Sleeps until there is something in here, or the engine has work, or `stop` is requested. So no
  /// thread sleeps here while another has taken requests and stops calling `step`.
  void wait(const std::stop_token& stop);

  /// From now on `submit` throws.
  void close() noexcept;

 private:
  [[nodiscard]] bool is_empty() const {
    return content_.submitted.empty() && content_.aborted.empty();
  }

  mutable std::mutex mutex_;
  std::condition_variable_any update_;
  std::unordered_map<RequestId, RequestList> alive_;  ///< lists of one, to be spliced
  Content content_;
  std::int64_t num_submitted_ = 0;  // sequences of what is in it
  EngineStats stats_;
  bool asks_for_blocks_ = false;
  std::shared_ptr<const BlockMap> blocks_;
  bool has_work_ = false;  // becomes true by `take` alone, of what threads were woken for
  Latencies latencies_;
  bool is_closed_ = false;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <new>
#include <utility>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

NANOVLLM_INLINE void Inbox::submit(const std::shared_ptr<Request>& request) {
  RequestList entry{request}, alive{request};
  const std::lock_guard lock(mutex_);
  check<RequestError>(!is_closed_, "the engine is being destroyed and takes no more requests");
  alive_.emplace(request->id(), std::move(alive));
  content_.submitted.splice(content_.submitted.end(), entry);
  num_submitted_ += static_cast<std::int64_t>(request->sequences().size());
  update_.notify_all();  // who is woken may leave
}

NANOVLLM_INLINE bool Inbox::abort(RequestId id) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = alive_.find(id);
  if (found == alive_.end()) return false;
  content_.aborted.splice(content_.aborted.end(), found->second);
  alive_.erase(found);
  update_.notify_all();  // who is woken may leave
  return true;
}

NANOVLLM_INLINE void Inbox::retire(RequestId id) noexcept {
  const std::lock_guard lock(mutex_);
  alive_.erase(id);
}

NANOVLLM_INLINE void Inbox::take(Content& content) {
  const std::lock_guard lock(mutex_);
  has_work_ |= !is_empty();
  stats_.num_waiting += std::exchange(num_submitted_, 0);
  content.submitted.splice(content.submitted.end(), content_.submitted);
  content.aborted.splice(content.aborted.end(), content_.aborted);
}

NANOVLLM_INLINE bool Inbox::publish(const EngineStats& stats, bool has_work) noexcept {
  const std::lock_guard lock(mutex_);
  has_work_ = has_work;
  try {
    stats_ = stats;  // the extras last
  } catch (const std::bad_alloc&) {
  }
  return asks_for_blocks_;
}

NANOVLLM_INLINE void Inbox::show_blocks(std::shared_ptr<const BlockMap> blocks) noexcept {
  if (blocks == nullptr) return;
  const std::lock_guard lock(mutex_);
  blocks_ = std::move(blocks);
  asks_for_blocks_ = false;
}

NANOVLLM_INLINE void Inbox::ask_for_blocks() noexcept {
  const std::lock_guard lock(mutex_);
  asks_for_blocks_ = true;
}

NANOVLLM_INLINE std::shared_ptr<const BlockMap> Inbox::blocks() const noexcept {
  const std::lock_guard lock(mutex_);
  return blocks_;
}

NANOVLLM_INLINE EngineStats Inbox::stats() const {
  EngineStats out = counters();
  out.queue_seconds = latencies_.queue.percentiles();
  out.first_token_seconds = latencies_.first_token.percentiles();
  out.inter_token_seconds = latencies_.inter_token.percentiles();
  out.end_to_end_seconds = latencies_.end_to_end.percentiles();
  return out;
}

NANOVLLM_INLINE EngineStats Inbox::counters() const {
  const std::lock_guard lock(mutex_);
  EngineStats out = stats_;
  out.num_waiting += num_submitted_;
  return out;
}

NANOVLLM_INLINE bool Inbox::empty() const {
  const std::lock_guard lock(mutex_);
  return is_empty();
}

NANOVLLM_INLINE void Inbox::wait(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  update_.wait(lock, stop, [this] { return has_work_ || !is_empty(); });
}

NANOVLLM_INLINE void Inbox::close() noexcept {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
