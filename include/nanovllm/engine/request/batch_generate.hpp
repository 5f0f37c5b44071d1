#pragma once
/// `generate`: a list of prompts to a list of outputs, on top of requests and steps.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/request/frontend.hpp"
#include "nanovllm/engine/request/inbox.hpp"
#include "nanovllm/engine/request/progress.hpp"
#include "nanovllm/engine/request/prompt.hpp"
#include "nanovllm/engine/request/request.hpp"

namespace nanovllm {

/// One call of `generate`. Whatever ends it early, an exception of a step or of the progress
/// callback, takes its requests back.
class BatchGenerate {
 public:
  /// @param on_progress  may be empty.
  BatchGenerate(Frontend& frontend, Inbox& inbox, const GenerateCallback& on_progress);

  BatchGenerate(const BatchGenerate&) = delete;
  BatchGenerate& operator=(const BatchGenerate&) = delete;

  ~BatchGenerate();

  /// Submits `prompts` and calls `step` until all are done. `params` has one entry for all of them
  /// or one each. A prompt that cannot be served costs itself alone: its output says why. Where
  /// there is no memory to go on, throws Error.
  [[nodiscard]] std::vector<Output> run(std::span<const Prompt> prompts,
                                        std::span<const SamplingParams> params,
                                        const std::function<void()>& step);

 private:
  /// Null when the prompt is refused; `output` says why.
  std::shared_ptr<Request> submit(const Prompt& prompt, const SamplingParams& params,
                                  Output& output);

  /// Requests end in about the order of their submission, so few are looked at twice.
  [[nodiscard]] bool is_done();

  void report() const;

  Frontend& frontend_;
  Inbox& inbox_;
  const GenerateCallback& on_progress_;
  EngineStats before_;
  std::vector<Output> outputs_;
  std::vector<std::shared_ptr<Request>> requests_;  // null where refused
  std::size_t num_ended_ = 0;                       // of the first ones
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <utility>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

NANOVLLM_INLINE BatchGenerate::BatchGenerate(Frontend& frontend, Inbox& inbox,
                                             const GenerateCallback& on_progress)
    : frontend_(frontend), inbox_(inbox), on_progress_(on_progress), before_(inbox.counters()) {}

NANOVLLM_INLINE BatchGenerate::~BatchGenerate() {
  for (std::size_t i = num_ended_; i < requests_.size(); ++i) {
    if (requests_[i] && !requests_[i]->has_ended()) inbox_.abort(requests_[i]->id());
  }
}

NANOVLLM_INLINE std::vector<Output> BatchGenerate::run(std::span<const Prompt> prompts,
                                                       std::span<const SamplingParams> params,
                                                       const std::function<void()>& step) try {
  outputs_.resize(prompts.size());
  requests_.reserve(prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    requests_.push_back(submit(prompts[i], params[params.size() == 1 ? 0 : i], outputs_[i]));
  }
  for (report(); !is_done(); report()) step();
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i]) outputs_[i] = std::move(requests_[i]->output());
  }
  return std::move(outputs_);
} catch (const std::bad_alloc& error) {  // programs catch Error
  throw Error(concat("generate: no memory to go on (", error.what(), ")"));
}

NANOVLLM_INLINE std::shared_ptr<Request> BatchGenerate::submit(const Prompt& prompt,
                                                               const SamplingParams& params,
                                                               Output& output) {
  try {
    return frontend_.submit(prompt, params, {});
  } catch (...) {
    output = output_of_refusal();
    return nullptr;
  }
}

NANOVLLM_INLINE bool BatchGenerate::is_done() {
  while (num_ended_ < requests_.size() &&
         (!requests_[num_ended_] || requests_[num_ended_]->has_ended())) {
    ++num_ended_;
  }
  return num_ended_ == requests_.size();
}

NANOVLLM_INLINE void BatchGenerate::report() const {
  if (!on_progress_) return;
  const EngineStats now = inbox_.counters();
  const auto rate = [](std::int64_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
  };
  std::int64_t num_finished = 0;
  for (const auto& request : requests_) num_finished += !request || request->has_ended() ? 1 : 0;
  on_progress_(
      {.num_finished = num_finished,
       .num_requests = static_cast<std::int64_t>(requests_.size()),
       .prefill_tokens_per_second = rate(now.num_prefill_tokens - before_.num_prefill_tokens,
                                         now.prefill_seconds - before_.prefill_seconds),
       .decode_tokens_per_second = rate(now.num_sampled_by_decodes - before_.num_sampled_by_decodes,
                                        now.decode_seconds - before_.decode_seconds)});
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
