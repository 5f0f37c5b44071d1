#pragma once
/// The values of JSON Schema's `format`, as regular expressions.

#include <optional>
#include <string>
#include <string_view>

namespace nanovllm::json_schema {

/// A regular expression for strings of a format: every string that it matches has the format. Empty
/// for a format that JSON Schema defines and that has none here; unset for a name that JSON Schema
/// does not define, which says nothing of what is valid.
[[nodiscard]] inline std::optional<std::string> format_pattern(std::string_view format) {
  // The days that each month has; the 29th of February in years that four divides, centuries aside.
  const std::string day_of_year =
      "((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|"
      "02-(0[1-9]|1\\d|2[0-8]))";
  // Years begin with 0001, as calendars of most languages do.
  const std::string year = "(000[1-9]|00[1-9]\\d|0[1-9]\\d\\d|[1-9]\\d{3})";
  const std::string leap_day = "(0[1-9]|[1-9]\\d)(0[48]|[2468][048]|[13579][26])-02-29";
  const std::string date = "(" + year + "-" + day_of_year + "|" + leap_day + ")";
  const std::string time =
      "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)";
  const std::string label = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";
  const std::string byte = "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
  const std::string word = "[0-9a-fA-F]{1,4}";
  if (format == "date") return date;
  if (format == "time") return time;
  if (format == "date-time") return date + "T" + time;
  if (format == "duration") {
    const std::string clock = "T(\\d+H(\\d+M(\\d+S)?)?|\\d+M(\\d+S)?|\\d+S)";
    const std::string days = "(\\d+Y(\\d+M(\\d+D)?)?|\\d+M(\\d+D)?|\\d+D)";
    return "P(" + days + "(" + clock + ")?|" + clock + "|\\d+W)";
  }
  if (format == "email" || format == "idn-email")
    return "[a-zA-Z0-9_+-]{1,16}(\\.[a-zA-Z0-9_+-]{1,15}){0,3}@" + label + "(\\." + label +
           "){1,3}";
  if (format == "hostname" || format == "idn-hostname") return label + "(\\." + label + "){0,3}";
  if (format == "ipv4") return "(" + byte + "\\.){3}" + byte;
  if (format == "ipv6") {
    // All eight words, or fewer around one gap.
    std::string out = "(" + word + ":){7}" + word;
    for (int before = 0; before <= 6; ++before) {
      out += "|";
      for (int i = 0; i < before; ++i) out += (i ? ":" : "") + word;
      out += "::";
      const int after = 6 - before;
      if (after > 0) {
        out += "(" + word + "(:" + word + "){0," + std::to_string(after - 1) + "})?";
      }
    }
    return out;
  }
  if (format == "uuid") {
    const std::string hex = "[0-9a-fA-F]";
    return hex + "{8}-" + hex + "{4}-" + hex + "{4}-" + hex + "{4}-" + hex + "{12}";
  }
  const std::string in_path = "([a-zA-Z0-9._~!$&'()*+,;=:@\\-]|%[0-9a-fA-F]{2})";
  const std::string behind_path = "([a-zA-Z0-9._~!$&'()*+,;=:@/?\\-]|%[0-9a-fA-F]{2})*";
  const std::string begin =
      "[a-zA-Z][a-zA-Z0-9+.\\-]*://" + label + "(\\." + label + ")*(:\\d{1,4})?";
  const std::string end = "(\\?" + behind_path + ")?(#" + behind_path + ")?";
  const std::string uri = begin + "(/" + in_path + "*)*" + end;
  if (format == "uri" || format == "iri") return uri;
  if (format == "uri-reference" || format == "iri-reference")
    return "(" + uri + "|(/" + in_path + "+)+/?" + end + ")";
  if (format == "json-pointer") return "(/([^~/]|~[01])*)*";
  if (format == "relative-json-pointer") return "(0|[1-9]\\d{0,8})(#|(/([^~/]|~[01])*)*)";
  if (format == "regex" || format == "uri-template") return std::string();
  return std::nullopt;
}

}  // namespace nanovllm::json_schema
