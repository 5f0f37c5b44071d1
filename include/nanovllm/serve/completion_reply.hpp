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
  void append_end(std::string& out, const Usage& usage) override;
  [[nodiscard]] std::string whole(const OutputNews& news, const Usage& usage) override;
  [[nodiscard]] std::string_view finish_reason() const override {
    return choices_.front().finish_reason;
  }

 private:
  struct Choice {
    bool has_begun = false;
    std::int64_t offset = 0;  ///< in characters, of the next token that has log-probabilities
    std::size_t text_size = 0;
    std::vector<TokenId> token_ids{};  ///< as far as reasons to stop need them
    Json new_token_ids = Json::array();
    std::string finish_reason{};
  };

  void add_tokens(Choice& choice, const ChoiceNews& news) const;

  /// One element of `choices`. `prompt` are the log-probabilities of an echo, or null.
  [[nodiscard]] Json choice_json(std::size_t index, const ChoiceNews& news,
                                 const PromptLogprobs* prompt);
  [[nodiscard]] Json logprobs_json(std::size_t index, const ChoiceNews& news,
                                   const PromptLogprobs* prompt);
  [[nodiscard]] std::size_t prompt_of(std::size_t index) const;

  const Setup setup_;
  const ChunkFrame chunks_;
  std::vector<Choice> choices_;
};

}  // namespace nanovllm::serve

#if NANOVLLM_BODIES
#include "nanovllm/serve/completion_reply.inc"
#endif
