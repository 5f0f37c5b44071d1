#pragma once
/// Values in texts that have places for them: Python's `text % values`, and the fields of it and of
/// `str.format`.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "nanovllm/chat/jinja/text.hpp"
#include "nanovllm/chat/jinja/value.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm::jinja {

inline std::string to_fixed(double value, int precision) {
  char buffer[400];
  const int size = std::snprintf(buffer, sizeof buffer, "%.*f", std::min(precision, 60), value);
  return std::string(buffer, static_cast<std::size_t>(size));
}

/// How a value is written: "-8", "05" or ".2", ahead of a letter.
struct Field {
  char side = '\0';  ///< a sign of `sides`, if there is one
  bool zeros = false;
  std::size_t width = 0;
  std::optional<int> precision{};

  /// Takes it off the front of `text`.
  Field(std::string_view& text, std::string_view sides) {
    const auto number = [&] {
      int n = 0;
      for (; !text.empty() && text[0] >= '0' && text[0] <= '9'; text.remove_prefix(1))
        n = std::min(10000, n * 10 + (text[0] - '0'));
      return n;
    };
    if (!text.empty() && sides.find(text[0]) != sides.npos) {
      side = text[0];
      text.remove_prefix(1);
    }
    zeros = text.starts_with('0');
    width = static_cast<std::size_t>(number());
    if (!text.starts_with('.')) return;
    text.remove_prefix(1);
    precision = number();
  }

  /// @param left  whether the value stands at the left of its width
  void append(std::string& out, const Value& value, char letter, bool left, Budget& budget) const {
    std::string piece = converted(value, letter, budget);
    const std::size_t size = num_characters(piece);
    const std::size_t pad = width > size ? width - size : 0;
    const bool filled = zeros && !left;
    if (left)
      piece.append(pad, ' ');
    else
      piece.insert(filled && piece.starts_with('-') ? 1 : 0, pad,
                   filled && letter != 's' ? '0' : ' ');
    append_text(out, piece, budget);
  }

 private:
  [[nodiscard]] std::string converted(const Value& value, char letter, Budget& budget) const {
    if (letter == 's' || letter == 'r') {
      std::string piece;
      if (letter == 'r' && value.is_string())
        append_repr(piece, value.text());
      else
        append_str(piece, value, budget);
      if (precision) {
        const auto starts = character_starts(piece);
        piece.resize(starts[std::min(starts.size() - 1, static_cast<std::size_t>(*precision))]);
      }
      return piece;
    }
    require(value.is_number(), "'%", letter, "' needs a number, got '", value.type_name(), "'");
    if (letter == 'f') return to_fixed(value.real(), precision.value_or(6));
    if (letter == 'd' || letter == 'i')
      return std::to_string(value.is_integer() ? value.integer()
                                               : static_cast<std::int64_t>(value.real()));
    require(letter == 'x' && value.is_integer() && value.integer() >= 0,
            "expected %s, %r, %d, %i, %x, %f or %%, got %", letter);
    char buffer[24];
    std::snprintf(buffer, sizeof buffer, "%llx", static_cast<unsigned long long>(value.integer()));
    return buffer;
  }
};

/// `text % values`: %s, %r, %d, %i, %x, %f and %%, with a width, '-', '0' and a precision.
inline std::string percent_format(std::string_view text, const Value& values, Budget& budget) {
  const std::size_t count = values.is_tuple() ? values.list().size() : 1;
  std::size_t used = 0;
  std::string out;
  for (std::size_t mark = text.find('%'); mark != text.npos; mark = text.find('%')) {
    append_text(out, text.substr(0, mark), budget);
    text.remove_prefix(mark + 1);
    const Value* value = nullptr;
    if (text.starts_with('(') && values.is_dict()) {
      const std::size_t end = std::min(text.find(')'), text.size() - 1);
      value = find(values.dict(), Value::of(text.substr(1, end - 1)), budget);
      require(value != nullptr, "a '%' format names what its dict lacks");
      text.remove_prefix(end + 1);
    }
    const Field field(text, "-");
    require(!text.empty(), "a '%' format lacks its letter");
    const char letter = text[0];
    text.remove_prefix(1);
    if (letter == '%') {
      out += '%';
      continue;
    }
    if (value == nullptr) {
      require(used < count, "a '%' format needs more values");
      value = values.is_tuple() ? &values.list()[used] : &values;
      ++used;
    }
    field.append(out, *value, letter, field.side == '-', budget);
  }
  append_text(out, text, budget);
  require(values.is_dict() || used == count, "not all values of a '%' format were used");
  return out;
}

}  // namespace nanovllm::jinja
