#pragma once
/// Settings and statistics of additions: values whose types are not known to who carries them.

#include <any>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

/// At most one value of each type:
///
/// ```cpp
/// nanovllm::EngineConfig config{.model = "Qwen3-30B-A3B", .extras = {nanovllm::ExpertParallel{}}};
/// ```
///
/// A type of settings may have `unread()`: the sentence for a user who set it where nothing reads
/// it, or an empty one where that does no harm; and `shared()`: names and numbers of what must be
/// the same in all processes of a group.
class Extras {
 public:
  using Numbers = std::vector<std::pair<const char*, std::int64_t>>;

  /// One of them.
  class Value {
   public:
    template <class T>
    requires(!std::same_as<T, Value>) Value(T value)
        : value_(std::move(value)) {  // NOLINT(google-explicit-constructor)
      if constexpr (requires(const T& setting) { setting.unread(); })
        unread_ = [](const std::any& any) { return std::any_cast<const T&>(any).unread(); };
      if constexpr (requires(const T& setting) { setting.shared(); })
        shared_ = [](const std::any& any) { return std::any_cast<const T&>(any).shared(); };
    }

   private:
    friend class Extras;
    std::any value_;
    std::string (*unread_)(const std::any&) = nullptr;
    Numbers (*shared_)(const std::any&) = nullptr;
    mutable bool is_read_ = false;
  };

  Extras() = default;
  Extras(std::initializer_list<Value> values) : values_(values) {}

  /// The value of type T, or null.
  template <class T>
  [[nodiscard]] const T* find() const {
    for (const Value& value : values_) {
      const T* const found = std::any_cast<T>(&value.value_);
      if (found == nullptr) continue;
      value.is_read_ = true;
      return found;
    }
    return nullptr;
  }

  /// The value of type T, or T{}.
  template <class T>
  [[nodiscard]] T of() const {
    const T* const found = find<T>();
    return found != nullptr ? *found : T{};
  }

  /// `value` takes the place of another of its type.
  template <class T>
  void set(T value) {
    std::erase_if(values_, [](const Value& v) { return std::any_cast<T>(&v.value_) != nullptr; });
    values_.push_back(std::move(value));
  }

  /// What all of them share.
  [[nodiscard]] Numbers shared() const {
    Numbers out;
    for (const Value& value : values_) {
      if (value.shared_ == nullptr) continue;
      const Numbers more = value.shared_(value.value_);
      out.insert(out.end(), more.begin(), more.end());
    }
    return out;
  }

  /// Throws ConfigError for a setting that `find` and `of` were not asked for.
  void check_read() const {
    for (const Value& value : values_) {
      if (value.is_read_ || value.unread_ == nullptr) continue;
      const std::string text = value.unread_(value.value_);
      if (!text.empty()) throw ConfigError(text);
    }
  }

 private:
  std::vector<Value> values_;
};

}  // namespace nanovllm
