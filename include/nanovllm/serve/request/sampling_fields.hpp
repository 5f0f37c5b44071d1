#pragma once
/// The fields of sampling, by OpenAI's names and vLLM's.

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/serve/request/request_fields.hpp"

namespace nanovllm::serve {

/// The fields that chat completions and completions share: temperature, top_p, top_k, min_p,
/// repetition_penalty, frequency_penalty, presence_penalty, logit_bias, allowed_token_ids,
/// bad_words, seed, n, min_tokens, ignore_eos, stop, stop_token_ids, include_stop_str_in_output,
/// skip_special_tokens and priority. Throws ApiError, also for cache_salt: requests share one
/// prefix cache, and a client that asks for its own must not believe that it has one.
[[nodiscard]] SamplingParams parse_sampling(const RequestFields& body);

/// The fields that only completions have: best_of, use_beam_search, beam_width, length_penalty,
/// early_stopping. With use_beam_search the beams are beam_width, else best_of, else n. Throws
/// ApiError.
void parse_beam_search(const RequestFields& body, SamplingParams& params);

/// Throws ApiError for fields that cannot be combined; the rules are those of validate().
void check_sampling(const RequestFields& body, const SamplingParams& params);

}  // namespace nanovllm::serve

#if NANOVLLM_BODIES

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <span>
#include <system_error>
#include <type_traits>

#include "nanovllm/io/json_fields.hpp"

namespace nanovllm::serve {

namespace detail {

// `read_into` reads a value into a member of SamplingParams. `range` is of the numbers; of lists of
// texts its end is their largest number.

NANOVLLM_INLINE void read_into(bool& field, const Json& value, const std::string& path,
                               NumberRange) {
  if (!value.is_boolean()) wrong_field(path, "true or false", value);
  field = value.boolean();
}

NANOVLLM_INLINE void read_into(float& field, const Json& value, const std::string& path,
                               NumberRange range) {
  field = number_at(value, path, range);
}

NANOVLLM_INLINE void read_into(std::int32_t& field, const Json& value, const std::string& path,
                               NumberRange range) {
  field = static_cast<std::int32_t>(integer_at(value, path, static_cast<std::int64_t>(range.low),
                                               static_cast<std::int64_t>(range.high)));
}

/// A seed: any integer of 64 bits, signed or not, as its bits.
NANOVLLM_INLINE void read_into(std::uint64_t& field, const Json& value, const std::string& path,
                               NumberRange) {
  if (value.is_number_unsigned()) {
    field = value.get<std::uint64_t>();
  } else {
    const auto number = JsonFields::as_integer(value);
    if (!number) wrong_field(path, "an integer of 64 bits", value);
    field = static_cast<std::uint64_t>(*number);
  }
}

NANOVLLM_INLINE void read_into(std::vector<TokenId>& field, const Json& value,
                               const std::string& path, NumberRange) {
  field = token_ids_at(value, path);
}

/// One text, or a list of them.
NANOVLLM_INLINE void read_into(std::vector<std::string>& field, const Json& value,
                               const std::string& path, NumberRange range) {
  static_assert(kMaxStopStringBytes == kMaxBadWordBytes);
  const auto add = [&](const Json& element, const std::string& element_path) {
    const std::string& text = string_at(element, element_path);
    if (text.empty()) refuse_field(element_path, "must not be empty");
    if (text.size() > kMaxStopStringBytes)
      refuse_field(element_path,
                   concat("must have at most ", kMaxStopStringBytes, " bytes, got ", text.size()));
    field.push_back(text);
  };
  if (value.is_string()) return add(value, path);
  if (!value.is_array()) wrong_field(path, "a string or a list of strings", value);
  const auto most = static_cast<std::size_t>(range.high);
  if (value.size() > most)
    refuse_field(path, concat("must have at most ", most, " strings, got ", value.size()));
  for (const Json& element : value) add(element, element_path(path, field.size()));
}

/// An object from token ids to numbers.
NANOVLLM_INLINE void read_into(std::vector<TokenBias>& field, const Json& value,
                               const std::string& path, NumberRange range) {
  if (!value.is_object()) wrong_field(path, "an object from token ids to numbers", value);
  if (value.size() > kMaxLogitBiases)
    refuse_field(path,
                 concat("must have at most ", kMaxLogitBiases, " tokens, got ", value.size()));
  for (const auto& [key, bias] : value.items()) {
    TokenBias one;
    const char* const end = key.data() + key.size();
    const auto [stop, error] = std::from_chars(key.data(), end, one.token);
    if (error != std::errc{} || stop != end || one.token < 0)
      wrong_field(path, "an object whose keys are token ids", key);
    if (!bias.is_number()) wrong_field(path, "an object from token ids to numbers", bias);
    one.bias = number_at(bias, path, range);
    field.push_back(one);
  }
}

/// As in transformers.
NANOVLLM_INLINE void read_into(EarlyStopping& field, const Json& value, const std::string& path,
                               NumberRange) {
  if (value.is_boolean()) {
    field = value.boolean() ? EarlyStopping::yes : EarlyStopping::no;
  } else if (value.is_string() && value.string() == "never") {
    field = EarlyStopping::never;
  } else {
    wrong_field(path, "true, false or \"never\"", value);
  }
}

template <class T>
void read_into(std::optional<T>& field, const Json& value, const std::string& path,
               NumberRange range) {
  read_into(field.emplace(), value, path, range);
}

/// A field of a request that is a member of SamplingParams.
struct SamplingField {
  const char* name;
  NumberRange range;
  void (*read)(SamplingParams& params, const Json& value, const std::string& path,
               NumberRange range);
};

template <auto kMember>
constexpr SamplingField sampling_field(const char* name, NumberRange range = {}) {
  return {
      name, range,
      [](SamplingParams& params, const Json& value, const std::string& path,
         NumberRange range_of_field) { read_into(params.*kMember, value, path, range_of_field); }};
}

inline constexpr double kMinInt32 = std::numeric_limits<std::int32_t>::min();
inline constexpr double kMaxInt32 = std::numeric_limits<std::int32_t>::max();

inline constexpr std::array kSamplingFields = {
    sampling_field<&SamplingParams::temperature>("temperature", {0, 1e6}),
    sampling_field<&SamplingParams::top_k>("top_k", {-1, kMaxInt32}),
    sampling_field<&SamplingParams::top_p>("top_p", {0, 1, true}),
    sampling_field<&SamplingParams::min_p>("min_p", {0, 1}),
    sampling_field<&SamplingParams::repetition_penalty>("repetition_penalty", {0, FLT_MAX, true}),
    sampling_field<&SamplingParams::frequency_penalty>("frequency_penalty", {-2, 2}),
    sampling_field<&SamplingParams::presence_penalty>("presence_penalty", {-2, 2}),
    sampling_field<&SamplingParams::logit_bias>("logit_bias", {-100, 100}),
    sampling_field<&SamplingParams::allowed_token_ids>("allowed_token_ids"),
    sampling_field<&SamplingParams::bad_words>("bad_words", {0, kMaxBadWords}),
    sampling_field<&SamplingParams::seed>("seed"),
    sampling_field<&SamplingParams::n>("n", {1, kMaxSamples}),
    sampling_field<&SamplingParams::min_tokens>("min_tokens", {0, kMaxInt32}),
    sampling_field<&SamplingParams::ignore_eos>("ignore_eos"),
    sampling_field<&SamplingParams::stop>("stop", {0, kMaxStopStrings}),
    sampling_field<&SamplingParams::stop_token_ids>("stop_token_ids"),
    sampling_field<&SamplingParams::include_stop_str_in_output>("include_stop_str_in_output"),
    sampling_field<&SamplingParams::skip_special_tokens>("skip_special_tokens"),
    sampling_field<&SamplingParams::priority>("priority", {kMinInt32, kMaxInt32}),
};

inline constexpr std::array kBeamFields = {
    sampling_field<&SamplingParams::best_of>("best_of", {1, kMaxSamples}),
    sampling_field<&SamplingParams::beam_width>("beam_width", {1, kMaxSamples}),
    sampling_field<&SamplingParams::length_penalty>("length_penalty"),
    sampling_field<&SamplingParams::early_stopping>("early_stopping"),
};

NANOVLLM_INLINE void read_fields(std::span<const SamplingField> table, const RequestFields& body,
                                 SamplingParams& params) {
  for (const SamplingField& field : table) {
    if (const Json* value = body.find(field.name))
      field.read(params, *value, body.path(field.name), field.range);
  }
}

}  // namespace detail

NANOVLLM_INLINE SamplingParams parse_sampling(const RequestFields& body) {
  body.refuse("cache_salt", "is not supported: all requests share one prefix cache");
  SamplingParams params;
  detail::read_fields(detail::kSamplingFields, body, params);
  if (body.has("allowed_token_ids") && params.allowed_token_ids.empty())
    refuse_field(body.path("allowed_token_ids"), "must not be empty");
  return params;
}

NANOVLLM_INLINE void parse_beam_search(const RequestFields& body, SamplingParams& params) {
  detail::read_fields(detail::kBeamFields, body, params);
  if (!body.flag("use_beam_search")) return;
  if (!params.beam_width) params.beam_width = params.best_of.value_or(params.n);
  params.best_of.reset();
}

NANOVLLM_INLINE void check_sampling(const RequestFields& body, const SamplingParams& params) {
  try {
    validate(params);
  } catch (const RequestError& error) {
    // The message begins with the name of a field, which need not be the one that was sent.
    const std::string_view message = error.what();
    std::string_view name = message.substr(0, message.find_first_of(" :"));
    if (!body.has(name) && name == "beam_width") name = "use_beam_search";
    if (!body.has(name) && name == "length_penalty") name = "early_stopping";
    throw ApiError(400, error.what(),
                   body.has(name) ? std::optional(body.path(name)) : std::nullopt);
  }
}

}  // namespace nanovllm::serve

#endif  // NANOVLLM_BODIES
