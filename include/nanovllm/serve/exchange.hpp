#pragma once
/// An answer under way, between the engine, which feeds it, and a transport, which takes from it.
///
/// The engine's callbacks leave what they hear and go on; JSON is made where `head` and `take` are
/// called, on threads of the transport. What piles up while a slow reader takes nothing is put together into
/// fewer, larger chunks, so it never takes more memory than the output itself.

#include <cstdint>
#include <functional>
#include <string>

#include "nanovllm/serve/http.hpp"

namespace nanovllm::serve {

/// What became of an exchange, for a line of a log.
struct ExchangeSummary {
  std::string kind{};  ///< "chat", "completion", "models", …
  std::string
      outcome{};  ///< "stop", "length", "tool_calls", "abort", "error", or "" while it goes on
  std::int64_t num_prompt_tokens = 0;
  std::int64_t num_cached_tokens = 0;
  std::int64_t num_generated_tokens = 0;
  double first_token_seconds = 0;  ///< 0 if there was none
};

/// The reply to one request. Made by a service; members may be called from any thread, but `head`
/// and `take` by one at a time. To destroy it is to cancel it.
class Exchange {
 public:
  virtual ~Exchange() = default;

  /// The head of the reply, once it is known; null before. Of a stream it is known at once. Of what
  /// is no stream the whole body is made by the first call that has an answer, which takes seconds
  /// where it is large: log-probabilities are some 2 KiB a token.
  [[nodiscard]] virtual const HttpHead* head() = 0;

  /// Appends to `out` what of the body is there and was not taken, of a stream some 64 KiB a call at
  /// the most. Returns whether more will come. Nothing is there before the head is.
  [[nodiscard]] virtual bool take(std::string& out) = 0;

  /// Calls `wake` once, as soon as there is something new: a head, a piece of the body, its end.
  /// At once, on this thread, if there is; else on a thread of the engine, which it must not hold
  /// up. A further call replaces a `wake` that was not called.
  virtual void notify(std::function<void()> wake) = 0;

  /// The client has gone: takes the requests back. `take` has no more then. Any number of times.
  virtual void cancel() noexcept = 0;

  [[nodiscard]] virtual ExchangeSummary summary() const = 0;
};

}  // namespace nanovllm::serve
