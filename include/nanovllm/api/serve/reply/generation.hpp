#pragma once
/// Starts requests for text: from a body to an exchange that the engine works on. Also the replies
/// of /tokenize and /detokenize, which are made at once.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "nanovllm/api/serve/admission.hpp"
#include "nanovllm/api/serve/constraint/output_constraint.hpp"
#include "nanovllm/api/serve/engine_exchange.hpp"
#include "nanovllm/api/serve/exchange.hpp"
#include "nanovllm/api/serve/reply/chat_reply.hpp"
#include "nanovllm/api/serve/reply/completion_reply.hpp"
#include "nanovllm/api/serve/reply/reply_writer.hpp"
#include "nanovllm/api/serve/request/api_error.hpp"
#include "nanovllm/api/serve/request/request_fields.hpp"
#include "nanovllm/api/serve/request/text_requests.hpp"
#include "nanovllm/api/serve/service_config.hpp"
#include "nanovllm/api/serve/service_load.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/engine/request/frontend.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/text/check_stop.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nanovllm::serve {

/// Bytes of a body, and of texts to make tokens of, that take a few milliseconds at the most.
inline constexpr std::size_t kShortBytes = std::size_t{16} << 10;

/// What may be done for a request on the thread that prepares it.
struct Effort {
  /// Only what takes some milliseconds: no body and no texts above kShortBytes, no constraint that
  /// has to be compiled.
  bool is_short = false;
  std::stop_token stop{};  ///< gives long work up

  /// Throws Cancelled if it is to be given up. The service answers with `given_up()` then.
  void check_stop() const { nanovllm::check_stop(stop); }

  [[nodiscard]] static ApiError given_up() {
    return {503, "the server gave the request up before it was started; try again later"};
  }
};

/// How a protocol writes the answer to a chat.
struct ChatForm {
  const char* kind;       ///< for summaries
  const char* id_prefix;  ///< of replies
  const char* object;     ///< what a whole reply calls itself, and a chunk of a stream
  const char* chunk_object;
  std::function<std::unique_ptr<ReplyWriter>(ChatSetup&& setup)> make_writer;
  const char* call_prefix = "call_";  ///< of ids of tool calls
};

/// That of /v1/chat/completions.
inline const ChatForm kChatCompletions{
    "chat", "chatcmpl-", "chat.completion", "chat.completion.chunk",
    [](ChatSetup&& setup) { return std::make_unique<ChatReply>(std::move(setup)); }};

/// Starts chats and completions. Thread-safe. Engine and config must outlive it.
class Generation {
 public:
  Generation(AnyEngine& engine, const ServiceConfig& config, std::shared_ptr<ServiceLoad> load)
      : engine_(engine), config_(config), load_(std::move(load)) {}

  // Each encodes a request's text, compiles its constraint and submits it. Null if that takes
  // longer than `effort` allows. Throws ApiError for a request that cannot be served, and whatever
  // the engine throws.
  [[nodiscard]] std::shared_ptr<Exchange> chat(ChatCompletionRequest request, const Effort& effort,
                                               const ChatForm& form = kChatCompletions);
  [[nodiscard]] std::shared_ptr<Exchange> complete(CompletionRequest request, const Effort& effort);

  /// Throws ApiError (400) where the ids of tokens or the constraint of a chat cannot be, whatever
  /// its prompt is. False if that takes longer than `effort` allows.
  [[nodiscard]] bool check_rules(ChatCompletionRequest& request, const Effort& effort) const {
    if (!complete_constraint(request, effort)) return false;
    check_token_ids(engine_, {}, request.sampling);
    constrain(request, effort);
    return true;
  }

  /// The model's name for the reply to a request that asks for `asked`, which may be empty. Throws
  /// ApiError (404) for a model that is not served.
  [[nodiscard]] const std::string& model_name(const std::string& asked) const {
    if (asked.empty()) return config_.model_names.front();
    const auto found = std::find(config_.model_names.begin(), config_.model_names.end(), asked);
    if (found == config_.model_names.end()) throw ApiError::model_not_found(asked);
    return *found;
  }

  /// The beginning of a reply to such a request, with an id that begins with `prefix`.
  [[nodiscard]] ReplyFrame reply_frame(const std::string& asked, const char* prefix,
                                       const char* object) {
    return {.id = ids_->next(prefix),
            .object = object,
            .model = model_name(asked),
            .created = unix_seconds()};
  }

  /// Throws ApiError 503 while draining, 429 if the queue is full, counting the requests that are
  /// being prepared.
  void check_queue() const {
    check_drain();
    if (load_->num_unfinished + load_->counters.num_preparing >= max_sequences()) refuse_queue();
  }
  /// Reserves room for sequences. Throws ApiError 503 while draining, 429 if the queue is full.
  [[nodiscard]] LoadShare admit(std::int64_t num_sequences) const {
    check_drain();
    auto share = LoadShare::take(load_, num_sequences, max_sequences());
    if (!share) refuse_queue();
    return std::move(*share);
  }

  /// From now on requests are refused with status 503.
  void drain() noexcept { is_draining_ = true; }
  [[nodiscard]] bool is_draining() const noexcept { return is_draining_; }

 private:
  [[nodiscard]] std::int64_t max_sequences() const {
    return std::int64_t{config_.max_num_seqs} + config_.max_queue;
  }
  void check_drain() const {
    if (is_draining_) throw ApiError(503, "the server is shutting down");
  }
  [[noreturn]] void refuse_queue() const {
    throw ApiError(429, concat("the queue is full: ", max_sequences(),
                               " sequences are under way or waiting; try again later"));
  }
  /// Whether `constrain` would compile.
  [[nodiscard]] bool compiles(const OutputConstraint& constraint) const {
    return config_.constraints != nullptr && !config_.constraints->is_known(constraint);
  }
  /// Sets what a chat's constraint has of the model. False if to compile it takes longer than
  /// `effort` allows.
  [[nodiscard]] bool complete_constraint(ChatCompletionRequest& request,
                                         const Effort& effort) const {
    request.constraint.tool_call_format = config_.tool_call_format;
    if (const auto& chat_template = engine_.text().chat_template)
      request.constraint.after_reasoning =
          expects_thought(*chat_template, request.options) || continues_thought(engine_, request);
    return !effort.is_short || !compiles(request.constraint);
  }
  /// Compiles the request's constraint. Throws ApiError (400) if that cannot be.
  void constrain(GenerationRequest& request, const Effort& effort) const;
  [[nodiscard]] ReplySetup reply_setup(const GenerationRequest& request, const char* id,
                                       const char* object);
  /// Submits a request for each of `prompts`. Errors name the fields of the request.
  [[nodiscard]] std::shared_ptr<Exchange> submit(GenerationRequest& request, const char* kind,
                                                 const std::vector<std::vector<TokenId>>& prompts,
                                                 std::unique_ptr<ReplyWriter> writer,
                                                 LoadShare& share, const Effort& effort);

  AnyEngine& engine_;
  const ServiceConfig& config_;
  const std::shared_ptr<ServiceLoad> load_;
  const std::shared_ptr<ReplyIds> ids_ = std::make_shared<ReplyIds>();
  std::atomic<bool> is_draining_{false};
};

inline void Generation::constrain(GenerationRequest& request, const Effort& effort) const {
  using Kind = OutputConstraint::Kind;
  const OutputConstraint& constraint = request.constraint;
  const std::string& field = request.constraint_field;
  if (constraint.kind == Kind::none) return;
  if (!config_.constraints)
    throw ApiError(400, field + ": this server holds answers to no form", field);
  const bool has_calls = constraint.kind == Kind::tool_calls ||
                         constraint.kind == Kind::free_tool_calls || constraint.or_tool_calls;
  if (has_calls && config_.tool_call_format == ToolCallFormat::none)
    throw ApiError(400, field + ": this server reads no tool calls", field);
  try {
    request.sampling.token_masks = config_.constraints->compile(constraint, effort.stop);
  } catch (const ApiError&) {
    throw;
  } catch (const RequestError& error) {
    throw ApiError(400, concat(field, ": ", error.what()), field);
  }
}

inline ReplySetup Generation::reply_setup(const GenerationRequest& request, const char* id,
                                          const char* object) {
  return {.frame = reply_frame(request.model, id, object),
          .tokenizer = engine_.text().tokenizer,
          .num_choices = static_cast<std::size_t>(request.sampling.n),
          .stop_tokens = StopTokens::of(request.sampling, engine_.eos_token_ids()),
          .include_usage = request.include_usage,
          .continuous_usage_stats = request.continuous_usage_stats,
          .return_token_ids = request.return_token_ids,
          .token_names = request.return_tokens_as_token_ids ? TokenNames::ids : TokenNames::texts,
          .return_prompt_logprobs = request.sampling.prompt_logprobs.has_value()};
}

inline std::shared_ptr<Exchange> Generation::submit(
    GenerationRequest& request, const char* kind, const std::vector<std::vector<TokenId>>& prompts,
    std::unique_ptr<ReplyWriter> writer, LoadShare& share, const Effort& effort) {
  const SamplingParams& params = request.sampling;
  check_token_ids(engine_, prompts, params);
  effort.check_stop();
  constrain(request, effort);
  EngineExchange::Setup setup{.kind = kind,
                              .is_stream = request.stream,
                              .cache_salt = std::move(request.cache_salt),
                              .keep_token_ids = request.return_token_ids,
                              .drop_generated = request.prompt_only};
  if (params.token_masks) setup.rules.push_back(request.constraint_field);
  if (!params.allowed_token_ids.empty()) setup.rules.emplace_back("allowed_token_ids");
  if (!params.bad_words.empty()) setup.rules.emplace_back("bad_words");
  if (params.min_tokens > 0) setup.rules.emplace_back("min_tokens");
  try {
    return std::make_shared<EngineExchange>(engine_, setup, prompts, params, std::move(writer),
                                            share);
  } catch (const ApiError&) {
    throw;
  } catch (const RequestError& error) {
    std::string message = in_own_name(error.what(), "token_masks", request.constraint_field);
    if (!request.beam_field.empty())
      message = in_own_name(std::move(message), "beam_width", request.beam_field);
    throw ApiError(400, message);
  }
}

inline std::shared_ptr<Exchange> Generation::chat(ChatCompletionRequest request,
                                                  const Effort& effort, const ChatForm& form) {
  ChatReply::Setup reply{.common = reply_setup(request, form.id_prefix,
                                               request.stream ? form.chunk_object : form.object),
                         .logprobs = request.logprobs,
                         .top_logprobs = request.top_logprobs,
                         .ids = ids_,
                         .call_prefix = form.call_prefix};
  if (!complete_constraint(request, effort)) return nullptr;
  SamplingParams& params = request.sampling;
  LoadShare share = admit(num_samples(params));
  reply.parser = answer_format(engine_, request, config_.tool_call_format, config_.parse_reasoning);
  // Without a parser of thoughts, they are content.
  reply.parser.only_calls = request.constraint.kind == OutputConstraint::Kind::tool_calls &&
                            (config_.parse_reasoning || !request.constraint.after_reasoning);
  const auto num_kept = num_kept_tokens(
      engine_, request.truncation, request.clips_max_tokens ? 1 : request.max_tokens.value_or(1));
  const std::vector<std::vector<TokenId>> prompts = {
      prompt_tokens(engine_, ChatPrompt{std::move(request.messages), std::move(request.options)},
                    request.add_special_tokens, "messages", num_kept, effort.stop)};
  const std::size_t num_tokens = prompts[0].size();
  const auto left = static_cast<std::int32_t>(std::min<std::int64_t>(
      engine_.max_total_tokens() - static_cast<std::int64_t>(num_tokens), kMaxCount));
  if (request.clips_max_tokens)
    request.max_tokens = std::min(request.max_tokens.value_or(left), left);
  if (request.max_tokens) check_max_tokens(engine_, num_tokens, *request.max_tokens);
  params.max_tokens = request.max_tokens.value_or(left);
  if (request.return_token_ids) reply.prompt_token_ids = prompts[0];
  return submit(request, form.kind, prompts, form.make_writer(std::move(reply)), share, effort);
}

inline std::shared_ptr<Exchange> Generation::complete(CompletionRequest request,
                                                      const Effort& effort) {
  if (effort.is_short && compiles(request.constraint)) return nullptr;
  SamplingParams& params = request.sampling;
  if (request.stream && params.prompt_logprobs && !request.echo) {
    throw ApiError(400,
                   "prompt_logprobs cannot be streamed; send 'stream': false, or 'echo' and "
                   "'logprobs', whose chunks have them",
                   "prompt_logprobs");
  }
  if (request.logprobs || params.prompt_logprobs || request.echo)
    static_cast<void>(tokenizer_of(engine_));
  const std::size_t num_prompts = request.prompts.size();
  CompletionReply::Setup reply{.common = reply_setup(request, "cmpl-", "text_completion"),
                               .num_prompts = num_prompts,
                               .logprobs = request.logprobs.has_value()};
  reply.common.num_choices *= num_prompts;
  if (request.echo) reply.common.return_prompt_logprobs = false;
  LoadShare share = admit(static_cast<std::int64_t>(num_prompts) * num_samples(params));
  const auto num_kept = num_kept_tokens(engine_, request.truncation, params.max_tokens);
  std::vector<std::vector<TokenId>> prompts;
  for (const Prompt& prompt : request.prompts) {
    effort.check_stop();
    prompts.push_back(prompt_tokens(engine_, prompt, request.add_special_tokens, "prompt", num_kept,
                                    effort.stop));
    if (!request.prompt_only) check_max_tokens(engine_, prompts.back().size(), params.max_tokens);
    if (!request.echo) continue;
    const bool is_cut = num_kept == prompts.back().size();
    const auto* text = is_cut ? nullptr : std::get_if<std::string>(&prompt);
    reply.echo.push_back(text != nullptr ? *text
                                         : tokenizer_of(engine_).decode(prompts.back(), false));
  }
  if (request.return_token_ids || request.echo) reply.prompt_token_ids = prompts;
  return submit(request, "completion", prompts, std::make_unique<CompletionReply>(std::move(reply)),
                share, effort);
}

// Each answers a request, on this thread. Throws RequestError for one that cannot be answered, and
// Cancelled soon after a request to stop.

/// The tokens of a text or of messages.
[[nodiscard]] inline std::shared_ptr<Exchange> answer_tokenize(const AnyEngine& engine,
                                                               const Generation& generation,
                                                               const TokenizeRequest& request,
                                                               const Effort& effort) {
  static_cast<void>(generation.model_name(request.model));
  const bool is_text = std::holds_alternative<std::string>(request.prompt);
  const std::string text =
      prompt_text(engine.text(), request.prompt, is_text ? "prompt" : "messages");
  const Tokenizer& tokenizer = tokenizer_of(engine);
  constexpr auto kAll = std::size_t(-1);
  const std::vector<TokenId> tokens = request.add_special_tokens
                                          ? tokenizer.encode_with_template(text, kAll, effort.stop)
                                          : tokenizer.encode(text, kAll, effort.stop);
  Json reply = Json::object({{"count", tokens.size()},
                             {"max_model_len", engine.max_total_tokens()},
                             {"tokens", tokens},
                             {"token_strs", nullptr}});
  if (request.return_token_strs) {
    Json texts = Json::array();
    for (const TokenId token : tokens) {
      effort.check_stop();
      texts.push_back(token_text(tokenizer, token));
    }
    reply["token_strs"] = std::move(texts);
  }
  return json_reply("tokenize", reply);
}

/// The text of tokens.
[[nodiscard]] inline std::shared_ptr<Exchange> answer_detokenize(const AnyEngine& engine,
                                                                 const Generation& generation,
                                                                 const DetokenizeRequest& request) {
  static_cast<void>(generation.model_name(request.model));
  const Tokenizer& tokenizer = tokenizer_of(engine);
  for (std::size_t i = 0; i < request.tokens.size(); ++i) {
    if (tokenizer.token_bytes(request.tokens[i]).empty())
      refuse_field(element_path("tokens", i),
                   concat("must be the id of a token, got ", request.tokens[i]));
  }
  return json_reply(
      "detokenize",
      Json::object({{"prompt", tokenizer.decode(request.tokens, request.skip_special_tokens)}}));
}

}  // namespace nanovllm::serve
