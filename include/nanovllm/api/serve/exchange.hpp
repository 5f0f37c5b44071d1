#pragma once
/// HTTP as the service sees it, without a transport, and a reply under way, between the engine,
/// which writes to it, and a transport, which takes from it.
///
/// The engine's callbacks only store their events; JSON is made in `head` and `take`, on threads of
/// the transport. Text that accumulates while a reader is slow is joined into fewer, larger chunks,
/// so it never takes more memory than the output itself.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/io/json.hpp"

namespace nanovllm::serve {

/// A request, whole.
struct HttpRequest {
  std::string method = "GET";
  std::string target = "/";  ///< path, and perhaps a query after '?', which is ignored
  std::string body{};
};

/// A target without scheme and host: "/v1/models?a" for "http://host/v1/models?a". Clients may send
/// either form.
[[nodiscard]] inline std::string_view origin_form(std::string_view target) {
  const auto begins_with = [&](std::string_view scheme) {
    return target.size() >= scheme.size() &&
           std::equal(scheme.begin(), scheme.end(), target.begin(), [](char expected, char c) {
             return expected == (c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
           });
  };
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!begins_with(scheme)) continue;
    const std::size_t path = target.find_first_of("/?", scheme.size());
    return path == target.npos || target[path] == '?' ? "/" : target.substr(path);
  }
  return target;
}

/// The path of a target, without its query, with %XX decoded.
[[nodiscard]] inline std::string path_of(std::string_view target) {
  target = origin_form(target);
  target = target.substr(0, target.find('?'));
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  std::string path;
  for (std::size_t i = 0; i < target.size(); ++i) {
    const bool is_coded = target[i] == '%' && i + 2 < target.size() && digit(target[i + 1]) >= 0 &&
                          digit(target[i + 2]) >= 0;
    if (!is_coded) {
      path += target[i];
      continue;
    }
    path += static_cast<char>(digit(target[i + 1]) * 16 + digit(target[i + 2]));
    i += 2;
  }
  return path;
}

struct ApiError;

/// Status, type and further headers of a reply. Its body comes from an Exchange.
struct HttpHead {
  int status = 200;
  std::string content_type = "application/json";
  bool is_stream = false;  ///< the body comes in pieces, and its length is not known
  std::vector<std::pair<std::string, std::string>> headers{};  ///< e.g. {"Retry-After", "1"}
};

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

  /// Ends a reply that is not complete with an error, in its protocol's form, and aborts the
  /// requests: `head` and `take` have the error next. Called as they are, by one at a time.
  virtual void fail(const ApiError& error) = 0;

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

  void fail(const ApiError& /*error*/) override {}

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
