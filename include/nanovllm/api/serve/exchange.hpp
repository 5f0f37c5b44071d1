#pragma once
/// A reply under way, between the engine, which writes to it, and a transport, which takes from it.
///
/// The engine's callbacks only store their events; JSON is made in `head` and `take`, on threads of
/// the transport. Text that accumulates while a reader is slow is joined into fewer, larger chunks,
/// so it never takes more memory than the output itself.

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "nanovllm/api/serve/http.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::serve {

/// The outcome of an exchange, for a line of a log.
struct ExchangeSummary {
  std::string kind{};     ///< "chat", "completion", "models", …
  std::string outcome{};  ///< "stop", "length", "tool_calls", "abort", "error", or "" while it runs
  std::int64_t num_prompt_tokens = 0;
  std::int64_t num_cached_tokens = 0;
  std::int64_t num_generated_tokens = 0;
  std::optional<double> first_token_seconds{};  ///< unset before the first token
};

/// The reply to one request. Made by a service; members may be called from any thread, but `head`
/// and `take` by one at a time. To destroy it is to cancel it.
class Exchange {
 public:
  virtual ~Exchange() = default;

  /// The head of the reply, once it is known; null before. For a stream it is known at once.
  /// Otherwise the first call that has an answer makes the whole body, which takes seconds for a
  /// large one: log-probabilities are some 2 KiB a token.
  [[nodiscard]] virtual const HttpHead* head() = 0;

  /// Appends to `out` the part of the body that is ready and was not taken; for a stream at most
  /// about 64 KiB a call. Returns whether more will come. There is no body before the head.
  [[nodiscard]] virtual bool take(std::string& out) = 0;

  /// Calls `wake` once, as soon as there is something new: a head, a piece of the body, its end.
  /// If there is already, at once, on this thread; otherwise on a thread of the engine, which it
  /// must not delay. A further call replaces a `wake` that was not called. One that throws there is
  /// called again with what is new next, and the request ends with an error; after `cancel` its
  /// exception is dropped.
  virtual void notify(std::function<void()> wake) = 0;

  /// The client has gone: aborts the requests. `take` has no more then. May be called repeatedly.
  virtual void cancel() noexcept = 0;

  [[nodiscard]] virtual ExchangeSummary summary() const = 0;
};

/// A reply that is known when it is made.
class WholeExchange final : public Exchange {
 public:
  WholeExchange(std::string kind, HttpHead head, std::string body)
      : kind_(std::move(kind)), head_(std::move(head)), body_(std::move(body)) {}

  [[nodiscard]] const HttpHead* head() override { return &head_; }

  [[nodiscard]] bool take(std::string& out) override {
    const std::lock_guard lock(mutex_);
    out += body_;
    body_.clear();
    return false;
  }

  void notify(std::function<void()> wake) override { wake(); }

  void cancel() noexcept override {
    const std::lock_guard lock(mutex_);
    body_.clear();
  }

  [[nodiscard]] ExchangeSummary summary() const override {
    return {.kind = kind_, .outcome = head_.status < 400 ? "stop" : "error"};
  }

 private:
  const std::string kind_;
  const HttpHead head_;
  std::mutex mutex_;
  std::string body_;
};

/// The reply 200 with `body`.
[[nodiscard]] inline std::shared_ptr<Exchange> json_reply(std::string kind, const Json& body) {
  return std::make_shared<WholeExchange>(std::move(kind), HttpHead{}, body.dump());
}

}  // namespace nanovllm::serve
