/// Laws of tool calls, over texts that are made at random: well-formed ones, ones that lack tags,
/// ones that are cut off, and ones that are damaged.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/chat/chat_parser_laws.hpp"
#include "catch.hpp"
#include "nanovllm/api/chat/chat_parser.hpp"

namespace nv = nanovllm;
using nanovllm_test::content_of;
using nanovllm_test::Events;
using nanovllm_test::Kind;
using nanovllm_test::parse;
using nv::FinishReason;
using nv::Json;
using nv::ToolCallFormat;

namespace {

using Random = std::mt19937;

constexpr ToolCallFormat kFormats[] = {ToolCallFormat::hermes, ToolCallFormat::qwen3_coder};

const Json& schema() {
  static const Json out = nv::parse_json(R"({"type": "object",
    "properties": {
      "text": {"type": "string"}, "color": {"enum": ["red", "a b"]}, "count": {"type": "integer"},
      "level": {"enum": [1, 2]}, "ratio": {"type": "number"}, "flag": {"type": "boolean"},
      "nothing": {"type": "null"}, "tags": {"type": "array", "items": {"type": "string"}},
      "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
      "either": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]},
      "options": {"type": "object", "properties": {"a": {"type": ["boolean", "null"]}},
                  "additionalProperties": {"type": "array", "items": {"type": "number"}}},
      "node": {"allOf": [{"$ref": "#/$defs/node"}]}},
    "additionalProperties": {"$ref": "#/$defs/extra"}, "required": ["text"],
    "$defs": {"extra": {"type": "integer"},
      "node": {"type": "object", "properties": {"value": {"type": "string", "nullable": true},
        "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}}}}})");
  return out;
}

const Json& tools() {
  static const Json out = Json::array(
      {Json::object({{"type", "function"},
                     {"function", Json::object({{"name", "f"}, {"parameters", schema()}})}}),
       Json::object({{"name", "now"}})});
  return out;
}

nv::ChatParserOptions options(ToolCallFormat format,
                              nv::ToolCallMode mode = nv::ToolCallMode::whole) {
  return {.tool_call_format = format, .tools = tools(), .mode = mode};
}

/// Whether a value has the types of a schema; enough of JSON Schema for the one above.
bool conforms(const Json& value, const Json& by) {
  if (const Json* target = by.find("$ref")) {
    const std::string name = target->string().substr(std::string_view("#/$defs/").size());
    return conforms(value, schema()["$defs"][name]);
  }
  const auto is = [&](const Json& type) {
    const std::string& word = type.string();
    if (word == "integer")
      return value.is_number() && value.get<double>() == std::floor(value.get<double>());
    return word == value.type_name();
  };
  if (const Json* type = by.find("type")) {
    bool any = type->is_array() ? std::any_of(type->begin(), type->end(), is) : is(*type);
    any = any || (by.contains("nullable") && value.is_null());
    if (!any) return false;
  }
  if (const Json* values = by.find("enum"))
    if ((*values)[0].is_string() != value.is_string()) return false;
  const auto alternative = [&](const Json& part) { return conforms(value, part); };
  for (const char* key : {"anyOf", "oneOf", "allOf"})
    if (const Json* parts = by.find(key))
      if (std::none_of(parts->begin(), parts->end(), alternative)) return false;
  for (const auto& [key, member] : value.items()) {
    const Json* own = by.contains("properties") ? by["properties"].find(key) : nullptr;
    if (!own) own = by.find("additionalProperties");
    if (own && !conforms(member, *own)) return false;
  }
  for (const Json& element : value)
    if (by.contains("items") && !conforms(element, by["items"])) return false;
  return true;
}

struct Call {
  std::string name;
  Json arguments;
};

/// Makes texts with calls, and knows what they say.
class Writer {
 public:
  Writer(ToolCallFormat format, unsigned seed) : format_(format), random_(seed) {}

  std::size_t below(std::size_t n) { return random_() % n; }
  bool coin() { return below(2) == 0; }

  std::string text() {
    constexpr std::string_view kPieces[] = {"a",
                                            "word ",
                                            "\xC3\xA9",
                                            "\xF0\x9F\x98\x80",
                                            "\n",
                                            " ",
                                            "<",
                                            "</",
                                            "<b>",
                                            "\"",
                                            "\\",
                                            "'",
                                            "</functi",
                                            "{",
                                            "}]",
                                            ",",
                                            ": 1",
                                            "<param",
                                            "x</function>y"};
    std::string out;
    for (std::size_t n = below(8); n > 0; --n) out += kPieces[below(std::size(kPieces))];
    return out;
  }

  Json value_of(const std::string& parameter) {
    if (parameter == "text") return text();
    if (parameter == "color") return coin() ? "red" : "a b";
    if (parameter == "level") return 1 + below(2);
    if (parameter == "ratio") return coin() ? Json(0.5) : Json(-3);
    if (parameter == "flag") return coin();
    if (parameter == "nothing") return nullptr;
    if (parameter == "tags") return Json::array({text(), text()});
    if (parameter == "maybe") return coin() ? Json(nullptr) : Json(7);
    if (parameter == "either") return coin() ? Json("some words") : Json::array({1, 2});
    if (parameter == "options")
      return Json::object({{"a", coin() ? Json(nullptr) : Json(true)}, {"b", Json::array({1.5})}});
    if (parameter == "node") return node(3);
    return static_cast<std::int64_t>(below(1000)) - 500;
  }

  Call call() {
    if (below(5) == 0) return {"now", Json::object()};
    Call out{"f", Json::object()};
    std::vector<std::string> names{"extra"};
    for (const auto& [name, unused] : schema()["properties"].items()) names.push_back(name);
    std::shuffle(names.begin(), names.end(), random_);
    names.resize(below(5));
    for (const std::string& name : names) out.arguments[name] = value_of(name);
    return out;
  }

  /// The text of calls, one after the other, that lack tags if `repaired`.
  std::string write(const std::vector<Call>& calls, bool repaired) {
    return format_ == ToolCallFormat::hermes ? write_hermes(calls, repaired)
                                             : write_coder(calls, repaired);
  }

 private:
  Json node(int depth) {
    Json out = Json::object({{"value", coin() ? Json(nullptr) : Json(text())}});
    if (depth > 0 && coin()) out["children"] = Json::array({node(depth - 1), node(depth - 1)});
    return out;
  }

  std::string write_hermes(const std::vector<Call>& calls, bool repaired) {
    std::string out;
    bool is_open = false;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (!is_open) out += "<tool_call>\n";
      out +=
          Json::object({{"name", calls[i].name}, {"arguments", calls[i].arguments}}).dump() + "\n";
      is_open = repaired && i + 1 < calls.size() && coin();
      const bool lacks_end = repaired && !is_open && coin();
      if (is_open && coin()) out.back() = ',';
      if (!is_open && !lacks_end) out += "</tool_call>\n";
    }
    out.pop_back();
    return out;
  }

  /// Python's repr of a value, as far as the generator makes them.
  static std::string python(const Json& value) {
    if (value.is_null()) return "None";
    if (value.is_boolean()) return value.boolean() ? "True" : "False";
    if (!value.is_string() && !value.is_structured()) return value.dump();
    std::string out;
    if (value.is_string()) {
      for (const char c : value.string())
        out += c == '\n'                ? "\\n"
               : c == '\\' || c == '\'' ? std::string("\\") + c
                                        : std::string(1, c);
      return "'" + out + "'";
    }
    for (const Json& element : value) out += python(element) + ", ";
    if (value.is_array()) return "[" + out.substr(0, out.size() - 2) + "]";
    for (const auto& [key, member] : value.items())
      out += python(key) + ": " + python(member) + ", ";
    return "{" + out + "}";
  }

  std::string write_coder(const std::vector<Call>& calls, bool repaired) {
    std::string out;
    const auto lacks = [&] { return repaired && below(3) == 0; };
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const bool is_last = i + 1 == calls.size();
      out += "<tool_call>\n<function=" + calls[i].name + ">\n";
      for (const auto& [name, value] : calls[i].arguments.items()) {
        out += "<parameter=" + name + ">\n";
        const std::string& own = name;
        const bool may_be_python = repaired && own != "either" && coin();
        out += value.is_string() ? value.string() : may_be_python ? python(value) : value.dump();
        out += lacks() ? "\n" : "\n</parameter>\n";
      }
      const bool lacks_function = lacks();
      if (!lacks_function) out += "</function>\n";
      if (lacks_function || !(is_last && lacks())) out += "</tool_call>\n";
    }
    out.pop_back();
    return out;
  }

  const ToolCallFormat format_;
  Random random_;
};

std::vector<Call> calls_of(const Events& events) {
  std::vector<Call> out;
  for (std::size_t i = 0; i + 2 < events.size(); ++i)
    if (events[i].kind == Kind::tool_call_begin && events[i + 2].kind == Kind::tool_call_arguments)
      out.push_back({events[i + 1].text, nv::parse_json(events[i + 2].text)});
  return out;
}

bool is_same(const Call& a, const Call& b) {
  return a.name == b.name && a.arguments == b.arguments;
}

/// Whether the events are the same for all texts that `text` splits into, in both modes.
bool splits_alike(const std::string& text, ToolCallFormat format, FinishReason reason,
                  Random& random) {
  const std::string_view all = text;
  for (const auto mode : {nv::ToolCallMode::whole, nv::ToolCallMode::incremental}) {
    const nv::ChatParserOptions given = options(format, mode);
    const Events events = parse({all}, given, reason);
    for (std::size_t i = 0; i <= all.size(); ++i)
      if (parse({all.substr(0, i), all.substr(i)}, given, reason) != events) return false;
    for (const unsigned longest : {1u, 3u, 9u, 40u}) {
      std::vector<std::string_view> pieces;
      for (std::size_t begin = 0, size; begin < all.size(); begin += size) {
        size = 1 + random() % longest;
        pieces.push_back(all.substr(begin, size));
      }
      if (parse(pieces, given, reason) != events) return false;
    }
  }
  return true;
}

}  // namespace

TEST_CASE("calls are those that were written, also where tags are missing") {
  Random random(1);
  for (unsigned seed = 0; seed < 400; ++seed) {
    for (const ToolCallFormat format : kFormats) {
      Writer writer(format, seed);
      std::vector<Call> calls;
      for (std::size_t n = 1 + writer.below(3); n > 0; --n) calls.push_back(writer.call());
      const bool repaired = seed % 2 == 1;
      const std::string before = seed % 3 == 0 ? "Let me see.\n" : "";
      const std::string text = before + writer.write(calls, repaired);
      CAPTURE(seed, text);
      const Events events = parse({text}, options(format));
      const std::vector<Call> found = calls_of(events);
      CHECK(content_of(events) == before.substr(0, before.empty() ? 0 : before.size() - 1));
      REQUIRE(found.size() == calls.size());
      for (std::size_t i = 0; i < calls.size(); ++i) CHECK(is_same(found[i], calls[i]));
      if (seed % 40 < 2) REQUIRE(splits_alike(text, format, FinishReason::stop, random));
    }
  }
}

TEST_CASE(
    "of a text that is cut off, the calls before the cut are the same, and the rest is there") {
  Random random(2);
  for (unsigned seed = 0; seed < 30; ++seed) {
    for (const ToolCallFormat format : kFormats) {
      Writer writer(format, seed);
      const std::string first = writer.write({writer.call(), writer.call()}, seed % 2 == 1);
      const std::string text = first + "\nThat is all.";
      const std::vector<Call> whole =
          calls_of(parse({text}, options(format), FinishReason::length));
      for (std::size_t i = 0; i <= text.size(); ++i) {
        const std::string cut = text.substr(0, i);
        const Events events = parse({cut}, options(format), FinishReason::length);
        const std::vector<Call> found = calls_of(events);
        CAPTURE(seed, cut);
        REQUIRE(found.size() <= whole.size());
        for (std::size_t k = 0; k < found.size(); ++k) REQUIRE(is_same(found[k], whole[k]));
        if (found.empty()) REQUIRE(content_of(events) == cut);
        // A text that ends there by itself may have one more, with no value that was cut.
        const std::vector<Call> more = calls_of(parse({cut}, options(format)));
        REQUIRE(more.size() <= found.size() + 1);
        if (more.size() == found.size()) continue;
        for (const auto& [name, value] : more.back().arguments.items())
          REQUIRE(text.find(name, cut.rfind("<tool_call>")) < cut.size());
      }
      if (seed < 2)
        for (std::size_t i = 0; i < text.size(); i += 11)
          REQUIRE(splits_alike(text.substr(0, i), format, FinishReason::length, random));
    }
  }
}

TEST_CASE("a call with a value of another type is content, whole") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    for (const ToolCallFormat format : kFormats) {
      Writer writer(format, seed);
      Call call = writer.call();
      call.name = "f";
      constexpr std::pair<const char*, const char*> kWrong[] = {
          {"count", "1.5"},          {"count", "{}"},
          {"level", "\"high\""},     {"ratio", "[1]"},
          {"flag", "\"perhaps\""},   {"nothing", "false"},
          {"tags", "[1]"},           {"tags", "{}"},
          {"maybe", "\"x\""},        {"options", "{\"a\": 1}"},
          {"options", "{\"c\": 1}"}, {"node", "{\"children\": [{\"value\": 1}]}"},
          {"extra", "\"x\""}};
      const auto& [name, json] = kWrong[writer.below(std::size(kWrong))];
      call.arguments[name] = nv::parse_json(json);
      const std::string text = writer.write({call}, false);
      CAPTURE(seed, text);
      REQUIRE_FALSE(conforms(call.arguments, schema()));
      CHECK(content_of(parse({text}, options(format))) == text);
    }
  }
}

TEST_CASE("a damaged text splits alike, and gives calls of the right types or what it is") {
  Random random(3);
  const std::vector<std::string> scraps = {"<tool_call>",
                                           "</tool_call>",
                                           "<function=f>",
                                           "</function>",
                                           "<function=now>",
                                           "<parameter=text>",
                                           "</parameter>",
                                           "<parameter=count>",
                                           "\n",
                                           "{",
                                           "}",
                                           "[",
                                           "]",
                                           ",",
                                           "\"",
                                           "'",
                                           "1",
                                           "None",
                                           "\xF0",
                                           "<",
                                           " "};
  for (unsigned seed = 0; seed < 900; ++seed) {
    for (const ToolCallFormat format : kFormats) {
      Writer writer(format, seed);
      std::string text = writer.write({writer.call(), writer.call()}, seed % 2 == 1);
      for (std::size_t n = 1 + writer.below(3); n > 0; --n) {
        const std::size_t at = writer.below(text.size() + 1);
        if (writer.coin()) text.erase(at, writer.below(9));
        if (writer.coin()) text.insert(at, scraps[writer.below(scraps.size())]);
      }
      CAPTURE(seed, text);
      const Events events = parse({text}, options(format));
      REQUIRE(nanovllm_test::is_well_formed(events, false));
      const std::vector<Call> calls = calls_of(events);
      for (const Call& call : calls) {
        if (call.name == "f")
          REQUIRE(conforms(call.arguments, schema()));
        else
          REQUIRE(call.name == "now");
      }
      if (calls.empty()) REQUIRE(content_of(events) == text);
      if (seed % 40 == 0) REQUIRE(splits_alike(text, format, FinishReason::stop, random));
    }
  }
}
