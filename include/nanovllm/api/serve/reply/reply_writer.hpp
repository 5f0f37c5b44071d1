#pragma once
/// Writers of replies: one kind for each endpoint of the API.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/api/serve/reply/pending_output.hpp"
#include "nanovllm/api/serve/request/api_error.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/finish_reason.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/core/random_seed.hpp"
#include "nanovllm/core/utf8.hpp"
#include "nanovllm/engine/request/output.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nanovllm::serve {

/// The least that is written: JSON has no minus infinity.
inline constexpr double kLeastLogprob = -9999;

/// The bytes of a token as text, with U+FFFD for those that are not valid UTF-8.
[[nodiscard]] inline std::string token_text(const Tokenizer& tokenizer, TokenId token) {
  std::string text;
  utf8::append_lossy(text, tokenizer.token_bytes(token));
  return text;
}

/// How log-probabilities name a token: by its text, or as "token_id:ID" where a request has vLLM's
/// return_tokens_as_token_ids, since several tokens may have one text.
enum class TokenNames : std::uint8_t { texts, ids };

namespace detail {

inline Json logprob_json(float logprob) {
  return std::max(static_cast<double>(logprob), kLeastLogprob);
}

inline std::string token_name(const Tokenizer& tokenizer, TokenId token, TokenNames names) {
  return names == TokenNames::ids ? concat("token_id:", token) : token_text(tokenizer, token);
}

}  // namespace detail

/// The field `prompt_logprobs` of vLLM's replies: null for tokens without any, else {"ID":
/// {"logprob", "rank", "decoded_token"}, …}; the rank is null for a token that is not among the
/// likeliest.
[[nodiscard]] inline Json prompt_logprobs_json(const Tokenizer& tokenizer,
                                               const PromptLogprobs& prompt) {
  Json out = Json::array();
  for (const std::optional<TokenLogprobs>& token : prompt) {
    if (!token) {
      out.push_back(nullptr);
      continue;
    }
    Json likeliest = Json::object();
    const auto list = [&](TokenId id, float logprob, Json rank) {
      const std::string key = std::to_string(id);
      if (likeliest.contains(key)) return;
      likeliest[key] = Json::object({{"logprob", detail::logprob_json(logprob)},
                                     {"rank", std::move(rank)},
                                     {"decoded_token", token_text(tokenizer, id)}});
    };
    for (std::size_t i = 0; i < token->top.size(); ++i)
      list(token->top[i].first, token->top[i].second, static_cast<std::int64_t>(i + 1));
    list(token->token_id, token->logprob, nullptr);
    out.push_back(std::move(likeliest));
  }
  return out;
}

/// The field `usage` of replies: sums over all prompts and choices of a request.
struct Usage {
  std::int64_t num_prompt_tokens = 0;
  std::int64_t num_completion_tokens = 0;
  std::optional<std::int64_t> num_cached_tokens{};     ///< of the prompt; known at the end
  std::optional<std::int64_t> num_reasoning_tokens{};  ///< of completions that may have thoughts

  [[nodiscard]] Json to_json() const {
    Json out = Json::object({{"prompt_tokens", num_prompt_tokens},
                             {"total_tokens", num_prompt_tokens + num_completion_tokens},
                             {"completion_tokens", num_completion_tokens},
                             {"prompt_tokens_details", nullptr}});
    if (num_cached_tokens)
      out["prompt_tokens_details"] = Json::object({{"cached_tokens", *num_cached_tokens}});
    if (num_reasoning_tokens) {
      out["completion_tokens_details"] =
          Json::object({{"reasoning_tokens", *num_reasoning_tokens}});
    }
    return out;
  }
};

/// The tokens that may end a request: of vLLM's field `stop_reason`, what ended a choice.
struct StopTokens {
  std::vector<TokenId> of_request{};  ///< stop_token_ids
  std::vector<TokenId> of_model{};    ///< none with ignore_eos

  [[nodiscard]] static StopTokens of(const SamplingParams& params, std::span<const TokenId> eos) {
    StopTokens out{.of_request = params.stop_token_ids};
    if (!params.ignore_eos) out.of_model.assign(eos.begin(), eos.end());
    return out;
  }

  /// Whether `token` ends a request that has it in its stop_token_ids, and is no end token.
  [[nodiscard]] bool has(TokenId token) const {
    return std::ranges::find(of_model, token) == of_model.end() &&
           std::ranges::find(of_request, token) != of_request.end();
  }
};

/// Makes names of replies and of tool calls that differ from all others, those of other processes
/// included. Thread-safe.
class ReplyIds {
 public:
  ReplyIds() : seed_(random_seed()) {}

  /// `prefix` and 24 hexadecimal digits.
  [[nodiscard]] std::string next(std::string_view prefix) {
    const std::uint64_t count = count_.fetch_add(1, std::memory_order_relaxed);
    const auto words = philox4x32(
        seed_, {static_cast<std::uint32_t>(count), static_cast<std::uint32_t>(count >> 32), 0, 3});
    std::string id(prefix);
    for (int i = 0; i < 3; ++i)
      nanovllm::detail::append_hex(id, words[static_cast<std::size_t>(i)], 8);
    return id;
  }

 private:
  const std::uint64_t seed_;
  std::atomic<std::uint64_t> count_{0};
};

/// Appends an event of a stream: "data: ", `data` and an empty line.
inline void append_event(std::string& out, std::string_view data) {
  out += "data: ";
  out += data;
  out += "\n\n";
}

/// Whether a choice has a finish_reason. One that failed has none: the reply is an error.
[[nodiscard]] constexpr bool is_ended_by_itself(FinishReason reason) {
  return reason == FinishReason::stop || reason == FinishReason::length;
}

/// Unix time, in seconds.
[[nodiscard]] inline std::int64_t unix_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

/// The members that begin a reply and every chunk of a stream.
struct ReplyFrame {
  std::string id{}, object{}, model{};
  std::int64_t created = 0;  ///< Unix time, in seconds

  /// {"id", "object", "created", "model"}
  [[nodiscard]] Json to_json() const {
    return Json::object({{"id", id}, {"object", object}, {"created", created}, {"model", model}});
  }
};

/// The settings of both kinds of replies.
struct ReplySetup {
  ReplyFrame frame{};
  std::optional<Tokenizer> tokenizer{};  ///< required for log-probabilities
  std::size_t num_choices = 1;
  StopTokens stop_tokens{};
  bool include_usage = false;           ///< of a stream: a last chunk with the usage
  bool continuous_usage_stats = false;  ///< and the usage in all others
  bool return_token_ids = false;
  TokenNames token_names = TokenNames::texts;  ///< in log-probabilities
  bool return_prompt_logprobs = false;
};

/// What replies of both kinds keep of a choice.
struct ReplyChoice {
  bool has_begun = false;  ///< a chunk of it is out
  std::string stop_string{};
  std::optional<TokenId> last_token{};
  Json new_token_ids = Json::array();
  std::string finish_reason{};

  /// Takes what `update` has, but for its end.
  void add(const ChoiceUpdate& update, const ReplySetup& setup) {
    stop_string = update.stop_string;
    if (update.last_token) last_token = update.last_token;
    if (!setup.return_token_ids) return;
    for (const TokenId token : update.token_ids) new_token_ids.push_back(token);
  }

  /// Of a choice that has ended by itself: the stop string, or the id of the stop token, that ended
  /// it; null if it was an end token of the model, the end of its form, or the length.
  [[nodiscard]] Json stop_reason(const ReplySetup& setup) const {
    if (finish_reason == "length") return nullptr;
    if (!stop_string.empty()) return stop_string;
    return last_token && setup.stop_tokens.has(*last_token) ? Json(*last_token) : Json();
  }
};

/// Turns output into JSON, on the transport's thread. One thread at a time may use it, either for
/// chunks or for one whole reply.
class ReplyWriter {
 public:
  virtual ~ReplyWriter() = default;

  /// Appends to `out` the chunks that `update` of choice `index` makes, possibly none.
  virtual void append_chunks(std::string& out, std::size_t index, const ChoiceUpdate& update,
                             const Usage& usage) = 0;

  /// Takes the log-probabilities of a prompt, before the first update of its choices.
  virtual void begin_prompt(std::size_t /*prompt*/, PromptLogprobs&& /*logprobs*/) {}

  /// Appends a chunk with the next part of the prompt for choice `index`. Returns false if none is
  /// left.
  virtual bool append_prompt(std::string& /*out*/, std::size_t /*index*/, const Usage& /*usage*/) {
    return false;
  }

  /// Appends what follows the last choice's end.
  virtual void append_end(std::string& out, const Usage& usage) = 0;

  /// The body of a whole reply that is an error.
  [[nodiscard]] virtual std::string error_body(const ApiError& error) const { return error.body(); }

  /// Appends an error to a stream, which ends with it.
  virtual void append_error(std::string& out, const ApiError& error) {
    append_event(out, error_body(error));
  }

  /// Appends what ends every stream.
  virtual void append_done(std::string& out) { append_event(out, "[DONE]"); }

  /// The whole reply. `update` has the output of all choices.
  [[nodiscard]] virtual std::string whole(const OutputUpdate& update, const Usage& usage) = 0;

  /// The first choice's finish_reason, as it was written.
  [[nodiscard]] virtual std::string_view finish_reason() const = 0;
};

/// The text of a whole reply, one choice at a time: log-probabilities take about ten times more
/// memory as JSON values than as text.
class WholeFrame {
 public:
  /// @param list  the member that has the choices, or what is in their place.
  explicit WholeFrame(const ReplyFrame& frame, std::string_view list = "choices")
      : text_(frame.to_json().dump()) {
    text_.pop_back();  // the closing brace
    text_ += concat(", \"", list, "\": [");
  }

  /// Adds a choice, whose JSON this is.
  void add(std::string_view choice) {
    if (text_.back() != '[') text_ += ", ";
    text_ += choice;
  }

  /// The reply, with the members of `rest`, which must not be empty.
  [[nodiscard]] std::string end(const Json& rest) {
    text_ += "], ";
    text_ += std::string_view(rest.dump()).substr(1);
    return std::move(text_);
  }

 private:
  std::string text_;
};

/// Appends chunks. The text of the frame is made once.
class ChunkFrame {
 public:
  /// @param in_every_chunk  whether each chunk has the usage so far.
  ChunkFrame(const ReplyFrame& frame, bool in_every_chunk)
      : begin_("data: " + frame.to_json().dump()), has_usage_(in_every_chunk) {
    begin_.pop_back();  // the closing brace
  }

  /// A chunk with one choice.
  /// @param further  members of the chunk itself, an object.
  void append(std::string& out, const Json& choice, const Usage& usage,
              const Json& further = Json::object()) const {
    append(out, "[" + choice.dump() + "]", further, has_usage_ ? &usage : nullptr);
  }

  /// The chunk without choices that has the usage of all.
  void append_usage(std::string& out, const Usage& usage) const {
    append(out, "[]", Json::object(), &usage);
  }

 private:
  void append(std::string& out, std::string_view choices, const Json& further,
              const Usage* usage) const {
    out += begin_;
    out += ", \"choices\": ";
    out += choices;
    for (const auto& [key, value] : further.items()) {
      out += ", " + Json(key).dump() + ": ";
      out += value.dump();
    }
    if (usage != nullptr) {
      out += ", \"usage\": ";
      out += usage->to_json().dump();
    }
    out += "}\n\n";
  }

  std::string begin_;
  bool has_usage_;
};

}  // namespace nanovllm::serve
