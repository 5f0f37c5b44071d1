#pragma once
/// What an engine offers of conversations, and of keys and values in files.

#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>

#include "nanovllm/engine/session/session.hpp"
#include "nanovllm/engine/session/session_host.hpp"

namespace nanovllm {

/// The part of an `Engine` that knows of sessions. Every member may be called from any thread at
/// any time. What sessions need of the engine is made in the first call: a program that calls none
/// of these has no code for them.
///
/// @tparam Engine  derives from this, and has `SessionHost make_session_host()`.
template <class Engine>
class Conversations {
 public:
  /// A new, empty conversation whose keys and values are kept from turn to turn; see
  /// engine/session/session.hpp. It may outlive the engine, but has no more turns then.
  [[nodiscard]] Session session() { return Session::open(host()); }

  /// The conversation that `Session::save` has written, with its blocks, as far as there is room
  /// for them; it continues as if it had never been away. Throws LoadError that says what was
  /// expected and what came when the file is cut off, altered, or of another model, checkpoint,
  /// element type or version.
  [[nodiscard]] Session load_session(const std::filesystem::path& path) {
    return Session::load(host(), path);
  }

  /// Writes all that the prefix cache has to a file in `directory`, which is made if need be. Steps
  /// wait meanwhile. Throws Error when it cannot be written, ConfigError for a cache that cannot be
  /// listed.
  void save_cache(const std::filesystem::path& directory) {
    const auto engine = host();
    engine->store->save_cache(directory, engine->identity);
  }

  /// Puts what `save_cache` has written into the prefix cache, as far as there is room. Returns the
  /// number of blocks; those that are not full are left out where the cache keeps full ones alone.
  /// The file must be of the same model, as for `load_session`, and block size.
  std::int32_t load_cache(const std::filesystem::path& directory) {
    const auto engine = host();
    return engine->store->load_cache(directory, engine->identity, engine->layout);
  }

 protected:
  Conversations() = default;
  ~Conversations() = default;

  /// The next calls of sessions find no engine.
  void close() { host_.reset(); }
  /// Waits until no call of a session uses the engine, which is closed.
  void wait_for_calls() {
    if (gone_.valid()) gone_.wait();
  }

 private:
  std::shared_ptr<SessionHost> host() {
    const std::lock_guard lock(mutex_);
    if (host_ == nullptr) {
      host_ = std::make_shared<SessionHost>(static_cast<Engine&>(*this).make_session_host());
      gone_ = host_->in_use.get_future();
    }
    return host_;
  }

  std::mutex mutex_;
  std::shared_ptr<SessionHost> host_;
  std::future<void> gone_;  ///< ready when `host_` is gone, here and in all calls
};

}  // namespace nanovllm
