#pragma once
/// Replies that need no engine: lists, counts, errors.

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "nanovllm/api/serve/exchange.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::serve {

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
