#pragma once
/// A conversation whose keys and values stay in the KV pool from one turn to the next.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "nanovllm/chat/chat_message.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/request/output.hpp"
#include "nanovllm/engine/request/prompt.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/with/sessions/options.hpp"

namespace nanovllm {

class AnyEngine;
class Frontend;
struct Conversation;
struct EngineInside;

/// A conversation with an engine, an `Engine` or an `AnyEngine`:
///
/// ```cpp
/// nanovllm::Session session(engine);
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
/// **A salt.** A conversation keeps the `Prompt::cache_salt` of its first prompt, also in a file
/// and in a fork. Later prompts give the same or none; another is refused.
///
/// **What a turn adds.** A turn that ends by `stop` or `length` adds its prompt and the tokens that
/// it generated, without what a stop cut off: the end or stop token; and with a stop string the
/// tokens from the first one on that is not completely in `Output::text`. An answer to messages is
/// also added as a message of the role "assistant", with `Output::text` for its content. A turn
/// that is aborted, fails or is refused adds nothing: the session is as it was before it, with its
/// blocks.
///
/// **Blocks.** What a session holds is pinned: nothing evicts it, within
/// `SessionOptions::max_blocks` over all sessions. Beyond that, or if a request could not run
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
  /// A new, empty conversation. It may outlive the engine, but has no more turns then.
  explicit Session(AnyEngine& engine);

  /// The conversation that `save` has written, with its blocks, as far as there is room for them;
  /// it continues as if it had never been away. Throws LoadError that says what was expected and
  /// what came when the file is cut off, altered, or of another model, checkpoint, element type or
  /// version.
  [[nodiscard]] static Session load(AnyEngine& engine, const std::filesystem::path& path);

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
  /// `load` reads, also in another process. Steps wait meanwhile. Throws
  /// RequestError while a turn is under way, and Error when the file cannot be written: then there
  /// is none, or the one that was there before.
  void save(const std::filesystem::path& path) const;

  /// Starts over: no conversation, no blocks. Throws RequestError while a turn is under way.
  void clear();

 private:
  struct State;

  explicit Session(std::shared_ptr<State> state) : state_(std::move(state)) {}

  void close() noexcept;

  /// Turn `number`, whose prompt is `turn`, has ended with `output`.
  static void end_turn(State& state, Conversation& turn, std::uint64_t number,
                       const Frontend& frontend, const SamplingParams& params,
                       const Output& output) noexcept;

  std::shared_ptr<State> state_;  // null when moved from
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/engine_inside.hpp"
#include "nanovllm/engine/request/frontend.hpp"
#include "nanovllm/engine/request/inbox.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/kv/prefix/cache_salt.hpp"
#include "nanovllm/with/sessions/conversation.hpp"
#include "nanovllm/with/sessions/kv_file.hpp"
#include "nanovllm/with/sessions/section_file.hpp"

namespace nanovllm {

/// Kept by the session and by the callback of its turn.
struct Session::State {
  std::weak_ptr<EngineInside> host;
  std::shared_ptr<Sequence> held;
  mutable std::mutex mutex;  // guards everything below
  Conversation said{};
  std::uint64_t turn = 0;  ///< that is under way; 0: none
  RequestId request = 0;   ///< of that turn
  std::uint64_t num_turns = 0;

  [[nodiscard]] std::shared_ptr<EngineInside> engine() const {
    std::shared_ptr<EngineInside> out = host.lock();
    check(out != nullptr, "session: its engine is gone");
    return out;
  }
  void check_idle(const char* call) const {
    check<RequestError>(turn == 0, "session: ", call, " while a turn is under way, request ",
                        request);
  }
};

namespace detail {

/// The salt of the session that `file` is of; none where it says nothing.
NANOVLLM_INLINE CacheSalt read_salt(const Json& header, const SectionReader& file) {
  const Json* const text = header.find("cache_salt");
  if (text == nullptr) return {};
  const auto salt = text->is_string() ? CacheSalt::from_hex(text->string()) : std::nullopt;
  check<LoadError>(salt.has_value(), file.name(), ": expected a cache_salt of ",
                   2 * CacheSalt::kNumBytes, " hexadecimal digits, got ", text->dump());
  return *salt;
}

}  // namespace detail

NANOVLLM_INLINE Session::Session(AnyEngine& engine) : state_(std::make_shared<State>()) {
  const std::shared_ptr<EngineInside> host = inside_of(engine);
  state_->host = host;
  state_->held = std::make_shared<Sequence>();
  host->with_scheduler([&](auto& scheduler) { held_in(scheduler).add(*state_->held); });
}

NANOVLLM_INLINE Session::Session(Session&&) noexcept = default;

NANOVLLM_INLINE Session& Session::operator=(Session&& other) noexcept {
  if (this != &other) {
    close();
    state_ = std::move(other.state_);
  }
  return *this;
}

NANOVLLM_INLINE Session::~Session() { close(); }

NANOVLLM_INLINE void Session::close() noexcept {
  if (state_ == nullptr) return;
  const std::shared_ptr<EngineInside> host = state_->host.lock();
  if (host == nullptr) return;
  RequestId under_way = 0;
  {
    const std::lock_guard lock(state_->mutex);
    if (std::exchange(state_->turn, 0) != 0) under_way = state_->request;
  }
  if (under_way != 0) host->inbox.abort(under_way);
  host->with_scheduler([&](auto& scheduler) { held_in(scheduler).remove(*state_->held); });
  state_.reset();
}

NANOVLLM_INLINE void Session::end_turn(State& state, Conversation& turn, std::uint64_t number,
                                       const Frontend& frontend, const SamplingParams& params,
                                       const Output& output) noexcept {
  const std::lock_guard lock(state.mutex);
  if (state.turn != number) return;  // it was taken back
  state.turn = 0;
  if (output.finish_reason != FinishReason::stop && output.finish_reason != FinishReason::length)
    return;
  try {
    turn.add(output, params, frontend);
    std::swap(state.said, turn);
  } catch (const std::exception&) {
    // Out of memory: the turn adds nothing.
  }
}

NANOVLLM_INLINE RequestId Session::submit(const Prompt& prompt, const SamplingParams& params,
                                          TokenCallback callback) {
  check(state_ != nullptr, "session: it was moved from");
  const std::shared_ptr<State> state = state_;
  const std::shared_ptr<EngineInside> host = state->engine();
  Frontend* const frontend = &host->frontend;
  check<RequestError>(!params.beam_width, "session: a turn is no beam search, got beam_width = ",
                      params.beam_width.value_or(0));
  check<RequestError>(num_samples(params) == 1,
                      "session: a turn has one sample, got n = ", params.n,
                      " and best_of = ", params.best_of.value_or(params.n));
  const std::lock_guard lock(state->mutex);
  state->check_idle("a turn was submitted");
  auto turn = std::make_shared<Conversation>(state->said.with(prompt, *frontend));
  const std::uint64_t number = state->num_turns + 1;
  // The engine outlives its requests' callbacks, and with them `frontend`.
  const auto hear = [state, turn, number, frontend, params,
                     callback = std::move(callback)](const TokenEvent& event) {
    if (event.output != nullptr) end_turn(*state, *turn, number, *frontend, params, *event.output);
    if (callback) callback(event);
  };
  const auto request = frontend->submit(turn->tokens, turn->salt, params, hear, state->held);
  state->num_turns = state->turn = number;
  state->request = request->id();
  return state->request;
}

NANOVLLM_INLINE Output Session::generate(const Prompt& prompt, const SamplingParams& params,
                                         TokenCallback callback) {
  struct Result {
    std::atomic<bool> is_there{false};
    Output output{};
  };
  const auto result = std::make_shared<Result>();
  const auto hear = [result, callback = std::move(callback)](const TokenEvent& event) {
    if (event.output != nullptr) {
      try {
        result->output = *event.output;
      } catch (...) {  // the caller must not wait for ever
        result->output = Output{};
        result->output.finish_reason = FinishReason::error;
        result->output.error = "out of memory";
      }
      result->is_there.store(true, std::memory_order_release);
    }
    if (callback) callback(event);
  };
  check(state_ != nullptr, "session: it was moved from");
  const std::shared_ptr<State> state = state_;
  const std::shared_ptr<EngineInside> host = state->engine();
  RequestId id = 0;
  try {
    id = submit(prompt, params, hear);
  } catch (...) {
    return output_of_refusal();
  }
  try {
    while (!result->is_there.load(std::memory_order_acquire)) host->step();
  } catch (...) {
    host->inbox.abort(id);
    const std::lock_guard lock(state->mutex);
    if (state->request == id) state->turn = 0;
    throw;
  }
  return std::move(result->output);
}

NANOVLLM_INLINE void Session::append(const Prompt& prompt) {
  check(state_ != nullptr, "session: it was moved from");
  const std::shared_ptr<EngineInside> host = state_->engine();
  const std::lock_guard lock(state_->mutex);
  state_->check_idle("something was appended");
  Conversation turn = state_->said.with(prompt, host->frontend);
  host->frontend.check_prompt(turn.tokens);
  if (turn.messages.empty()) state_->said.tokens = std::move(turn.tokens);
  state_->said.messages = std::move(turn.messages);
  state_->said.salt = turn.salt;
}

NANOVLLM_INLINE std::vector<TokenId> Session::tokens() const {
  check(state_ != nullptr, "session: it was moved from");
  const std::lock_guard lock(state_->mutex);
  return state_->said.tokens;
}

NANOVLLM_INLINE std::vector<ChatMessage> Session::messages() const {
  check(state_ != nullptr, "session: it was moved from");
  const std::lock_guard lock(state_->mutex);
  return state_->said.messages;
}

NANOVLLM_INLINE bool Session::is_busy() const {
  check(state_ != nullptr, "session: it was moved from");
  const std::lock_guard lock(state_->mutex);
  return state_->turn != 0;
}

NANOVLLM_INLINE Session Session::fork() const {
  check(state_ != nullptr, "session: it was moved from");
  const std::shared_ptr<EngineInside> host = state_->engine();
  auto fork = std::make_shared<State>();
  fork->host = host;
  fork->held = std::make_shared<Sequence>();
  const std::lock_guard lock(state_->mutex);
  fork->said = state_->said;
  host->with_scheduler([&](auto& scheduler) {
    held_in(scheduler).add(*fork->held);
    try {
      held_in(scheduler).copy(*state_->held, *fork->held);
    } catch (...) {
      held_in(scheduler).remove(*fork->held);
      throw;
    }
  });
  return Session(std::move(fork));
}

NANOVLLM_INLINE void Session::save(const std::filesystem::path& path) const {
  check(state_ != nullptr, "session: it was moved from");
  const std::shared_ptr<EngineInside> host = state_->engine();
  const std::lock_guard lock(state_->mutex);
  state_->check_idle("it was saved");
  Json messages = Json::array();
  for (const ChatMessage& message : state_->said.messages) messages.push_back(message.fields());
  Json fields = Json::object();
  fields["messages"] = std::move(messages);
  if (state_->said.salt) fields["cache_salt"] = state_->said.salt.hex();
  SectionWriter file(path, kKvFormat);
  write_kv_header(file, "session", host->identity, std::move(fields));
  write_tokens(file, state_->said.tokens);
  write_held(file, *host, *state_->held, state_->said.tokens);
  file.finish();
}

NANOVLLM_INLINE Session Session::load(AnyEngine& engine, const std::filesystem::path& path) {
  const std::shared_ptr<EngineInside> host = inside_of(engine);
  SectionReader file(path, kKvFormat);
  const Json header = read_kv_header(file, "session", host->identity);
  auto state = std::make_shared<State>();
  state->host = host;
  state->held = std::make_shared<Sequence>();
  state->held->salt = state->said.salt = detail::read_salt(header, file);
  state->said.tokens = read_tokens(file);
  const std::vector<const std::byte*> rows = read_kv(file, host->runner);
  try {
    const Json* const messages = header.find("messages");
    if (messages != nullptr && !messages->empty()) state->said.messages = parse_messages(*messages);
    state->said.check(host->frontend);
  } catch (const RequestError& error) {
    throw LoadError(concat(file.name(), ": ", error.what()));
  }
  check<LoadError>(rows.size() <= state->said.tokens.size(), file.name(),
                   ": expected keys and values of up to ", state->said.tokens.size(),
                   " tokens, got ", rows.size());
  load_held(*host, *state->held, state->said.tokens, rows);
  return Session(std::move(state));
}

NANOVLLM_INLINE void Session::clear() {
  check(state_ != nullptr, "session: it was moved from");
  const std::shared_ptr<EngineInside> host = state_->engine();
  const std::lock_guard lock(state_->mutex);
  state_->check_idle("it was cleared");
  state_->said = {};
  host->with_scheduler([&](auto& scheduler) { held_in(scheduler).evict(*state_->held); });
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
