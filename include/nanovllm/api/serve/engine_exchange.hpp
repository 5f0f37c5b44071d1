#pragma once
/// A reply that the engine is making.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/api/serve/exchange.hpp"
#include "nanovllm/api/serve/reply/pending_output.hpp"
#include "nanovllm/api/serve/reply/reply_writer.hpp"
#include "nanovllm/api/serve/request/api_error.hpp"
#include "nanovllm/api/serve/service_load.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/engine/request/prompt.hpp"
#include "nanovllm/sampling/sampling_params.hpp"

namespace nanovllm::serve {

/// One or more requests to an engine, and the reply that a writer makes of their output. The
/// engine's callbacks hold the PendingOutput and not this object, so they may run after it is
/// destroyed. The engine must outlive it.
class EngineExchange final : public Exchange {
 public:
  struct Setup {
    std::string kind{};  ///< for summaries
    bool is_stream = false;
    std::string cache_salt{};  ///< of all prompts
    bool keep_token_ids = false;
    bool drop_generated = false;  ///< the reply has the prompts' log-probabilities and no new text
    /// Fields of the request that say which tokens may come, for errors.
    std::vector<std::string> rules{};
  };

  /// Submits one request for each of `prompts`, whose sequences `share` has counted. If the engine
  /// throws, aborts those that were submitted and rethrows.
  EngineExchange(AnyEngine& engine, const Setup& setup,
                 const std::vector<std::vector<TokenId>>& prompts, const SamplingParams& params,
                 std::unique_ptr<ReplyWriter> writer, LoadShare& share);
  ~EngineExchange() override;

  EngineExchange(const EngineExchange&) = delete;
  EngineExchange& operator=(const EngineExchange&) = delete;

  [[nodiscard]] const HttpHead* head() override;
  [[nodiscard]] bool take(std::string& out) override;
  void notify(std::function<void()> wake) override;
  void fail(const ApiError& error) override;
  void cancel() noexcept override;
  [[nodiscard]] ExchangeSummary summary() const override;

 private:
  void submit(const std::vector<std::vector<TokenId>>& prompts, const std::string& cache_salt,
              const SamplingParams& params, LoadShare& share);
  void abort_all() noexcept;
  /// The reply is an error: aborts the requests.
  void give_up();
  /// Makes the whole reply if all requests have ended.
  void complete();
  /// Appends a stream's new chunks, up to a size limit. Returns whether more will come.
  bool append_update(std::string& out);
  /// Appends chunks of `update_`, from where the last call stopped. Returns false if `out` reached
  /// its size limit before the end of `update_`.
  bool write_update(std::string& out, std::size_t max_size);
  bool write_choice(std::string& out, std::size_t max_size);

  AnyEngine& engine_;
  const std::string kind_;
  const bool is_stream_;
  const std::vector<std::string> rules_;
  const std::shared_ptr<PendingOutput> pending_;
  const std::unique_ptr<ReplyWriter> writer_;
  std::vector<RequestId> requests_;
  std::atomic<bool> is_cancelled_{false};

  // Of `head` and `take`, which are called by one at a time:
  OutputUpdate update_;
  Usage usage_;
  HttpHead head_;
  std::string body_;
  std::optional<ApiError> error_;  ///< of `fail`
  bool has_head_ = false, is_done_ = false;
  std::size_t choice_ = 0, token_ = 0;  ///< of `update_`: the next to be written
  std::atomic<bool> has_rest_{false};   ///< of `update_`
};

namespace detail {

/// Bytes of a stream that one `take` gives; the rest waits for the next call. So a client that was
/// slow does not hold up the transport's other connections.
inline constexpr std::size_t kMaxTaken = 64 * 1024;
/// Tokens in a chunk, alone and with log-probabilities, which are some 2 KiB a token.
inline constexpr std::size_t kMaxChunkTokens = 2048, kMaxChunkLogprobs = 16;

inline PendingOutput::Setup pending_setup(const EngineExchange::Setup& setup,
                                          std::size_t num_prompts, const SamplingParams& params) {
  return {.num_prompts = num_prompts,
          .num_choices = static_cast<std::size_t>(params.n),
          .num_sequences = num_samples(params),
          .is_stream = setup.is_stream,
          .keep_token_ids = setup.keep_token_ids,
          .drop_generated = setup.drop_generated,
          .comes_at_end = !is_streamed(params) || params.pooler != nullptr,
          .prompts_first = setup.is_stream && params.prompt_logprobs.has_value()};
}

/// The error of a reply whose request has failed.
/// @param rules  fields that say which tokens may come.
inline ApiError failure(const OutputUpdate& update, const std::vector<std::string>& rules) {
  if (update.is_aborted) return {503, "the request was taken back: the engine is shutting down"};
  if (update.is_refused && rules.empty()) return {400, update.error};
  if (update.is_refused) {
    std::string names = rules.front();
    for (std::size_t i = 1; i < rules.size(); ++i)
      names += (i + 1 < rules.size() ? ", " : " and ") + rules[i];
    // The engine has a name of its own for a constraint, and a list of all that may be at fault.
    const std::string what = in_own_name(
        update.error.substr(0, update.error.find(": token_masks,")), "token_masks", rules.front());
    return {400, concat(names, rules.size() == 1 ? ": " : " rule each other out: ", what),
            rules.front()};
  }
  return {500, "the engine could not serve the request: " + update.error};
}

}  // namespace detail

inline EngineExchange::EngineExchange(AnyEngine& engine, const Setup& setup,
                                      const std::vector<std::vector<TokenId>>& prompts,
                                      const SamplingParams& params,
                                      std::unique_ptr<ReplyWriter> writer, LoadShare& share)
    : engine_(engine),
      kind_(setup.kind),
      is_stream_(setup.is_stream),
      rules_(setup.rules),
      pending_(std::make_shared<PendingOutput>(detail::pending_setup(setup, prompts.size(), params),
                                               share.load())),
      writer_(std::move(writer)) {
  if (is_stream_) {
    head_ = {.content_type = "text/event-stream", .is_stream = true};
    head_.headers.emplace_back("Cache-Control", "no-cache");
  }
  for (const auto& prompt : prompts)
    usage_.num_prompt_tokens += static_cast<std::int64_t>(prompt.size());
  submit(prompts, setup.cache_salt, params, share);
}

inline EngineExchange::~EngineExchange() {
  if (pending_->cancel(false)) abort_all();
}

inline void EngineExchange::submit(const std::vector<std::vector<TokenId>>& prompts,
                                   const std::string& cache_salt, const SamplingParams& params,
                                   LoadShare& share) {
  requests_.reserve(prompts.size());
  try {
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      Prompt prompt(prompts[i]);
      prompt.cache_salt = cache_salt;
      requests_.push_back(engine_.submit(
          prompt, params,
          [pending = pending_, i](const TokenEvent& event) { pending->hear(i, event); }));
      share.hand_over(num_samples(params));
      share.load()->counters.num_prompt_tokens.fetch_add(std::ssize(prompts[i]));
    }
  } catch (...) {
    pending_->cancel(false);
    abort_all();
    throw;
  }
}

inline void EngineExchange::abort_all() noexcept {
  for (const RequestId id : requests_) {
    try {
      engine_.abort(id);
    } catch (const std::exception&) {
      // Out of memory. The request runs to its end, and its events are dropped.
    }
  }
}

inline void EngineExchange::cancel() noexcept {
  is_cancelled_ = true;
  if (pending_->cancel(true)) abort_all();
}

inline void EngineExchange::fail(const ApiError& error) {
  if (has_head_ || is_done_) return;
  error_ = error;
  has_rest_ = false;
  give_up();
}

inline void EngineExchange::give_up() {
  pending_->set_outcome("error");
  if (pending_->cancel(false)) abort_all();  // those of several that have not ended
}

inline const HttpHead* EngineExchange::head() {
  if (is_stream_) {
    pending_->mark_head();
    return &head_;
  }
  if (!has_head_) complete();
  return has_head_ ? &head_ : nullptr;
}

inline bool EngineExchange::take(std::string& out) {
  if (is_done_ || is_cancelled_) return false;
  if (is_stream_) {
    is_done_ = !append_update(out);
    return !is_done_;
  }
  if (!has_head_) complete();
  if (!has_head_) return !is_cancelled_;
  is_done_ = true;
  if (out.empty()) {
    out = std::move(body_);
  } else {
    out += body_;
  }
  body_ = {};
  return false;
}

inline void EngineExchange::notify(std::function<void()> wake) {
  if (has_rest_) return wake();
  pending_->notify(std::move(wake));
}

inline void EngineExchange::complete() {
  if (!error_) {
    pending_->take(update_);
    if (!update_.is_over() || update_.is_cancelled) return;
  }
  for (const ChoiceUpdate& choice : update_.choices)
    usage_.num_completion_tokens += choice.num_tokens;
  usage_.num_cached_tokens = update_.num_cached_tokens;
  try {
    if (error_) throw ApiError(*error_);
    if (update_.has_failed) throw detail::failure(update_, rules_);
    body_ = writer_->whole(update_, usage_);
    pending_->set_outcome(std::string(writer_->finish_reason()));
  } catch (const ApiError& error) {
    head_.status = error.status;
    if (error.status == 503) head_.headers.emplace_back("Retry-After", "1");
    body_ = writer_->error_body(error);
  } catch (const std::exception& error) {
    head_.status = 500;
    body_ = writer_->error_body(ApiError(500, error.what()));
  }
  if (head_.status != 200) give_up();
  update_ = {};  // log-probabilities take as much memory as their text
  has_head_ = true;
}

inline bool EngineExchange::write_choice(std::string& out, std::size_t max_size) {
  const ChoiceUpdate& update = update_.choices[choice_];
  if (update.empty()) return true;
  while (writer_->append_prompt(out, choice_, usage_)) {
    if (out.size() >= max_size) return false;
  }
  const std::size_t num_tokens = update.text_ends.size();
  const std::size_t most =
      update.logprobs.empty() ? detail::kMaxChunkTokens : detail::kMaxChunkLogprobs;
  while (true) {
    const std::size_t end = std::min(token_ + most, num_tokens);
    const bool is_all = end - token_ == num_tokens;
    const ChoiceUpdate part = is_all ? ChoiceUpdate{} : update.slice(token_, end);
    const ChoiceUpdate& next = is_all ? update : part;
    usage_.num_completion_tokens += next.num_tokens;
    writer_->append_chunks(out, choice_, next, usage_);
    token_ = end;
    if (token_ == num_tokens) return true;
    if (out.size() >= max_size) return false;
  }
}

inline bool EngineExchange::write_update(std::string& out, std::size_t max_size) {
  while (choice_ < update_.choices.size()) {
    if (!write_choice(out, max_size)) return false;
    ++choice_;
    token_ = 0;
    if (out.size() >= max_size && choice_ < update_.choices.size()) return false;
  }
  return true;
}

inline bool EngineExchange::append_update(std::string& out) {
  const std::size_t size = out.size();
  if (error_) {
    writer_->append_error(out, *error_);
    writer_->append_done(out);
    return false;
  }
  if (!has_rest_) {
    pending_->take(update_);
    if (update_.is_cancelled) return false;
    if (update_.all_ended) usage_.num_cached_tokens = update_.num_cached_tokens;
    choice_ = token_ = 0;
  }
  const auto fail = [&](const ApiError& error) {
    give_up();
    writer_->append_error(out, error);
  };
  try {
    for (std::size_t i = 0; i < update_.prompt_logprobs.size(); ++i) {
      if (!update_.prompt_logprobs[i].empty())
        writer_->begin_prompt(i, std::exchange(update_.prompt_logprobs[i], {}));
    }
    has_rest_ = !write_update(out, size + detail::kMaxTaken);
    if (has_rest_ || !update_.is_over()) return true;
    if (update_.has_failed) {
      fail(detail::failure(update_, rules_));
    } else {
      writer_->append_end(out, usage_);
      pending_->set_outcome(std::string(writer_->finish_reason()));
    }
  } catch (const std::exception& error) {
    out.resize(size);
    has_rest_ = false;
    fail(ApiError(500, error.what()));
  }
  writer_->append_done(out);
  return false;
}

inline ExchangeSummary EngineExchange::summary() const {
  PendingOutput::Summary summary = pending_->summary();
  return {.kind = kind_,
          .outcome = std::move(summary.outcome),
          .num_prompt_tokens = usage_.num_prompt_tokens,
          .num_cached_tokens = summary.num_cached_tokens,
          .num_generated_tokens = summary.num_generated_tokens,
          .first_token_seconds = summary.first_token_seconds};
}

}  // namespace nanovllm::serve
