#pragma once
/// A JSON value.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/separate.hpp"

namespace nanovllm {

/// Deeper nesting than this is refused everywhere: reading and printing would otherwise exhaust the
/// stack.
inline constexpr int kMaxJsonDepth = 256;

/// A JSON value; an object keeps the order of insertion. An integer beyond 64 bits is kept as its
/// digits, so that it prints exactly. Reading a value as another kind than it is throws Error.
class Json {
 public:
  enum class Kind : std::uint8_t {
    null,
    boolean,
    integer,           ///< signed: from a signed type, or a text with a minus sign
    unsigned_integer,  ///< from an unsigned type, or a text without one
    real,
    big_integer,
    string,
    array,
    object
  };
  struct Member;  ///< {std::string key; Json value;}

  Json() = default;
  Json(std::nullptr_t) {}
  Json(std::string text);
  Json(std::string_view text) : Json(std::string(text)) {}
  Json(const char* text) : Json(std::string(text)) {}
  /// A template, because a plain `bool` parameter would also take pointers.
  template <std::same_as<bool> Bool>
  Json(Bool value) : kind_(Kind::boolean) {
    data_.boolean = value;
  }
  template <std::integral Int>
  requires(!std::same_as<Int, bool>) Json(Int value)
      : kind_(std::is_signed_v<Int> ? Kind::integer : Kind::unsigned_integer) {
    data_.integer = static_cast<std::int64_t>(value);
  }
  template <std::floating_point Float>
  Json(Float value) : kind_(Kind::real) {
    data_.real = value;
  }
  /// An array of the elements.
  template <class T>
  Json(const std::vector<T>& elements) : Json(array()) {
    for (const T& element : elements) push_back(element);
  }

  [[nodiscard]] static Json array(std::initializer_list<Json> elements = {});
  [[nodiscard]] static Json object();
  /// An object of members with distinct keys.
  [[nodiscard]] static Json object(std::initializer_list<Member> members);
  /// An integer of any length from its decimal digits, with a minus sign or without.
  [[nodiscard]] static Json big_integer(std::string digits);

  Json(const Json& other);
  Json(Json&& other) noexcept : kind_(std::exchange(other.kind_, Kind::null)), data_(other.data_) {}
  Json& operator=(Json other) noexcept {
    std::swap(kind_, other.kind_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~Json() {
    if (kind_ >= Kind::big_integer) destroy();
  }

  [[nodiscard]] Kind kind() const { return kind_; }
  [[nodiscard]] bool is_null() const { return kind_ == Kind::null; }
  [[nodiscard]] bool is_boolean() const { return kind_ == Kind::boolean; }
  [[nodiscard]] bool is_string() const { return kind_ == Kind::string; }
  [[nodiscard]] bool is_array() const { return kind_ == Kind::array; }
  [[nodiscard]] bool is_object() const { return kind_ == Kind::object; }
  [[nodiscard]] bool is_structured() const { return is_array() || is_object(); }
  /// Whether it is an integer of at most 64 bits.
  [[nodiscard]] bool is_number_integer() const {
    return kind_ == Kind::integer || kind_ == Kind::unsigned_integer;
  }
  [[nodiscard]] bool is_number_unsigned() const { return kind_ == Kind::unsigned_integer; }
  [[nodiscard]] bool is_number_float() const { return kind_ == Kind::real; }
  [[nodiscard]] bool is_big_integer() const { return kind_ == Kind::big_integer; }
  /// Whether it is a number, except big integers, which few callers can use.
  [[nodiscard]] bool is_number() const { return is_number_integer() || is_number_float(); }

  /// "null", "boolean", "number", "string", "array" or "object".
  [[nodiscard]] std::string_view type_name() const;

  /// The value as a C++ value: bool, std::string, or any number but a big integer as any number
  /// type, converted as by static_cast.
  template <class T>
  [[nodiscard]] T get() const {
    if constexpr (std::same_as<T, bool>) {
      return boolean();
    } else if constexpr (std::is_arithmetic_v<T>) {
      if (kind_ == Kind::real) return static_cast<T>(data_.real);
      if (kind_ == Kind::unsigned_integer)
        return static_cast<T>(static_cast<std::uint64_t>(data_.integer));
      expect(kind_ == Kind::integer, "a number");
      return static_cast<T>(data_.integer);
    } else {
      static_assert(std::same_as<T, std::string>, "get<T>: T must be bool, a number or a string");
      return string();
    }
  }
  [[nodiscard]] bool boolean() const {
    expect(is_boolean(), "a boolean");
    return data_.boolean;
  }
  [[nodiscard]] const std::string& string() const {
    expect(is_string(), "a string");
    return *data_.text;
  }
  /// The digits of a big integer, with its sign.
  [[nodiscard]] const std::string& digits() const {
    expect(is_big_integer(), "an integer of more than 64 bits");
    return *data_.text;
  }

  /// Elements of an array or members of an object; 0 for null, 1 for all else.
  [[nodiscard]] std::size_t size() const;
  [[nodiscard]] bool empty() const { return size() == 0; }

  /// The elements of an array; of every other value none.
  [[nodiscard]] std::span<const Json> elements() const;
  [[nodiscard]] const Json* begin() const { return elements().data(); }
  [[nodiscard]] const Json* end() const { return begin() + elements().size(); }
  [[nodiscard]] const Json& at(std::size_t index) const;
  /// A template, because a literal 0 would also be a pointer.
  template <std::integral Int>
  [[nodiscard]] const Json& operator[](Int index) const {
    return at(static_cast<std::size_t>(index));
  }
  template <std::integral Int>
  [[nodiscard]] Json& operator[](Int index) {
    return const_cast<Json&>(std::as_const(*this)[index]);
  }
  [[nodiscard]] const Json& back() const { return (*this)[size() - 1]; }
  /// Appends to an array; null becomes one.
  void push_back(Json element);

  /// The members of an object in their order; of every other value none.
  [[nodiscard]] std::span<const Member> items() const;
  /// The member's value, or a null pointer if there is none, as in every value but an object. Time
  /// is linear in the number of members.
  [[nodiscard]] const Json* find(std::string_view key) const;
  [[nodiscard]] bool contains(std::string_view key) const { return find(key) != nullptr; }
  /// The member's value. Throws Error when there is none.
  [[nodiscard]] const Json& at(std::string_view key) const;
  [[nodiscard]] const Json& operator[](std::string_view key) const { return at(key); }
  [[nodiscard]] const Json& operator[](const char* key) const { return at(key); }
  /// The member's value, added as null if there is none; null becomes an object.
  [[nodiscard]] Json& operator[](std::string_view key);
  [[nodiscard]] Json& operator[](const char* key) { return (*this)[std::string_view(key)]; }

  /// Equal values; numbers of different kinds are equal if they are as doubles. Objects are equal
  /// if their members are, in the same order.
  [[nodiscard]] friend bool operator==(const Json& a, const Json& b) { return equal(a, b); }

  /// `json.dumps(value, ensure_ascii=False)` of Python. Strings are written as they are, so they
  /// must be UTF-8 for the result to be. Throws RequestError for a nesting deeper than
  /// kMaxJsonDepth.
  [[nodiscard]] std::string dump() const;

 private:
  friend class JsonBuilder;
  using Array = std::vector<Json>;
  using Object = std::vector<Member>;
  union Data {
    bool boolean;
    std::int64_t integer = 0;  // an unsigned one as its bits
    double real;
    std::string* text;  // owned, as are the others
    Array* array;
    Object* object;
  };

  void expect(bool condition, std::string_view expected) const {
    if (!condition) [[unlikely]]
      throw Error(concat("expected ", expected, " in a JSON value, got ", type_name()));
  }
  void destroy() noexcept;
  static bool equal(const Json& a, const Json& b);

  Kind kind_ = Kind::null;
  Data data_;
};

struct Json::Member {
  std::string key;
  Json value;
  friend bool operator==(const Member&, const Member&) = default;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>

namespace nanovllm {

NANOVLLM_INLINE Json::Json(std::string text) : kind_(Kind::string) {
  data_.text = new std::string(std::move(text));
}

NANOVLLM_INLINE Json Json::array(std::initializer_list<Json> elements) {
  Json out;
  out.data_.array = new Array(elements);
  out.kind_ = Kind::array;
  return out;
}

NANOVLLM_INLINE Json Json::object() { return object({}); }

NANOVLLM_INLINE Json Json::object(std::initializer_list<Member> members) {
  Json out;
  out.data_.object = new Object(members);
  out.kind_ = Kind::object;
  return out;
}

NANOVLLM_INLINE Json Json::big_integer(std::string digits) {
  Json out(std::move(digits));
  out.kind_ = Kind::big_integer;
  return out;
}

NANOVLLM_INLINE Json::Json(const Json& other) : data_(other.data_) {
  switch (other.kind_) {
    case Kind::big_integer:
    case Kind::string: data_.text = new std::string(*other.data_.text); break;
    case Kind::array: data_.array = new Array(*other.data_.array); break;
    case Kind::object: data_.object = new Object(*other.data_.object); break;
    default: break;
  }
  kind_ = other.kind_;
}

NANOVLLM_INLINE void Json::destroy() noexcept {
  switch (kind_) {
    case Kind::big_integer:
    case Kind::string: delete data_.text; break;
    case Kind::array: delete data_.array; break;
    case Kind::object: delete data_.object; break;
    default: break;
  }
}

NANOVLLM_INLINE std::string_view Json::type_name() const {
  switch (kind_) {
    case Kind::null: return "null";
    case Kind::boolean: return "boolean";
    case Kind::string: return "string";
    case Kind::array: return "array";
    case Kind::object: return "object";
    default: return "number";
  }
}

NANOVLLM_INLINE std::size_t Json::size() const {
  if (is_array()) return data_.array->size();
  if (is_object()) return data_.object->size();
  return is_null() ? 0 : 1;
}

NANOVLLM_INLINE std::span<const Json> Json::elements() const {
  return is_array() ? std::span<const Json>(*data_.array) : std::span<const Json>();
}

NANOVLLM_INLINE std::span<const Json::Member> Json::items() const {
  return is_object() ? std::span<const Member>(*data_.object) : std::span<const Member>();
}

NANOVLLM_INLINE const Json& Json::at(std::size_t index) const {
  check<Error>(index < elements().size(), "element ", index, " of a JSON ", type_name(), " with ",
               elements().size(), " elements");
  return elements()[index];
}

NANOVLLM_INLINE void Json::push_back(Json element) {
  if (is_null()) *this = array();
  expect(is_array(), "an array");
  data_.array->push_back(std::move(element));
}

NANOVLLM_INLINE const Json* Json::find(std::string_view key) const {
  for (const Member& member : items()) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

NANOVLLM_INLINE const Json& Json::at(std::string_view key) const {
  expect(is_object(), "an object");
  const Json* found = find(key);
  check<Error>(found != nullptr, "a JSON object has no member '", key, "'");
  return *found;
}

NANOVLLM_INLINE Json& Json::operator[](std::string_view key) {
  if (is_null()) *this = object();
  expect(is_object(), "an object");
  for (Member& member : *data_.object) {
    if (member.key == key) return member.value;
  }
  return data_.object->emplace_back(Member{std::string(key), nullptr}).value;
}

NANOVLLM_INLINE bool Json::equal(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) {
    if (a.kind_ == b.kind_ && a.kind_ != Kind::real) return a.data_.integer == b.data_.integer;
    return a.get<double>() == b.get<double>();
  }
  if (a.kind_ != b.kind_) return false;
  switch (a.kind_) {
    case Kind::boolean: return a.data_.boolean == b.data_.boolean;
    case Kind::big_integer:
    case Kind::string: return *a.data_.text == *b.data_.text;
    case Kind::array: return *a.data_.array == *b.data_.array;
    case Kind::object: return *a.data_.object == *b.data_.object;
    default: return true;
  }
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
