#pragma once
/// Where an engine keeps what its sessions need, and how its end waits for them.

#include <functional>
#include <future>
#include <memory>
#include <mutex>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/with/sessions/session_host.hpp"

namespace nanovllm {

/// The host of an engine's sessions, made for the first of them. Thread-safe.
class Conversations {
 public:
  /// @param make  makes the host, once.
  [[nodiscard]] std::shared_ptr<SessionHost> host(const std::function<SessionHost()>& make);

  /// The next calls of sessions find no engine.
  void close() { host_.reset(); }
  /// Waits until no call of a session uses the engine, which is closed.
  void wait_for_calls() {
    if (gone_.valid()) gone_.wait();
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<SessionHost> host_;
  std::future<void> gone_;  ///< ready when `host_` is gone, here and in all calls
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

namespace nanovllm {

NANOVLLM_INLINE std::shared_ptr<SessionHost> Conversations::host(
    const std::function<SessionHost()>& make) {
  const std::lock_guard lock(mutex_);
  if (host_ == nullptr) {
    host_ = std::make_shared<SessionHost>(make());
    gone_ = host_->in_use.get_future();
  }
  return host_;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
