#pragma once
/// A compiler of constraints that remembers what another has compiled.

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <unordered_map>

#include "nanovllm/api/serve/constraint/constraint_compiler.hpp"
#include "nanovllm/api/serve/constraint/output_constraint.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"

namespace nanovllm::serve {

/// Remembers the sources that another compiler has made, and the constraints that it has refused,
/// within `max_bytes` of memory: when there is no room, those go that were not asked for of late.
/// Equal constraints that several threads ask for at once are compiled once, by one of them, and
/// the others wait. If that one is stopped, one of the others compiles instead. A failure other
/// than a RequestError, such as a lack of memory, is thrown to all who wait for it and is not
/// remembered.
///
/// A source that a request still uses is not freed when it is forgotten.
class CachedConstraintCompiler final : public ConstraintCompiler {
 public:
  explicit CachedConstraintCompiler(std::shared_ptr<SizedConstraintCompiler> inner,
                                    std::size_t max_bytes = std::size_t{256} << 20);

  [[nodiscard]] std::shared_ptr<const TokenMaskSource> compile(const OutputConstraint& constraint,
                                                               std::stop_token stop = {}) override;
  [[nodiscard]] bool is_known(const OutputConstraint& constraint) const override;

  [[nodiscard]] std::size_t size_bytes() const;    ///< of what is remembered, with refusals
  [[nodiscard]] std::size_t num_compiled() const;  ///< compilations so far, failures among them

 private:
  struct Entry;

  using EntryPtr = std::shared_ptr<Entry>;

  [[nodiscard]] bool await(const std::string& key, EntryPtr& entry, const std::stop_token& stop);
  void finish(const std::string& key, const EntryPtr& entry, CompiledConstraint compiled,
              std::exception_ptr failure, bool is_remembered);

  std::shared_ptr<SizedConstraintCompiler> inner_;
  std::size_t max_bytes_;
  mutable std::mutex mutex_;
  std::condition_variable_any finished_;  // an entry has
  std::unordered_map<std::string, EntryPtr> entries_;
  std::list<std::string> recent_;  // the keys of finished entries, the latest first
  std::size_t num_bytes_ = 0;
  std::size_t num_compiled_ = 0;
};

}  // namespace nanovllm::serve

#if NANOVLLM_SERVE_BODIES

#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/api/grammar/bytes/compile_budget.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm::serve {

namespace detail {

/// Equal for equal constraints and for no others.
NANOVLLM_SERVE_INLINE std::string key_of(const OutputConstraint& constraint) {
  std::string key;
  const auto add = [&](std::string_view part) {
    key += std::to_string(part.size());
    key += ':';
    key += part;
  };
  key += static_cast<char>('0' + static_cast<int>(constraint.kind));
  key += constraint.parallel_tool_calls ? 'p' : '1';
  key += static_cast<char>('0' + static_cast<int>(constraint.tool_call_format));
  key += static_cast<char>('0' + static_cast<int>(constraint.json_space));
  key += constraint.or_tool_calls ? 'o' : '-';
  key += constraint.after_reasoning ? 'r' : '-';
  add(constraint.text);
  for (const std::string& choice : constraint.choices) add(choice);
  key += ';';
  key += constraint.tools.dump();
  return key;
}

}  // namespace detail

struct CachedConstraintCompiler::Entry {
  CompiledConstraint compiled{};
  std::exception_ptr failure{};  // instead
  bool is_finished = false;
  bool was_stopped = false;  // and has no result for others
  std::size_t size_bytes = 0;
  std::list<std::string>::iterator place{};  // in recent_, where it is remembered
};

NANOVLLM_SERVE_INLINE CachedConstraintCompiler::CachedConstraintCompiler(
    std::shared_ptr<SizedConstraintCompiler> inner, std::size_t max_bytes)
    : inner_(std::move(inner)), max_bytes_(max_bytes) {}

NANOVLLM_SERVE_INLINE std::shared_ptr<const TokenMaskSource> CachedConstraintCompiler::compile(
    const OutputConstraint& constraint, std::stop_token stop) {
  if (constraint.kind == OutputConstraint::Kind::none) return nullptr;
  const std::string key = detail::key_of(constraint);
  EntryPtr entry;
  if (!await(key, entry, stop)) {
    CompiledConstraint compiled;
    std::exception_ptr failure;
    bool is_remembered = true;
    try {
      compiled = inner_->compile_sized(constraint, std::move(stop));
    } catch (const RequestError&) {
      failure = std::current_exception();
    } catch (const CompileCancelled&) {
      failure = std::current_exception();
      entry->was_stopped = true;
      is_remembered = false;
    } catch (...) {
      failure = std::current_exception();
      is_remembered = false;
    }
    finish(key, entry, std::move(compiled), failure, is_remembered);
  }
  if (entry->failure) std::rethrow_exception(entry->failure);
  return entry->compiled.source;
}

/// Whether `entry`, which it sets, is finished; else the caller is to finish it. Waits for a thread
/// that does that already.
NANOVLLM_SERVE_INLINE bool CachedConstraintCompiler::await(const std::string& key, EntryPtr& entry,
                                                           const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  for (;;) {
    EntryPtr& known = entries_[key];
    if (!known) {
      known = entry = std::make_shared<Entry>();
      ++num_compiled_;
      return false;
    }
    entry = known;
    if (entry->is_finished) {
      recent_.splice(recent_.begin(), recent_, entry->place);
      return true;
    }
    if (!finished_.wait(lock, stop, [&] { return entry->is_finished; }))
      throw CompileCancelled("waiting for a constraint was stopped: its request has ended");
    if (!entry->was_stopped) return true;
  }
}

NANOVLLM_SERVE_INLINE void CachedConstraintCompiler::finish(const std::string& key,
                                                            const EntryPtr& entry,
                                                            CompiledConstraint compiled,
                                                            std::exception_ptr failure,
                                                            bool is_remembered) {
  constexpr std::size_t kRefusalBytes = 1024;  // the exception and the entry, about
  std::vector<EntryPtr> forgotten;             // freed after the lock
  const std::lock_guard lock(mutex_);
  entry->is_finished = true;
  entry->failure = failure;
  entry->compiled = std::move(compiled);
  entry->size_bytes = entry->compiled.size_bytes + (failure ? kRefusalBytes + 2 * key.size() : 0);
  finished_.notify_all();
  if (!is_remembered || entry->size_bytes > max_bytes_) {
    entries_.erase(key);
    return;
  }
  recent_.push_front(key);
  entry->place = recent_.begin();
  num_bytes_ += entry->size_bytes;
  while (num_bytes_ > max_bytes_) {
    const auto oldest = entries_.find(recent_.back());
    num_bytes_ -= oldest->second->size_bytes;
    forgotten.push_back(std::move(oldest->second));
    entries_.erase(oldest);
    recent_.pop_back();
  }
}

NANOVLLM_SERVE_INLINE bool CachedConstraintCompiler::is_known(
    const OutputConstraint& constraint) const {
  if (constraint.kind == OutputConstraint::Kind::none) return true;
  const std::string key = detail::key_of(constraint);
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  return found != entries_.end() && found->second->is_finished;
}

NANOVLLM_SERVE_INLINE std::size_t CachedConstraintCompiler::size_bytes() const {
  const std::lock_guard lock(mutex_);
  return num_bytes_;
}

NANOVLLM_SERVE_INLINE std::size_t CachedConstraintCompiler::num_compiled() const {
  const std::lock_guard lock(mutex_);
  return num_compiled_;
}

}  // namespace nanovllm::serve

#endif  // NANOVLLM_SERVE_BODIES
