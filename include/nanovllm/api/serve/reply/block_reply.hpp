#pragma once
/// Answers to chats as a list of blocks: thoughts, texts and calls of tools in their order. Two
/// protocols have them so, and each writes them in its form.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/api/serve/reply/chat_reply.hpp"

namespace nanovllm::serve {

/// A block of an answer.
struct AnswerBlock {
  ChatEvent::Kind kind = ChatEvent::Kind::content;  ///< reasoning, content, or arguments
  std::string text{};                               ///< of a call: its arguments
  std::string name{}, call_id{};                    ///< of a call
  std::string id{};                                 ///< for protocols in which each block has one
  Json logprobs = Json::array();                    ///< of content, if they were asked for
  bool is_cut_off = false;  ///< by the limit of tokens, or a call by a stop string
};

/// Appends an event of a stream that is called by its `type`.
inline void append_named_event(std::string& out, const Json& event) {
  out += "event: " + event["type"].string() + "\n";
  append_event(out, event.dump());
}

/// Law: the blocks of a stream, put together, are those of the whole reply. An answer has a block
/// at least; one without any text has an empty text. Log-probabilities are those of the tokens of
/// texts, and not of thoughts and calls.
class BlockReply : public ReplyWriter {
 public:
  explicit BlockReply(ChatSetup&& setup) : setup_(std::move(setup)), choice_(setup_) {}

  void append_chunks(std::string& out, std::size_t index, const ChoiceUpdate& update,
                     const Usage& usage) final;
  void append_end(std::string& out, const Usage& usage) final { end(out, detailed(usage)); }
  void append_done(std::string& /*out*/) final {}
  [[nodiscard]] std::string whole(const OutputUpdate& update, const Usage& usage) final {
    add(nullptr, update.choices.front());
    return answer(detailed(usage)).dump();
  }
  [[nodiscard]] std::string_view finish_reason() const final { return choice_.finish_reason; }

 protected:
  // The events of a stream. `block` is the last of blocks(); it has no text yet when it begins.
  virtual void begin(std::string& out, const Usage& usage) = 0;
  virtual void begin_block(std::string& out, const AnswerBlock& block) = 0;
  virtual void append_delta(std::string& out, const AnswerBlock& block, const std::string& text,
                            const Json& logprobs) = 0;
  virtual void end_block(std::string& out, const AnswerBlock& block) = 0;
  virtual void end(std::string& out, const Usage& usage) = 0;

  /// A whole answer that has ended.
  [[nodiscard]] virtual Json answer(const Usage& usage) = 0;

  /// The prefix of AnswerBlock::id; null: blocks have none.
  [[nodiscard]] virtual const char* id_prefix(ChatEvent::Kind /*kind*/) const { return nullptr; }

  [[nodiscard]] const ChatSetup& setup() const { return setup_; }
  [[nodiscard]] const ChatChoice& choice() const { return choice_; }
  [[nodiscard]] const std::vector<AnswerBlock>& blocks() const { return blocks_; }
  [[nodiscard]] std::size_t last_index() const { return blocks_.size() - 1; }
  [[nodiscard]] bool has_begun() const { return has_begun_; }

 private:
  /// Takes new output. `out` is null unless events are to be written.
  void add(std::string* out, const ChoiceUpdate& update);
  void read(std::string* out, const ChoiceUpdate& update);
  void take(std::string* out, ChatDelta&& delta);
  void open(std::string* out, ChatDelta&& delta);
  void close(std::string* out) {
    if (out != nullptr && !blocks_.empty()) end_block(*out, blocks_.back());
  }
  [[nodiscard]] Usage detailed(Usage usage) const {
    if (setup_.parser.reasoning != Reasoning::none)
      usage.num_reasoning_tokens = choice_.num_reasoning();
    return usage;
  }

  const ChatSetup setup_;
  ChatChoice choice_;
  std::vector<AnswerBlock> blocks_;
  std::int64_t tool_call_ = 0;    // of the last block
  Json pending_ = Json::array();  // log-probabilities of tokens whose text has not come
  bool has_begun_ = false;
};

inline void BlockReply::append_chunks(std::string& out, std::size_t /*index*/,
                                      const ChoiceUpdate& update, const Usage& usage) {
  if (!std::exchange(has_begun_, true)) begin(out, usage);
  add(&out, update);
}

inline void BlockReply::add(std::string* out, const ChoiceUpdate& update) {
  const std::size_t num_tokens = setup_.logprobs ? update.text_ends.size() : 0;
  if (num_tokens <= 1) {
    read(out, update);
  } else {  // token by token, so that each one's log-probability is of the block it is in
    for (std::size_t i = 0; i < num_tokens; ++i) read(out, update.slice(i, i + 1));
  }
  if (!is_ended_by_itself(update.finish_reason)) return;
  if (blocks_.empty()) open(out, {});
  blocks_.back().is_cut_off = update.finish_reason == FinishReason::length || choice_.is_in_call();
  close(out);
}

inline void BlockReply::read(std::string* out, const ChoiceUpdate& update) {
  for (const TokenLogprobs& token : update.logprobs)
    pending_.push_back(chat_logprobs(*setup_.common.tokenizer, token, setup_.top_logprobs,
                                     setup_.common.token_names));
  for (ChatDelta& delta : choice_.read(update, setup_)) take(out, std::move(delta));
}

inline void BlockReply::take(std::string* out, ChatDelta&& delta) {
  const bool is_call = delta.kind == ChatEvent::Kind::tool_call_arguments;
  if (blocks_.empty() || blocks_.back().kind != delta.kind ||
      (is_call && tool_call_ != delta.tool_call)) {
    close(out);
    open(out, {.kind = delta.kind,
               .tool_call = delta.tool_call,
               .name = std::move(delta.name),
               .id = std::move(delta.id)});
  }
  AnswerBlock& block = blocks_.back();
  const Json logprobs = std::exchange(pending_, Json::array());
  for (const Json& token : logprobs) block.logprobs.push_back(token);
  block.text += delta.text;
  if (out != nullptr && !delta.text.empty()) append_delta(*out, block, delta.text, logprobs);
}

inline void BlockReply::open(std::string* out, ChatDelta&& delta) {
  tool_call_ = delta.tool_call;
  blocks_.push_back(
      {.kind = delta.kind, .name = std::move(delta.name), .call_id = std::move(delta.id)});
  if (const char* prefix = id_prefix(delta.kind)) blocks_.back().id = setup_.ids->next(prefix);
  if (out != nullptr) begin_block(*out, blocks_.back());
}

}  // namespace nanovllm::serve
