#pragma once
/// Admission: from what a caller submits to a request that the engine can serve, or an error.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "nanovllm/chat/chat_template.hpp"
#include "nanovllm/chat/lazy_chat_template.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/request/inbox.hpp"
#include "nanovllm/engine/request/output.hpp"
#include "nanovllm/engine/request/prompt.hpp"
#include "nanovllm/engine/request/request.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/kv/prefix/cache_salt.hpp"
#include "nanovllm/model/generation_config.hpp"
#include "nanovllm/model/model.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nanovllm {

/// The text side of a checkpoint: what turns prompts into tokens and tokens into text.
struct TextSide {
  std::optional<Tokenizer> tokenizer{};
  LazyChatTemplate chat_template{};

  /// Reads tokenizer.json and the chat template of `checkpoint`, where `hints` and the checkpoint
  /// have them. A template that is missing or unknown is an error only for requests that need it;
  /// `chat_template`, if given, takes its place. Throws LoadError for a broken tokeniser.
  [[nodiscard]] static TextSide load(const Checkpoint& checkpoint, const TextHints& hints,
                                     const std::optional<ChatTemplate>& chat_template);
};

/// Which fields of SamplingParams an engine does something about. Requests that set others are
/// refused.
struct HonouredFields {
  /// Penalties, logit_bias, logprob_token_ids and prompt_logprobs: the executor has deferred steps.
  bool edits = true;
  bool functor = true;  ///< there is a LogitsFunctor, and deferred steps
  bool pooler = true;   ///< the network and the executor give hidden states
  bool tokens = true;   ///< the model has a head for tokens; without it all needs a pooler
};

/// What admission needs to know of the model and of the engine's sizes.
struct AdmissionRules {
  std::int64_t vocab_size = 0;
  std::vector<TokenId> eos_token_ids{};
  GenerationConfig defaults{};        ///< of sampling, from the checkpoint
  std::int64_t max_model_len = 0;     ///< most tokens of a sequence: the model's context
  std::int64_t max_total_tokens = 0;  ///< the same, and what the KV pool holds and one more
  std::uint64_t seed = 0;             ///< of requests without their own
  std::string refusal{};              ///< not empty: why this engine takes no requests at all
  HonouredFields honoured{};
  /// The policy's logits processors for a new sequence.
  decltype(SequenceTerms::make_processors) make_processors = SequenceTerms{}.make_processors;
  /// What a sequence needs that is not among them, or null.
  const char* (*missing_processor)(const LogitsProcessorSetup&) =
      &StandardLogitsProcessors<>::missing_in<StandardLogitsProcessors<>>;
};

/// Inside a `catch`: the output of a request that `Frontend::submit` refused, whatever it threw.
/// Throws std::bad_alloc on.
[[nodiscard]] Output output_of_refusal();

/// Makes requests and puts them into the inbox. Thread-safe: encoding runs on the caller's thread.
class Frontend {
 public:
  Frontend(TextSide text, AdmissionRules rules, Inbox& inbox);

  [[nodiscard]] const TextSide& text() const { return text_; }
  [[nodiscard]] const AdmissionRules& rules() const { return rules_; }

  /// Queues a request. Throws RequestError for one that can never be served.
  std::shared_ptr<Request> submit(const Prompt& prompt, const SamplingParams& params,
                                  TokenCallback callback);

  /// The same for tokens that continue others.
  /// @param continues  see Sequence::continues.
  std::shared_ptr<Request> submit(std::vector<TokenId> prompt, const CacheSalt& salt,
                                  const SamplingParams& params, TokenCallback callback,
                                  std::shared_ptr<Sequence> continues);

  /// Of `prompt.cache_salt`. Throws RequestError if that is too long.
  [[nodiscard]] static CacheSalt salt_of(const Prompt& prompt);

  /// The tokens of `prompt`; of a text, with those that the tokeniser adds to a text. Throws
  /// RequestError where it has none for want of a tokeniser or of a chat template.
  /// @param adds_tokens  false: of a text that continues another, without them.
  [[nodiscard]] std::vector<TokenId> encode(const Prompt& prompt, bool adds_tokens = true,
                                            const std::stop_token& stop = {}) const;

  /// Throws RequestError unless `tokens` may be a prompt.
  void check_prompt(const std::vector<TokenId>& tokens) const;

  /// Throws RequestError unless all are tokens of the model.
  /// @param where  they are, for the error.
  void check_tokens(const std::vector<TokenId>& tokens, const char* where) const;

 private:
  /// The most tokens of a prompt: one generated token must fit after them.
  [[nodiscard]] std::int64_t max_prompt_tokens() const { return rules_.max_total_tokens - 1; }

  /// Throws RequestError unless requests with these settings can be served.
  void check_params(const SamplingParams& params) const;

  /// Throws RequestError for fields of `params` that are out of the model's range, or that nothing
  /// would be done about.
  void check_rules(const SamplingParams& params) const;

  /// Submits a request whose `params` were checked.
  std::shared_ptr<Request> queue(std::vector<TokenId> prompt, const CacheSalt& salt,
                                 const SamplingParams& params, TokenCallback callback,
                                 std::shared_ptr<Sequence> continues);

  [[nodiscard]] std::vector<std::vector<TokenId>> encode_bad_words(
      const std::vector<std::string>& words) const;

  void check_length(std::int64_t count) const;

  /// A text that is too long is refused, with a ContextLengthError, without being encoded as a
  /// whole.
  [[nodiscard]] std::vector<TokenId> encode_text(const std::string& text, bool adds_tokens,
                                                 const std::stop_token& stop) const;

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

#include <algorithm>
#include <exception>
#include <new>
#include <utility>
#include <variant>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/sampling/resolve.hpp"

namespace nanovllm {

NANOVLLM_INLINE TextSide TextSide::load(const Checkpoint& checkpoint, const TextHints& hints,
                                        const std::optional<ChatTemplate>& chat_template) {
  TextSide out;
  if (hints.has_tokenizer && checkpoint.text("tokenizer.json"))
    out.tokenizer.emplace(Tokenizer::from_checkpoint(checkpoint));
  if (!chat_template && !hints.has_chat_template) {
    out.chat_template = LazyChatTemplate("this model has no chat template");
  } else {
    try {
      out.chat_template =
          LazyChatTemplate::from_files(ChatTemplateFiles::read(checkpoint), chat_template);
    } catch (const Error& error) {
      out.chat_template = LazyChatTemplate(error.what());
    }
  }
  return out;
}

NANOVLLM_INLINE Output output_of_refusal() {
  Output out;
  out.finish_reason = FinishReason::error;
  try {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (...) {  // what a constraint or a logits processor throws when it is made, too
    out.error = message_of(std::current_exception());
  }
  return out;
}

NANOVLLM_INLINE Frontend::Frontend(TextSide text, AdmissionRules rules, Inbox& inbox)
    : text_(std::move(text)), rules_(std::move(rules)), inbox_(inbox) {}

NANOVLLM_INLINE std::shared_ptr<Request> Frontend::submit(const Prompt& prompt,
                                                          const SamplingParams& params,
                                                          TokenCallback callback) {
  check_params(params);
  const CacheSalt salt = salt_of(prompt);
  return queue(encode(prompt), salt, params, std::move(callback), nullptr);
}

NANOVLLM_INLINE std::shared_ptr<Request> Frontend::submit(std::vector<TokenId> prompt,
                                                          const CacheSalt& salt,
                                                          const SamplingParams& params,
                                                          TokenCallback callback,
                                                          std::shared_ptr<Sequence> continues) {
  check_params(params);
  return queue(std::move(prompt), salt, params, std::move(callback), std::move(continues));
}

NANOVLLM_INLINE CacheSalt Frontend::salt_of(const Prompt& prompt) {
  check<RequestError>(prompt.cache_salt.size() <= kMaxCacheSaltBytes,
                      "cache_salt must have at most ", kMaxCacheSaltBytes, " bytes, got ",
                      prompt.cache_salt.size());
  return CacheSalt::of(prompt.cache_salt);
}

NANOVLLM_INLINE void Frontend::check_params(const SamplingParams& params) const {
  check<RequestError>(rules_.refusal.empty(), rules_.refusal);
  validate(params);
  check_tokens(params.stop_token_ids, "stop_token_ids");
  check_rules(params);
  check<RequestError>(params.stop.empty() || text_.tokenizer,
                      "stop strings need a tokeniser, and the checkpoint has no tokenizer.json");
}

NANOVLLM_INLINE std::shared_ptr<Request> Frontend::queue(std::vector<TokenId> tokens,
                                                         const CacheSalt& salt,
                                                         const SamplingParams& params,
                                                         TokenCallback callback,
                                                         std::shared_ptr<Sequence> continues) {
  check_prompt(tokens);
  const RequestId id = next_id_.fetch_add(1, std::memory_order_relaxed);
  SequenceTerms terms = make_terms(params, id, tokens.size());
  auto request =
      std::make_shared<Request>(id, std::move(terms), std::move(tokens),
                                text_.tokenizer ? &*text_.tokenizer : nullptr, std::move(callback));
  if (salt) request->set_salt(salt);
  if (continues) request->continue_from(std::move(continues));
  inbox_.submit(request);
  return request;
}

NANOVLLM_INLINE void Frontend::check_rules(const SamplingParams& params) const {
  check_tokens(params.allowed_token_ids, "allowed_token_ids");
  check_tokens(params.logprob_token_ids, "logprob_token_ids");
  for (const TokenBias& bias : params.logit_bias) check_tokens({bias.token}, "logit_bias");
  check<RequestError>(params.bad_words.empty() || text_.tokenizer,
                      "bad_words need a tokeniser, and the checkpoint has no tokenizer.json");
  const bool has_end =
      !params.stop_token_ids.empty() || (!params.ignore_eos && !rules_.eos_token_ids.empty());
  if (params.token_masks) {
    // Of a model without end tokens the text ends where it is complete.
    check<RequestError>(has_end || (rules_.eos_token_ids.empty() && !params.beam_width),
                        "token_masks need an end token: the checkpoint's, without "
                        "ignore_eos, or stop_token_ids");
    const int vocab_size = params.token_masks->vocab_size();
    check<RequestError>(vocab_size >= 1 && vocab_size <= rules_.vocab_size,
                        "token_masks are for a vocabulary of ", vocab_size,
                        " tokens, but the model has ", rules_.vocab_size);
  }
  const auto needs = [](bool is_honoured, bool is_set, const char* field, const char* what) {
    check<RequestError>(is_honoured || !is_set, field, " needs ", what);
  };
  const HonouredFields& honoured = rules_.honoured;
  constexpr const char* kDeferredSteps =
      "an executor with deferred steps, which the policy's is not (EditingExecutorLike)";
  needs(honoured.edits, params.repetition_penalty.value_or(1) != 1, "repetition_penalty",
        kDeferredSteps);
  needs(honoured.edits, params.frequency_penalty != 0, "frequency_penalty", kDeferredSteps);
  needs(honoured.edits, params.presence_penalty != 0, "presence_penalty", kDeferredSteps);
  needs(honoured.edits, !params.logit_bias.empty(), "logit_bias", kDeferredSteps);
  needs(honoured.edits, !params.logprob_token_ids.empty(), "logprob_token_ids", kDeferredSteps);
  needs(honoured.functor, params.functor_argument != 0, "functor_argument",
        "a LogitsFunctor in the policy, and an executor with deferred steps");
  needs(honoured.edits, params.prompt_logprobs.has_value(), "prompt_logprobs", kDeferredSteps);
  check<RequestError>(honoured.tokens || params.pooler != nullptr,
                      "this model generates no text: its checkpoint has no lm_head; it is for "
                      "embeddings or scores");
  needs(honoured.pooler, params.pooler != nullptr, "pooler",
        "a network and an executor that give hidden states (GivesHiddenRows)");
}

NANOVLLM_INLINE std::vector<std::vector<TokenId>> Frontend::encode_bad_words(
    const std::vector<std::string>& words) const {
  std::vector<std::vector<TokenId>> out;
  for (const std::string& word : words) {
    // As the beginning of a text, and after a space, which many tokens begin with.
    for (const std::string& text : {word, " " + word}) {
      std::vector<TokenId> tokens = text_.tokenizer->encode(text);
      if (tokens.empty() || std::find(out.begin(), out.end(), tokens) != out.end()) continue;
      out.push_back(std::move(tokens));
    }
  }
  return out;
}

NANOVLLM_INLINE void Frontend::check_prompt(const std::vector<TokenId>& tokens) const {
  check_length(static_cast<std::int64_t>(tokens.size()));
  check_tokens(tokens, "the prompt");
}

NANOVLLM_INLINE void Frontend::check_length(std::int64_t count) const {
  check<RequestError>(count >= 1, "the prompt has no tokens");
  if (count <= max_prompt_tokens()) return;
  throw ContextLengthError(
      concat("the prompt has ", count, " tokens, but at most ", max_prompt_tokens(),
             " and one generated token fit (max_model_len ", rules_.max_model_len,
             ", max_total_tokens ", rules_.max_total_tokens, ")"),
      count, max_prompt_tokens());
}

NANOVLLM_INLINE void Frontend::check_tokens(const std::vector<TokenId>& tokens,
                                            const char* where) const {
  for (const TokenId token : tokens) {
    check<RequestError>(token >= 0 && token < rules_.vocab_size, "token id ", token, " in ", where,
                        " is not in [0, vocab_size = ", rules_.vocab_size, ")");
  }
}

NANOVLLM_INLINE std::vector<TokenId> Frontend::encode(const Prompt& prompt, bool adds_tokens,
                                                      const std::stop_token& stop) const {
  if (const auto* tokens = std::get_if<std::vector<TokenId>>(&prompt)) return *tokens;
  check<RequestError>(text_.tokenizer.has_value(),
                      "a text prompt needs a tokeniser, and the checkpoint has no "
                      "tokenizer.json; pass token ids");
  if (const auto* text = std::get_if<std::string>(&prompt))
    return encode_text(*text, adds_tokens, stop);
  const ChatPrompt& chat = std::get<ChatPrompt>(prompt);
  return encode_text(chat.render(text_.chat_template, chat.messages, chat.options), false, stop);
}

NANOVLLM_INLINE std::vector<TokenId> Frontend::encode_text(const std::string& text,
                                                           bool adds_tokens,
                                                           const std::stop_token& stop) const {
  const auto most = static_cast<std::size_t>(max_prompt_tokens());
  return adds_tokens ? text_.tokenizer->encode_with_template(text, most, stop)
                     : text_.tokenizer->encode(text, most, stop);
}

NANOVLLM_INLINE SequenceTerms Frontend::make_terms(const SamplingParams& params, RequestId id,
                                                   std::size_t num_prompt_tokens) const {
  SequenceTerms terms{
      .params = with_defaults(params, rules_.defaults, request_seed(id), rules_.honoured.edits)};
  terms.end_tokens = params.stop_token_ids;
  if (!params.ignore_eos) {
    terms.end_tokens.insert(terms.end_tokens.end(), rules_.eos_token_ids.begin(),
                            rules_.eos_token_ids.end());
  }
  std::sort(terms.end_tokens.begin(), terms.end_tokens.end());
  terms.end_tokens.erase(std::unique(terms.end_tokens.begin(), terms.end_tokens.end()),
                         terms.end_tokens.end());
  const std::int32_t max_tokens = params.pooler ? 1 : params.max_tokens;
  terms.max_total_tokens = static_cast<std::int32_t>(
      std::min(static_cast<std::int64_t>(num_prompt_tokens) + max_tokens, rules_.max_total_tokens));
  terms.vocab_size = rules_.vocab_size;
  terms.bad_words = encode_bad_words(params.bad_words);
  terms.make_processors = rules_.make_processors;
  const char* const need = rules_.missing_processor(
      {.params = params, .end_tokens = terms.end_tokens, .bad_words = terms.bad_words});
  if (need != nullptr) throw RequestError(concat(need, " among the policy's LogitsProcessors"));
  return terms;
}

NANOVLLM_INLINE std::uint64_t Frontend::request_seed(RequestId id) const {
  const auto words = philox4x32(
      rules_.seed, {static_cast<std::uint32_t>(id), static_cast<std::uint32_t>(id >> 32), 0, 1});
  return std::uint64_t{words[0]} << 32 | words[1];
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
