#pragma once
/// Requests for text: from the body of one to an exchange that the engine is at work on.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/serve/engine_exchange.hpp"
#include "nanovllm/serve/exchange.hpp"
#include "nanovllm/serve/output_constraint.hpp"
#include "nanovllm/serve/reply_ids.hpp"
#include "nanovllm/serve/reply_writer.hpp"
#include "nanovllm/serve/service_config.hpp"
#include "nanovllm/serve/service_load.hpp"

namespace nanovllm::serve {

/// Starts chats and completions. Thread-safe. Engine and config must outlive it.
class Generation {
 public:
  Generation(AnyEngine& engine, const ServiceConfig& config, std::shared_ptr<ServiceLoad> load)
      : engine_(engine), config_(config), load_(std::move(load)) {}

  /// Reads the body of a request, makes tokens of its text and what holds its answer to a form, and
  /// submits it. Throws ApiError for what cannot be served, and what the engine throws.
  [[nodiscard]] std::shared_ptr<Exchange> chat(std::string_view body);
  [[nodiscard]] std::shared_ptr<Exchange> complete(std::string_view body);

  /// The name that replies call the model by; that of a request may be empty. Throws ApiError (404)
  /// for one that is not served.
  [[nodiscard]] const std::string& model_name(const std::string& asked) const;

  /// From now on requests are refused with status 503.
  void drain() noexcept { is_draining_ = true; }
  [[nodiscard]] bool is_draining() const noexcept { return is_draining_; }

 private:
  /// Room for sequences. Throws ApiError (503, 429) where there is none.
  [[nodiscard]] LoadShare admit(std::int64_t num_sequences) const;
  /// Compiles `constraint`, which the field `field` states. Throws ApiError (400) where it cannot
  /// be.
  void constrain(SamplingParams& params, const OutputConstraint& constraint,
                 const std::string& field) const;
  template <class Request>
  [[nodiscard]] ReplySetup reply_setup(const Request& request, const char* id, const char* object);

  AnyEngine& engine_;
  const ServiceConfig& config_;
  const std::shared_ptr<ServiceLoad> load_;
  const std::shared_ptr<ReplyIds> ids_ = std::make_shared<ReplyIds>();
  std::atomic<bool> is_draining_{false};
};

}  // namespace nanovllm::serve

#if NANOVLLM_BODIES
#include "nanovllm/serve/generation.inc"
#endif
