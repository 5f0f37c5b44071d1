#pragma once
/// Reads and writes the structs of c/nanovllm.h for callers of any version of the header, and
/// converts between its types and those of the library. Everything is copied. Wrong values throw
/// InvalidError or RequestError that names the field.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "nanovllm/c/nanovllm.h"
#include "nanovllm/chat/chat_message.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/utf8.hpp"
#include "nanovllm/engine/request/prompt.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/with/pooling/embedding.hpp"
#include "nanovllm/with/pooling/reranker.hpp"

namespace nanovllm::c_api {

/// NVLLM_ERROR_INVALID.
struct InvalidError : Error {
  using Error::Error;
};
/// NVLLM_ERROR_UNSUPPORTED.
struct UnsupportedError : Error {
  using Error::Error;
};
/// NVLLM_ERROR_BUSY.
struct BusyError : Error {
  using Error::Error;
};

/// No version has a larger struct, so memory beyond this size is never read.
inline constexpr std::size_t kMaxStructSize = 4096;

/// What this file knows of a type: its name, and the size that every version has at least.
template <class Struct>
struct StructTraits;

template <>
struct StructTraits<nvllm_engine_config> {
  static constexpr const char* kName = "nvllm_engine_config";
  static constexpr std::size_t kMinSize = offsetof(nvllm_engine_config, device);
};
template <>
struct StructTraits<nvllm_sampling_params> {
  static constexpr const char* kName = "nvllm_sampling_params";
  static constexpr std::size_t kMinSize = offsetof(nvllm_sampling_params, seed);
};
template <>
struct StructTraits<nvllm_request> {
  static constexpr const char* kName = "nvllm_request";
  static constexpr std::size_t kMinSize = offsetof(nvllm_request, text_size);
};
template <>
struct StructTraits<nvllm_embed_options> {
  static constexpr const char* kName = "nvllm_embed_options";
  static constexpr std::size_t kMinSize = offsetof(nvllm_embed_options, dimensions);
};
template <>
struct StructTraits<nvllm_score_options> {
  static constexpr const char* kName = "nvllm_score_options";
  static constexpr std::size_t kMinSize = offsetof(nvllm_score_options, instruction);
};
template <>
struct StructTraits<nvllm_stats> {
  static constexpr const char* kName = "nvllm_stats";
  static constexpr std::size_t kMinSize = offsetof(nvllm_stats, num_waiting);
};
template <>
struct StructTraits<nvllm_health> {
  static constexpr const char* kName = "nvllm_health";
  static constexpr std::size_t kMinSize = offsetof(nvllm_health, seconds);
};
template <>
struct StructTraits<nvllm_info> {
  static constexpr const char* kName = "nvllm_info";
  static constexpr std::size_t kMinSize = offsetof(nvllm_info, vocab_size);
};

/// Throws InvalidError unless `pointer` is one.
template <class T>
void check_pointer(const T* pointer, const char* name) {
  check<InvalidError>(pointer != nullptr, name, " must not be NULL");
}

/// The size that the caller's header gives a struct. Throws InvalidError for none, and for one that
/// no version has: structs consist of whole 8 bytes, so that a field never lies where an older
/// version has padding.
template <class Struct>
[[nodiscard]] std::size_t checked_size(const Struct* given) {
  using Traits = StructTraits<Struct>;
  check_pointer(given, Traits::kName);
  const std::size_t size = given->struct_size;
  check<InvalidError>(size >= Traits::kMinSize && size <= kMaxStructSize && size % 8 == 0,
                      Traits::kName, ": struct_size must be a multiple of 8 in [", Traits::kMinSize,
                      ", ", kMaxStructSize, "], got ", size, "; sizeof(", Traits::kName,
                      ") of this library is ", sizeof(Struct));
  return size;
}

/// A caller's struct as one of this version. Fields that an older one lacks are zero, the default.
/// Throws UnsupportedError for a newer one with a field set that this version does not know.
template <class Struct>
[[nodiscard]] Struct read_struct(const Struct* given) {
  static_assert(std::is_trivially_copyable_v<Struct> && sizeof(Struct) % 8 == 0);
  const std::size_t size = checked_size(given);
  Struct out{};
  std::memcpy(&out, given, std::min(size, sizeof(Struct)));
  const std::string_view bytes(reinterpret_cast<const char*>(given), size);
  const std::size_t unknown = bytes.find_first_not_of('\0', std::min(size, sizeof(Struct)));
  check<UnsupportedError>(unknown == std::string_view::npos, StructTraits<Struct>::kName, ": byte ",
                          unknown, " is set, of a field after the ", sizeof(Struct),
                          " bytes that this version of the library knows");
  out.struct_size = sizeof(Struct);
  return out;
}

/// Writes as much of `value` as the caller's struct has room for. The rest of it becomes zero, and
/// its `struct_size` the number of bytes that were written.
template <class Struct>
void write_struct(Struct* to, Struct value) {
  static_assert(std::is_trivially_copyable_v<Struct> && sizeof(Struct) % 8 == 0);
  const std::size_t size = checked_size(to);
  value.struct_size = std::min(size, sizeof(Struct));
  auto* const bytes = reinterpret_cast<char*>(to);
  std::memcpy(bytes, &value, value.struct_size);
  std::memset(bytes + value.struct_size, 0, size - value.struct_size);
}

/// A field that is 0 or 1. Throws InvalidError naming it otherwise.
[[nodiscard]] inline bool read_flag(std::int32_t value, const char* name) {
  check<InvalidError>(value == 0 || value == 1, name, " must be 0 or 1, got ", value);
  return value == 1;
}

inline void check_reserved(std::int32_t value, const char* struct_name,
                           const char* field = "reserved") {
  check<UnsupportedError>(value == 0, struct_name, ": ", field, " must be 0, got ", value);
}

/// The longest prefix of `text` that fits into `capacity` bytes with a zero byte after it. Of UTF-8
/// it ends with a whole character.
[[nodiscard]] inline std::string_view fitting(std::string_view text, std::size_t capacity) {
  if (text.size() < capacity) return text;
  const std::string_view cut = text.substr(0, capacity - 1);
  return cut.substr(0, utf8::complete_prefix(cut));
}

/// Writes that prefix and the zero byte; nothing if `capacity` is 0.
inline void copy_text(std::string_view text, char* to, std::size_t capacity) {
  if (capacity == 0) return;
  const std::string_view part = fitting(text, capacity);
  std::memcpy(to, part.data(), part.size());
  to[part.size()] = '\0';
}

/// Throws InvalidError for a count without a list, and for a count that no list can have: one that
/// was never set, or a negative one.
template <class From>
void check_list(const From* from, std::size_t count, const char* name) {
  check<InvalidError>(from != nullptr || count == 0, name, " is NULL, but there should be ", count,
                      " of them");
  constexpr std::size_t kMost = std::size_t{1} << 31;
  check<InvalidError>(count <= kMost, "there can be at most ", kMost, " ", name, ", got ", count);
}

/// A caller's list as a vector.
template <class To, class From>
[[nodiscard]] std::vector<To> read_list(const From* from, std::size_t count, const char* name) {
  check_list(from, count, name);
  std::vector<To> out;
  out.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    if constexpr (std::is_pointer_v<From>)
      check<InvalidError>(from[i] != nullptr, "entry ", i, " of ", name, " is NULL");
    out.emplace_back(from[i]);
  }
  return out;
}

[[nodiscard]] inline SamplingParams read_sampling(const nvllm_sampling_params* given) {
  if (given == nullptr) return {};
  const nvllm_sampling_params c = read_struct(given);
  check_reserved(c.reserved, "nvllm_sampling_params");
  SamplingParams out;
  if (read_flag(c.has_seed, "has_seed")) out.seed = c.seed;
  if (read_flag(c.has_temperature, "has_temperature")) out.temperature = c.temperature;
  if (c.top_p != 0) out.top_p = c.top_p;
  if (c.top_k != 0) out.top_k = c.top_k;
  if (read_flag(c.has_min_p, "has_min_p")) out.min_p = c.min_p;
  if (c.repetition_penalty != 0) out.repetition_penalty = c.repetition_penalty;
  out.frequency_penalty = c.frequency_penalty;
  out.presence_penalty = c.presence_penalty;
  if (c.n != 0) out.n = c.n;
  if (c.max_tokens != 0) out.max_tokens = c.max_tokens;
  out.min_tokens = c.min_tokens;
  out.ignore_eos = read_flag(c.ignore_eos, "ignore_eos");
  out.skip_special_tokens = !read_flag(c.keep_special_tokens, "keep_special_tokens");
  out.include_stop_str_in_output =
      read_flag(c.include_stop_str_in_output, "include_stop_str_in_output");
  if (read_flag(c.has_logprobs, "has_logprobs")) out.logprobs = c.logprobs;
  out.priority = c.priority;
  out.stop = read_list<std::string>(c.stop, c.num_stop, "stop");
  out.stop_token_ids = read_list<TokenId>(c.stop_token_ids, c.num_stop_token_ids, "stop_token_ids");
  out.allowed_token_ids =
      read_list<TokenId>(c.allowed_token_ids, c.num_allowed_token_ids, "allowed_token_ids");
  out.bad_words = read_list<std::string>(c.bad_words, c.num_bad_words, "bad_words");
  check_list(c.logit_bias, c.num_logit_bias, "logit_bias");
  for (std::size_t i = 0; i < c.num_logit_bias; ++i)
    out.logit_bias.push_back({.token = c.logit_bias[i].token, .bias = c.logit_bias[i].bias});
  return out;
}

namespace detail {

[[nodiscard]] inline Prompt read_unsalted_prompt(const nvllm_request& c) {
  const int given = (c.text != nullptr) + (c.token_ids != nullptr) + (c.messages != nullptr);
  check<InvalidError>(given == 1, "nvllm_request must have exactly one of text, token_ids and ",
                      "messages, got ", given);
  check<InvalidError>(c.enable_thinking >= -1 && c.enable_thinking <= 1,
                      "enable_thinking must be -1, 0 or 1, got ", c.enable_thinking);
  if (c.messages == nullptr) {
    check<InvalidError>(c.tools == nullptr && c.enable_thinking == 0,
                        "tools and enable_thinking go with messages alone");
    if (c.token_ids != nullptr)
      return read_list<TokenId>(c.token_ids, c.num_token_ids, "token_ids");
    return c.text_size != 0 ? std::string_view(c.text, c.text_size) : std::string_view(c.text);
  }
  ChatPrompt chat{parse_messages(parse_json(c.messages, "messages"))};
  join_text_parts(chat.messages);
  if (c.tools != nullptr) chat.options.tools = parse_tools(parse_json(c.tools, "tools"));
  if (c.enable_thinking != 0) chat.options.enable_thinking = c.enable_thinking == 1;
  return chat;
}

}  // namespace detail

/// The prompt of a request, after `read_struct`.
[[nodiscard]] inline Prompt read_prompt(const nvllm_request& c) {
  check_reserved(c.reserved, "nvllm_request");
  check_reserved(c.reserved_2, "nvllm_request", "reserved_2");
  Prompt prompt = detail::read_unsalted_prompt(c);
  if (c.cache_salt == nullptr) return prompt;
  prompt.cache_salt = c.cache_salt;
  check<InvalidError>(!prompt.cache_salt.empty(), "cache_salt must be NULL or not empty");
  return prompt;
}

namespace detail {

/// A count of which 0 is unset.
[[nodiscard]] inline std::optional<std::size_t> read_count(std::int64_t value, const char* name) {
  check<InvalidError>(value >= 0, name, " must be 0 or more, got ", value);
  return value == 0 ? std::nullopt : std::optional(static_cast<std::size_t>(value));
}

}  // namespace detail

[[nodiscard]] inline EmbedOptions read_embed_options(const nvllm_embed_options* given) {
  if (given == nullptr) return {};
  const nvllm_embed_options c = read_struct(given);
  return {.normalize = !read_flag(c.keep_length, "keep_length"),
          .dimensions = detail::read_count(c.dimensions, "dimensions"),
          .max_prompt_tokens = detail::read_count(c.max_prompt_tokens, "max_prompt_tokens"),
          .priority = c.priority};
}

[[nodiscard]] inline ScoreOptions read_score_options(const nvllm_score_options* given) {
  if (given == nullptr) return {};
  const nvllm_score_options c = read_struct(given);
  ScoreOptions out;
  if (c.instruction != nullptr) out.instruction = c.instruction;
  if (read_flag(c.has_answers, "has_answers")) {
    out.yes = c.yes;
    out.no = c.no;
  }
  out.max_prompt_tokens = detail::read_count(c.max_prompt_tokens, "max_prompt_tokens");
  out.priority = c.priority;
  return out;
}

}  // namespace nanovllm::c_api
