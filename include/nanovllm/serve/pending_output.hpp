#pragma once
/// What the engine has said of a reply and its transport has not taken yet.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/engine/output.hpp"
#include "nanovllm/serve/service_load.hpp"

namespace nanovllm::serve {

/// What is new of one choice: tokens of any number, put together.
struct ChoiceNews {
  std::string text{};
  std::vector<std::size_t> text_ends{};   ///< of streamed samples: where each token's text ends
  std::vector<TokenId> token_ids{};       ///< if they are kept
  std::vector<TokenLogprobs> logprobs{};  ///< one a token, if they were asked for
  std::int64_t num_tokens = 0;
  FinishReason finish_reason = FinishReason::none;  ///< once, with the last of it

  [[nodiscard]] bool has_ended() const { return finish_reason != FinishReason::none; }
  [[nodiscard]] bool empty() const { return num_tokens == 0 && text.empty() && !has_ended(); }
  void clear();

  /// Tokens [begin, end) with the text that came with them. The last of them have what came behind
  /// them as well. Only of what has `text_ends`.
  [[nodiscard]] ChoiceNews slice(std::size_t begin, std::size_t end) const;
};

using PromptLogprobs = std::vector<std::optional<TokenLogprobs>>;

/// Everything that is new, and how things stand.
struct OutputNews {
  std::vector<ChoiceNews> choices{};
  bool is_cancelled = false;
  bool has_failed = false;  ///< a request has ended by an error, or was taken back by the engine
  bool all_ended = false;   ///< all requests have
  bool is_aborted = false;  ///< of a failure: the engine has taken the request back
  std::string error{};      ///< of a failure
  std::int64_t num_cached_tokens = 0;  ///< when all have ended
  /// By prompt: when all have ended, or where prompts come first, once, when they have come.
  std::vector<PromptLogprobs> prompt_logprobs{};

  [[nodiscard]] bool is_over() const { return is_cancelled || has_failed || all_ended; }
};

/// Stands between the callbacks of one or more requests to the engine, one a prompt, and the
/// transport that takes their output. Texts that are not taken are put together, so the memory is
/// that of the output. Thread-safe.
class PendingOutput {
 public:
  struct Setup {
    std::size_t num_prompts = 1;
    std::size_t num_choices = 1;     ///< of each prompt; choice i of prompt p is p · this + i
    std::int64_t num_sequences = 1;  ///< that each prompt counts as in ServiceLoad
    bool is_stream = false;          ///< what comes is wanted as it comes, else when all is there
    bool keep_token_ids = false;
    bool drop_generated = false;  ///< only what is found out about prompts is wanted
    bool comes_at_end = false;    ///< choices come with the last event alone: is_streamed(params)
    bool prompts_first = false;  ///< of a stream: choices wait for their prompt's log-probabilities
  };

  PendingOutput(const Setup& setup, std::shared_ptr<ServiceLoad> load);

  // ---- The engine's side ----

  /// The request of prompt `prompt` says `event`. Costs a lock and the copying of what is new.
  void hear(std::size_t prompt, const TokenEvent& event);

  // ---- The transport's side ----

  /// Replaces `news` by what is new; its memory is used again. Of what is no stream nothing is new
  /// before all is there.
  void take(OutputNews& news);

  /// Calls `wake` as Exchange::notify says.
  void notify(std::function<void()> wake);

  /// The head was given, so it is not news any more.
  void mark_head();

  /// Nothing more is wanted. Returns false if that was known, or all requests have ended.
  bool cancel(bool wakes) noexcept;

  // ---- For summaries ----

  struct Summary {
    std::int64_t num_generated_tokens = 0, num_cached_tokens = 0;
    double first_token_seconds = 0;
    std::string outcome{};
  };
  void set_outcome(std::string outcome);
  [[nodiscard]] Summary summary() const;

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] bool is_over() const { return is_cancelled_ || has_failed_ || num_going_on_ == 0; }
  [[nodiscard]] bool is_ready() const;
  void collect(std::size_t prompt, const TokenEvent& event);
  void collect_completion(std::size_t choice, const Completion& completion);
  void end(std::size_t prompt, const Output& output);
  void count_end(FinishReason reason) { load_->counters.finish(reason); }

  const Setup setup_;
  const std::shared_ptr<ServiceLoad> load_;
  const Clock::time_point begin_ = Clock::now();

  mutable std::mutex mutex_;  // of all that follows
  std::vector<ChoiceNews> choices_;
  std::vector<PromptLogprobs> prompt_logprobs_;
  std::vector<bool> prompts_come_;
  std::size_t num_going_on_;
  std::int64_t num_cached_tokens_ = 0, num_generated_tokens_ = 0;
  double first_token_seconds_ = 0;
  bool has_news_ = false, head_given_ = false;
  bool is_cancelled_ = false, has_failed_ = false, is_aborted_ = false;
  std::string error_, outcome_;
  std::function<void()> wake_;
};

}  // namespace nanovllm::serve

#if NANOVLLM_BODIES
#include "nanovllm/serve/pending_output.inc"
#endif
