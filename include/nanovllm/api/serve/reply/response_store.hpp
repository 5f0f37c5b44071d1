#pragma once
/// Responses that are kept for clients that continue them.

#include <cstddef>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

namespace nanovllm::serve {

/// A response that has ended, both as JSON.
struct StoredResponse {
  std::string response{};
  std::string conversation{};  ///< the messages of a chat, its own included
};

/// Responses by their ids, within bounds: those that were not used for the longest time are
/// dropped. An id is put once. Thread-safe.
class ResponseStore {
 public:
  /// @param max_count  0: none is kept.
  /// @param max_bytes  of their texts; one that is larger is not kept.
  ResponseStore(std::size_t max_count, std::size_t max_bytes)
      : max_count_(max_count), max_bytes_(max_bytes) {}

  [[nodiscard]] bool is_enabled() const { return max_count_ > 0; }

  /// False if it is too large.
  bool put(const std::string& id, StoredResponse stored) {
    const std::size_t size = id.size() + stored.response.size() + stored.conversation.size();
    if (size > max_bytes_) return false;
    const auto kept = std::make_shared<const StoredResponse>(std::move(stored));
    const std::lock_guard lock(mutex_);
    entries_.push_front({id, size, kept});
    num_bytes_ += size;
    while (entries_.size() > max_count_ || num_bytes_ > max_bytes_) drop(std::prev(entries_.end()));
    by_id_[id] = entries_.begin();
    return true;
  }

  /// Null if there is none.
  [[nodiscard]] std::shared_ptr<const StoredResponse> find(const std::string& id) {
    const std::lock_guard lock(mutex_);
    const auto found = by_id_.find(id);
    if (found == by_id_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->stored;
  }

  /// Returns whether it was there.
  bool erase(const std::string& id) {
    const std::lock_guard lock(mutex_);
    const auto found = by_id_.find(id);
    if (found == by_id_.end()) return false;
    drop(found->second);
    return true;
  }

  [[nodiscard]] std::size_t num_bytes() const {
    const std::lock_guard lock(mutex_);
    return num_bytes_;
  }

 private:
  struct Entry {
    std::string id;
    std::size_t size;
    std::shared_ptr<const StoredResponse> stored;
  };
  using Place = std::list<Entry>::iterator;

  void drop(Place place) {
    num_bytes_ -= place->size;
    by_id_.erase(place->id);
    entries_.erase(place);
  }

  const std::size_t max_count_, max_bytes_;
  mutable std::mutex mutex_;  // of all that follows
  std::list<Entry> entries_;  // the one that was used last is first
  std::unordered_map<std::string, Place> by_id_;
  std::size_t num_bytes_ = 0;
};

}  // namespace nanovllm::serve
