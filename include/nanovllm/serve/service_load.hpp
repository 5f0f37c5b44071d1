#pragma once
/// How many sequences a service has under way.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "nanovllm/serve/metrics.hpp"

namespace nanovllm::serve {

/// Counters of a service. Requests under way share it, since they may outlive the service.
struct ServiceLoad {
  std::atomic<std::int64_t> num_unfinished{
      0};  ///< sequences in the engine, or about to be submitted
  ServiceCounters counters{};
};

/// Sequences that are counted and not yet submitted. The destructor subtracts those that were not
/// handed over to the engine.
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

  /// So many were submitted: they are subtracted when they end.
  void hand_over(std::int64_t num_sequences) { count_ -= num_sequences; }

 private:
  LoadShare(std::shared_ptr<ServiceLoad> load, std::int64_t count)
      : load_(std::move(load)), count_(count) {}

  std::shared_ptr<ServiceLoad> load_;
  std::int64_t count_;
};

}  // namespace nanovllm::serve
