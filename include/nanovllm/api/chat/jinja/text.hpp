#pragma once
/// The text of a value: `str`, `repr` and `json.dumps` of Python.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/api/chat/jinja/value.hpp"
#include "nanovllm/api/chat/python_text.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/sort.hpp"
#include "nanovllm/core/utf8.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::jinja {

using namespace python;

/// How values are written: `str`, or `json.dumps` with its parameters.
struct Spelling {
  bool json = false, ensure_ascii = false, sort_keys = false;
  std::optional<std::string> indent{};
  std::string item_separator = ", ", key_separator = ": ";
};

/// Writes one value.
class Writer {
 public:
  Writer(std::string& out, const Spelling& spelling, Budget& budget)
      : out_(out), spelling_(spelling), budget_(budget) {}

  void write(const Value& value, int depth = 0) {
    require(depth <= 2 * kMaxValueDepth, "a value that is printed holds itself");
    budget_.charge(1 + value.weight());
    const bool json = spelling_.json;
    switch (value.kind()) {
      case Kind::none: out_ += json ? "null" : "None"; return;
      case Kind::boolean:
        out_ += value.truth() ? (json ? "true" : "True") : (json ? "false" : "False");
        return;
      case Kind::integer: out_ += std::to_string(value.integer()); return;
      case Kind::real:
        return nanovllm::detail::append_python_float(out_, value.real(), json ? "NaN" : "nan",
                                                     json ? "Infinity" : "inf");
      case Kind::big_integer: out_ += value.text(); return;
      case Kind::string: return write_string(value);
      case Kind::dict: return write_dict(value.dict(), depth);
      default: break;
    }
    if (value.is_list()) return write_list(value, depth);
    require(!json, "a value of type '", value.type_name(), "' is not JSON");
    if (value.kind() == Kind::space) {
      out_ += "<Namespace ";
      write_dict(value.dict(), depth + 1);
      out_ += '>';
      return;
    }
    require(value.is_undefined(), "a ", value.type_name(), " has no text");
    out_ += "Undefined";
  }

 private:
  void write_string(const Value& value) {
    budget_.charge_bytes(value.text().size(), out_.size());
    if (spelling_.json) {
      const std::size_t begin = out_.size();
      nanovllm::detail::append_json_string(out_, value.text());
      if (spelling_.ensure_ascii) escape_from(begin);
      return;
    }
    if (value.is_safe()) out_ += "Markup(";
    append_repr(out_, value.text());
    if (value.is_safe()) out_ += ')';
  }

  /// Writes what is not ASCII from `begin` on as \uXXXX.
  void escape_from(std::size_t begin) {
    const std::string plain = out_.substr(begin);
    out_.resize(begin);
    const auto write_unit = [&](char32_t unit) {
      out_ += "\\u";
      nanovllm::detail::append_hex(out_, static_cast<std::uint32_t>(unit), 4);
    };
    for (const std::string_view c : Characters(plain)) {
      const char32_t code = utf8::decode(c, 0).code_point;
      if (code < 0x7f) {
        out_ += static_cast<char>(code);
      } else if (code < 0x10000) {
        write_unit(code);
      } else {
        write_unit(0xd800 + ((code - 0x10000) >> 10));
        write_unit(0xdc00 + ((code - 0x10000) & 0x3ff));
      }
    }
  }

  /// Elements between brackets, on lines of their own if there is an indent.
  template <class WriteOne>
  void write_elements(char open, std::size_t size, const char* close, int depth,
                      const WriteOne& write_one) {
    const auto new_line = [&](int levels) {
      if (!spelling_.indent) return;
      out_ += '\n';
      for (int i = 0; i < levels; ++i) out_ += *spelling_.indent;
    };
    out_ += open;
    for (std::size_t i = 0; i < size; ++i) {
      if (i > 0) out_ += spelling_.item_separator;
      new_line(depth + 1);
      write_one(i);
    }
    if (size > 0) new_line(depth);
    out_ += close;
  }

  void write_list(const Value& value, int depth) {
    const bool view = value.kind() >= Kind::keys;
    const bool plain = value.kind() == Kind::list || value.is_tuple();
    require(plain || (view && !spelling_.json), "a value of type '", value.type_name(),
            "' cannot be printed");
    const List& items = value.list();
    const bool round = value.is_tuple() && !spelling_.json;
    if (view) (out_ += value.type_name()) += '(';
    write_elements(round ? '(' : '[', items.size(),
                   !round              ? "]"
                   : items.size() == 1 ? ",)"
                                       : ")",
                   depth, [&](std::size_t i) { write(items[i], depth + 1); });
    if (view) out_ += ')';
  }

  void write_key(const Value& key, int depth) {
    const bool quoted = spelling_.json && !key.is_string();
    require(!quoted || key.kind() <= Kind::real,
            "keys of JSON are of type str, int, float, bool or None, not '", key.type_name(), "'");
    if (quoted) out_ += '"';
    write(key, depth);
    if (quoted) out_ += '"';
  }

  void write_dict(const Dict& items, int depth) {
    std::vector<const std::pair<Value, Value>*> order;
    for (const auto& item : items) order.push_back(&item);
    if (spelling_.sort_keys) {
      sort_stably(order, [&](const auto* a, const auto* b) {
        return compare(a->first, b->first, budget_) < 0;
      });
    }
    write_elements('{', order.size(), "}", depth, [&](std::size_t i) {
      write_key(order[i]->first, depth + 1);
      out_ += spelling_.key_separator;
      write(order[i]->second, depth + 1);
    });
  }

  std::string& out_;
  const Spelling& spelling_;
  Budget& budget_;
};

inline void append_text(std::string& out, std::string_view text, Budget& budget) {
  budget.charge_bytes(text.size(), out.size());
  out += text;
}

/// Appends what `{{ value }}` prints: Python's str().
inline void append_str(std::string& out, const Value& value, Budget& budget) {
  static const Spelling kStr;
  if (value.is_undefined()) return;
  if (value.is_string())
    append_text(out, value.text(), budget);
  else
    Writer(out, kStr, budget).write(value);
}

inline std::string str(const Value& value, Budget& budget) {
  std::string out;
  append_str(out, value, budget);
  return out;
}

}  // namespace nanovllm::jinja
