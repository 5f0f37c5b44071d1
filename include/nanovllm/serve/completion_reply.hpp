#pragma once
/// Replies of /v1/completions: objects `text_completion`.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/serve/logprobs.hpp"
#include "nanovllm/serve/reply_writer.hpp"

namespace nanovllm::serve {

/// Hands texts on as they are. Choice i of prompt p has the index p · n + i.
class CompletionReply final : public ReplyWriter {
 public:
  struct Setup {
    ReplySetup common{};  ///< `num_choices` are those of all prompts
    std::size_t num_prompts = 1;
    bool logprobs = false;
    std::vector<std::string> echo{};  ///< the texts of the prompts, if they come first
    std::vector<std::vector<TokenId>> prompt_token_ids{};  ///< of the same, if anything needs them
  };

  explicit CompletionReply(Setup setup);

  void append_chunks(std::string& out, std::size_t index, const ChoiceNews& news,
                     const Usage& usage) override;
  void begin_prompt(std::size_t prompt, PromptLogprobs&& logprobs) override;
  bool append_prompt(std::string& out, std::size_t index, const Usage& usage) override;
  void append_end(std::string& out, const Usage& usage) override;
  [[nodiscard]] std::string whole(const OutputNews& news, const Usage& usage) override;
  [[nodiscard]] std::string_view finish_reason() const override {
    return choices_.front().finish_reason;
  }

 private:
  struct Choice {
    bool has_begun = false;
    std::size_t num_prompt_tokens = 0;  ///< whose log-probabilities are in chunks
    std::int64_t offset = 0;  ///< in characters, of the next token that has log-probabilities
    std::size_t text_size = 0;
    std::vector<TokenId> token_ids{};  ///< as far as reasons to stop need them
    Json new_token_ids = Json::array();
    std::string finish_reason{};
  };

  void add_tokens(Choice& choice, const ChoiceNews& news) const;

  /// Log-probabilities of an echo that come before those of what is new, if there are any.
  struct PromptPart {
    const PromptLogprobs* logprobs = nullptr;
    std::size_t begin = 0, end = 0;
  };

  /// One element of `choices`.
  [[nodiscard]] Json choice_json(std::size_t index, const ChoiceNews& news,
                                 const PromptPart& prompt);
  [[nodiscard]] Json logprobs_json(std::size_t index, const ChoiceNews& news,
                                   const PromptPart& prompt);
  [[nodiscard]] std::size_t prompt_of(std::size_t index) const;

  const Setup setup_;
  const ChunkFrame chunks_;
  std::vector<Choice> choices_;
  std::vector<PromptLogprobs> prompts_;  ///< of a stream that begins with them
};

}  // namespace nanovllm::serve

#if NANOVLLM_BODIES
#include "nanovllm/serve/completion_reply.inc"
#endif
