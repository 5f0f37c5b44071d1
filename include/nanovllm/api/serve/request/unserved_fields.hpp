#pragma once
/// Fields of vLLM and OpenAI that would change an answer and are not served. They are refused by
/// name, but for values that ask for nothing. docs/serving.md lists those that are ignored because
/// they have no effect here.

#include <span>
#include <string_view>

#include "nanovllm/api/serve/request/request_fields.hpp"
#include "nanovllm/core/separate.hpp"

namespace nanovllm::serve {

struct UnservedField {
  std::string_view name;
  std::string_view idle;    ///< the values that ask for nothing: a list in JSON
  std::string_view reason;  ///< what an error says after the name
};

/// Of every body with prompts.
inline constexpr UnservedField kUnservedOfPrompts[] = {
    {"truncation_side", R"(["left"])", "can only be 'left': the last tokens of a prompt are kept"},
    {"padding", R"(["do_not_pad"])", "can only be 'do_not_pad'"},
};

/// Of chats and completions.
inline constexpr UnservedField kUnservedOfGeneration[] = {
    {"audio", "[]", "is not supported: this model answers in text"},
    {"modalities", R"([["text"]])", "can only be ['text']: this model answers in text"},
    {"web_search_options", "[]", "is not supported"},
    {"prompt_embeds", "[]", "is not supported: a prompt is a text or token ids"},
    {"include_reasoning", "[true]", "can only be true: thoughts are a part of the answer"},
    {"thinking_token_budget", "[-1]", "is not supported; max_tokens counts thoughts, too"},
    {"logprob_token_ids", "[[]]",
     "is not supported; ask for the log-probabilities of the likeliest"},
    {"logits_processors", "[[]]", "is not supported in requests"},
    {"vllm_xargs", "[{}]", "is not supported: this server has no extensions"},
    {"kv_transfer_params", "[{}]",
     "is not supported: prompts are computed where they are answered"},
    {"ec_transfer_params", "[{}]",
     "is not supported: prompts are computed where they are answered"},
    {"repetition_detection", "[]", "is not supported"},
    {"watermarking", "[false]", "is not supported"},
    {"return_prompt_text", "[false]", "is not supported; return_token_ids has the prompt's tokens"},
    {"guided_whitespace_pattern", "[]",
     "is not supported; structured_outputs.disable_any_whitespace says what white space JSON has"},
};

/// Of embeddings.
inline constexpr UnservedField kUnservedOfEmbeddings[] = {
    {"embed_dtype", R"(["float32"])", "must be 'float32'"},
    {"endianness", R"(["native", "little"])", "must be 'little'"},
};

/// Of scores and rerankings.
inline constexpr UnservedField kUnservedOfScores[] = {
    {"use_activation", "[true]", "can only be true: a score is a probability"},
};

/// Throws FieldError for the first of `fields` that the body has with a value that is not idle.
void refuse_unserved(const RequestFields& body, std::span<const UnservedField> fields);

}  // namespace nanovllm::serve

#if NANOVLLM_SERVE_BODIES

#include <algorithm>

namespace nanovllm::serve {

NANOVLLM_SERVE_INLINE void refuse_unserved(const RequestFields& body,
                                           std::span<const UnservedField> fields) {
  for (const UnservedField& field : fields) {
    const Json* value = body.find(field.name);
    if (value == nullptr) continue;
    const Json idle = parse_json(field.idle);
    if (std::find(idle.begin(), idle.end(), *value) == idle.end())
      refuse_field(body.path(field.name), field.reason);
  }
}

}  // namespace nanovllm::serve

#endif  // NANOVLLM_SERVE_BODIES
