#pragma once
/// Writers of replies: one kind for each endpoint of the API.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "nanovllm/api/serve/reply/logprobs.hpp"
#include "nanovllm/api/serve/reply/pending_output.hpp"
#include "nanovllm/api/serve/reply/stop_reason.hpp"
#include "nanovllm/api/serve/reply/usage.hpp"
#include "nanovllm/core/finish_reason.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nanovllm::serve {

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
  StopRules stop_rules{};
  bool include_usage = false;           ///< of a stream: a last chunk with the usage
  bool continuous_usage_stats = false;  ///< and the usage in all others
  bool return_token_ids = false;
  TokenNames token_names = TokenNames::texts;  ///< in log-probabilities
  bool return_prompt_logprobs = false;
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

  /// Appends the chunks that follow the last choice's end, except [DONE].
  virtual void append_end(std::string& out, const Usage& usage) = 0;

  /// The whole reply. `update` has the output of all choices.
  [[nodiscard]] virtual std::string whole(const OutputUpdate& update, const Usage& usage) = 0;

  /// The first choice's finish_reason, as it was written.
  [[nodiscard]] virtual std::string_view finish_reason() const = 0;
};

/// The text of a whole reply, one choice at a time: log-probabilities take about ten times more
/// memory as JSON values than as text.
class WholeFrame {
 public:
  explicit WholeFrame(const ReplyFrame& frame) : text_(frame.to_json().dump()) {
    text_.pop_back();  // the closing brace
    text_ += ", \"choices\": [";
  }

  void add_choice(const Json& choice) {
    if (text_.back() != '[') text_ += ", ";
    text_ += choice.dump();
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
