#pragma once
/// Replies of /v1/messages, Anthropic's.

#include <cstdint>
#include <string>
#include <utility>

#include "nanovllm/api/serve/reply/block_reply.hpp"

namespace nanovllm::serve {

/// Writes an answer as a message with blocks. `input_tokens` are those that the prefix cache did
/// not have; how many that are is known at the end, so in `message_start` they are all.
class MessagesReply final : public BlockReply {
 public:
  using BlockReply::BlockReply;

  [[nodiscard]] std::string error_body(const ApiError& error) const override {
    return error.body(ErrorForm::anthropic);
  }
  void append_error(std::string& out, const ApiError& error) override {
    append_named_event(out, error.to_json(ErrorForm::anthropic));
  }

 private:
  using Kind = ChatEvent::Kind;

  void begin(std::string& out, const Usage& usage) override {
    Json first = message(Json::array());
    first["usage"] = usage_json({.num_prompt_tokens = usage.num_prompt_tokens});
    append_named_event(out,
                       Json::object({{"type", "message_start"}, {"message", std::move(first)}}));
  }
  void begin_block(std::string& out, const AnswerBlock& block) override {
    append_named_event(out, Json::object({{"type", "content_block_start"},
                                          {"index", last_index()},
                                          {"content_block", block_json(block, true)}}));
  }
  void append_delta(std::string& out, const AnswerBlock& block, const std::string& text,
                    const Json& /*logprobs*/) override {
    switch (block.kind) {
      case Kind::content: return append_delta(out, "text_delta", "text", text);
      case Kind::reasoning: return append_delta(out, "thinking_delta", "thinking", text);
      default: return append_delta(out, "input_json_delta", "partial_json", text);
    }
  }
  void end_block(std::string& out, const AnswerBlock& block) override {
    if (block.kind == Kind::reasoning)
      append_delta(out, "signature_delta", "signature", signature());
    append_named_event(out,
                       Json::object({{"type", "content_block_stop"}, {"index", last_index()}}));
  }
  void end(std::string& out, const Usage& usage) override {
    Json delta = Json::object();
    set_stop(delta);
    append_named_event(out, Json::object({{"type", "message_delta"},
                                          {"delta", std::move(delta)},
                                          {"usage", usage_json(usage)}}));
    append_named_event(out, Json::object({{"type", "message_stop"}}));
  }

  [[nodiscard]] Json answer(const Usage& usage) override {
    Json content = Json::array();
    for (const AnswerBlock& block : blocks()) content.push_back(block_json(block, false));
    Json out = message(std::move(content));
    set_stop(out);
    out["usage"] = usage_json(usage);
    return out;
  }

  [[nodiscard]] Json message(Json content) const {
    return Json::object({{"id", setup().common.frame.id},
                         {"type", "message"},
                         {"role", "assistant"},
                         {"model", setup().common.frame.model},
                         {"content", std::move(content)},
                         {"stop_reason", nullptr},
                         {"stop_sequence", nullptr}});
  }

  void append_delta(std::string& out, const char* type, const char* member,
                    const std::string& text) const {
    append_named_event(out,
                       Json::object({{"type", "content_block_delta"},
                                     {"index", last_index()},
                                     {"delta", Json::object({{"type", type}, {member, text}})}}));
  }

  /// A block, or what it is before its text.
  [[nodiscard]] Json block_json(const AnswerBlock& block, bool begins) const {
    const std::string text = begins ? "" : block.text;
    switch (block.kind) {
      case Kind::content: return Json::object({{"type", "text"}, {"text", text}});
      case Kind::reasoning:
        return Json::object(
            {{"type", "thinking"}, {"thinking", text}, {"signature", begins ? "" : signature()}});
      default:
        return Json::object({{"type", "tool_use"},
                             {"id", block.call_id},
                             {"name", block.name},
                             {"input", input_json(text)}});
    }
  }

  /// The arguments of a call; {} for those that were cut off, which no object can show.
  [[nodiscard]] static Json input_json(const std::string& text) {
    try {
      Json input = parse_json_value(text);
      if (input.is_object()) return input;
    } catch (const JsonError&) {
    }
    return Json::object();
  }

  /// What clients have to send back with a thought. Nothing is read from it.
  [[nodiscard]] const std::string& signature() const { return setup().common.frame.id; }

  void set_stop(Json& out) const {
    const Json stop = choice().stop_reason(setup().common);
    const bool is_stopped = choice().finish_reason == "stop" && stop.is_string();
    out["stop_reason"] = choice().finish_reason == "length"       ? "max_tokens"
                         : choice().finish_reason == "tool_calls" ? "tool_use"
                         : is_stopped                             ? "stop_sequence"
                                                                  : "end_turn";
    out["stop_sequence"] = is_stopped ? stop : Json();
  }

  [[nodiscard]] static Json usage_json(const Usage& usage) {
    const std::int64_t cached = usage.num_cached_tokens.value_or(0);
    return Json::object({{"input_tokens", usage.num_prompt_tokens - cached},
                         {"cache_creation_input_tokens", 0},
                         {"cache_read_input_tokens", cached},
                         {"output_tokens", usage.num_completion_tokens}});
  }
};

}  // namespace nanovllm::serve
