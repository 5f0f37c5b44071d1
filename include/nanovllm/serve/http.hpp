#pragma once
/// HTTP as the protocol sees it: what came, and the head of what goes back. No transport in here.

#include <string>
#include <utility>
#include <vector>

namespace nanovllm::serve {

/// A request, whole.
struct HttpRequest {
  std::string method = "GET";
  std::string target = "/";  ///< path, and perhaps a query behind '?', which nothing looks at
  std::string body{};
};

/// Status, type and further headers of a reply. Its body comes from an Exchange.
struct HttpHead {
  int status = 200;
  std::string content_type = "application/json";
  bool is_stream = false;  ///< the body comes bit by bit, and its length is not known
  std::vector<std::pair<std::string, std::string>> headers{};  ///< e.g. {"Retry-After", "1"}
};

}  // namespace nanovllm::serve
