#pragma once
/// Settings and statistics of additions: values whose types are not known to who carries them.

#include <any>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <new>
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
/// A type of settings may have these const members:
///
/// - `unread()`: the sentence for a user who set it where nothing reads it, or an empty one where
///   that does no harm. `unread(reader)` gets the name of the type that could have read it.
/// - `validate()`: throws ConfigError for what is out of range.
/// - `shared()`: names and numbers of what must be the same in all processes of a group.
/// - `sizes()`: what to say of it where memory runs out.
class Extras {
 public:
  using Numbers = std::vector<std::pair<const char*, std::int64_t>>;

  /// One of them.
  class Value {
   public:
    template <class T>
    requires(!std::same_as<T, Value>) Value(T value)
        : value_(std::move(value)), assign_(&assign<T>) {  // NOLINT(google-explicit-constructor)
      if constexpr (requires(const T& setting, const std::string& reader) {
                      setting.unread(reader);
                    })
        unread_ = [](const std::any& any, const std::string& reader) {
          return std::any_cast<const T&>(any).unread(reader);
        };
      if constexpr (requires(const T& setting) { setting.unread(); })
        unread_ = [](const std::any& any, const std::string&) {
          return std::any_cast<const T&>(any).unread();
        };
      if constexpr (requires(const T& setting) { setting.validate(); })
        validate_ = [](const std::any& any) { std::any_cast<const T&>(any).validate(); };
      if constexpr (requires(const T& setting) { setting.shared(); })
        shared_ = [](const std::any& any) { return std::any_cast<const T&>(any).shared(); };
      if constexpr (requires(const T& setting) { setting.sizes(); })
        sizes_ = [](const std::any& any) { return std::any_cast<const T&>(any).sizes(); };
    }

    Value(const Value&) = default;
    Value(Value&&) noexcept = default;
    Value& operator=(Value&&) noexcept = default;
    ~Value() = default;
    /// Takes no memory where both are of one type, and that takes none.
    Value& operator=(const Value& other) {
      if (!other.assign_(value_, other.value_)) *this = Value(other);
      return *this;
    }

   private:
    friend class Extras;

    /// Returns false, and changes nothing, if they are not both a T.
    template <class T>
    static bool assign(std::any& to, const std::any& from) {
      T* const target = std::any_cast<T>(&to);
      const T* const source = std::any_cast<T>(&from);
      if (target == nullptr || source == nullptr) return false;
      *target = *source;
      return true;
    }

    std::any value_;
    bool (*assign_)(std::any&, const std::any&);
    std::string (*unread_)(const std::any&, const std::string&) = nullptr;
    void (*validate_)(const std::any&) = nullptr;
    Numbers (*shared_)(const std::any&) = nullptr;
    std::string (*sizes_)(const std::any&) = nullptr;
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

  /// The value of type T, to be changed; T{} is added where there is none.
  template <class T>
  [[nodiscard]] T& edit() {
    for (Value& value : values_) {
      if (T* const found = std::any_cast<T>(&value.value_)) return *found;
    }
    return *std::any_cast<T>(&values_.emplace_back(T{}).value_);
  }

  /// As `set`, in memory that is there if one of its type is. Without memory it is not there.
  template <class T>
  void update(const T& value) noexcept {
    try {
      edit<T>() = value;
    } catch (const std::bad_alloc&) {  // the next call tries again
    }
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

  /// What all of them say where memory runs out, each after a comma.
  [[nodiscard]] std::string sizes() const {
    std::string out;
    for (const Value& value : values_) {
      if (value.sizes_ != nullptr) out += ", " + value.sizes_(value.value_);
    }
    return out;
  }

  /// Throws ConfigError for a setting that `find` and `of` were not asked for, and for one out of
  /// range.
  /// @param reader  the name of the type that could have read them.
  void check(const std::string& reader = {}) const {
    for (const Value& value : values_) {
      if (!value.is_read_ && value.unread_ != nullptr) {
        const std::string text = value.unread_(value.value_, reader);
        if (!text.empty()) throw ConfigError(text);
      }
      if (value.validate_ != nullptr) value.validate_(value.value_);
    }
  }

 private:
  std::vector<Value> values_;
};

}  // namespace nanovllm
