#pragma once
/// Replies of /v1/completions: objects `text_completion`.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/api/serve/reply/reply_writer.hpp"
#include "nanovllm/core/finish_reason.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nanovllm::serve {

namespace detail {

inline std::int64_t num_characters(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; });
}

}  // namespace detail

/// The lists of a completion's logprobs: {"text_offset", "token_logprobs", "tokens",
/// "top_logprobs"}.
class CompletionLogprobs {
 public:
  /// @param offset  characters of the text that come before the first token.
  explicit CompletionLogprobs(std::int64_t offset = 0, TokenNames names = TokenNames::texts)
      : offset_(offset), names_(names) {}

  void add(const Tokenizer& tokenizer, const TokenLogprobs& token) {
    // Different tokens may be written alike, when they are not UTF-8: the likelier counts.
    Json top = Json::object();
    const auto list = [&](TokenId id, float logprob) {
      const std::string name = detail::token_name(tokenizer, id, names_);
      if (!top.contains(name)) top[name] = detail::logprob_json(logprob);
    };
    for (const auto& [id, logprob] : token.top) list(id, logprob);
    list(token.token_id, token.logprob);
    add(tokenizer, token.token_id, detail::logprob_json(token.logprob), std::move(top));
  }
  /// A token that has none: the first of a prompt.
  void add_first(const Tokenizer& tokenizer, TokenId token) {
    add(tokenizer, token, nullptr, nullptr);
  }

  [[nodiscard]] Json to_json() const {
    return Json::object({{"text_offset", offsets_},
                         {"token_logprobs", logprobs_},
                         {"tokens", tokens_},
                         {"top_logprobs", top_}});
  }
  /// Characters up to the end of the last token.
  [[nodiscard]] std::int64_t offset() const { return offset_; }

 private:
  void add(const Tokenizer& tokenizer, TokenId token, Json logprob, Json top) {
    offsets_.push_back(offset_);
    offset_ += detail::num_characters(token_text(tokenizer, token));
    logprobs_.push_back(std::move(logprob));
    tokens_.push_back(detail::token_name(tokenizer, token, names_));
    top_.push_back(std::move(top));
  }

  std::int64_t offset_;
  TokenNames names_;
  Json offsets_ = Json::array(), logprobs_ = Json::array(), tokens_ = Json::array(),
       top_ = Json::array();
};

/// Writes texts as they are. Choice i of prompt p has the index p · n + i.
class CompletionReply final : public ReplyWriter {
 public:
  struct Setup {
    ReplySetup common{};  ///< `num_choices` are those of all prompts
    std::size_t num_prompts = 1;
    bool logprobs = false;
    std::vector<std::string> echo{};  ///< texts of the prompts, to be repeated; empty: no echo
    std::vector<std::vector<TokenId>> prompt_token_ids{};  ///< of the same, if needed
  };

  explicit CompletionReply(Setup setup)
      : setup_(std::move(setup)),
        chunks_(setup_.common.frame, setup_.common.continuous_usage_stats),
        choices_(setup_.common.num_choices),
        prompts_(setup_.num_prompts) {}

  void append_chunks(std::string& out, std::size_t index, const ChoiceUpdate& update,
                     const Usage& usage) override;
  void begin_prompt(std::size_t prompt, PromptLogprobs&& logprobs) override {
    prompts_[prompt] = std::move(logprobs);
  }
  bool append_prompt(std::string& out, std::size_t index, const Usage& usage) override;
  void append_end(std::string& out, const Usage& usage) override {
    if (setup_.common.include_usage) chunks_.append_usage(out, usage);
  }
  [[nodiscard]] std::string whole(const OutputUpdate& update, const Usage& usage) override;
  [[nodiscard]] std::string_view finish_reason() const override {
    return choices_.front().finish_reason;
  }

 private:
  struct Choice : ReplyChoice {
    std::size_t num_prompt_tokens = 0;  ///< whose log-probabilities are in chunks
    std::int64_t offset = 0;  ///< in characters, of the next token that has log-probabilities
  };

  /// Log-probabilities of the prompt, tokens [begin, end), for an echo; none if begin == end.
  struct PromptPart {
    const PromptLogprobs* logprobs = nullptr;
    std::size_t begin = 0, end = 0;
  };

  /// One element of `choices`.
  [[nodiscard]] Json choice_json(std::size_t index, const ChoiceUpdate& update,
                                 const PromptPart& prompt);
  [[nodiscard]] Json logprobs_json(std::size_t index, const ChoiceUpdate& update,
                                   const PromptPart& prompt);
  [[nodiscard]] std::size_t prompt_of(std::size_t index) const {
    return index / (setup_.common.num_choices / setup_.num_prompts);
  }

  const Setup setup_;
  const ChunkFrame chunks_;
  std::vector<Choice> choices_;
  std::vector<PromptLogprobs> prompts_;  ///< of a stream that begins with them
};

inline Json CompletionReply::logprobs_json(std::size_t index, const ChoiceUpdate& update,
                                           const PromptPart& prompt) {
  if (!setup_.logprobs || (prompt.begin == prompt.end && update.logprobs.empty())) return nullptr;
  const Tokenizer& tokenizer = *setup_.common.tokenizer;
  Choice& choice = choices_[index];
  CompletionLogprobs out(choice.offset, setup_.common.token_names);
  for (std::size_t i = prompt.begin; i < prompt.end; ++i) {
    if (i < prompt.logprobs->size() && (*prompt.logprobs)[i]) {
      out.add(tokenizer, *(*prompt.logprobs)[i]);
    } else {
      out.add_first(tokenizer, setup_.prompt_token_ids[prompt_of(index)][i]);
    }
  }
  for (const TokenLogprobs& token : update.logprobs) out.add(tokenizer, token);
  choice.offset = out.offset();
  return out.to_json();
}

inline Json CompletionReply::choice_json(std::size_t index, const ChoiceUpdate& update,
                                         const PromptPart& prompt) {
  Choice& choice = choices_[index];
  const bool is_first = !std::exchange(choice.has_begun, true);
  std::string text = is_first && !setup_.echo.empty() ? setup_.echo[prompt_of(index)] : "";
  text += update.text;
  Json out = Json::object({{"index", index},
                           {"text", std::move(text)},
                           {"logprobs", logprobs_json(index, update, prompt)},
                           {"finish_reason", nullptr},
                           {"stop_reason", nullptr}});
  if (setup_.common.return_token_ids) {
    if (is_first) out["prompt_token_ids"] = Json(setup_.prompt_token_ids[prompt_of(index)]);
    out["token_ids"] = std::exchange(choice.new_token_ids, Json::array());
  }
  if (!is_ended_by_itself(update.finish_reason)) return out;
  choice.finish_reason = name(update.finish_reason);
  out["finish_reason"] = choice.finish_reason;
  out["stop_reason"] = choice.stop_reason(setup_.common);
  return out;
}

inline void CompletionReply::append_chunks(std::string& out, std::size_t index,
                                           const ChoiceUpdate& update, const Usage& usage) {
  choices_[index].add(update, setup_.common);
  if (update.text.empty() && update.logprobs.empty() && !is_ended_by_itself(update.finish_reason))
    return;
  chunks_.append(out, choice_json(index, update, {}), usage);
}

inline bool CompletionReply::append_prompt(std::string& out, std::size_t index,
                                           const Usage& usage) {
  constexpr std::size_t kTokensInChunk = 32;
  Choice& choice = choices_[index];
  PromptPart part{.logprobs = &prompts_[prompt_of(index)], .begin = choice.num_prompt_tokens};
  part.end = std::min(part.begin + kTokensInChunk, part.logprobs->size());
  if (part.begin == part.end) return false;
  choice.num_prompt_tokens = part.end;
  chunks_.append(out, choice_json(index, {}, part), usage);
  return true;
}

inline std::string CompletionReply::whole(const OutputUpdate& update, const Usage& usage) {
  WholeFrame reply(setup_.common.frame);
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    if (update.choices[i].finish_reason == FinishReason::error) continue;  // a beam without a text
    const PromptLogprobs& prompt = update.prompt_logprobs[prompt_of(i)];
    const bool has_prompt = setup_.logprobs && !setup_.echo.empty();
    choices_[i].add(update.choices[i], setup_.common);
    PromptPart echoed{.logprobs = &prompt};
    if (has_prompt) echoed.end = setup_.prompt_token_ids[prompt_of(i)].size();
    Json choice = choice_json(i, update.choices[i], echoed);
    if (setup_.common.return_prompt_logprobs)
      choice["prompt_logprobs"] = prompt_logprobs_json(*setup_.common.tokenizer, prompt);
    reply.add(choice.dump());
  }
  return reply.end(Json::object({{"usage", usage.to_json()}}));
}

}  // namespace nanovllm::serve
