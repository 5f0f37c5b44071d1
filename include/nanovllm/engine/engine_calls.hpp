#pragma once
/// What `Engine` and `AnyEngine` both offer on top of `AnyEngine::generate_each`.

#include <concepts>
#include <initializer_list>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/request/output.hpp"
#include "nanovllm/engine/request/prompt.hpp"
#include "nanovllm/sampling/sampling_params.hpp"

namespace nanovllm {

/// @tparam Self  derives from this, and has `AnyEngine& any()`.
template <class Self>
class EngineCalls {
 public:
  /// Serves one prompt. As below, what cannot be served is an output with an error.
  Output generate(const Prompt& prompt, const SamplingParams& params = {}) {
    return std::move(any().generate_each(std::span(&prompt, 1), std::span(&params, 1)).front());
  }

  /// Serves all `prompts` and returns their outputs in the same order. A prompt that cannot be
  /// served fails alone: its output has finish_reason `error` and the reason. If this throws,
  /// its requests are taken back.
  template <RangeOf<Prompt> Prompts>
  std::vector<Output> generate(const Prompts& prompts, const SamplingParams& params = {}) {
    return any().generate_each(list_of(prompts), std::span(&params, 1));
  }
  std::vector<Output> generate(std::initializer_list<Prompt> prompts,
                               const SamplingParams& params = {}) {
    return any().generate_each(prompts, std::span(&params, 1));
  }

  /// The same with settings for every prompt. Throws RequestError when their numbers differ.
  template <RangeOf<Prompt> Prompts, std::convertible_to<std::span<const SamplingParams>> Params>
  std::vector<Output> generate(const Prompts& prompts, const Params& params) {
    const std::vector<Prompt> list = list_of(prompts);
    const std::span<const SamplingParams> settings(params);
    check<RequestError>(settings.size() == list.size(), "generate: ", list.size(),
                        " prompts need as many SamplingParams, got ", settings.size());
    return any().generate_each(list, settings);
  }

 protected:
  EngineCalls() = default;
  ~EngineCalls() = default;

 private:
  auto& any() { return static_cast<Self&>(*this).any(); }

  template <class Prompts>
  static std::vector<Prompt> list_of(const Prompts& prompts) {
    return std::vector<Prompt>(std::begin(prompts), std::end(prompts));
  }
};

}  // namespace nanovllm
