#pragma once
/// What an engine offers of conversations, and of keys and values in files.

#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <utility>

#include "nanovllm/engine/session/session.hpp"
#include "nanovllm/engine/session/session_host.hpp"

namespace nanovllm {

/// The part of an `Engine` that knows of sessions. Every member may be called from any thread at
/// any time.
class Conversations {
 public:
  /// A new, empty conversation whose keys and values are kept from turn to turn; see
  /// engine/session/session.hpp. It may outlive the engine, but has no more turns then.
  [[nodiscard]] Session session() { return Session::open(host_); }

  /// The conversation that `Session::save` has written, with its blocks, as far as there is room
  /// for them; it continues as if it had never been away. Throws LoadError that says what was
  /// expected and what came when the file is cut off, altered, or of another model, checkpoint,
  /// element type or version.
  [[nodiscard]] Session load_session(const std::filesystem::path& path) {
    return Session::load(host_, path);
  }

  /// Writes all that the prefix cache has to a file in `directory`, which is made if need be. Steps
  /// wait meanwhile. Throws Error when it cannot be written, ConfigError for a cache that cannot be
  /// listed.
  void save_cache(const std::filesystem::path& directory) {
    host_->store.save_cache(directory, host_->identity);
  }

  /// Puts what `save_cache` has written into the prefix cache, as far as there is room. Returns the
  /// number of blocks; those that are not full are left out where the cache keeps full ones alone.
  /// The file must be of the same model, as for `load_session`, and block size.
  std::int32_t load_cache(const std::filesystem::path& directory) {
    return host_->store.load_cache(directory, host_->identity, host_->layout);
  }

 protected:
  Conversations() = default;
  ~Conversations() = default;

  /// The engine can serve: `host` is what sessions need of it.
  void open(SessionHost host) {
    host_ = std::make_shared<SessionHost>(std::move(host));
    gone_ = host_->in_use.get_future();
  }
  /// The next calls of sessions find no engine.
  void close() { host_.reset(); }
  /// Waits until no call of a session uses the engine, which is closed.
  void wait_for_calls() { gone_.wait(); }

 private:
  std::shared_ptr<SessionHost> host_;
  std::future<void> gone_;  ///< ready when `host_` is gone, here and in all calls
};

}  // namespace nanovllm
