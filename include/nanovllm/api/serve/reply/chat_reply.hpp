#pragma once
/// Replies of /v1/chat/completions: objects `chat.completion` and `chat.completion.chunk`.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/api/chat/chat_parser.hpp"
#include "nanovllm/api/chat/tool_call_parser.hpp"
#include "nanovllm/api/serve/reply/reply_writer.hpp"
#include "nanovllm/core/finish_reason.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::serve {

namespace detail {

/// {"token", "logprob", "bytes"}
inline Json token_json(const Tokenizer& tokenizer, TokenId token, float logprob, TokenNames names) {
  Json bytes = Json::array();
  for (const char byte : tokenizer.token_bytes(token))
    bytes.push_back(static_cast<int>(static_cast<unsigned char>(byte)));
  return Json::object({{"token", token_name(tokenizer, token, names)},
                       {"logprob", logprob_json(logprob)},
                       {"bytes", std::move(bytes)}});
}

}  // namespace detail

/// One element of a chat's logprobs.content: {"token", "logprob", "bytes", "top_logprobs"} with at
/// most `num_top` of the likeliest. `bytes` are those of the text, whatever the token is named by.
[[nodiscard]] inline Json chat_logprobs(const Tokenizer& tokenizer, const TokenLogprobs& token,
                                        std::int32_t num_top,
                                        TokenNames names = TokenNames::texts) {
  Json out = detail::token_json(tokenizer, token.token_id, token.logprob, names);
  Json top = Json::array();
  const std::size_t count = std::min(token.top.size(), static_cast<std::size_t>(num_top));
  for (std::size_t i = 0; i < count; ++i)
    top.push_back(detail::token_json(tokenizer, token.top[i].first, token.top[i].second, names));
  out["top_logprobs"] = std::move(top);
  return out;
}

/// Turns the texts of choices into messages. Thoughts go to `reasoning_content` and, by vLLM's
/// newer name, to `reasoning`; tool calls to `tool_calls`. A choice with calls that ended by itself
/// has the finish_reason "tool_calls", also if `tool_choice` forced the call.
class ChatReply final : public ReplyWriter {
 public:
  struct Setup {
    ReplySetup common{};
    ChatParserOptions parser{};
    bool logprobs = false;
    std::int32_t top_logprobs = 0;
    std::vector<TokenId> prompt_token_ids{};  ///< if they are to be returned
    std::shared_ptr<ReplyIds> ids{};          ///< of tool calls
  };

  explicit ChatReply(Setup setup);

  void append_chunks(std::string& out, std::size_t index, const ChoiceUpdate& update,
                     const Usage& usage) override;
  void append_end(std::string& out, const Usage& usage) override;
  [[nodiscard]] std::string whole(const OutputUpdate& update, const Usage& usage) override;
  [[nodiscard]] std::string_view finish_reason() const override {
    return choices_.front().finish_reason;
  }

 private:
  /// A part of a message: consecutive events of one kind and one call.
  struct Delta {
    ChatEvent::Kind kind = ChatEvent::Kind::content;  ///< reasoning, content, or arguments
    std::string text{};
    std::int64_t tool_call = 0;
    std::string name{}, id{};  ///< of a call, in its first part
  };
  struct Choice {
    explicit Choice(const ChatParserOptions& options) : parser(options) {}

    ChatParser parser;
    bool has_begun = false;  ///< the chunk with the role is out
    bool has_calls = false;
    std::int64_t num_tokens = 0;     ///< until the end of the thought
    std::int64_t num_reasoning = 0;  ///< of those, in the thought, its tags included
    std::size_t text_size = 0;
    std::vector<TokenId> token_ids{};  ///< if stop_reason needs them
    Json logprobs = Json::array();     ///< of tokens that no chunk has yet
    Json new_token_ids = Json::array();
    std::string finish_reason{};
  };

  /// Parses the text; inside a thought token by token, to count its tokens.
  void parse(std::vector<Delta>& deltas, Choice& choice, const ChoiceUpdate& update);
  /// The parts that `update` completes.
  [[nodiscard]] std::vector<Delta> read(Choice& choice, const ChoiceUpdate& update);
  void append_to(std::vector<Delta>& deltas, Choice& choice, ChatEvent&& event);
  [[nodiscard]] static Json delta_json(const Delta& delta);
  [[nodiscard]] static Json message_json(const std::vector<Delta>& deltas);
  /// A chunk's element of `choices`; if `ends`, with finish_reason and stop_reason.
  [[nodiscard]] Json chunk_choice(std::size_t index, Json delta, bool ends);
  [[nodiscard]] Json take_logprobs(Choice& choice) const;
  [[nodiscard]] Json stop_reason(const Choice& choice) const;
  /// `usage` with the number of reasoning tokens so far, if the model may think.
  [[nodiscard]] Usage detailed(Usage usage) const;

  const Setup setup_;
  const ChunkFrame chunks_;
  std::vector<Choice> choices_;
  bool has_prompt_ids_ = false;  ///< a chunk had them
};

inline ChatReply::ChatReply(Setup setup)
    : setup_(std::move(setup)), chunks_(setup_.common.frame, setup_.common.continuous_usage_stats) {
  choices_.reserve(setup_.common.num_choices);
  for (std::size_t i = 0; i < setup_.common.num_choices; ++i) choices_.emplace_back(setup_.parser);
}

inline void ChatReply::parse(std::vector<Delta>& deltas, Choice& choice,
                             const ChoiceUpdate& update) {
  using Part = ReasoningParser::Part;
  const auto push = [&](std::size_t begin, std::size_t end) {
    const std::string_view piece = std::string_view(update.text).substr(begin, end - begin);
    for (ChatEvent& event : choice.parser.push(piece)) append_to(deltas, choice, std::move(event));
  };
  std::size_t begin = 0;
  for (const std::size_t end : update.text_ends) {
    const Part before = choice.parser.part();
    if (before == Part::content) break;
    push(begin, end);
    begin = end;
    ++choice.num_tokens;
    if (before == Part::thought || choice.parser.part() == Part::thought)
      choice.num_reasoning = choice.num_tokens;
  }
  push(begin, update.text.size());
}

inline Usage ChatReply::detailed(Usage usage) const {
  if (setup_.parser.reasoning == Reasoning::none) return usage;
  usage.num_reasoning_tokens = 0;
  for (const Choice& choice : choices_) *usage.num_reasoning_tokens += choice.num_reasoning;
  return usage;
}

inline std::vector<ChatReply::Delta> ChatReply::read(Choice& choice, const ChoiceUpdate& update) {
  std::vector<Delta> deltas;
  choice.text_size += update.text.size();
  parse(deltas, choice, update);
  if (setup_.logprobs) {
    for (const TokenLogprobs& token : update.logprobs) {
      choice.logprobs.push_back(chat_logprobs(*setup_.common.tokenizer, token, setup_.top_logprobs,
                                              setup_.common.token_names));
    }
  }
  if (setup_.common.return_token_ids) {
    for (const TokenId token : update.token_ids) choice.new_token_ids.push_back(token);
  }
  choice.token_ids.insert(choice.token_ids.end(), update.token_ids.begin(), update.token_ids.end());
  if (!update.has_ended()) return deltas;
  for (ChatEvent& event : choice.parser.finish(update.finish_reason))
    append_to(deltas, choice, std::move(event));
  const bool has_called = choice.has_calls && update.finish_reason == FinishReason::stop;
  choice.finish_reason = has_called ? "tool_calls" : std::string(name(update.finish_reason));
  return deltas;
}

inline void ChatReply::append_to(std::vector<Delta>& deltas, Choice& choice, ChatEvent&& event) {
  using Kind = ChatEvent::Kind;
  switch (event.kind) {
    case Kind::tool_call_begin:
    case Kind::tool_call_end: return;
    case Kind::tool_call_name:
      choice.has_calls = true;
      deltas.push_back({.kind = Kind::tool_call_arguments,
                        .tool_call = event.tool_call,
                        .name = std::move(event.text),
                        .id = setup_.ids->next("call_")});
      return;
    default: break;
  }
  const bool is_call = event.kind == Kind::tool_call_arguments;
  if (!deltas.empty() && deltas.back().kind == event.kind &&
      (!is_call || deltas.back().tool_call == event.tool_call)) {
    deltas.back().text += event.text;
  } else {
    deltas.push_back({.kind = event.kind,
                      .text = std::move(event.text),
                      .tool_call = is_call ? event.tool_call : 0});
  }
}

inline Json ChatReply::delta_json(const Delta& delta) {
  switch (delta.kind) {
    case ChatEvent::Kind::reasoning:
      return Json::object({{"reasoning_content", delta.text}, {"reasoning", delta.text}});
    case ChatEvent::Kind::content: return Json::object({{"content", delta.text}});
    default: break;
  }
  Json call = Json::object({{"index", delta.tool_call}});
  Json function = Json::object();
  if (!delta.id.empty()) {
    call["id"] = delta.id;
    call["type"] = "function";
    function["name"] = delta.name;
  }
  function["arguments"] = delta.text;
  call["function"] = std::move(function);
  return Json::object({{"tool_calls", Json::array({std::move(call)})}});
}

inline Json ChatReply::take_logprobs(Choice& choice) const {
  if (!setup_.logprobs) return nullptr;
  return Json::object({{"content", std::exchange(choice.logprobs, Json::array())}});
}

inline Json ChatReply::stop_reason(const Choice& choice) const {
  if (choice.finish_reason == "length") return nullptr;
  return setup_.common.stop_rules.reason(setup_.common.tokenizer, choice.token_ids,
                                         choice.text_size);
}

inline Json ChatReply::chunk_choice(std::size_t index, Json delta, bool ends) {
  Choice& choice = choices_[index];
  Json out = Json::object({{"index", index}, {"delta", std::move(delta)}});
  out["logprobs"] = choice.logprobs.empty() ? Json(nullptr) : take_logprobs(choice);
  out["finish_reason"] = nullptr;
  if (!choice.new_token_ids.empty())
    out["token_ids"] = std::exchange(choice.new_token_ids, Json::array());
  if (ends) {
    out["finish_reason"] = choice.finish_reason;
    out["stop_reason"] = stop_reason(choice);
  }
  return out;
}

inline void ChatReply::append_chunks(std::string& out, std::size_t index,
                                     const ChoiceUpdate& update, const Usage& usage) {
  Choice& choice = choices_[index];
  const std::vector<Delta> deltas = read(choice, update);
  const bool ends = is_ended_by_itself(update.finish_reason);
  if (deltas.empty() && !ends) return;
  if (!std::exchange(choice.has_begun, true)) {
    Json first = Json::object({{"index", index},
                               {"delta", Json::object({{"role", "assistant"}, {"content", ""}})},
                               {"logprobs", nullptr},
                               {"finish_reason", nullptr}});
    Json further = Json::object();
    if (setup_.common.return_token_ids && !std::exchange(has_prompt_ids_, true))
      further["prompt_token_ids"] = Json(setup_.prompt_token_ids);
    chunks_.append(out, first, detailed(usage), further);
  }
  for (std::size_t i = 0; i < deltas.size(); ++i) {
    const bool is_last = ends && i + 1 == deltas.size();
    chunks_.append(out, chunk_choice(index, delta_json(deltas[i]), is_last), detailed(usage));
  }
  if (deltas.empty())
    chunks_.append(out, chunk_choice(index, Json::object(), true), detailed(usage));
}

inline void ChatReply::append_end(std::string& out, const Usage& usage) {
  if (setup_.common.include_usage) chunks_.append_usage(out, detailed(usage));
}

inline Json ChatReply::message_json(const std::vector<Delta>& deltas) {
  std::string reasoning, content;
  Json calls = Json::array();
  for (const Delta& delta : deltas) {
    if (delta.kind == ChatEvent::Kind::reasoning) {
      reasoning += delta.text;
    } else if (delta.kind == ChatEvent::Kind::content) {
      content += delta.text;
    } else {
      calls.push_back(Json::object(
          {{"id", delta.id},
           {"type", "function"},
           {"function", Json::object({{"name", delta.name}, {"arguments", delta.text}})}}));
    }
  }
  Json message = Json::object({{"role", "assistant"}, {"content", content}, {"refusal", nullptr}});
  if (content.empty() && !calls.empty()) message["content"] = nullptr;
  if (!reasoning.empty()) {
    message["reasoning_content"] = reasoning;
    message["reasoning"] = reasoning;
  }
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  return message;
}

inline std::string ChatReply::whole(const OutputUpdate& update, const Usage& usage) {
  WholeFrame reply(setup_.common.frame);
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    const std::vector<Delta> deltas = read(choice, update.choices[i]);
    Json out = Json::object({{"index", i},
                             {"message", message_json(deltas)},
                             {"logprobs", take_logprobs(choice)},
                             {"finish_reason", choice.finish_reason},
                             {"stop_reason", stop_reason(choice)}});
    if (setup_.common.return_token_ids) out["token_ids"] = choice.new_token_ids;
    reply.add_choice(out);
  }
  Json rest = Json::object({{"usage", detailed(usage).to_json()}});
  if (setup_.common.return_token_ids) rest["prompt_token_ids"] = Json(setup_.prompt_token_ids);
  if (setup_.common.return_prompt_logprobs) {
    rest["prompt_logprobs"] =
        prompt_logprobs_json(*setup_.common.tokenizer, update.prompt_logprobs.front());
  }
  return reply.end(rest);
}

}  // namespace nanovllm::serve
