#pragma once
/// What the tests of request bodies share: bodies, and how they are refused.

#include <string>
#include <vector>

#include "catch.hpp"
#include "nanovllm/api/serve/request/api_error.hpp"
#include "nanovllm/api/serve/request/request_fields.hpp"
#include "nanovllm/api/serve/request/text_requests.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::test {

using namespace nanovllm::serve;

inline const std::string kMessages = R"("messages": [{"role": "user", "content": "hi"}])";
inline const std::string kPrompt = R"("prompt": "hi")";
inline const std::string kTools = R"("tools": [{"type": "function", "function": {"name": "f"}},
  {"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}}])";

inline Json with(const std::string& first, const std::string& fields) {
  return parse_request_body("{" + first + (fields.empty() ? "" : ", ") + fields + "}");
}
inline ChatCompletionRequest chat(const std::string& fields) {
  return ChatCompletionRequest::parse(with(kMessages, fields));
}
inline CompletionRequest completion(const std::string& fields) {
  return CompletionRequest::parse(with(kPrompt, fields));
}

/// The answer, of status 400, to what `parse` throws.
template <class Parse>
ApiError refusal(Parse&& parse) {
  try {
    parse();
  } catch (const RequestError& error) {
    const ApiError answer = ApiError::of(error);
    CHECK(answer.status == 400);
    CHECK(answer.type == "invalid_request_error");
    return answer;
  }
  FAIL("nothing was refused");
  throw Error("unreachable");
}

/// A body's fields, the `param` of the error, and what its message says.
struct Refusal {
  std::string fields, param, says;
};

template <class Request>
void check_refused(const std::string& first, const std::vector<Refusal>& table) {
  for (const auto& [fields, param, says] : table) {
    INFO(fields);
    const ApiError error = refusal([&, text = fields] { (void)Request::parse(with(first, text)); });
    CHECK(error.param == param);
    CHECK_THAT(error.what(), Catch::Matchers::Contains(says));
  }
}

/// One message and then `rest`; the second message is the one that is looked at.
inline std::string second_message(const std::string& message) {
  return R"("messages": [{"role": "user", "content": "hi"}, )" + message + "]";
}

}  // namespace nanovllm::test
