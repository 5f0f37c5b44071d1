#pragma once
/// HTTP as the service sees it: a request, and the head of a reply. There is no transport in here.

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nanovllm::serve {

/// A request, whole.
struct HttpRequest {
  std::string method = "GET";
  std::string target = "/";  ///< path, and perhaps a query after '?', which is ignored
  std::string body{};
};

/// A target without scheme and host: "/v1/models?a" for "http://host/v1/models?a". Clients may send
/// either form.
[[nodiscard]] inline std::string_view origin_form(std::string_view target) {
  const auto begins_with = [&](std::string_view scheme) {
    return target.size() >= scheme.size() &&
           std::equal(scheme.begin(), scheme.end(), target.begin(), [](char expected, char c) {
             return expected == (c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
           });
  };
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!begins_with(scheme)) continue;
    const std::size_t path = target.find_first_of("/?", scheme.size());
    return path == target.npos || target[path] == '?' ? "/" : target.substr(path);
  }
  return target;
}

/// The path of a target, without its query, with %XX decoded.
[[nodiscard]] inline std::string path_of(std::string_view target) {
  target = origin_form(target);
  target = target.substr(0, target.find('?'));
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  std::string path;
  for (std::size_t i = 0; i < target.size(); ++i) {
    const bool is_coded = target[i] == '%' && i + 2 < target.size() && digit(target[i + 1]) >= 0 &&
                          digit(target[i + 2]) >= 0;
    if (!is_coded) {
      path += target[i];
      continue;
    }
    path += static_cast<char>(digit(target[i + 1]) * 16 + digit(target[i + 2]));
    i += 2;
  }
  return path;
}

/// Status, type and further headers of a reply. Its body comes from an Exchange.
struct HttpHead {
  int status = 200;
  std::string content_type = "application/json";
  bool is_stream = false;  ///< the body comes in pieces, and its length is not known
  std::vector<std::pair<std::string, std::string>> headers{};  ///< e.g. {"Retry-After", "1"}
};

}  // namespace nanovllm::serve
