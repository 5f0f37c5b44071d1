#pragma once
/// `generate`: a list of prompts to a list of outputs, on top of requests and steps.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/frontend.hpp"
#include "nanovllm/engine/inbox.hpp"
#include "nanovllm/engine/progress.hpp"
#include "nanovllm/engine/prompt.hpp"
#include "nanovllm/engine/request.hpp"

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
  /// or one each. A prompt that cannot be served costs itself alone: its output says why.
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
#include "nanovllm/engine/batch_generate.inc"
#endif
