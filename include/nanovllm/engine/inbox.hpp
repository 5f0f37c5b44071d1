#pragma once
/// Where other threads leave requests and aborts for the engine's next step.

#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/engine/generation.hpp"

namespace nanovllm {

/// Thread-safe. A request is alive from `submit` until `retire`.
class Inbox {
 public:
  struct Content {
    std::vector<std::unique_ptr<Generation>> submitted;
    std::vector<RequestId> aborted;  ///< alive when they were aborted
  };

  void submit(std::unique_ptr<Generation> generation) {
    const std::lock_guard lock(mutex_);
    alive_.insert(generation->id);
    content_.submitted.push_back(std::move(generation));
  }

  /// Returns whether the request is alive and was not aborted before.
  bool abort(RequestId id) {
    const std::lock_guard lock(mutex_);
    if (alive_.erase(id) == 0) return false;
    content_.aborted.push_back(id);
    return true;
  }

  /// The engine has ended the request: aborts come too late.
  void retire(RequestId id) {
    const std::lock_guard lock(mutex_);
    alive_.erase(id);
  }

  /// Everything that came since the last call.
  [[nodiscard]] Content take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(content_, {});
  }

  [[nodiscard]] std::size_t num_submitted() const {
    const std::lock_guard lock(mutex_);
    return content_.submitted.size();
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_set<RequestId> alive_;
  Content content_;
};

}  // namespace nanovllm
