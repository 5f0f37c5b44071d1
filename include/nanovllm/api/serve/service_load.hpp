#pragma once
/// How many sequences a service has under way, and requests that are on their way to it.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "nanovllm/api/serve/exchange.hpp"
#include "nanovllm/api/serve/metrics.hpp"

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

/// Counts a request that has come and is not submitted yet, as long as it lives.
class PreparingShare {
 public:
  PreparingShare() = default;
  explicit PreparingShare(std::shared_ptr<ServiceLoad> load) : load_(std::move(load)) {
    load_->counters.num_preparing.fetch_add(1);
  }
  PreparingShare(PreparingShare&& other) noexcept : load_(std::exchange(other.load_, nullptr)) {}
  PreparingShare& operator=(PreparingShare&& other) noexcept {
    std::swap(load_, other.load_);
    return *this;
  }
  ~PreparingShare() {
    if (load_) load_->counters.num_preparing.fetch_sub(1);
  }

 private:
  std::shared_ptr<ServiceLoad> load_;
};

/// What a request that has come gets.
struct Arrival {
  /// The answer, if there is nothing to prepare: to a GET, and to a request for tokens, vectors or
  /// scores while the service drains or its queue is full. Otherwise null.
  std::shared_ptr<Exchange> exchange{};
  /// To be kept until the request has its exchange: until then it counts in /metrics, in /health
  /// and for ServiceConfig::max_queue.
  PreparingShare share{};
};

}  // namespace nanovllm::serve
