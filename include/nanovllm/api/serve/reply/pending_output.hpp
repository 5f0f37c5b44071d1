#pragma once
/// Output of the engine that the transport has not taken yet.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/api/serve/service_load.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/engine/request/output.hpp"

namespace nanovllm::serve {

/// The new output of one choice: any number of tokens.
struct ChoiceUpdate {
  std::string text{};
  std::vector<std::size_t> text_ends{};   ///< if streamed: where each token's text ends
  std::vector<TokenId> token_ids{};       ///< if the setup keeps them
  std::vector<TokenLogprobs> logprobs{};  ///< one for each token, if requested
  std::vector<float> pooled{};            ///< if a pooler was requested
  std::int64_t num_tokens = 0;
  std::optional<TokenId> last_token{};
  FinishReason finish_reason = FinishReason::none;  ///< set with the last token
  std::string stop_string{};                        ///< as Completion has it

  [[nodiscard]] bool has_ended() const { return finish_reason != FinishReason::none; }
  [[nodiscard]] bool empty() const { return num_tokens == 0 && text.empty() && !has_ended(); }
  void clear() {
    text.clear();
    text_ends.clear();
    token_ids.clear();
    logprobs.clear();
    pooled.clear();
    num_tokens = 0;
    last_token.reset();
    finish_reason = FinishReason::none;
    stop_string.clear();
  }

  /// Tokens [begin, end) with their text; the last slice also has the text after its last token.
  /// Needs `text_ends`.
  [[nodiscard]] ChoiceUpdate slice(std::size_t begin, std::size_t end) const {
    const bool is_last = end == text_ends.size();
    const std::size_t text_begin = begin == 0 ? 0 : text_ends[begin - 1];
    const std::size_t text_end = is_last ? text.size() : text_ends[end - 1];
    ChoiceUpdate out{.text = text.substr(text_begin, text_end - text_begin),
                     .num_tokens = static_cast<std::int64_t>(end - begin)};
    if (is_last) {
      out.last_token = last_token;
      out.finish_reason = finish_reason;
      out.stop_string = stop_string;
    }
    for (std::size_t i = begin; i < end; ++i) out.text_ends.push_back(text_ends[i] - text_begin);
    const auto copy = [&](const auto& from, auto& to) {
      if (from.empty()) return;
      to.assign(from.begin() + static_cast<std::ptrdiff_t>(begin),
                from.begin() + static_cast<std::ptrdiff_t>(end));
    };
    copy(token_ids, out.token_ids);
    copy(logprobs, out.logprobs);
    return out;
  }
};

using PromptLogprobs = std::vector<std::optional<TokenLogprobs>>;

/// All new output, and the state of the requests.
struct OutputUpdate {
  std::vector<ChoiceUpdate> choices{};
  bool is_cancelled = false;
  bool has_failed = false;  ///< a request has ended with an error, or the engine aborted it
  bool all_ended = false;   ///< all requests have ended
  bool is_aborted = false;  ///< of a failure: the engine aborted the request
  bool is_refused = false;  ///< of a failure: what the request asks for cannot be had
  std::string error{};      ///< of a failure
  std::int64_t num_cached_tokens = 0;  ///< when all have ended
  /// By prompt. Set when all requests have ended, or, if prompts come first, once when known.
  std::vector<PromptLogprobs> prompt_logprobs{};

  [[nodiscard]] bool is_over() const { return is_cancelled || has_failed || all_ended; }
};

/// A buffer between the callbacks of one or more requests, one for each prompt, and the transport.
/// Texts that are not taken are joined, so it needs no more memory than the output. Thread-safe.
class PendingOutput {
 public:
  struct Setup {
    std::size_t num_prompts = 1;
    std::size_t num_choices = 1;     ///< of each prompt; choice i of prompt p is p · this + i
    std::int64_t num_sequences = 1;  ///< that ServiceLoad counts for each prompt
    bool is_stream = false;  ///< output is taken as it comes; else when all requests have ended
    bool keep_token_ids = false;
    bool drop_generated = false;  ///< only log-probabilities of prompts are wanted
    bool comes_at_end = false;    ///< choices come with the last event only
    bool prompts_first = false;  ///< of a stream: choices wait for their prompt's log-probabilities
  };

  PendingOutput(const Setup& setup, std::shared_ptr<ServiceLoad> load);

  // ---- The engine's side ----

  /// Takes an event of prompt `prompt`'s request. Costs a lock and a copy of the new output.
  void hear(std::size_t prompt, const TokenEvent& event);

  // ---- The transport's side ----

  /// Replaces `update` by the new output; its memory is reused. Unless this is a stream, nothing is
  /// new before all requests have ended.
  void take(OutputUpdate& update);

  /// Calls `wake` as Exchange::notify says.
  void notify(std::function<void()> wake);

  /// The transport has the head: a stream's head no longer counts as new.
  void mark_head();

  /// Drops all further output. Returns false if that was done before, or all requests have ended.
  /// @param wakes  who waits; an exception of theirs is dropped.
  bool cancel(bool wakes) noexcept;

  // ---- For summaries ----

  struct Summary {
    std::int64_t num_generated_tokens = 0, num_cached_tokens = 0;
    std::optional<double> first_token_seconds{};
    std::string outcome{};
  };
  void set_outcome(std::string outcome);
  [[nodiscard]] Summary summary() const;

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] bool is_over() const { return is_cancelled_ || has_failed_ || num_going_on_ == 0; }
  [[nodiscard]] bool is_ready() const;
  /// Calls `wake`, which is not empty; to be called without the lock, for it may call `notify`. If
  /// it throws, it is kept for the next news.
  void call(std::function<void()> wake);
  void collect(std::size_t prompt, const TokenEvent& event);
  void collect_completion(std::size_t choice, const Completion& completion);
  void end(std::size_t prompt, const Output& output);

  const Setup setup_;
  const std::shared_ptr<ServiceLoad> load_;
  const Clock::time_point begin_ = Clock::now();

  mutable std::mutex mutex_;  // of all that follows
  std::vector<ChoiceUpdate> choices_;
  std::vector<PromptLogprobs> prompt_logprobs_;
  std::vector<bool> prompts_come_;
  std::size_t num_going_on_;
  std::int64_t num_cached_tokens_ = 0, num_generated_tokens_ = 0;
  std::optional<double> first_token_seconds_{};
  bool has_update_ = false, head_given_ = false;
  bool is_cancelled_ = false, has_failed_ = false, is_aborted_ = false, is_refused_ = false;
  std::string error_, outcome_;
  std::function<void()> wake_;
};

inline PendingOutput::PendingOutput(const Setup& setup, std::shared_ptr<ServiceLoad> load)
    : setup_(setup),
      load_(std::move(load)),
      choices_(setup.num_prompts * setup.num_choices),
      prompt_logprobs_(setup.num_prompts),
      prompts_come_(setup.num_prompts),
      num_going_on_(setup.num_prompts) {}

inline void PendingOutput::hear(std::size_t prompt, const TokenEvent& event) {
  std::function<void()> wake;
  {
    const std::lock_guard lock(mutex_);
    if (event.token != nullptr && !first_token_seconds_)
      first_token_seconds_ = std::chrono::duration<double>(Clock::now() - begin_).count();
    if (setup_.prompts_first && event.prompt_logprobs != nullptr && !prompts_come_[prompt]) {
      prompt_logprobs_[prompt] = *event.prompt_logprobs;
      prompts_come_[prompt] = true;
      has_update_ = true;
    }
    if (!setup_.comes_at_end) collect(prompt, event);
    if (event.output != nullptr) end(prompt, *event.output);
    if (wake_ && is_ready()) wake = std::exchange(wake_, nullptr);
  }
  if (wake) call(std::move(wake));
}

inline void PendingOutput::call(std::function<void()> wake) {
  try {
    wake();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!wake_) std::swap(wake_, wake);
    throw;
  }
}

inline void PendingOutput::collect(std::size_t prompt, const TokenEvent& event) {
  const bool ends = event.finish_reason != FinishReason::none;
  if (event.token != nullptr && !setup_.drop_generated) ++num_generated_tokens_;
  if (is_cancelled_) return;
  ChoiceUpdate& choice =
      choices_[prompt * setup_.num_choices + static_cast<std::size_t>(event.sample)];
  choice.finish_reason = event.finish_reason;
  choice.stop_string = event.stop_string;
  if (setup_.drop_generated && choice.finish_reason == FinishReason::stop)
    choice.finish_reason = FinishReason::length;  // what stopped it is left out, too
  if (!setup_.drop_generated) {
    choice.text += event.text;
    if (event.token != nullptr) {
      ++choice.num_tokens;
      choice.last_token = *event.token;
      choice.text_ends.push_back(choice.text.size());
      if (setup_.keep_token_ids) choice.token_ids.push_back(*event.token);
      if (event.logprobs != nullptr) choice.logprobs.push_back(*event.logprobs);
    }
  }
  has_update_ = has_update_ || ends || !event.text.empty() || event.logprobs != nullptr;
}

inline void PendingOutput::collect_completion(std::size_t choice, const Completion& completion) {
  num_generated_tokens_ += static_cast<std::int64_t>(completion.token_ids.size());
  if (is_cancelled_) return;
  choices_[choice] = {.text = completion.text,
                      .token_ids = completion.token_ids,
                      .logprobs = completion.logprobs,
                      .pooled = completion.pooled,
                      .num_tokens = static_cast<std::int64_t>(completion.token_ids.size()),
                      .finish_reason = completion.finish_reason,
                      .stop_string = completion.stop_string};
  if (!completion.token_ids.empty()) choices_[choice].last_token = completion.token_ids.back();
}

inline void PendingOutput::end(std::size_t prompt, const Output& output) {
  load_->num_unfinished.fetch_sub(setup_.num_sequences, std::memory_order_relaxed);
  --num_going_on_;
  num_cached_tokens_ += output.num_cached_tokens;
  if (setup_.comes_at_end) {
    const std::size_t first = prompt * setup_.num_choices;
    collect_completion(first, output);
    const std::size_t num_others = std::min(output.alternatives.size(), setup_.num_choices - 1);
    for (std::size_t i = 0; i < num_others; ++i)
      collect_completion(first + 1 + i, output.alternatives[i]);
  }
  // Of several samples those before may have ended by themselves. Without a message, an error is
  // that of a beam alone, where there are fewer texts than beams.
  const auto has = [&](FinishReason reason) {
    return output.finish_reason == reason ||
           std::ranges::any_of(output.alternatives, [&](const Completion& completion) {
             return completion.finish_reason == reason;
           });
  };
  FinishReason reason = output.finish_reason;
  if (has(FinishReason::abort)) reason = FinishReason::abort;
  if (has(FinishReason::error) && !output.error.empty()) reason = FinishReason::error;
  load_->counters.finish(reason);
  if (is_cancelled_) return;
  if (!setup_.prompts_first) prompt_logprobs_[prompt] = output.prompt_logprobs;
  has_update_ = true;
  const bool fails = reason == FinishReason::error || reason == FinishReason::abort;
  if (has_failed_ || !fails) return;
  has_failed_ = true;
  is_aborted_ = reason == FinishReason::abort;
  is_refused_ = output.is_refused;
  error_ = output.error;
}

inline bool PendingOutput::is_ready() const {
  return is_over() || (setup_.is_stream && (has_update_ || !head_given_));
}

inline void PendingOutput::take(OutputUpdate& update) {
  update.choices.resize(choices_.size());
  for (ChoiceUpdate& choice : update.choices) choice.clear();
  const std::lock_guard lock(mutex_);
  has_update_ = false;
  update.is_cancelled = is_cancelled_;
  update.has_failed = has_failed_;
  update.is_aborted = is_aborted_;
  update.is_refused = is_refused_;
  update.all_ended = num_going_on_ == 0;
  if (update.has_failed) update.error = error_;
  if (setup_.prompts_first) {
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      if (prompts_come_[i / setup_.num_choices]) std::swap(update.choices[i], choices_[i]);
    }
  } else if (setup_.is_stream || update.all_ended) {
    std::swap(update.choices, choices_);
  }
  if (update.all_ended) update.num_cached_tokens = num_cached_tokens_;
  if (update.all_ended || setup_.prompts_first)
    update.prompt_logprobs =
        std::exchange(prompt_logprobs_, decltype(prompt_logprobs_)(setup_.num_prompts));
}

inline void PendingOutput::notify(std::function<void()> wake) {
  bool is_there = false;
  {
    const std::lock_guard lock(mutex_);
    is_there = is_ready();
    if (!is_there) std::swap(wake_, wake);
  }
  if (is_there) wake();  // else it is the one replaced, which is destroyed without the lock
}

inline void PendingOutput::mark_head() {
  const std::lock_guard lock(mutex_);
  head_given_ = true;
}

inline bool PendingOutput::cancel(bool wakes) noexcept {
  std::function<void()> wake;
  bool was_going_on = false;
  {
    const std::lock_guard lock(mutex_);
    wake = std::exchange(wake_, nullptr);
    was_going_on = !is_cancelled_ && num_going_on_ > 0;
    is_cancelled_ = true;
    for (ChoiceUpdate& choice : choices_) choice = {};
    if (outcome_.empty()) outcome_ = "abort";
  }
  try {
    if (wake && wakes) call(std::move(wake));
  } catch (...) {
    // Out of memory, perhaps. It is called again when the requests end, which are aborted now.
  }
  return was_going_on;
}

inline void PendingOutput::set_outcome(std::string outcome) {
  const std::lock_guard lock(mutex_);
  if (outcome_.empty()) outcome_ = std::move(outcome);
}

inline PendingOutput::Summary PendingOutput::summary() const {
  const std::lock_guard lock(mutex_);
  return {.num_generated_tokens = num_generated_tokens_,
          .num_cached_tokens = num_cached_tokens_,
          .first_token_seconds = first_token_seconds_,
          .outcome = outcome_};
}

}  // namespace nanovllm::serve
