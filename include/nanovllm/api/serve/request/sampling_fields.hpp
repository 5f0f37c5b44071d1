#pragma once
/// The fields of sampling, by OpenAI's names and vLLM's.

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include "nanovllm/api/serve/request/api_error.hpp"
#include "nanovllm/api/serve/request/request_fields.hpp"
#include "nanovllm/sampling/sampling_json.hpp"
#include "nanovllm/sampling/sampling_params.hpp"

namespace nanovllm::serve {

/// The field that asks for a beam search, if one does.
[[nodiscard]] inline const char* beam_field_of(const RequestFields& body) {
  return body.has("beam_width") ? "beam_width" : "use_beam_search";
}

namespace detail {

/// Fields of a search with beams, which only completions have.
inline constexpr std::string_view kBeamFields[] = {"best_of", "beam_width", "length_penalty",
                                                   "early_stopping"};
/// Fields that chats and completions read in ways of their own, and one that they do not have.
inline constexpr std::string_view kOwnFields[] = {"max_tokens", "logprobs", "prompt_logprobs"};
inline constexpr std::string_view kAbsentField = "logprob_token_ids";

inline bool is_one_of(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

inline void read_field(const SamplingField& field, const RequestFields& body,
                       SamplingParams& params) {
  if (const Json* value = body.find(field.name))
    read_sampling_field(field, *value, body.path(field.name), params);
}

}  // namespace detail

/// Whether bodies have the field of SamplingParams of that name: those of completions, or chats'.
[[nodiscard]] inline bool is_sampling_field_of(std::string_view name, bool is_chat) {
  return name != detail::kAbsentField && !(is_chat && detail::is_one_of(detail::kBeamFields, name));
}

/// The fields that chat completions and completions share: those of SamplingParams by their names,
/// but for max_tokens, log-probabilities and beam search. Throws FieldError.
[[nodiscard]] inline SamplingParams parse_sampling(const RequestFields& body) {
  SamplingParams params;
  for (const SamplingField& field : kSamplingFields) {
    if (is_sampling_field_of(field.name, true) &&
        !detail::is_one_of(detail::kOwnFields, field.name))
      detail::read_field(field, body, params);
  }
  if (body.has("allowed_token_ids") && params.allowed_token_ids.empty())
    refuse_field(body.path("allowed_token_ids"), "must not be empty");
  return params;
}

/// The fields that only completions have: best_of, use_beam_search, beam_width, length_penalty,
/// early_stopping. With use_beam_search the beams are beam_width, else best_of, else n. Throws
/// FieldError.
inline void parse_beam_search(const RequestFields& body, SamplingParams& params) {
  for (const std::string_view name : detail::kBeamFields)
    detail::read_field(*find_sampling_field(name), body, params);
  if (!body.flag("use_beam_search")) return;
  if (!params.beam_width && params.best_of && *params.best_of < params.n)
    refuse_field(body.path("best_of"),
                 concat("must be at least n = ", params.n, ", got ", *params.best_of));
  if (!params.beam_width) params.beam_width = params.best_of.value_or(params.n);
  params.best_of.reset();
}

/// Throws RequestError for fields that cannot be combined; the rules are those of validate().
inline void check_sampling(const RequestFields& body, const SamplingParams& params) {
  try {
    validate(params);
  } catch (const RequestError& error) {
    // The message begins with the name of a field, which need not be the one that was sent.
    const std::string message = in_own_name(error.what(), "beam_width", beam_field_of(body));
    std::string_view name = std::string_view(message).substr(0, message.find_first_of(" :"));
    if (!body.has(name) && name == "length_penalty") name = "early_stopping";
    if (!body.has(name)) throw RequestError(message);
    throw FieldError(message, body.path(name));
  }
}

}  // namespace nanovllm::serve
