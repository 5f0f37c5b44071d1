#pragma once
/// Replies of /v1/responses, OpenAI's.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "nanovllm/api/serve/reply/block_reply.hpp"
#include "nanovllm/api/serve/reply/response_store.hpp"
#include "nanovllm/api/serve/request/translated_chat.hpp"

namespace nanovllm::serve {

/// Writes an answer as a response with items, and keeps it if its request says so.
class ResponsesReply final : public BlockReply {
 public:
  /// @param echo          the members that repeat the request, `store` among them.
  /// @param conversation  the messages before the answer.
  ResponsesReply(ChatSetup&& setup, Json echo, Json conversation,
                 std::shared_ptr<ResponseStore> store)
      : BlockReply(std::move(setup)),
        echo_(std::move(echo)),
        conversation_(std::move(conversation)),
        store_(std::move(store)) {}

  void append_error(std::string& out, const ApiError& error) override {
    if (!has_begun()) begin(out, {});
    Json failed = response("failed", Json::array());
    failed["store"] = false;  // only what has ended by itself is kept
    failed["error"] = error.to_json()["error"];
    failed["error"]["code"] = error.status < 500 ? "invalid_prompt" : "server_error";
    append_state(out, "response.failed", std::move(failed));
  }

 private:
  using Kind = ChatEvent::Kind;

  void begin(std::string& out, const Usage& /*usage*/) override {
    append_state(out, "response.created", response("in_progress", Json::array()));
    append_state(out, "response.in_progress", response("in_progress", Json::array()));
  }
  void begin_block(std::string& out, const AnswerBlock& block) override {
    append(out, "response.output_item.added", "item", item(block, true));
    if (!is_call(block)) append(out, "response.content_part.added", "part", part(block, true));
  }
  void append_delta(std::string& out, const AnswerBlock& block, const std::string& text,
                    const Json& logprobs) override {
    append(out, concat(text_type(block), ".delta"), "delta", text, &logprobs);
  }
  void end_block(std::string& out, const AnswerBlock& block) override {
    append(out, concat(text_type(block), ".done"), is_call(block) ? "arguments" : "text",
           block.text, &block.logprobs);
    if (!is_call(block)) append(out, "response.content_part.done", "part", part(block, false));
    append(out, "response.output_item.done", "item", item(block, false));
  }
  void end(std::string& out, const Usage& usage) override {
    append_state(out, is_cut_off() ? "response.incomplete" : "response.completed", answer(usage));
  }

  [[nodiscard]] Json answer(const Usage& usage) override {
    Json output = Json::array();
    for (const AnswerBlock& block : blocks()) output.push_back(item(block, false));
    Json out = response(is_cut_off() ? "incomplete" : "completed", std::move(output));
    if (is_cut_off())
      out["incomplete_details"] = Json::object({{"reason", "max_output_tokens"}});
    else
      out["completed_at"] = unix_seconds();
    out["usage"] = usage_json(usage);
    if (echo_["store"].boolean()) out["store"] = keep(out);
    return out;
  }

  [[nodiscard]] const char* id_prefix(Kind kind) const override {
    return kind == Kind::content ? "msg_" : kind == Kind::reasoning ? "rs_" : "fc_";
  }

  [[nodiscard]] bool is_cut_off() const { return choice().finish_reason == "length"; }
  [[nodiscard]] static bool is_call(const AnswerBlock& block) {
    return block.kind == Kind::tool_call_arguments;
  }
  /// Of the events that have a block's text.
  [[nodiscard]] static const char* text_type(const AnswerBlock& block) {
    return is_call(block)                  ? "response.function_call_arguments"
           : block.kind == Kind::reasoning ? "response.reasoning_text"
                                           : "response.output_text";
  }

  [[nodiscard]] Json response(const char* status, Json output) const {
    const ReplyFrame& frame = setup().common.frame;
    Json out = Json::object({{"id", frame.id},
                             {"object", "response"},
                             {"created_at", frame.created},
                             {"completed_at", nullptr},
                             {"status", status},
                             {"background", false},
                             {"error", nullptr},
                             {"incomplete_details", nullptr},
                             {"model", frame.model},
                             {"output", std::move(output)},
                             {"usage", nullptr}});
    for (const auto& [name, value] : echo_.items()) out[name] = value;
    return out;
  }

  [[nodiscard]] static Json part(const AnswerBlock& block, bool begins) {
    const bool is_text = block.kind == Kind::content;
    Json out = Json::object(
        {{"type", is_text ? "output_text" : "reasoning_text"}, {"text", begins ? "" : block.text}});
    if (!is_text) return out;
    out["annotations"] = Json::array();
    out["logprobs"] = begins ? Json::array() : block.logprobs;
    return out;
  }

  [[nodiscard]] static Json item(const AnswerBlock& block, bool begins) {
    const bool is_text = block.kind == Kind::content;
    Json out = Json::object({{"id", block.id},
                             {"type", is_call(block) ? "function_call"
                                      : is_text      ? "message"
                                                     : "reasoning"},
                             {"status", begins             ? "in_progress"
                                        : block.is_cut_off ? "incomplete"
                                                           : "completed"}});
    if (is_call(block)) {
      out["call_id"] = block.call_id;
      out["name"] = block.name;
      out["arguments"] = begins ? "" : block.text;
      return out;
    }
    out[is_text ? "role" : "summary"] = is_text ? Json("assistant") : Json::array();
    out["content"] = Json::array();
    if (!begins) out["content"].push_back(part(block, false));
    return out;
  }

  void append_state(std::string& out, const char* type, Json response) {
    append_named_event(out, Json::object({{"type", type},
                                          {"sequence_number", num_events_++},
                                          {"response", std::move(response)}}));
  }
  /// An event of the last block. `logprobs`, if any, are those of a text.
  void append(std::string& out, const std::string& type, const char* member, Json value,
              const Json* logprobs = nullptr) {
    const AnswerBlock& block = blocks().back();
    Json event = Json::object({{"type", type},
                               {"sequence_number", num_events_++},
                               {"output_index", last_index()},
                               {member, std::move(value)}});
    if (member != std::string_view("item")) event["item_id"] = block.id;
    if (member != std::string_view("item") && !is_call(block)) event["content_index"] = 0;
    if (logprobs != nullptr && block.kind == Kind::content) event["logprobs"] = *logprobs;
    if (member == std::string_view("arguments")) event["name"] = block.name;
    append_named_event(out, event);
  }

  [[nodiscard]] static Json usage_json(const Usage& usage) {
    return Json::object(
        {{"input_tokens", usage.num_prompt_tokens},
         {"input_tokens_details",
          Json::object(
              {{"cached_tokens", usage.num_cached_tokens.value_or(0)}, {"cache_write_tokens", 0}})},
         {"output_tokens", usage.num_completion_tokens},
         {"output_tokens_details",
          Json::object({{"reasoning_tokens", usage.num_reasoning_tokens.value_or(0)}})},
         {"total_tokens", usage.num_prompt_tokens + usage.num_completion_tokens}});
  }

  /// Keeps the response, with the conversation that its answer is a part of, unless that is too
  /// large. Returns whether it is kept.
  bool keep(const Json& response) {
    std::string reasoning, content;
    Json calls = Json::array();
    for (const AnswerBlock& block : blocks()) {
      if (is_call(block))
        calls.push_back(chat_call(block.call_id, block.name, block.text));
      else
        (block.kind == Kind::reasoning ? reasoning : content) += block.text;
    }
    Json message = chat_message("assistant", std::move(content));
    if (!reasoning.empty()) message["reasoning_content"] = std::move(reasoning);
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
    conversation_.push_back(std::move(message));
    return store_->put(setup().common.frame.id, {response.dump(), conversation_.dump()});
  }

  const Json echo_;
  Json conversation_;
  const std::shared_ptr<ResponseStore> store_;
  std::int64_t num_events_ = 0;
};

}  // namespace nanovllm::serve
