#pragma once
/// A compiler of constraints that remembers what another has compiled.

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"
#include "nanovllm/serve/constraint/constraint_compiler.hpp"
#include "nanovllm/serve/constraint/output_constraint.hpp"

namespace nanovllm::serve {

/// Remembers the sources that another compiler has made, within `max_bytes` of memory: when there
/// is no room, those go that were not asked for of late. Equal constraints that several threads ask
/// for at once are compiled once, by one of them, and the others wait. A failure is thrown to all
/// who wait for it and is not remembered.
///
/// A source that a request still uses is not freed when it is forgotten.
class CachedConstraintCompiler final : public ConstraintCompiler {
 public:
  explicit CachedConstraintCompiler(std::shared_ptr<SizedConstraintCompiler> inner,
                                    std::size_t max_bytes = std::size_t{256} << 20);

  [[nodiscard]] std::shared_ptr<const TokenMaskSource> compile(
      const OutputConstraint& constraint) override;

  [[nodiscard]] std::size_t size_bytes() const;    ///< of the sources that are remembered
  [[nodiscard]] std::size_t num_compiled() const;  ///< compilations so far, failures among them

 private:
  struct Entry;

  void remember(const std::string& key, const CompiledConstraint& compiled);

  std::shared_ptr<SizedConstraintCompiler> inner_;
  std::size_t max_bytes_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<Entry>> entries_;
  std::list<std::string> recent_;  // the keys of finished entries, the latest first
  std::size_t num_bytes_ = 0;
  std::size_t num_compiled_ = 0;
};

}  // namespace nanovllm::serve

#if NANOVLLM_BODIES

#include <exception>
#include <future>
#include <string_view>
#include <utility>
#include <vector>

namespace nanovllm::serve {

namespace detail {

/// Equal for equal constraints and for no others.
NANOVLLM_INLINE std::string key_of(const OutputConstraint& constraint) {
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
  std::promise<CompiledConstraint> promise;
  std::shared_future<CompiledConstraint> result{promise.get_future()};
  bool is_finished = false;
  std::size_t size_bytes = 0;
  std::list<std::string>::iterator place{};  // in recent_, when finished
};

NANOVLLM_INLINE CachedConstraintCompiler::CachedConstraintCompiler(
    std::shared_ptr<SizedConstraintCompiler> inner, std::size_t max_bytes)
    : inner_(std::move(inner)), max_bytes_(max_bytes) {}

NANOVLLM_INLINE std::shared_ptr<const TokenMaskSource> CachedConstraintCompiler::compile(
    const OutputConstraint& constraint) {
  if (constraint.kind == OutputConstraint::Kind::none) return nullptr;
  const std::string key = detail::key_of(constraint);
  std::shared_ptr<Entry> entry;
  bool is_first = false;
  {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Entry>& known = entries_[key];
    if (!known) {
      known = std::make_shared<Entry>();
      is_first = true;
      ++num_compiled_;
    } else if (known->is_finished) {
      recent_.splice(recent_.begin(), recent_, known->place);
    }
    entry = known;
  }
  if (!is_first) return entry->result.get().source;
  try {
    const CompiledConstraint compiled = inner_->compile_sized(constraint);
    remember(key, compiled);
    entry->promise.set_value(compiled);
    return compiled.source;
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      entries_.erase(key);
    }
    entry->promise.set_exception(std::current_exception());
    throw;
  }
}

NANOVLLM_INLINE void CachedConstraintCompiler::remember(const std::string& key,
                                                        const CompiledConstraint& compiled) {
  std::vector<std::shared_ptr<Entry>> forgotten;  // freed behind the lock
  const std::lock_guard lock(mutex_);
  if (compiled.size_bytes > max_bytes_) {
    forgotten.push_back(std::move(entries_.at(key)));
    entries_.erase(key);
    return;
  }
  recent_.push_front(key);
  Entry& entry = *entries_.at(key);
  entry.place = recent_.begin();
  entry.is_finished = true;
  num_bytes_ += compiled.size_bytes;
  entry.size_bytes = compiled.size_bytes;
  while (num_bytes_ > max_bytes_) {
    const auto oldest = entries_.find(recent_.back());
    num_bytes_ -= oldest->second->size_bytes;
    forgotten.push_back(std::move(oldest->second));
    entries_.erase(oldest);
    recent_.pop_back();
  }
}

NANOVLLM_INLINE std::size_t CachedConstraintCompiler::size_bytes() const {
  const std::lock_guard lock(mutex_);
  return num_bytes_;
}

NANOVLLM_INLINE std::size_t CachedConstraintCompiler::num_compiled() const {
  const std::lock_guard lock(mutex_);
  return num_compiled_;
}

}  // namespace nanovllm::serve

#endif  // NANOVLLM_BODIES
