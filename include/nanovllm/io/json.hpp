#pragma once
/// JSON: one value type (json_value.hpp), its text (json_writer.hpp) and a reader.
///
/// The files that a checkpoint consists of and the messages of a conversation are read into this.
/// `read_json` (json_reader.hpp) reports what a text says without building values, for the long
/// files.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/json_reader.hpp"
#include "nanovllm/io/json_value.hpp"
#include "nanovllm/io/json_writer.hpp"

namespace nanovllm {

/// Builds a value from a reader's events. Of equal keys in an object the last value counts, in the
/// place of the first, as in Python.
class JsonBuilder : public JsonEvents {
 public:
  /// The whole value; once, after the events.
  [[nodiscard]] Json take() { return std::move(root_); }

  void scalar(Json&& value) override { put(std::move(value)); }
  void string(std::string& text) override;
  void key(std::string& text) override;
  void begin_object() override;
  void end_object() override;
  void begin_array() override;
  void end_array() override { open_.pop_back(); }

 private:
  Json& put(Json&& value);

  Json root_;
  std::vector<Json*> open_;  // the containers being read, outermost first
};

/// Reads one JSON document. Throws JsonError.
[[nodiscard]] Json parse_json_value(std::string_view text);

/// Reads one JSON document, strict UTF-8 included, as Python's `json.loads` does, except for what
/// is refused: NaN and Infinity, lone surrogates, numbers beyond a double's range, and nesting
/// deeper than kMaxJsonDepth. Throws `E` whose message begins with `what`.
template <class E = RequestError>
[[nodiscard]] Json parse_json(std::string_view text, std::string_view what = "the text") {
  try {
    return parse_json_value(text);
  } catch (const JsonError& error) {
    throw E(concat(what, " is ", error.what()));
  }
}

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <cstddef>

#include "nanovllm/core/sort.hpp"

namespace nanovllm {

NANOVLLM_INLINE Json& JsonBuilder::put(Json&& value) {
  if (open_.empty()) return root_ = std::move(value);
  Json& parent = *open_.back();
  if (parent.is_object()) return parent.data_.object->back().value = std::move(value);
  return parent.data_.array->emplace_back(std::move(value));
}

NANOVLLM_INLINE void JsonBuilder::string(std::string& text) { put(std::move(text)); }

NANOVLLM_INLINE void JsonBuilder::key(std::string& text) {
  open_.back()->data_.object->push_back({std::move(text), nullptr});
}

NANOVLLM_INLINE void JsonBuilder::begin_object() { open_.push_back(&put(Json::object())); }

NANOVLLM_INLINE void JsonBuilder::begin_array() { open_.push_back(&put(Json::array())); }

NANOVLLM_INLINE void JsonBuilder::end_object() {
  Json::Object& members = *open_.back()->data_.object;
  open_.pop_back();
  // Equal keys are found by sorting: a search for each key would take quadratic time.
  const auto order =
      stable_order(members.size(), [&](auto a, auto b) { return members[a].key < members[b].key; });
  std::vector<bool> repeated(members.size());
  bool any = false;
  for (std::size_t i = 0, first = 0; i < order.size(); ++i) {
    if (i == 0 || members[order[i]].key != members[order[first]].key) {
      first = i;
      continue;
    }
    members[order[first]].value = std::move(members[order[i]].value);
    repeated[order[i]] = any = true;
  }
  if (!any) return;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (repeated[i]) continue;
    if (kept != i) members[kept] = std::move(members[i]);
    ++kept;
  }
  members.erase(members.begin() + static_cast<std::ptrdiff_t>(kept), members.end());
}

NANOVLLM_INLINE Json parse_json_value(std::string_view text) {
  JsonBuilder builder;
  read_json(text, builder);
  return builder.take();
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
