#pragma once
/// From what a request asks for to what an engine takes, or an error that names the field.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/chat/chat_parser.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/engine/prompt.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/serve/chat_request.hpp"
#include "nanovllm/serve/output_constraint.hpp"

namespace nanovllm::serve {

/// The model's tokeniser. Throws ApiError (400) where there is none.
[[nodiscard]] const Tokenizer& tokenizer_of(const AnyEngine& engine);

/// The text of a prompt that is a text or messages. Throws ApiError (400) that names `field` where
/// there is no chat template, or it refuses the messages.
[[nodiscard]] std::string prompt_text(const TextSide& text, const Prompt& prompt,
                                      std::string_view field);

/// The tokens of a prompt. Throws ApiError (400) that names `field`: with the code
/// context_length_exceeded and both numbers where there are too many.
[[nodiscard]] std::vector<TokenId> prompt_tokens(const AnyEngine& engine, const Prompt& prompt,
                                                 std::string_view field);

/// Throws ApiError (400), context_length_exceeded, where `max_tokens` do not fit behind the prompt.
void check_max_tokens(const AnyEngine& engine, std::size_t num_prompt_tokens,
                      std::int32_t max_tokens);

/// Throws ApiError (400) that names the field where one of the token ids that a request states, in
/// its prompts or for sampling, is none of the model's.
void check_token_ids(const AnyEngine& engine, std::span<const std::vector<TokenId>> prompts,
                     const SamplingParams& params);

/// How the answer to a chat is to be read.
/// @param format  in which form the model writes calls of tools.
[[nodiscard]] ChatParserOptions answer_format(const AnyEngine& engine,
                                              const ChatCompletionRequest& request,
                                              ToolCallFormat format, bool parse_reasoning);

/// Whether the answer goes on with a message of the conversation, in the midst of a thought.
[[nodiscard]] bool continues_thought(const AnyEngine& engine, const ChatCompletionRequest& request);

/// Whether the answer to a chat begins with a thought, so that a constraint holds behind it alone.
/// A model of the Qwen3 family thinks where its template lets it. With plain ChatML it is asked to,
/// by `enable_thinking`, or nothing is known.
[[nodiscard]] bool expects_thought(ChatTemplateKind kind, const ChatOptions& options);

}  // namespace nanovllm::serve

#if NANOVLLM_BODIES
#include "nanovllm/serve/admission.inc"
#endif
