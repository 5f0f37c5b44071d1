#pragma once
/// What holds of ChatParser for any text, for tests and the fuzzer.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/chat/chat_parser.hpp"

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
                    const nv::ChatParserOptions& options) {
  nv::ChatParser parser(options);
  Events out;
  for (const std::string_view piece : pieces)
    for (nv::ChatEvent& event : parser.push(piece)) out.push_back(std::move(event));
  for (nv::ChatEvent& event : parser.finish()) out.push_back(std::move(event));
  return joined(out);
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

/// Whether `text` is what the events of whole calls in Hermes' form say, read in another way than
/// the parser does: content is there as it is, calls as JSON in their tags, with blanks around
/// them. For texts without thoughts; true for those that may nest too deeply for that other way.
inline bool says(std::string_view text, const Events& events) {
  const auto skip_blanks = [](std::string_view rest) {
    rest.remove_prefix(std::min(rest.find_first_not_of(" \n\t\r"), rest.size()));
    return rest;
  };
  const auto is_bracket = [](char c) { return c == '{' || c == '['; };
  if (std::count_if(text.begin(), text.end(), is_bracket) > nv::kMaxJsonDepth - 1) return true;
  constexpr std::string_view kBegin = "<tool_call>", kEnd = "</tool_call>";
  bool is_behind_call = false;
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (events[i].kind == Kind::content) {
      if (!text.starts_with(events[i].text)) return false;
      text.remove_prefix(events[i].text.size());
      is_behind_call = false;
      continue;
    }
    if (is_behind_call)
      text = skip_blanks(text);
    else if (text.starts_with('\n'))
      text.remove_prefix(1);
    if (!text.starts_with(kBegin) || i + 3 >= events.size()) return false;
    const std::string &name = events[i + 1].text, &arguments = events[i + 2].text;
    i += 3;
    // A string may hold the tag; what is between the right ones is JSON.
    bool found = false;
    for (std::size_t end = text.find(kEnd); !found && end != text.npos;
         end = text.find(kEnd, end + 1)) {
      const std::string_view call = text.substr(kBegin.size(), end - kBegin.size());
      if (call.starts_with('\xEF') || !is_json_object(call)) continue;
      const nv::Json json = nv::parse_json_value(call);
      const nv::Json* given = json.find("arguments");
      if (given == nullptr) given = json.find("parameters");
      nv::Json value = given && !given->is_null() ? *given : nv::Json::object();
      if (value.is_string()) value = nv::parse_json_value(value.string());
      if (json.at("name").string() != name || !(value == nv::parse_json_value(arguments)))
        return false;
      text.remove_prefix(end + kEnd.size());
      found = is_behind_call = true;
    }
    if (!found) return false;
  }
  return is_behind_call ? skip_blanks(text).empty() : text.empty();
}

}  // namespace nanovllm_test
