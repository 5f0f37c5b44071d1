#pragma once
/// Which tokens end a text, by all files of a checkpoint.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/request/frontend.hpp"
#include "nanovllm/io/checkpoint.hpp"

namespace nanovllm {

/// The end token of the tokeniser: "eos_token" of tokenizer_config.json, or else of
/// special_tokens_map.json, a string or an object with "content". Empty where there is none, and
/// for a file that is no JSON, which the checkpoint is warned of.
[[nodiscard]] std::string tokenizer_end_token(const Checkpoint& checkpoint);

/// The end tokens of `checkpoint`, ascending, each once: those that the model's config names, and
/// the tokeniser's. Where there is neither, the special token with which the chat template ends a
/// turn; a header-only program without chat.hpp cannot read that. The checkpoint is warned of this,
/// and of an end token that the tokeniser or the model does not have.
/// @param named       of config.json and generation_config.json.
/// @param vocab_size  of the model.
[[nodiscard]] std::vector<TokenId> find_end_tokens(const Checkpoint& checkpoint,
                                                   const TextSide& text, std::vector<TokenId> named,
                                                   std::int64_t vocab_size);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <optional>

#include "nanovllm/chat/chat_template.hpp"
#include "nanovllm/core/door.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/model/generation_config.hpp"

namespace nanovllm {

namespace detail {

/// The special token that `turn_end` begins with.
NANOVLLM_INLINE std::optional<TokenId> turn_end_token(const Tokenizer& tokenizer,
                                                      std::string_view turn_end) {
  const std::vector<TokenId> ids = tokenizer.encode(turn_end);
  return !ids.empty() && tokenizer.is_special(ids[0]) ? std::optional(ids[0]) : std::nullopt;
}

}  // namespace detail

NANOVLLM_INLINE std::string tokenizer_end_token(const Checkpoint& checkpoint) {
  for (const char* file : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const auto text = checkpoint.text(file);
    if (!text) continue;
    try {
      const Json json = parse_json<LoadError>(*text, file);
      const Json* found = json.is_object() ? json.find("eos_token") : nullptr;
      if (found != nullptr && found->is_object()) found = found->find("content");
      if (found != nullptr && found->is_string() && !found->string().empty())
        return found->string();
    } catch (const LoadError& error) {
      checkpoint.warn(concat(checkpoint.path_of(file), " is ignored: ", error.what()));
    }
  }
  return {};
}

NANOVLLM_INLINE std::vector<TokenId> find_end_tokens(const Checkpoint& checkpoint,
                                                     const TextSide& text,
                                                     std::vector<TokenId> named,
                                                     std::int64_t vocab_size) {
  if (!text.tokenizer) return named;
  if (const std::string end = tokenizer_end_token(checkpoint); !end.empty()) {
    const auto id = text.tokenizer->token_to_id(end);
    if (id && *id < vocab_size) {
      detail::merge_token_ids({*id}, named);
    } else {
      checkpoint.warn(concat("'eos_token' (", end, ") of the tokeniser is ignored: ",
                             id ? "the model" : "tokenizer.json", " has no such token"));
    }
  }
  if (!named.empty()) return named;
  if (text.chat_template.is_unreadable()) {
    checkpoint.warn(detail::missing_part("an end token that the chat template alone may name",
                                         "nanovllm/chat.hpp"));
  } else if (const auto turn_end_of = detail::turn_end_of_door.load();
             turn_end_of != nullptr && text.chat_template) {
    const auto id = detail::turn_end_token(*text.tokenizer, turn_end_of(*text.chat_template));
    if (id && *id < vocab_size) named.push_back(*id);
  }
  return named;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
