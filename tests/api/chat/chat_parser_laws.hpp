#pragma once
/// What holds of ChatParser for any text, for tests and the fuzzer.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/api/chat/chat_parser.hpp"

namespace nanovllm_test {

namespace nv = nanovllm;
using Kind = nv::ChatEvent::Kind;
using Events = std::vector<nv::ChatEvent>;

/// The events with neighbours of one kind and call as one.
inline Events joined(const Events& events) {
  Events out;
  for (const nv::ChatEvent& event : events) {
    const bool goes_on = !out.empty() && out.back().kind == event.kind &&
                         out.back().tool_call == event.tool_call &&
                         event.kind != Kind::tool_call_begin;
    if (goes_on)
      out.back().text += event.text;
    else
      out.push_back(event);
  }
  return out;
}

/// The events of a text in pieces, joined.
inline Events parse(const std::vector<std::string_view>& pieces,
                    const nv::ChatParserOptions& options,
                    nv::FinishReason reason = nv::FinishReason::stop) {
  nv::ChatParser parser(options);
  Events out;
  for (const std::string_view piece : pieces)
    for (nv::ChatEvent& event : parser.push(piece)) out.push_back(std::move(event));
  for (nv::ChatEvent& event : parser.finish(reason)) out.push_back(std::move(event));
  return joined(out);
}

/// Events as a test reads them: "think[…] text[…] call0 name[…] args[…] end0".
inline std::string spelt(const Events& events) {
  std::string out;
  for (const nv::ChatEvent& event : events) {
    if (!out.empty()) out += ' ';
    const std::string call = std::to_string(event.tool_call), text = "[" + event.text + "]";
    switch (event.kind) {
      case Kind::reasoning: out += "think" + text; break;
      case Kind::content: out += "text" + text; break;
      case Kind::tool_call_begin: out += "call" + call; break;
      case Kind::tool_call_name: out += "name" + text; break;
      case Kind::tool_call_arguments: out += "args" + text; break;
      case Kind::tool_call_end: out += "end" + call; break;
    }
  }
  return out;
}

inline std::string content_of(const Events& events) {
  std::string out;
  for (const nv::ChatEvent& event : events)
    if (event.kind == Kind::content) out += event.text;
  return out;
}

inline bool is_json_object(std::string_view text) {
  try {
    return nv::parse_json_value(text).is_object();
  } catch (const nv::JsonError&) {
    return false;
  }
}

/// Whether calls are numbered in order, are begun, named and ended in turn, and have arguments that
/// are JSON; a call without its end only where `may_break`.
inline bool is_well_formed(const Events& events, bool may_break) {
  int num_calls = 0;
  std::optional<std::string> arguments;  // of the call that is open
  bool is_named = false;
  for (const nv::ChatEvent& event : events) {
    if (event.kind == Kind::reasoning || event.kind == Kind::content) {
      if (event.text.empty() || event.tool_call != 0) return false;
      if (arguments && !may_break) return false;
      arguments.reset();
      continue;
    }
    if (event.kind == Kind::tool_call_begin) {
      if ((arguments && !may_break) || event.tool_call != num_calls++) return false;
      arguments = "";
      is_named = false;
      continue;
    }
    if (!arguments || event.tool_call != num_calls - 1) return false;
    if (event.kind == Kind::tool_call_name) {
      if (event.text.empty() || is_named) return false;
      is_named = true;
    } else if (event.kind == Kind::tool_call_arguments) {
      if (!is_named) return false;
      *arguments += event.text;
    } else {
      if (!is_named || (!may_break && !is_json_object(*arguments))) return false;
      arguments.reset();
    }
  }
  return !arguments || may_break;
}

/// Reads a text in Hermes' form in another way than the parser does: as events of whole calls, where
/// content is there as it is, and a call is JSON with blanks, tags and brackets around it.
class SecondReading {
 public:
  SecondReading(std::string_view text, const Events& events) : text_(text), events_(events) {}

  /// Whether the text from `pos` on is what the events from `event` on say.
  bool says(std::size_t event, std::size_t pos) {
    if (!tried_.insert({event, pos}).second) return false;
    const std::string_view rest = text_.substr(pos);
    if (event == events_.size() && rest.empty()) return true;
    const bool is_content = event < events_.size() && events_[event].kind == Kind::content;
    if (is_content && rest.starts_with(events_[event].text) &&
        says(event + 1, pos + events_[event].text.size()))
      return true;
    if (event < events_.size() && !is_content) {
      const std::size_t end = end_of_call(event, pos);
      if (end != text_.npos && says(event + 4, end)) return true;
    }
    const bool is_near_call =
        (event < events_.size() && !is_content) || (event > 0 && events_[event - 1].text.empty());
    if (!is_near_call || rest.empty()) return false;
    for (const std::string_view tag : {kBegin, kEnd})
      if (rest.starts_with(tag) && says(event, pos + tag.size())) return true;
    const bool is_dropped = std::string_view(" \n\t\r,[]").find(rest[0]) != rest.npos;
    if (is_dropped && says(event, pos + 1)) return true;
    return event == events_.size() && kEnd.starts_with(rest);  // a tag that has begun
  }

 private:
  static constexpr std::string_view kBegin = "<tool_call>", kEnd = "</tool_call>";

  /// Where an object ends that begins at `pos` and is this call; npos if there is none.
  std::size_t end_of_call(std::size_t event, std::size_t pos) const {
    if (pos >= text_.size() || text_[pos] != '{' || event + 3 >= events_.size()) return text_.npos;
    const std::string &name = events_[event + 1].text, &arguments = events_[event + 2].text;
    for (std::size_t end = text_.find('}', pos); end != text_.npos;
         end = text_.find('}', end + 1)) {
      const std::string_view call = text_.substr(pos, end + 1 - pos);
      if (!is_json_object(call)) continue;
      const nv::Json json = nv::parse_json_value(call);
      const nv::Json* given = json.find("arguments");
      if (given == nullptr) given = json.find("parameters");
      nv::Json value = given && !given->is_null() ? *given : nv::Json::object();
      if (value.is_string()) value = nv::parse_json_value(value.string());
      const bool is_this = json.contains("name") && json["name"] == nv::Json(name) &&
                           value == nv::parse_json_value(arguments);
      return is_this ? end + 1 : text_.npos;
    }
    return text_.npos;
  }

  const std::string_view text_;
  const Events& events_;
  std::set<std::pair<std::size_t, std::size_t>> tried_;
};

/// Whether nothing is lost of a text in Hermes' form, nor told twice. For texts without thoughts and
/// tools without schemas; true for those that may nest too deeply for the second reading.
inline bool says(std::string_view text, const Events& events) {
  const auto is_bracket = [](char c) { return c == '{' || c == '['; };
  if (std::count_if(text.begin(), text.end(), is_bracket) > nv::kMaxJsonDepth - 1) return true;
  return SecondReading(text, events).says(0, 0);
}

}  // namespace nanovllm_test
