#pragma once
/// An engine without a model, which says what a test wants and when it wants it.

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "chat/templates.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/engine/request/frontend.hpp"
#include "nanovllm/text/detokenizer.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nanovllm::test {

/// What one sample says.
struct Script {
  std::string text{};
  FinishReason end = FinishReason::stop;       ///< with the last token; or length, or error
  std::size_t fails_behind = std::size_t(-1);  ///< so many tokens
};

/// Each step gives every sample its next token, by the tokeniser of the fairytale model, and calls
/// the callbacks on its own thread, as an engine does.
class ScriptedEngine final : public AnyEngine {
 public:
  explicit ScriptedEngine(const ChatTemplate& chat_template = nanovllm_test::hybrid_template()) {
    text_.tokenizer.emplace(Tokenizer::from_file("examples/models/fairytale"));
    text_.chat_template = chat_template;
  }
  ScriptedEngine(const ScriptedEngine&) = delete;
  ScriptedEngine& operator=(const ScriptedEngine&) = delete;
  ~ScriptedEngine() override { end_all(FinishReason::abort); }

  // ---- What a test sets ----

  /// Before the first request.
  void set_tokenizer(Tokenizer tokenizer) { text_.tokenizer = std::move(tokenizer); }

  /// The script of sample `sample` of the request that is submitted as the `index`-th.
  std::function<Script(std::size_t index, std::int32_t sample)> script =
      [](std::size_t, std::int32_t) { return Script{"Once upon a time."}; };
  /// Called in submit; may throw.
  std::function<void(std::size_t index)> on_submit{};
  std::string salt_on_submit{};  ///< of the prompt, for that call
  std::int64_t max_tokens_in_all = 4096;
  std::int32_t num_cached_tokens = 3;
  Health state{};

  // ---- What it was asked for ----

  [[nodiscard]] std::size_t num_submitted() const {
    const std::lock_guard lock(mutex_);
    return num_submitted_;
  }
  [[nodiscard]] SamplingParams last_params() const {
    const std::lock_guard lock(mutex_);
    return last_params_;
  }
  [[nodiscard]] std::vector<TokenId> last_prompt() const {
    const std::lock_guard lock(mutex_);
    return last_prompt_;
  }
  [[nodiscard]] std::string last_salt() const {
    const std::lock_guard lock(mutex_);
    return last_salt_;
  }
  [[nodiscard]] std::size_t num_alive() const {
    const std::lock_guard lock(mutex_);
    return requests_.size();
  }
  [[nodiscard]] std::size_t num_aborted() const {
    const std::lock_guard lock(mutex_);
    return num_aborted_;
  }

  void end_all(FinishReason reason) {
    while (true) {
      std::unique_lock lock(mutex_);
      if (requests_.empty()) return;
      const std::shared_ptr<Request> request = requests_.back();
      requests_.pop_back();
      lock.unlock();
      finish(*request, reason, "");
    }
  }

  // ---- AnyEngine ----

  RequestId submit(const Prompt& prompt, const SamplingParams& params,
                   TokenCallback callback) override {
    std::vector<TokenId> tokens = encode(prompt);
    std::unique_lock lock(mutex_);
    salt_on_submit = prompt.cache_salt;
    if (on_submit) on_submit(num_submitted_);
    auto request = std::make_shared<Request>();
    request->id = ++last_id_;
    request->params = params;
    request->callback = std::move(callback);
    request->output.id = request->id;
    request->output.num_prompt_tokens = static_cast<std::int32_t>(tokens.size());
    request->output.num_cached_tokens = num_cached_tokens;
    if (params.prompt_logprobs) {
      for (const TokenId token : tokens)
        request->output.prompt_logprobs.emplace_back(logprobs_of(token, *params.prompt_logprobs));
      request->output.prompt_logprobs.front().reset();
    }
    for (std::int32_t i = 0; i < params.n; ++i) {
      Script lines = script(num_submitted_, i);
      Sample sample{.lines = lines, .tokens = text_.tokenizer->encode(lines.text)};
      sample.detokenizer.emplace(*text_.tokenizer, params.skip_special_tokens);
      request->samples.push_back(std::move(sample));
    }
    ++num_submitted_;
    last_params_ = params;
    last_prompt_ = std::move(tokens);
    last_salt_ = prompt.cache_salt;
    requests_.push_back(request);
    return request->id;
  }

  bool abort(RequestId id) override {
    const std::lock_guard lock(mutex_);
    for (const auto& request : requests_) {
      if (request->id != id || request->is_aborted) continue;
      request->is_aborted = true;
      ++num_aborted_;
      return true;
    }
    return false;
  }

  bool step() override {
    const std::lock_guard one_at_a_time(step_mutex_);
    std::vector<std::shared_ptr<Request>> requests;
    {
      const std::lock_guard lock(mutex_);
      requests = requests_;
    }
    for (const auto& request : requests) {
      if (!advance(*request)) continue;
      const std::lock_guard lock(mutex_);
      std::erase(requests_, request);
    }
    return !requests.empty();
  }

  void run(const std::stop_token& stop) override {
    while (!stop.stop_requested()) {
      if (!step()) std::this_thread::yield();
    }
  }
  void run_worker() override {}

  [[nodiscard]] std::vector<TokenId> encode(const Prompt& prompt) const override {
    if (const auto* tokens = std::get_if<std::vector<TokenId>>(&prompt)) return *tokens;
    if (const auto* text = std::get_if<std::string>(&prompt)) return text_.tokenizer->encode(*text);
    const ChatPrompt& chat = std::get<ChatPrompt>(prompt);
    return text_.tokenizer->encode(text_.chat_template->render(chat.messages, chat.options));
  }
  [[nodiscard]] const TextSide& text() const override { return text_; }
  [[nodiscard]] std::span<const TokenId> eos_token_ids() const override { return eos_; }
  [[nodiscard]] std::int64_t vocab_size() const override {
    return static_cast<std::int64_t>(text_.tokenizer->vocab_size());
  }
  [[nodiscard]] std::int64_t max_total_tokens() const override { return max_tokens_in_all; }
  [[nodiscard]] EngineStats stats() const override {
    return {.num_running = static_cast<std::int64_t>(num_alive())};
  }
  [[nodiscard]] Latencies latencies() const override { return {}; }
  [[nodiscard]] Health health() const override { return state; }
  void reset() override {}
  [[nodiscard]] std::string describe() const override { return "a script"; }
  void check_invariants() const override {}

  /// What it says of a token: -1, and of the i-th likeliest, which are the ids after it, -1 - i.
  [[nodiscard]] static TokenLogprobs logprobs_of(TokenId token, std::int32_t num_top) {
    TokenLogprobs out{.token_id = token, .logprob = -1.f};
    for (std::int32_t i = 0; i < num_top; ++i)
      out.top.emplace_back(token + i, -1.f - static_cast<float>(i));
    return out;
  }

 private:
  struct Sample {
    Script lines{};
    std::vector<TokenId> tokens{};
    std::optional<Detokenizer> detokenizer{};
    std::size_t num_said = 0;
    Completion said{};
  };
  struct Request {
    RequestId id = 0;
    SamplingParams params{};
    TokenCallback callback{};
    std::vector<Sample> samples{};
    Output output{};
    bool is_aborted = false;
  };

  /// Whether it has ended.
  bool advance(Request& request) {
    if (is_aborted(request)) {
      finish(request, FinishReason::abort, "");
      return true;
    }
    for (Sample& sample : request.samples) {
      if (sample.said.finish_reason != FinishReason::none) continue;
      if (sample.num_said >= sample.lines.fails_behind) {
        finish(request, FinishReason::error, "the machine is on fire");
        return true;
      }
      if (say(request, sample)) return true;
    }
    return false;
  }

  [[nodiscard]] bool is_aborted(const Request& request) const {
    const std::lock_guard lock(mutex_);
    return request.is_aborted;
  }

  /// The next token of a sample. Whether the request has ended with it.
  bool say(Request& request, Sample& sample) {
    const bool is_empty = sample.tokens.empty();
    const TokenId token = is_empty ? eos_[0] : sample.tokens[sample.num_said++];
    const bool ends = is_empty || sample.num_said == sample.tokens.size();
    TokenEvent event{.id = request.id,
                     .sample = static_cast<std::int32_t>(&sample - request.samples.data()),
                     .token = &token,
                     .text = {}};
    std::string text = is_empty ? "" : sample.detokenizer->push(token);
    if (ends) text += sample.detokenizer->flush();
    event.text = text;
    sample.said.text += text;
    sample.said.token_ids.push_back(token);
    std::optional<TokenLogprobs> logprobs;
    if (request.params.logprobs) {
      logprobs = logprobs_of(token, *request.params.logprobs);
      sample.said.logprobs.push_back(*logprobs);
      event.logprobs = &*logprobs;
    }
    if (event.sample == 0 && request.params.prompt_logprobs)
      event.prompt_logprobs = &request.output.prompt_logprobs;
    if (ends) event.finish_reason = sample.said.finish_reason = sample.lines.end;
    const bool is_last = ends && num_going_on(request) == 0;
    if (is_last) event.output = &complete(request);
    if (is_streamed(request.params) || is_last) request.callback(event);
    return is_last;
  }

  static std::size_t num_going_on(const Request& request) {
    std::size_t count = 0;
    for (const Sample& sample : request.samples)
      count += sample.said.finish_reason == FinishReason::none;
    return count;
  }

  static const Output& complete(Request& request) {
    static_cast<Completion&>(request.output) = request.samples.front().said;
    for (std::size_t i = 1; i < request.samples.size(); ++i)
      request.output.alternatives.push_back(request.samples[i].said);
    return request.output;
  }

  static void finish(Request& request, FinishReason reason, const std::string& error) {
    request.output.error = error;
    for (Sample& sample : request.samples) {
      if (sample.said.finish_reason != FinishReason::none) continue;
      sample.said.finish_reason = reason;
      const std::string text = sample.detokenizer->flush();
      sample.said.text += text;
      TokenEvent event{.id = request.id,
                       .sample = static_cast<std::int32_t>(&sample - request.samples.data()),
                       .finish_reason = reason,
                       .text = text};
      const bool is_last = num_going_on(request) == 0;
      if (is_last) event.output = &complete(request);
      if (is_streamed(request.params) || is_last) request.callback(event);
    }
  }

  TextSide text_;
  std::vector<TokenId> eos_{4093};
  std::mutex step_mutex_;
  mutable std::mutex mutex_;  // of what follows
  std::vector<std::shared_ptr<Request>> requests_;
  std::size_t num_submitted_ = 0, num_aborted_ = 0;
  RequestId last_id_ = 0;
  SamplingParams last_params_;
  std::vector<TokenId> last_prompt_;
  std::string last_salt_;
};

}  // namespace nanovllm::test
