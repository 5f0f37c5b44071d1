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

/// What the writers of answers to chats need, whatever their form.
struct ChatSetup {
  ReplySetup common{};
  ChatParserOptions parser{};
  bool logprobs = false;
  std::int32_t top_logprobs = 0;
  std::vector<TokenId> prompt_token_ids{};  ///< if they are to be returned
  std::shared_ptr<ReplyIds> ids{};          ///< of tool calls
  const char* call_prefix = "call_";        ///< of these
};

/// A part of a message: consecutive events of one kind and one call.
struct ChatDelta {
  ChatEvent::Kind kind = ChatEvent::Kind::content;  ///< reasoning, content, or arguments
  std::string text{};
  std::int64_t tool_call = 0;
  std::string name{}, id{};  ///< of a call, in its first part
};

/// A choice whose text becomes parts of a message; a writer gives them a protocol's form.
class ChatChoice : public ReplyChoice {
 public:
  explicit ChatChoice(const ChatSetup& setup) : parser_(setup.parser) {}

  /// The parts that `update` completes. At the end it sets finish_reason: "tool_calls" of a choice
  /// with calls that ended by itself, also if `tool_choice` forced the call; "stop" if a stop
  /// string cut the last one off.
  [[nodiscard]] std::vector<ChatDelta> read(const ChoiceUpdate& update, const ChatSetup& setup);

  /// Whether a call has begun that is not whole.
  [[nodiscard]] bool is_in_call() const { return in_call_; }
  /// Tokens of thoughts, their tags included.
  [[nodiscard]] std::int64_t num_reasoning() const { return num_reasoning_; }

 private:
  /// Parses the text; inside a thought token by token, to count its tokens.
  void parse(std::vector<ChatDelta>& deltas, const ChoiceUpdate& update, const ChatSetup& setup);
  void append_to(std::vector<ChatDelta>& deltas, ChatEvent&& event, const ChatSetup& setup);

  ChatParser parser_;
  bool has_calls_ = false, in_call_ = false;
  std::int64_t num_tokens_ = 0;     // until the end of the thought
  std::int64_t num_reasoning_ = 0;  // of those, in the thought
};

inline void ChatChoice::parse(std::vector<ChatDelta>& deltas, const ChoiceUpdate& update,
                              const ChatSetup& setup) {
  using Part = ReasoningParser::Part;
  const auto push = [&](std::size_t begin, std::size_t end) {
    const std::string_view piece = std::string_view(update.text).substr(begin, end - begin);
    for (ChatEvent& event : parser_.push(piece)) append_to(deltas, std::move(event), setup);
  };
  std::size_t begin = 0;
  for (const std::size_t end : update.text_ends) {
    const Part before = parser_.part();
    if (before == Part::content) break;
    push(begin, end);
    begin = end;
    ++num_tokens_;
    const bool is_open = before == Part::unknown && setup.parser.reasoning == Reasoning::open;
    if (before == Part::thought || parser_.part() == Part::thought || is_open)
      num_reasoning_ = num_tokens_;
  }
  push(begin, update.text.size());
}

inline std::vector<ChatDelta> ChatChoice::read(const ChoiceUpdate& update, const ChatSetup& setup) {
  std::vector<ChatDelta> deltas;
  parse(deltas, update, setup);
  add(update, setup.common);
  if (!update.has_ended()) return deltas;
  for (ChatEvent& event : parser_.finish(update.finish_reason))
    append_to(deltas, std::move(event), setup);
  const bool has_called = has_calls_ && !in_call_ && update.finish_reason == FinishReason::stop;
  finish_reason = has_called ? "tool_calls" : std::string(name(update.finish_reason));
  return deltas;
}

inline void ChatChoice::append_to(std::vector<ChatDelta>& deltas, ChatEvent&& event,
                                  const ChatSetup& setup) {
  using Kind = ChatEvent::Kind;
  switch (event.kind) {
    case Kind::tool_call_begin: return;
    case Kind::tool_call_end: in_call_ = false; return;
    case Kind::tool_call_name:
      has_calls_ = in_call_ = true;
      deltas.push_back({.kind = Kind::tool_call_arguments,
                        .tool_call = event.tool_call,
                        .name = std::move(event.text),
                        .id = setup.ids->next(setup.call_prefix)});
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

/// Writes messages in OpenAI's form. Thoughts go to `reasoning_content` and, by vLLM's newer name,
/// to `reasoning`; tool calls to `tool_calls`.
class ChatReply final : public ReplyWriter {
 public:
  using Setup = ChatSetup;

  explicit ChatReply(Setup setup)
      : setup_(std::move(setup)),
        chunks_(setup_.common.frame, setup_.common.continuous_usage_stats) {
    choices_.reserve(setup_.common.num_choices);
    for (std::size_t i = 0; i < setup_.common.num_choices; ++i) choices_.emplace_back(setup_);
  }

  void append_chunks(std::string& out, std::size_t index, const ChoiceUpdate& update,
                     const Usage& usage) override;
  void append_end(std::string& out, const Usage& usage) override {
    if (setup_.common.include_usage) chunks_.append_usage(out, detailed(usage));
  }
  [[nodiscard]] std::string whole(const OutputUpdate& update, const Usage& usage) override;
  [[nodiscard]] std::string_view finish_reason() const override {
    return choices_.front().finish_reason;
  }

 private:
  struct Choice : ChatChoice {
    using ChatChoice::ChatChoice;
    Json logprobs = Json::array();  ///< of tokens that no chunk has yet
  };

  /// The parts that `update` completes.
  [[nodiscard]] std::vector<ChatDelta> read(Choice& choice, const ChoiceUpdate& update) const {
    if (setup_.logprobs) {
      for (const TokenLogprobs& token : update.logprobs)
        choice.logprobs.push_back(chat_logprobs(*setup_.common.tokenizer, token,
                                                setup_.top_logprobs, setup_.common.token_names));
    }
    return choice.read(update, setup_);
  }
  [[nodiscard]] static Json delta_json(const ChatDelta& delta);
  [[nodiscard]] static Json message_json(const std::vector<ChatDelta>& deltas);
  /// A chunk's element of `choices`; if `ends`, with finish_reason and stop_reason.
  [[nodiscard]] Json chunk_choice(std::size_t index, Json delta, bool ends);
  [[nodiscard]] Json take_logprobs(Choice& choice) const {
    if (!setup_.logprobs) return nullptr;
    return Json::object({{"content", std::exchange(choice.logprobs, Json::array())}});
  }
  /// `usage` with the number of reasoning tokens so far, if the model may think.
  [[nodiscard]] Usage detailed(Usage usage) const {
    if (setup_.parser.reasoning == Reasoning::none) return usage;
    usage.num_reasoning_tokens = 0;
    for (const Choice& choice : choices_) *usage.num_reasoning_tokens += choice.num_reasoning();
    return usage;
  }

  const Setup setup_;
  const ChunkFrame chunks_;
  std::vector<Choice> choices_;
  bool has_prompt_ids_ = false;  ///< a chunk had them
};

inline Json ChatReply::delta_json(const ChatDelta& delta) {
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

inline Json ChatReply::chunk_choice(std::size_t index, Json delta, bool ends) {
  Choice& choice = choices_[index];
  Json out = Json::object({{"index", index}, {"delta", std::move(delta)}});
  out["logprobs"] = choice.logprobs.empty() ? Json(nullptr) : take_logprobs(choice);
  out["finish_reason"] = nullptr;
  if (!choice.new_token_ids.empty())
    out["token_ids"] = std::exchange(choice.new_token_ids, Json::array());
  if (ends) {
    out["finish_reason"] = choice.finish_reason;
    out["stop_reason"] = choice.stop_reason(setup_.common);
  }
  return out;
}

inline void ChatReply::append_chunks(std::string& out, std::size_t index,
                                     const ChoiceUpdate& update, const Usage& usage) {
  Choice& choice = choices_[index];
  const std::vector<ChatDelta> deltas = read(choice, update);
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

inline Json ChatReply::message_json(const std::vector<ChatDelta>& deltas) {
  std::string reasoning, content;
  Json calls = Json::array();
  for (const ChatDelta& delta : deltas) {
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
    const std::vector<ChatDelta> deltas = read(choice, update.choices[i]);
    Json out = Json::object({{"index", i},
                             {"message", message_json(deltas)},
                             {"logprobs", take_logprobs(choice)},
                             {"finish_reason", choice.finish_reason},
                             {"stop_reason", choice.stop_reason(setup_.common)}});
    if (setup_.common.return_token_ids) out["token_ids"] = choice.new_token_ids;
    reply.add(out.dump());
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
