#pragma once
/// A field that has one or more prompts: OpenAI's `prompt` of completions, `input` of embeddings.

#include <cstddef>
#include <string>
#include <vector>

#include "nanovllm/api/serve/request/request_fields.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/request/prompt.hpp"

namespace nanovllm::serve {

/// A text, a list of texts, token ids, or a list of those; none of them is empty. Throws
/// RequestError for anything else, and for more than `max_prompts`.
[[nodiscard]] std::vector<Prompt> parse_prompts(const RequestFields& body, const std::string& key,
                                                std::size_t max_prompts);

}  // namespace nanovllm::serve

#if NANOVLLM_SERVE_BODIES

namespace nanovllm::serve {

namespace detail {

/// A text or token ids, either not empty.
NANOVLLM_SERVE_INLINE Prompt read_prompt(const Json& value, const std::string& path) {
  if (value.empty() || (value.is_string() && value.string().empty()))
    refuse_field(path, "must not be empty");
  if (value.is_string()) return value.string();
  return token_ids_at(value, path);
}

}  // namespace detail

NANOVLLM_SERVE_INLINE std::vector<Prompt> parse_prompts(const RequestFields& body,
                                                        const std::string& key,
                                                        std::size_t max_prompts) {
  const Json& value = body.required(key);
  if (!value.is_string() && !value.is_array())
    wrong_field(key, "a string, a list of token ids, or a list of those", value);
  const bool is_list =
      value.is_array() && !value.empty() && (value[0].is_string() || value[0].is_array());
  std::vector<Prompt> prompts;
  if (!is_list) {
    prompts.push_back(detail::read_prompt(value, key));
    return prompts;
  }
  if (value.size() > max_prompts)
    refuse_field(key, concat("must have at most ", max_prompts, " prompts, got ", value.size()));
  for (const Json& element : value) {
    const std::string path = element_path(key, prompts.size());
    if (element.kind() != value[0].kind())
      wrong_field(path, "of the same type as the first prompt", element);
    prompts.push_back(detail::read_prompt(element, path));
  }
  return prompts;
}

}  // namespace nanovllm::serve

#endif  // NANOVLLM_SERVE_BODIES
