#pragma once
/// How much a service has under way.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "nanovllm/serve/metrics.hpp"

namespace nanovllm::serve {

/// What a service counts. Requests that are under way share it, and may end when it is gone.
struct ServiceLoad {
  std::atomic<std::int64_t> num_unfinished{0};  ///< sequences in the engine, or on their way to it
  ServiceCounters counters{};
};

/// Sequences that were counted and are not in the engine yet. What was not handed over is no longer
/// counted when this is destroyed.
class LoadShare {
 public:
  /// Counts `num_sequences`, unless there are `limit` or more.
  [[nodiscard]] static std::optional<LoadShare> take(std::shared_ptr<ServiceLoad> load,
                                                     std::int64_t num_sequences,
                                                     std::int64_t limit) {
    const std::int64_t before = load->num_unfinished.fetch_add(num_sequences);
    std::optional<LoadShare> share(LoadShare(std::move(load), num_sequences));
    if (before >= limit) share.reset();
    return share;
  }

  LoadShare(LoadShare&& other) noexcept
      : load_(std::move(other.load_)), count_(std::exchange(other.count_, 0)) {}
  LoadShare& operator=(LoadShare&&) = delete;
  ~LoadShare() {
    if (count_ > 0) load_->num_unfinished.fetch_sub(count_);
  }

  [[nodiscard]] const std::shared_ptr<ServiceLoad>& load() const { return load_; }

  /// So many were submitted: from now on their ends count them off.
  void hand_over(std::int64_t num_sequences) { count_ -= num_sequences; }

 private:
  LoadShare(std::shared_ptr<ServiceLoad> load, std::int64_t count)
      : load_(std::move(load)), count_(count) {}

  std::shared_ptr<ServiceLoad> load_;
  std::int64_t count_;
};

}  // namespace nanovllm::serve
