#pragma once
/// Admission: from what a caller submits to a request that the engine can serve, or an error.

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/chat/chat_template.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/engine/inbox.hpp"
#include "nanovllm/engine/prompt.hpp"
#include "nanovllm/engine/request.hpp"
#include "nanovllm/model/generation_config.hpp"
#include "nanovllm/model/model.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nanovllm {

/// The text side of a checkpoint: what turns prompts into tokens and tokens into text.
struct TextSide {
  std::optional<Tokenizer> tokenizer{};
  std::optional<ChatTemplate> chat_template{};
  std::string no_chat_template{};  ///< why there is none

  /// Reads tokenizer.json and the chat template of `directory`, where `hints` and the directory
  /// have them. A template that is missing or unknown is an error only for requests that need it;
  /// `chat_template`, if given, takes its place. Throws LoadError for a broken tokeniser.
  [[nodiscard]] static TextSide load(const std::filesystem::path& directory, const TextHints& hints,
                                     const std::optional<ChatTemplate>& chat_template);
};

/// Which fields of SamplingParams an engine does something about. Requests that set others are
/// refused.
struct HonouredFields {
  /// Penalties, logit_bias, logprob_token_ids and prompt_logprobs: the executor has open steps.
  bool edits = true;
  bool functor = true;  ///< there is a LogitsFunctor, and open steps
  bool min_tokens = true, allowed_token_ids = true, bad_words = true, token_masks = true;

  template <class Processors>
  [[nodiscard]] static HonouredFields of(bool edits_logits, bool has_functor) {
    return {.edits = edits_logits,
            .functor = edits_logits && has_functor,
            .min_tokens = Processors::template kHas<MinTokensProcessor>,
            .allowed_token_ids = Processors::template kHas<AllowedTokensProcessor>,
            .bad_words = Processors::template kHas<BadWordsProcessor>,
            .token_masks = Processors::template kHas<TokenMaskProcessor>};
  }
};

/// What admission needs to know of the model and of the engine's sizes.
struct AdmissionRules {
  std::int64_t vocab_size = 0;
  std::vector<TokenId> eos_token_ids{};
  GenerationConfig defaults{};        ///< of sampling, from the checkpoint
  std::int64_t max_model_len = 0;     ///< tokens of a sequence at the most: the model's context
  std::int64_t max_total_tokens = 0;  ///< the same, and what the KV pool holds and one more
  std::uint64_t seed = 0;             ///< of requests without their own
  std::string refusal{};              ///< not empty: why this engine takes no requests at all
  HonouredFields honoured{};
  /// The policy's logits processors for a new sequence.
  decltype(SequenceTerms::make_processors) make_processors = SequenceTerms{}.make_processors;
};

/// Makes requests and puts them into the inbox. Thread-safe: encoding runs on the caller's thread.
class Frontend {
 public:
  Frontend(TextSide text, AdmissionRules rules, Inbox& inbox);

  [[nodiscard]] const TextSide& text() const { return text_; }
  [[nodiscard]] const AdmissionRules& rules() const { return rules_; }

  /// Queues a request. Throws RequestError for one that can never be served.
  /// @param continues  a held sequence that it goes on from and leaves its blocks to; null for
  /// none.
  std::shared_ptr<Request> submit(const Prompt& prompt, const SamplingParams& params,
                                  TokenCallback callback,
                                  std::shared_ptr<Sequence> continues = nullptr);

  /// The tokens of `prompt`. Throws RequestError where it has none for want of a tokeniser or of a
  /// chat template.
  [[nodiscard]] std::vector<TokenId> encode(const Prompt& prompt) const;

  /// Throws RequestError unless `tokens` may be a prompt.
  void check_prompt(const std::vector<TokenId>& tokens) const;

 private:
  /// Prompt tokens at the most: one generated token must fit behind them.
  [[nodiscard]] std::int64_t max_prompt_tokens() const { return rules_.max_total_tokens - 1; }

  /// Throws RequestError for fields of `params` that are out of the model's range, or that nothing
  /// would be done about.
  void check_rules(const SamplingParams& params) const;

  [[nodiscard]] std::vector<std::vector<TokenId>> encode_bad_words(
      const std::vector<std::string>& words) const;

  void check_length(std::int64_t count) const;

  void check_tokens(const std::vector<TokenId>& tokens, const char* where) const;

  /// Throws RequestError unless the samplers can list the candidates of a beam search.
  void check_beams(const SequenceTerms& terms, std::size_t num_prompt_tokens) const;

  /// A text that is too long is refused, with a ContextLengthError, without being encoded as a whole.
  [[nodiscard]] std::vector<TokenId> encode(const std::string& text) const;

  [[nodiscard]] SequenceTerms make_terms(const SamplingParams& params, RequestId id,
                                         std::size_t num_prompt_tokens) const;

  [[nodiscard]] std::uint64_t request_seed(RequestId id) const;

  TextSide text_;
  AdmissionRules rules_;
  Inbox& inbox_;
  std::atomic<RequestId> next_id_{1};
};

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/engine/frontend.inc"
#endif
