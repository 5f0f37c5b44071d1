/// libFuzzer target: whatever body comes in, it is taken as a request that can be served, or refused
/// with an error of status 400 that is JSON and names a field of the body. Build with clang++
/// -fsanitize=fuzzer,address,undefined.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "api/serve/request/param_path.hpp"
#include "nanovllm/api/chat/jinja_programs.hpp"
#include "nanovllm/api/serve/request/api_error.hpp"
#include "nanovllm/api/serve/request/request_fields.hpp"
#include "nanovllm/api/serve/request/text_requests.hpp"
#include "nanovllm/chat/chat_template.hpp"

namespace nv = nanovllm;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check_rendered(const nv::ChatPrompt& chat) {
  static const nv::ChatTemplate chat_template = nv::ChatTemplate::chatml();
  try {
    (void)chat_template.render(chat.messages, chat.options);
  } catch (const nv::RequestError&) {
    // The template refuses this conversation.
  }
}

void check_constraint(const nv::serve::OutputConstraint& constraint, std::string_view field) {
  using Kind = nv::serve::OutputConstraint::Kind;
  require((constraint.kind == Kind::none) == field.empty());
  if (constraint.kind == Kind::json_schema) require(nv::parse_json(constraint.text).is_object());
  const bool is_calls =
      constraint.kind == Kind::tool_calls || constraint.kind == Kind::free_tool_calls;
  // Calls may come instead of a form, not instead of calls.
  if (constraint.or_tool_calls) require(!is_calls && constraint.kind != Kind::none);
  const bool has_tools = is_calls || constraint.or_tool_calls;
  require(has_tools == !constraint.tools.empty());
}

void check_served(nv::serve::ChatCompletionRequest request) {
  if (!request.max_tokens) request.sampling.max_tokens = std::numeric_limits<std::int32_t>::max();
  nv::validate(request.sampling);
  check_constraint(request.constraint, request.constraint_field);
  check_rendered({request.messages, request.options});
}

void check_served(const nv::serve::CompletionRequest& request) {
  nv::validate(request.sampling);
  check_constraint(request.constraint, request.constraint_field);
  require(!request.prompts.empty());
  require(!request.stream || nv::is_streamed(request.sampling));
}

void check_served(const nv::serve::TokenizeRequest& request) {
  if (const auto* chat = std::get_if<nv::ChatPrompt>(&request.prompt)) check_rendered(*chat);
}

void check_served(const nv::serve::DetokenizeRequest& request) {
  for (const nv::TokenId id : request.tokens) require(id >= 0);
}

template <class Request>
void check_request(const nv::Json& body) {
  try {
    check_served(Request::parse(body));
  } catch (const nv::RequestError& refusal) {
    const auto error = nv::serve::ApiError::of(refusal);
    require(error.status == 400);
    require(nv::parse_json(error.body()).at("error").is_object());
    const bool is_missing = std::string_view(error.what()).ends_with("is missing");
    require(error.param && nv::testing::find_path(body, *error.param, is_missing) != nullptr);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  nv::Json body;
  try {
    body = nv::serve::parse_request_body({reinterpret_cast<const char*>(data), size});
  } catch (const nv::RequestError& refusal) {
    const auto error = nv::serve::ApiError::of(refusal);
    require(error.status == 400 && !error.param);
    return 0;
  }
  check_request<nv::serve::ChatCompletionRequest>(body);
  check_request<nv::serve::CompletionRequest>(body);
  check_request<nv::serve::TokenizeRequest>(body);
  check_request<nv::serve::DetokenizeRequest>(body);
  return 0;
}
