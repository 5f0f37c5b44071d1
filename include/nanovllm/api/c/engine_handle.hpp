#pragma once
/// What `nvllm_engine` points to: an engine, and the threads that are in a call on it.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/api/c/constraints.hpp"
#include "nanovllm/api/c/conversions.hpp"
#include "nanovllm/c/nanovllm.h"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/finish_reason.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/engine/request/output.hpp"
#include "nanovllm/sampling/sampling_params.hpp"

/// Thread-safe. Only `nvllm_engine_create` makes one. `nvllm_engine_destroy` deletes it, or else
/// the last of the sessions that outlive the engine.
struct nvllm_engine {
  explicit nvllm_engine(std::unique_ptr<nanovllm::AnyEngine> made) : engine(std::move(made)) {}

  std::unique_ptr<nanovllm::AnyEngine> engine;
  nanovllm::c_api::Constraints constraints{};
  std::stop_source stop{};
  std::atomic<bool> is_closing = false;
  std::mutex mutex{};
  std::condition_variable no_calls{};
  int num_calls = 0;                // of all threads
  std::atomic<int> num_owners = 1;  // the program, until it destroys the engine, and each session
};

namespace nanovllm::c_api {

/// A thread's call on an engine. While it exists, the engine is not destroyed.
class Call {
 public:
  /// Throws InvalidError for NULL, and BusyError once the engine is being destroyed.
  explicit Call(const nvllm_engine* handle) : handle_(const_cast<nvllm_engine*>(handle)) {
    check_pointer(handle, "engine");
    {
      const std::lock_guard lock(handle_->mutex);
      check<BusyError>(!handle_->is_closing, "the engine is being destroyed");
      ++handle_->num_calls;
    }
    outer_ = std::exchange(innermost_, this);
  }
  ~Call() {
    innermost_ = outer_;
    const std::lock_guard lock(handle_->mutex);
    // Under the lock: who waits for this deletes the handle.
    if (--handle_->num_calls == 0) handle_->no_calls.notify_all();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  /// Whether this thread is already in a call on `handle`, which means in a callback.
  [[nodiscard]] static bool is_in(const nvllm_engine* handle) {
    for (const Call* call = innermost_; call != nullptr; call = call->outer_)
      if (call->handle_ == handle) return true;
    return false;
  }

  [[nodiscard]] AnyEngine& engine() const { return *handle_->engine; }
  [[nodiscard]] nvllm_engine& handle() const { return *handle_; }

 private:
  static inline thread_local Call* innermost_ = nullptr;

  nvllm_engine* handle_;
  Call* outer_ = nullptr;
};

/// One of those who keep a handle: the last one deletes it.
class HandleOwner {
 public:
  explicit HandleOwner(nvllm_engine& handle) : handle_(&handle) { ++handle.num_owners; }
  ~HandleOwner() { release(handle_); }
  HandleOwner(const HandleOwner&) = delete;
  HandleOwner& operator=(const HandleOwner&) = delete;

  [[nodiscard]] nvllm_engine* get() const { return handle_; }

  static void release(nvllm_engine* handle) {
    if (--handle->num_owners == 0) delete handle;
  }

 private:
  nvllm_engine* handle_;
};

/// Waits for the calls of other threads, and deletes the engine; its handle too, unless a session
/// keeps it. Throws BusyError if the engine is being destroyed already, or if this thread is in a
/// call on it.
inline void destroy(nvllm_engine* handle) {
  check<BusyError>(!Call::is_in(handle),
                   "an engine cannot be destroyed by one of its own callbacks");
  {
    std::unique_lock lock(handle->mutex);
    check<BusyError>(!handle->is_closing, "the engine is being destroyed");
    handle->is_closing = true;
    handle->stop.request_stop();
    handle->no_calls.wait(lock, [&] { return handle->num_calls == 0; });
  }
  // Callbacks hear of the end here, and may call with a handle that is there yet.
  handle->engine.reset();
  HandleOwner::release(handle);
}

[[nodiscard]] constexpr std::int32_t to_c(FinishReason reason) {
  switch (reason) {
    case FinishReason::none: return NVLLM_FINISH_NONE;
    case FinishReason::stop: return NVLLM_FINISH_STOP;
    case FinishReason::length: return NVLLM_FINISH_LENGTH;
    case FinishReason::abort: return NVLLM_FINISH_ABORT;
    case FinishReason::error: return NVLLM_FINISH_ERROR;
  }
  return NVLLM_FINISH_ERROR;
}

/// A TokenCallback that calls a function of C.
class Listener {
 public:
  /// @param handle    the engine that calls it.
  /// @param is_whole  it tells of whole samples, and of no tokens.
  /// @param params    of the request.
  Listener(nvllm_engine& handle, bool is_whole, const SamplingParams& params,
           nvllm_callback callback, void* user)
      : handle_(&handle), is_whole_(is_whole), callback_(callback), user_(user) {
    const std::span<const TokenId> ends = handle.engine->eos_token_ids();
    for (const TokenId token : params.stop_token_ids)
      if (params.ignore_eos || std::find(ends.begin(), ends.end(), token) == ends.end())
        stop_token_ids_.push_back(token);
  }

  void operator()(const TokenEvent& event) {
    if (is_whole_) {
      if (event.output != nullptr) tell_whole(event);
      return;
    }
    if (event.token != nullptr) ++num_generated_;
    const bool is_last = event.output != nullptr;
    if (has_aborted_ && !is_last) return;
    text_ = has_aborted_ ? std::string_view() : event.text;
    nvllm_event out = make(event);
    set_stop(out, event.stop_string, event.token);
    if (callback_(user_, &out) == 0 || is_last) return;
    has_aborted_ = true;
    // One that is being destroyed ends all requests itself.
    if (!handle_->is_closing) static_cast<void>(handle_->engine->abort(event.id));
  }

 private:
  /// The events of a request with `whole`, from its last event.
  void tell_whole(const TokenEvent& event) {
    const Output& output = *event.output;
    const std::size_t num_samples = output.alternatives.size() + 1;
    num_generated_ = static_cast<std::int32_t>(output.token_ids.size());
    for (const Completion& other : output.alternatives)
      num_generated_ += static_cast<std::int32_t>(other.token_ids.size());
    for (std::size_t i = 0; i < num_samples; ++i) {
      const Completion& sample = i == 0 ? output : output.alternatives[i - 1];
      const bool is_last = i + 1 == num_samples;
      nvllm_event out = make({.id = event.id,
                              .sample = static_cast<std::int32_t>(i),
                              .finish_reason = sample.finish_reason,
                              .text = sample.text,
                              .output = is_last ? &output : nullptr});
      if (sample.finish_reason == FinishReason::error) out.error = output.error.c_str();
      out.text = sample.text.c_str();
      out.text_size = sample.text.size();
      out.token_ids = sample.token_ids.data();
      out.num_token_ids = sample.token_ids.size();
      set_stop(out, sample.stop_string,
               sample.token_ids.empty() ? nullptr : &sample.token_ids.back());
      callback_(user_, &out);
    }
  }

  /// Says what stopped a sample.
  /// @param last  its last token; null if the event has none.
  void set_stop(nvllm_event& out, std::string_view stop, const TokenId* last) {
    if (out.finish_reason != NVLLM_FINISH_STOP) return;
    if (!stop.empty()) {
      stop_string_ = stop;
      out.stop_string = stop_string_.c_str();
    } else if (last != nullptr && std::find(stop_token_ids_.begin(), stop_token_ids_.end(),
                                            *last) != stop_token_ids_.end()) {
      out.has_stop_token = 1;
      out.stop_token = *last;
    }
  }

  /// Its pointers point into this object and into `event`.
  [[nodiscard]] nvllm_event make(const TokenEvent& event) {
    nvllm_event out{};
    out.struct_size = sizeof out;
    out.id = event.id;
    out.sample = event.sample;
    out.finish_reason = to_c(event.finish_reason);
    out.has_token = event.token != nullptr && !has_aborted_;
    if (out.has_token) out.token = *event.token;
    out.text = text_.c_str();
    out.text_size = text_.size();
    out.num_generated_tokens = num_generated_;
    if (out.has_token && event.logprobs != nullptr) {
      top_.clear();
      for (const auto& [token, logprob] : event.logprobs->top) top_.push_back({token, logprob});
      out.has_logprob = 1;
      out.logprob = event.logprobs->logprob;
      out.num_top = static_cast<std::int32_t>(top_.size());
      out.top = top_.data();
    }
    if (event.output != nullptr) {
      out.is_last = 1;
      out.num_prompt_tokens = event.output->num_prompt_tokens;
      out.num_cached_tokens = event.output->num_cached_tokens;
      if (event.finish_reason == FinishReason::error) out.error = event.output->error.c_str();
    }
    return out;
  }

  nvllm_engine* handle_;
  bool is_whole_;
  nvllm_callback callback_;
  void* user_;
  bool has_aborted_ = false;
  std::int32_t num_generated_ = 0;
  std::vector<TokenId> stop_token_ids_;  // without end tokens of the model
  std::string text_, stop_string_;
  std::vector<nvllm_token_logprob> top_;
};

}  // namespace nanovllm::c_api
