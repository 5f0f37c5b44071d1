#pragma once
/// Admission: from what a caller submits to a request that the engine can serve, or an error.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "nanovllm/chat/chat_template.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/engine/inbox.hpp"
#include "nanovllm/engine/prompt.hpp"
#include "nanovllm/engine/request.hpp"
#include "nanovllm/model/generation_config.hpp"
#include "nanovllm/model/model.hpp"
#include "nanovllm/sampling/resolve.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nanovllm {

/// The text side of a checkpoint: what turns prompts into tokens and tokens into text.
struct TextSide {
  std::optional<Tokenizer> tokenizer{};
  std::optional<ChatTemplate> chat_template{};
  std::string no_chat_template{};  ///< why there is none

  /// Reads tokenizer.json and the chat template of `directory`, where `hints` and the directory have
  /// them. A template that is missing or unknown is an error only for requests that need it;
  /// `chat_template`, if given, takes its place. Throws LoadError for a broken tokeniser.
  [[nodiscard]] static TextSide load(const std::filesystem::path& directory, const TextHints& hints,
                                     const std::optional<ChatTemplate>& chat_template) {
    TextSide out{.chat_template = chat_template};
    if (hints.has_tokenizer && std::filesystem::exists(directory / "tokenizer.json")) {
      out.tokenizer.emplace(Tokenizer::from_file(directory / "tokenizer.json"));
    }
    if (out.chat_template) return out;
    if (!hints.has_chat_template) {
      out.no_chat_template = "this model has no chat template";
      return out;
    }
    try {
      out.chat_template = ChatTemplate::from_directory(directory);
    } catch (const Error& error) {
      out.no_chat_template = error.what();
    }
    return out;
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
  /// The policy's logits processors for a new sequence.
  decltype(SequenceTerms::make_processors) make_processors = SequenceTerms{}.make_processors;
};

/// Makes requests and puts them into the inbox. Thread-safe: encoding runs on the caller's thread.
class Frontend {
 public:
  Frontend(TextSide text, AdmissionRules rules, Inbox& inbox)
      : text_(std::move(text)), rules_(std::move(rules)), inbox_(inbox) {}

  [[nodiscard]] const TextSide& text() const { return text_; }
  [[nodiscard]] const AdmissionRules& rules() const { return rules_; }

  /// Queues a request. Throws RequestError for one that can never be served.
  std::shared_ptr<Request> submit(const Prompt& prompt, const SamplingParams& params,
                                  TokenCallback callback) {
    check<RequestError>(rules_.refusal.empty(), rules_.refusal);
    validate(params);
    check_tokens(params.stop_token_ids, "stop_token_ids");
    check<RequestError>(params.stop.empty() || text_.tokenizer,
                        "stop strings need a tokeniser, and the checkpoint has no tokenizer.json");
    std::vector<TokenId> tokens = encode(prompt);
    check_length(static_cast<std::int64_t>(tokens.size()));
    check_tokens(tokens, "the prompt");
    const RequestId id = next_id_.fetch_add(1, std::memory_order_relaxed);
    SequenceTerms terms = make_terms(params, id, tokens.size());
    auto request = std::make_shared<Request>(id, std::move(terms), std::move(tokens),
                                             text_.tokenizer ? &*text_.tokenizer : nullptr,
                                             std::move(callback));
    inbox_.submit(request);
    return request;
  }

 private:
  /// Prompt tokens at the most: one generated token must fit behind them.
  [[nodiscard]] std::int64_t max_prompt_tokens() const { return rules_.max_total_tokens - 1; }

  void check_length(std::int64_t count) const {
    check<RequestError>(count >= 1, "the prompt has no tokens");
    check<RequestError>(count <= max_prompt_tokens(), "the prompt has ", count,
                        " tokens, but at most ", max_prompt_tokens(),
                        " and one generated token fit (max_model_len ", rules_.max_model_len,
                        ", max_total_tokens ", rules_.max_total_tokens, ")");
  }

  void check_tokens(const std::vector<TokenId>& tokens, const char* where) const {
    for (const TokenId token : tokens) {
      check<RequestError>(token >= 0 && token < rules_.vocab_size, "token id ", token, " in ",
                          where, " is not in [0, vocab_size = ", rules_.vocab_size, ")");
    }
  }

  [[nodiscard]] std::vector<TokenId> encode(const Prompt& prompt) const {
    if (const auto* tokens = std::get_if<std::vector<TokenId>>(&prompt)) return *tokens;
    check<RequestError>(text_.tokenizer.has_value(),
                        "a text prompt needs a tokeniser, and the checkpoint has no "
                        "tokenizer.json; pass token ids");
    if (const auto* text = std::get_if<std::string>(&prompt)) return encode(*text);
    const ChatPrompt& chat = std::get<ChatPrompt>(prompt);
    check<RequestError>(text_.chat_template.has_value(),
                        "messages need a chat template: ", text_.no_chat_template);
    return encode(text_.chat_template->render(chat.messages, chat.options));
  }

  /// A text that is too long is refused without being encoded as a whole.
  [[nodiscard]] std::vector<TokenId> encode(const std::string& text) const {
    return text_.tokenizer->encode(text, static_cast<std::size_t>(max_prompt_tokens()));
  }

  [[nodiscard]] SequenceTerms make_terms(const SamplingParams& params, RequestId id,
                                         std::size_t num_prompt_tokens) const {
    SequenceTerms terms{.params = params,
                        .sampling = resolve_sampling(params, rules_.defaults, request_seed(id))};
    terms.end_tokens = params.stop_token_ids;
    if (!params.ignore_eos) {
      terms.end_tokens.insert(terms.end_tokens.end(), rules_.eos_token_ids.begin(),
                              rules_.eos_token_ids.end());
    }
    std::sort(terms.end_tokens.begin(), terms.end_tokens.end());
    terms.end_tokens.erase(std::unique(terms.end_tokens.begin(), terms.end_tokens.end()),
                           terms.end_tokens.end());
    terms.max_total_tokens = static_cast<std::int32_t>(std::min(
        static_cast<std::int64_t>(num_prompt_tokens) + params.max_tokens, rules_.max_total_tokens));
    terms.vocab_size = rules_.vocab_size;
    terms.make_processors = rules_.make_processors;
    return terms;
  }

  [[nodiscard]] std::uint64_t request_seed(RequestId id) const {
    const auto words = philox4x32(
        rules_.seed, {static_cast<std::uint32_t>(id), static_cast<std::uint32_t>(id >> 32), 0, 1});
    return std::uint64_t{words[0]} << 32 | words[1];
  }

  TextSide text_;
  AdmissionRules rules_;
  Inbox& inbox_;
  std::atomic<RequestId> next_id_{1};
};

}  // namespace nanovllm
