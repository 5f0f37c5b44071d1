#pragma once
/// A conversation whose keys and values stay in the KV pool from one turn to the next.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "nanovllm/chat/chat_message.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/engine/request/output.hpp"
#include "nanovllm/engine/request/prompt.hpp"
#include "nanovllm/engine/session/session_host.hpp"
#include "nanovllm/sampling/sampling_params.hpp"

namespace nanovllm {

/// A conversation, made by `Engine::session`:
///
/// ```cpp
/// nanovllm::Session session = engine.session();
/// session.generate("Once upon a time", {.max_tokens = 40});
/// nanovllm::Session other = session.fork();  // shares all blocks, goes its own way
/// session.generate(" Then the wolf", {.max_tokens = 40});
/// other.generate(" Then the fox", {.max_tokens = 40});
/// ```
///
/// **A turn** is a request like any other, whose prompt is the whole conversation so far. It gets
/// the tokens and log-probabilities that `Engine::generate` would give for that prompt. What the
/// turns before it have computed it shares, to the token, with any prefix cache or none. It
/// computes the new tokens, and the last one generated before, which was drawn but never computed.
/// `Output::num_cached_tokens` counts the tokens that it did not compute.
///
/// **A conversation** is tokens or messages. Texts and token ids are appended. Messages are
/// appended to the other messages, and the chat template renders the whole list for every turn. If
/// it renders an earlier answer differently from what was generated (the Qwen3 templates leave out
/// earlier reasoning), the conversation is computed again from the first difference.
///
/// **What a turn adds.** A turn that ends by `stop` or `length` adds its prompt and the tokens that
/// it generated, without what a stop cut off: the end or stop token; and with a stop string the
/// tokens from the first one on that is not completely in `Output::text`. An answer to messages is
/// also added as a message of the role "assistant", with `Output::text` for its content. A turn
/// that is aborted, fails or is refused adds nothing: the session is as it was before it, with its
/// blocks.
///
/// **Blocks.** What a session holds is pinned: nothing evicts it, within
/// `EngineConfig::session_blocks` over all sessions. Beyond that, or if a request could not run
/// otherwise, the session that was used longest ago loses its blocks, but not its conversation: its
/// next turn takes what the prefix cache still has and computes the rest.
///
/// Sessions are independent of each other and may be used by different threads. One session is used
/// by one thread at a time; any thread may serve its turns. After the engine is destroyed,
/// `tokens`, `messages` and the destructor still work, and everything else throws Error. The engine
/// may be destroyed at any time: it ends turns under way and waits for the calls that other threads
/// are in.
class Session {
 public:
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  /// Aborts the turn that is under way, if any, and gives back the blocks.
  ~Session();

  // ---- Turns ----

  /// Appends `prompt` to the conversation and serves a turn. `callback`, if any, is called for
  /// every token. As with `Engine::generate`, a turn that cannot be served gives an output with an
  /// error. An empty text continues the conversation. If a step throws, so does this, and the turn
  /// is taken back.
  Output generate(const Prompt& prompt, const SamplingParams& params = {},
                  TokenCallback callback = {});

  /// Queues a turn and returns at once; `Engine::step` or `Engine::run` serves it. The conversation
  /// has its answer when the callback is called for the end, and the callback may submit the next
  /// turn. Throws RequestError for a turn that can never be served, for one of several samples, and
  /// while another turn is under way.
  RequestId submit(const Prompt& prompt, const SamplingParams& params = {},
                   TokenCallback callback = {});

  /// Appends `prompt` to the conversation without a turn: it is computed with the next one. Throws
  /// RequestError if text or tokens follow messages or messages follow tokens, for what is too
  /// long, and while a turn is under way.
  void append(const Prompt& prompt);

  // ---- The conversation ----

  /// Its tokens. If it consists of messages, those of the last turn's prompt and answer.
  [[nodiscard]] std::vector<TokenId> tokens() const;
  /// Its messages; empty if it consists of tokens.
  [[nodiscard]] std::vector<ChatMessage> messages() const;
  /// Whether a turn is under way.
  [[nodiscard]] bool is_busy() const;

  /// Another session with the same conversation, which shares the blocks. What a turn under way
  /// will add is not part of it.
  [[nodiscard]] Session fork() const;

  /// Writes the conversation and the keys and values that are held of it to a file, which
  /// `Engine::load_session` reads, also in another process. Steps wait meanwhile. Throws
  /// RequestError while a turn is under way, and Error when the file cannot be written: then there
  /// is none, or the one that was there before.
  void save(const std::filesystem::path& path) const;

  /// Starts over: no conversation, no blocks. Throws RequestError while a turn is under way.
  void clear();

 private:
  template <class Model, class Policy>
  friend class Engine;
  struct State;
  struct Turn;

  explicit Session(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// A new one of the engine that `host` belongs to.
  [[nodiscard]] static Session open(const std::shared_ptr<SessionHost>& host);

  /// One that `save` has written. Throws LoadError.
  [[nodiscard]] static Session load(const std::shared_ptr<SessionHost>& host,
                                    const std::filesystem::path& path);

  void close() noexcept;

  /// The conversation with `prompt` behind it, as tokens.
  [[nodiscard]] static Turn begin_turn(const State& state, const Frontend& frontend,
                                       const Prompt& prompt);

  /// Turn `number` has ended with `output`.
  static void end_turn(State& state, Turn& turn, std::uint64_t number, const Frontend& frontend,
                       const SamplingParams& params, const Output& output) noexcept;

  std::shared_ptr<State> state_;  // null when moved from
};

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/engine/session/session.inc"
#endif
