#pragma once
/// Replies of /v1/chat/completions: objects `chat.completion` and `chat.completion.chunk`.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/chat/chat_event.hpp"
#include "nanovllm/chat/chat_parser.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/serve/reply_ids.hpp"
#include "nanovllm/serve/reply_writer.hpp"

namespace nanovllm::serve {

/// Makes messages of the texts of choices: thoughts go to `reasoning_content` and, by vLLM's newer
/// name, to `reasoning`; calls of tools to `tool_calls`. A choice that made calls and stopped has
/// the finish_reason "tool_calls", whatever made it call them.
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

  void append_chunks(std::string& out, std::size_t index, const ChoiceNews& news,
                     const Usage& usage) override;
  void append_end(std::string& out, const Usage& usage) override;
  [[nodiscard]] std::string whole(const OutputNews& news, const Usage& usage) override;
  [[nodiscard]] std::string_view finish_reason() const override {
    return choices_.front().finish_reason;
  }

 private:
  /// A part of a message: neighbouring events of one kind, and of one call.
  struct Delta {
    ChatEvent::Kind kind = ChatEvent::Kind::content;  ///< reasoning, content, or arguments
    std::string text{};
    std::int64_t tool_call = 0;
    std::string name{}, id{};  ///< of a call that begins
  };
  struct Choice {
    explicit Choice(const ChatParserOptions& options) : parser(options) {}

    ChatParser parser;
    bool has_begun = false;  ///< the chunk with the role is out
    bool has_calls = false;
    std::int64_t num_tokens = 0;     ///< as far as it takes to find the end of the thought
    std::int64_t num_reasoning = 0;  ///< of those, up to that end, its tags included
    std::size_t text_size = 0;
    std::vector<TokenId> token_ids{};  ///< as far as reasons to stop need them
    Json logprobs = Json::array();     ///< of tokens that are in no chunk yet
    Json new_token_ids = Json::array();
    std::string finish_reason{};
  };

  /// Gives the text to the parser, in the thought token by token, so that its tokens are counted.
  void parse(std::vector<Delta>& deltas, Choice& choice, const ChoiceNews& news);
  /// The parts that `news` completes.
  [[nodiscard]] std::vector<Delta> read(Choice& choice, const ChoiceNews& news);
  void append_to(std::vector<Delta>& deltas, Choice& choice, ChatEvent&& event);
  [[nodiscard]] static Json delta_json(const Delta& delta);
  [[nodiscard]] static Json message_json(const std::vector<Delta>& deltas);
  /// What a chunk says beside its delta, and what ends the choice if `ends`.
  [[nodiscard]] Json chunk_choice(std::size_t index, Json delta, bool ends);
  [[nodiscard]] Json take_logprobs(Choice& choice) const;
  [[nodiscard]] Json stop_reason(const Choice& choice) const;
  /// `usage`, with the tokens of thoughts so far where there may be any.
  [[nodiscard]] Usage detailed(Usage usage) const;

  const Setup setup_;
  const ChunkFrame chunks_;
  std::vector<Choice> choices_;
  bool has_prompt_ids_ = false;  ///< a chunk had them
};

}  // namespace nanovllm::serve

#if NANOVLLM_BODIES
#include "nanovllm/serve/chat_reply.inc"
#endif
