#pragma once
/// How well a document answers a query: by Qwen3-Reranker, which says "yes" or "no", or by a head
/// that it was converted to, for a single label or for the labels "yes" and "no".

#include <cstddef>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/request/output.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/text/tokenizer.hpp"
#include "nanovllm/with/pooling/embedding.hpp"
#include "nanovllm/with/pooling/score_head.hpp"

namespace nanovllm {

/// Makes prompts of queries and documents, and scores of the outcomes: p(yes) / (p(yes) + p(no)) at
/// the first token of the answer, with a score head for one label the logistic function of its
/// logit, and with one for "yes" and "no" the softmax of theirs.
/// Instruction, system prompt and the closed thought are those of Qwen3-Reranker's model card.
/// Thread-safe.
class Reranker {
 public:
  /// Throws RequestError if the tokeniser has no token "yes" or "no" and `options` names none, or
  /// if `head` has several labels that are not these two.
  /// @param head  of the checkpoint; null: it answers with tokens.
  explicit Reranker(Tokenizer tokenizer, ScoreOptions options = {},
                    std::shared_ptr<const ScoreHead> head = nullptr);

  /// The tokens of a prompt. Throws RequestError if `max_prompt_tokens` leaves no room for a query
  /// and a document, and Cancelled soon after a request to stop.
  [[nodiscard]] std::vector<TokenId> prompt(std::string_view query, std::string_view document,
                                            const std::stop_token& stop = {}) const;

  /// The tokens of the template, and one more.
  [[nodiscard]] std::size_t min_prompt_tokens() const {
    return before_.size() + behind_.size() + 1;
  }

  /// The settings of the request: one token, and the log-probabilities of both answers; or the
  /// head.
  [[nodiscard]] SamplingParams params() const;

  /// The score, in [0, 1], of what a request with these params gave: its `logprobs` or `pooled`.
  template <class Outcome>
  [[nodiscard]] float score_of(const Outcome& outcome) const {
    return head_ ? label_probabilities(outcome.pooled).at(label_) : score(outcome.logprobs.at(0));
  }

  /// The score, in [0, 1], from the log-probabilities of the first token.
  /// @param first  of a request with these params. Throws RequestError if they lack an answer.
  [[nodiscard]] float score(const TokenLogprobs& first) const;

 private:
  Tokenizer tokenizer_;
  ScoreOptions options_;
  std::shared_ptr<const ScoreHead> head_;
  TokenId yes_ = 0, no_ = 0;              ///< without a head
  std::size_t label_ = 0;                 ///< of a head: the one whose probability is the score
  std::vector<TokenId> before_, behind_;  ///< of query and document
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <cmath>
#include <utility>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

namespace detail {

inline constexpr std::string_view kRerankerBegin =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    "the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n"
    "<|im_start|>user\n";
inline constexpr std::string_view kRerankerEnd =
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

NANOVLLM_INLINE TokenId answer_token(const Tokenizer& tokenizer, std::optional<TokenId> given,
                                     const char* answer) {
  if (given) return *given;
  const std::optional<TokenId> token = tokenizer.token_to_id(answer);
  check<RequestError>(token.has_value(), "score: the tokeniser has no token '", answer,
                      "', which a reranker answers with");
  return *token;
}

}  // namespace detail

NANOVLLM_INLINE Reranker::Reranker(Tokenizer tokenizer, ScoreOptions options,
                                   std::shared_ptr<const ScoreHead> head)
    : tokenizer_(std::move(tokenizer)),
      options_(std::move(options)),
      head_(std::move(head)),
      before_(tokenizer_.encode(detail::kRerankerBegin)),
      behind_(tokenizer_.encode(detail::kRerankerEnd)) {
  if (head_) {
    const auto yes = head_->find_label("yes"), no = head_->find_label("no");
    const std::size_t count = head_->num_labels();
    check<RequestError>(count == 1 || (count == 2 && yes && no),
                        "score: a reranker has one label, or \"yes\" and \"no\", but the "
                        "checkpoint's score.weight has ",
                        count, count == 2 ? " of other names" : "");
    if (count == 2) label_ = *yes;
    return;
  }
  yes_ = detail::answer_token(tokenizer_, options_.yes, "yes");
  no_ = detail::answer_token(tokenizer_, options_.no, "no");
}

NANOVLLM_INLINE std::vector<TokenId> Reranker::prompt(std::string_view query,
                                                      std::string_view document,
                                                      const std::stop_token& stop) const {
  std::vector<TokenId> out = before_;
  constexpr std::size_t kAll = std::size_t(-1);
  std::string cut;  // the document, if it is too long
  if (options_.max_tokens_per_doc) {
    std::vector<TokenId> tokens = tokenizer_.encode(document, kAll, stop);
    if (tokens.size() > *options_.max_tokens_per_doc) {
      tokens.resize(*options_.max_tokens_per_doc);
      document = cut = tokenizer_.decode(tokens, false);
    }
  }
  // Encoded apart from what is around it: a special token follows, and a line ends ahead.
  const std::vector<TokenId> body =
      tokenizer_.encode(concat("<Instruct>: ", options_.instruction, "\n<Query>: ", query,
                               "\n<Document>: ", document),
                        kAll, stop);
  std::size_t kept = body.size();
  if (options_.max_prompt_tokens) {
    const std::size_t least = min_prompt_tokens();
    check<RequestError>(*options_.max_prompt_tokens >= least,
                        "score: max_prompt_tokens must be at least ", least,
                        ", one more than the template has, got ", *options_.max_prompt_tokens);
    kept = std::min(kept, *options_.max_prompt_tokens - least + 1);
  }
  out.insert(out.end(), body.begin(), body.begin() + static_cast<std::ptrdiff_t>(kept));
  out.insert(out.end(), behind_.begin(), behind_.end());
  return out;
}

NANOVLLM_INLINE SamplingParams Reranker::params() const {
  SamplingParams params;
  params.repetition_penalty = 1;  // instead of the checkpoint's own
  params.priority = options_.priority;
  if (head_) {
    params.pooler = head_;
    return params;
  }
  params.temperature = 0;
  params.max_tokens = 1;
  params.ignore_eos = true;
  params.logprobs = 0;
  params.logprob_token_ids = {yes_, no_};
  return params;
}

NANOVLLM_INLINE float Reranker::score(const TokenLogprobs& first) const {
  std::optional<float> yes, no;
  for (const auto& [token, logprob] : first.chosen) {
    if (token == yes_) yes = logprob;
    if (token == no_) no = logprob;
  }
  check<RequestError>(yes && no, "score: the output has no log-probabilities of both answers");
  return static_cast<float>(1 / (1 + std::exp(double{*no} - *yes)));
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
