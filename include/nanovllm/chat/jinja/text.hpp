#pragma once
/// The text of a value: `str`, `repr` and `json.dumps` of Python.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/chat/jinja/value.hpp"
#include "nanovllm/chat/python_text.hpp"
#include "nanovllm/core/error.hpp"
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
    check<RequestError>(depth <= 2 * kMaxValueDepth, "a value that is printed holds itself");
    budget_.charge(1 + value.weight());
    switch (value.kind()) {
      case Kind::none: out_ += json() ? "null" : "None"; return;
      case Kind::boolean:
        out_ += value.truth() ? (json() ? "true" : "True") : (json() ? "false" : "False");
        return;
      case Kind::integer: out_ += std::to_string(value.integer()); return;
      case Kind::real:
        nanovllm::detail::append_python_float(out_, value.real(), json() ? "NaN" : "nan",
                                              json() ? "Infinity" : "inf");
        return;
      case Kind::big_integer: out_ += value.text(); return;
      case Kind::string: write_string(value.text(), value.is_safe()); return;
      case Kind::list: return write_list(value, depth);
      case Kind::dict: return write_dict(value.dict().items, depth);
      default: break;
    }
    check<RequestError>(!json(), "a value of type '", value.type_name(), "' is not JSON");
    if (value.kind() == Kind::space) return write_space(value.space(), depth);
    check<RequestError>(value.is_undefined(), "a ", value.type_name(), " has no text");
    out_ += "Undefined";
  }

 private:
  [[nodiscard]] bool json() const { return spelling_.json; }

  void write_string(std::string_view text, bool safe = false) {
    budget_.charge_bytes(text.size(), out_.size());
    if (!json()) {
      if (safe) out_ += "Markup(";
      append_repr(out_, text);
      if (safe) out_ += ')';
      return;
    }
    const std::size_t begin = out_.size();
    nanovllm::detail::append_json_string(out_, text);
    if (!spelling_.ensure_ascii) return;
    const std::string plain = out_.substr(begin);
    out_.resize(begin);
    for (std::size_t i = 0; i < plain.size();) {
      const utf8::Char c = utf8::decode(plain, i);
      i += c.size;
      if (c.code_point < 0x7f)
        out_ += static_cast<char>(c.code_point);
      else if (c.code_point < 0x10000)
        write_unit(c.code_point);
      else {
        write_unit(0xd800 + ((c.code_point - 0x10000) >> 10));
        write_unit(0xdc00 + ((c.code_point - 0x10000) & 0x3ff));
      }
    }
  }

  void write_unit(char32_t unit) {
    out_ += "\\u";
    nanovllm::detail::append_hex(out_, static_cast<std::uint32_t>(unit), 4);
  }

  /// What stands ahead of the element `index`, or with `last` behind all of `index`.
  void separate(std::size_t index, int depth, bool last = false) {
    if (index > 0 && !last) out_ += spelling_.item_separator;
    if (!spelling_.indent || (last && index == 0)) return;
    out_ += '\n';
    for (int i = last ? 0 : -1; i < depth; ++i) out_ += *spelling_.indent;
  }

  void write_list(const Value& value, int depth) {
    const Sequence type = value.sequence();
    const bool plain = type <= Sequence::tuple;
    check<RequestError>(
        plain || (!json() && type != Sequence::generator && type != Sequence::range),
        "a value of type '", value.type_name(), "' cannot be printed");
    const auto& items = value.list().items;
    if (!plain) (out_ += value.type_name()) += '(';
    out_ += type == Sequence::tuple && !json() ? '(' : '[';
    for (std::size_t i = 0; i < items.size(); ++i) {
      separate(i, depth);
      write(items[i], depth + 1);
    }
    separate(items.size(), depth, true);
    if (type == Sequence::tuple && !json())
      out_ += items.size() == 1 ? ",)" : ")";
    else
      out_ += ']';
    if (!plain) out_ += ')';
  }

  void write_key(const Value& key, int depth) {
    if (!json() || key.is_string()) return write(key, depth);
    check<RequestError>(key.kind() < Kind::string && !key.is_undefined(), "keys of JSON are of ",
                        "type str, int, float, bool or None, not '", key.type_name(), "'");
    out_ += '"';
    write(key, depth);
    out_ += '"';
  }

  void write_dict(const std::vector<std::pair<Value, Value>>& items, int depth) {
    std::vector<const std::pair<Value, Value>*> order;
    for (const auto& item : items) order.push_back(&item);
    if (spelling_.sort_keys) {
      std::stable_sort(order.begin(), order.end(), [&](const auto* a, const auto* b) {
        return compare(a->first, b->first, budget_) < 0;
      });
    }
    out_ += '{';
    for (std::size_t i = 0; i < order.size(); ++i) {
      separate(i, depth);
      write_key(order[i]->first, depth + 1);
      out_ += spelling_.key_separator;
      write(order[i]->second, depth + 1);
    }
    separate(order.size(), depth, true);
    out_ += '}';
  }

  void write_space(const Space& space, int depth) {
    std::vector<std::pair<Value, Value>> items;
    for (const auto& [name, value] : space.items) items.emplace_back(Value::of(name), value);
    out_ += "<Namespace ";
    write_dict(items, depth + 1);
    out_ += '>';
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
  if (value.is_undefined()) return;
  if (value.is_string()) {
    return append_text(out, value.text(), budget);
  }
  static const Spelling kStr;
  Writer(out, kStr, budget).write(value);
}

inline std::string str(const Value& value, Budget& budget) {
  std::string out;
  append_str(out, value, budget);
  return out;
}

}  // namespace nanovllm::jinja
