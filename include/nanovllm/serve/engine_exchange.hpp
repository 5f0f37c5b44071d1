#pragma once
/// A reply that the engine is making.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/serve/exchange.hpp"
#include "nanovllm/serve/pending_output.hpp"
#include "nanovllm/serve/reply_writer.hpp"
#include "nanovllm/serve/service_load.hpp"
#include "nanovllm/serve/usage.hpp"

namespace nanovllm::serve {

/// One or more requests to an engine, and the reply that a writer makes of their output. Callbacks
/// know of the output that is pending alone, so they may come when this is gone. The engine must
/// outlive it.
class EngineExchange final : public Exchange {
 public:
  struct Setup {
    std::string kind{};  ///< for summaries
    bool is_stream = false;
    bool keep_token_ids = false;
    bool drop_generated = false;  ///< only what is found out about prompts is wanted
    bool prompts_first = false;   ///< of a stream: log-probabilities of prompts come before choices
  };

  /// Submits one request for each of `prompts`, whose sequences `share` has counted. Throws what the
  /// engine throws, and takes back those that were submitted.
  EngineExchange(AnyEngine& engine, const Setup& setup,
                 const std::vector<std::vector<TokenId>>& prompts, const SamplingParams& params,
                 std::unique_ptr<ReplyWriter> writer, LoadShare& share);
  ~EngineExchange() override;

  EngineExchange(const EngineExchange&) = delete;
  EngineExchange& operator=(const EngineExchange&) = delete;

  [[nodiscard]] const HttpHead* head() override;
  [[nodiscard]] bool take(std::string& out) override;
  void notify(std::function<void()> wake) override;
  void cancel() noexcept override;
  [[nodiscard]] ExchangeSummary summary() const override;

 private:
  void submit(const std::vector<std::vector<TokenId>>& prompts, const SamplingParams& params,
              LoadShare& share);
  void abort_all() noexcept;
  /// The reply is an error: nothing more is wanted of the engine.
  void give_up();
  /// Makes the whole reply if all is there.
  void complete();
  /// Appends what is new of a stream, up to a bound. Returns whether more will come.
  bool append_news(std::string& out);
  /// Appends chunks of `news_` from where it was left. Returns whether all of it is written, rather
  /// than `out` as large as it may be.
  bool write_news(std::string& out, std::size_t max_size);
  bool write_choice(std::string& out, std::size_t max_size);

  AnyEngine& engine_;
  const std::string kind_;
  const bool is_stream_;
  const std::shared_ptr<PendingOutput> pending_;
  const std::unique_ptr<ReplyWriter> writer_;
  std::vector<RequestId> requests_;
  std::atomic<bool> is_cancelled_{false};

  // Of `head` and `take`, which are called by one at a time:
  OutputNews news_;
  Usage usage_;
  HttpHead head_;
  std::string body_;
  bool has_head_ = false, is_done_ = false;
  std::size_t choice_ = 0, token_ = 0;  ///< of `news_`: the next to be written
  std::atomic<bool> has_rest_{false};   ///< of `news_`
};

}  // namespace nanovllm::serve

#if NANOVLLM_BODIES
#include "nanovllm/serve/engine_exchange.inc"
#endif
