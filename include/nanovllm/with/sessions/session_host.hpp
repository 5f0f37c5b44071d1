#pragma once
/// What sessions ask of the engine that they belong to.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <vector>

#include "nanovllm/engine/request/frontend.hpp"
#include "nanovllm/engine/request/inbox.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/with/sessions/kv_identity.hpp"
#include "nanovllm/with/sessions/kv_rows.hpp"
#include "nanovllm/with/sessions/section_file.hpp"

namespace nanovllm {

/// The engine's core as sessions see it. A held sequence is one of HeldSequences. Thread-safe;
/// every call waits for the step that another thread is in.
class SessionStore {
 public:
  virtual ~SessionStore() = default;

  /// From now on requests may continue `held`, which is fresh. It stays where it is until
  /// `close_session`, and until all requests that continue it have ended.
  virtual void open_session(Sequence& held) = 0;
  /// `held` gives back its blocks, and nothing can continue it.
  virtual void close_session(Sequence& held) noexcept = 0;
  /// `held` gives back its blocks.
  virtual void clear_session(Sequence& held) noexcept = 0;
  /// Opens `to`, which holds the blocks that `from` does. Throws std::bad_alloc, having changed
  /// nothing.
  virtual void fork_session(const Sequence& from, Sequence& to) = 0;

  // What follows waits for the steps under way, and steps wait for them.

  /// Adds to `file` the keys and values that `held` has of the beginning of `tokens`.
  virtual void save_session(const Sequence& held, std::span<const TokenId> tokens,
                            SectionWriter& file) = 0;
  /// Opens `held`, which holds the first of `tokens`, one for each of `rows`, as far as there is
  /// room. Throws what the runner throws, having changed nothing.
  virtual void load_session(Sequence& held, std::vector<TokenId> tokens,
                            std::span<const std::byte* const> rows) = 0;

  // The same of the prefix cache as a whole: see Engine::save_cache and load_cache.

  /// Throws ConfigError when the cache cannot be listed, Error when the file cannot be written.
  virtual void save_cache(const std::filesystem::path& directory, const KvIdentity& identity) = 0;
  /// Returns the number of blocks that were put in. Throws LoadError, having changed nothing.
  virtual std::int32_t load_cache(const std::filesystem::path& directory,
                                  const KvIdentity& identity, const KvRows& layout) = 0;
};

/// What a session needs of its engine. The engine owns it; a session has a weak pointer, and a
/// strong one during a call. ~Engine releases its pointer and waits until the last of these calls
/// has returned.
struct SessionHost {
  std::promise<void> in_use{};  ///< broken with the host: ~Engine waits for that
  Frontend& frontend;
  Inbox& inbox;
  std::unique_ptr<SessionStore> store;
  KvIdentity identity{};         ///< of its keys and values
  KvRows layout;                 ///< of a file's rows
  std::function<void()> step{};  ///< one step of the engine, callbacks included
};

}  // namespace nanovllm
