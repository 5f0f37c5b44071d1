#pragma once
/// The tokenizer.json, the tokenizer_config.json and the chat template that a GGUF file stands for.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "nanovllm/core/separate.hpp"

namespace nanovllm {

class GgufFile;

/// The tokenizer.json of the vocabulary in `file`; nothing where it has none. Throws LoadError
/// unless it is byte-level BPE (`tokenizer.ggml.model` "gpt2") whose pre-tokeniser
/// (`tokenizer.ggml.pre`) is known: "qwen2" or "gpt-2", or another name that llama.cpp has for the
/// same pattern, such as "deepseek-r1-qwen".
///
/// Control tokens and tokens of the user become added tokens, control tokens special ones; tokens
/// that are not used are left out. Where the file says that a text gets a first or a last token,
/// that is the template of the post-processor.
[[nodiscard]] std::optional<std::string> gguf_tokenizer_json(const GgufFile& file);

/// tokenizer_config.json: the names of the end token and of its like, and a list of chat templates
/// where there are several. Nothing where `file` has no vocabulary.
[[nodiscard]] std::optional<std::string> gguf_tokenizer_config_json(const GgufFile& file);

/// The chat template, where there is one alone.
[[nodiscard]] std::optional<std::string> gguf_chat_template(const GgufFile& file);

/// The id of the control token of that name, if there is one.
[[nodiscard]] std::optional<std::int64_t> find_gguf_control_token(const GgufFile& file,
                                                                  std::string_view name);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/io/json_writer.hpp"
#include "nanovllm/with/gguf/gguf_file.hpp"
#include "nanovllm/with/gguf/gguf_metadata.hpp"

namespace nanovllm {

namespace detail {

/// What `tokenizer.ggml.token_type` says of a token.
enum class GgufTokenType : std::int64_t {
  normal = 1,
  unknown,
  control,
  user_defined,
  unused,
  byte
};

/// The tokens by their ids, and what they are.
struct GgufTokens {
  std::vector<std::string_view> names;
  std::vector<std::int64_t> types;

  [[nodiscard]] GgufTokenType type(std::size_t id) const {
    return static_cast<GgufTokenType>(types[id]);
  }
};

/// Nothing where there is no vocabulary. Throws LoadError for types that do not fit.
NANOVLLM_INLINE std::optional<GgufTokens> read_gguf_tokens(const GgufFile& file) {
  constexpr const char* kTypes = "tokenizer.ggml.token_type";
  auto names = file.metadata().strings("tokenizer.ggml.tokens");
  if (!names) return std::nullopt;
  GgufTokens out{.names = *std::move(names), .types = {}};
  const GgufValue* const types = file.metadata().find(kTypes);
  check<LoadError>(types == nullptr || types->count == out.names.size(), "'", file.name(), "': '",
                   kTypes, "' has ", types != nullptr ? types->count : 0,
                   " entries, but there are ", out.names.size(), " tokens");
  out.types = file.metadata().integers(kTypes).value_or(
      std::vector(out.names.size(), static_cast<std::int64_t>(GgufTokenType::normal)));
  for (std::size_t id = 0; id < out.types.size(); ++id) {
    check<LoadError>(out.types[id] >= 1 && out.types[id] <= 6, "'", file.name(), "': '", kTypes,
                     "' must have numbers in [1, 6], got ", out.types[id], " for token ", id);
  }
  return out;
}

/// How text is divided ahead of the merges: the part of tokenizer.json that `tokenizer.ggml.pre`
/// names.
struct GgufPreTokenizer {
  std::string_view name, steps;
  std::array<std::string_view, 4> aliases{};  ///< names of the same in llama.cpp
};

/// The steps are those of the tokenizer.json of Qwen2 and of GPT-2.
inline constexpr std::array<GgufPreTokenizer, 2> kGgufPreTokenizers{
    {{"qwen2",
      R"("normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [)"
      R"({"type": "Split", "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N})"
      R"(]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}, )"
      R"("behavior": "Isolated", "invert": false}, {"type": "ByteLevel", )"
      R"("add_prefix_space": false, "trim_offsets": false, "use_regex": false}]})",
      {"deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"}},
     {"gpt-2",
      R"("normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, )"
      R"("trim_offsets": true, "use_regex": true})",
      {"phi-2", "jina-es", "jina-de", "gigachat"}}}};

/// Throws LoadError that lists what is supported.
NANOVLLM_INLINE std::string_view find_gguf_pre_tokenizer(const GgufFile& file) {
  const auto named = [&](const char* key, std::string_view name) {
    return concat("'", file.name(), "': '", key, "' is '", name, "'; supported: ");
  };
  constexpr const char *kModel = "tokenizer.ggml.model", *kPre = "tokenizer.ggml.pre";
  const std::string_view model = file.metadata().string(kModel).value_or("");
  check<LoadError>(model == "gpt2", named(kModel, model), "gpt2");
  const std::string_view pre = file.metadata().string(kPre).value_or("");
  std::string list;
  for (const GgufPreTokenizer& known : kGgufPreTokenizers) {
    if (known.name == pre || (!pre.empty() && std::ranges::count(known.aliases, pre) > 0))
      return known.steps;
    list += concat(list.empty() ? "" : ", ", known.name);
    for (const std::string_view alias : known.aliases) list += concat(", ", alias);
  }
  throw LoadError(named(kPre, pre) + list);
}

/// The token that `tokenizer.ggml.<name>_token_id` names; nothing where there is no such key.
NANOVLLM_INLINE std::optional<std::size_t> find_gguf_special(const GgufFile& file,
                                                             const GgufTokens& tokens,
                                                             std::string_view name) {
  const std::string key = concat("tokenizer.ggml.", name, "_token_id");
  const auto id = file.metadata().integer(key);
  if (!id) return std::nullopt;
  check<LoadError>(*id >= 0 && std::cmp_less(*id, tokens.names.size()), "'", file.name(), "': '",
                   key, "' must be in [0, ", tokens.names.size(), "), got ", *id);
  return static_cast<std::size_t>(*id);
}

/// Writes one tokenizer.json. Vocabulary and merges are long, so they are written as text at once.
class GgufTokenizerWriter {
 public:
  GgufTokenizerWriter(const GgufFile& file, const GgufTokens& tokens)
      : file_(file), tokens_(tokens) {}

  [[nodiscard]] std::string write() {
    const std::string_view steps = find_gguf_pre_tokenizer(file_);
    out_.reserve(40 * tokens_.names.size());
    out_ += R"({"version": "1.0", "truncation": null, "padding": null, )";
    add_tokens();
    out_ += concat(", ", steps, R"(, "post_processor": )");
    add_post_processor();
    out_ += R"(, "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": )"
            R"(false, "use_regex": false}, "model": {"type": "BPE", "vocab": {)";
    add_vocabulary();
    out_ += R"(}, "merges": [)";
    add_merges();
    out_ += "]}}";
    return std::move(out_);
  }

 private:
  [[nodiscard]] static bool is_added(GgufTokenType type) {
    using enum GgufTokenType;
    return type == control || type == user_defined || type == unknown;
  }

  void add_tokens() {
    out_ += R"("added_tokens": [)";
    const char* separator = "";
    for (std::size_t id = 0; id < tokens_.names.size(); ++id) {
      const GgufTokenType type = tokens_.type(id);
      if (!is_added(type)) continue;
      out_ += concat(std::exchange(separator, ", "), R"({"id": )", id, R"(, "content": )");
      append_json_string(out_, tokens_.names[id]);
      out_ += R"(, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, )";
      out_ += concat(R"("special": )", type != GgufTokenType::user_defined, "}");
    }
    out_ += "]";
  }

  void add_post_processor() {
    const auto added = [&](const char* flag, const char* name) -> std::optional<std::size_t> {
      if (file_.metadata().boolean(concat("tokenizer.ggml.", flag)) != true) return std::nullopt;
      return find_gguf_special(file_, tokens_, name);
    };
    const auto first = added("add_bos_token", "bos"), last = added("add_eos_token", "eos");
    if (!first && !last) {
      out_ += R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false})";
      return;
    }
    Json single = Json::array(), special = Json::object();
    const auto add = [&](std::size_t id) {
      const std::string name(tokens_.names[id]);
      single.push_back(
          Json::object({{"SpecialToken", Json::object({{"id", name}, {"type_id", 0}})}}));
      special[name] =
          Json::object({{"id", name}, {"ids", Json::array({id})}, {"tokens", Json::array({name})}});
    };
    if (first) add(*first);
    single.push_back(Json::object({{"Sequence", Json::object({{"id", "A"}, {"type_id", 0}})}}));
    if (last) add(*last);
    out_ += Json::object({{"type", "TemplateProcessing"},
                          {"single", std::move(single)},
                          {"pair", Json::array()},
                          {"special_tokens", std::move(special)}})
                .dump();
  }

  void add_vocabulary() {
    const char* separator = "";
    for (std::size_t id = 0; id < tokens_.names.size(); ++id) {
      const GgufTokenType type = tokens_.type(id);
      if (is_added(type) || type == GgufTokenType::unused) continue;
      out_ += std::exchange(separator, ", ");
      append_json_string(out_, tokens_.names[id]);
      out_ += concat(": ", id);
    }
  }

  void add_merges() {
    constexpr const char* kMerges = "tokenizer.ggml.merges";
    const auto merges = file_.metadata().strings(kMerges);
    check<LoadError>(merges.has_value(), "'", file_.name(), "': '", kMerges, "' is missing");
    const char* separator = "";
    for (const std::string_view merge : *merges) {
      out_ += std::exchange(separator, ", ");
      append_json_string(out_, merge);
    }
  }

  const GgufFile& file_;
  const GgufTokens& tokens_;
  std::string out_;
};

}  // namespace detail

NANOVLLM_INLINE std::optional<std::string> gguf_tokenizer_json(const GgufFile& file) {
  const auto tokens = detail::read_gguf_tokens(file);
  if (!tokens) return std::nullopt;
  return detail::GgufTokenizerWriter(file, *tokens).write();
}

NANOVLLM_INLINE std::optional<std::string> gguf_tokenizer_config_json(const GgufFile& file) {
  const auto tokens = detail::read_gguf_tokens(file);
  if (!tokens) return std::nullopt;
  Json out = Json::object();
  const std::pair<const char*, const char*> kSpecial[] = {
      {"bos_token", "bos"}, {"eos_token", "eos"}, {"pad_token", "padding"}};
  for (const auto& [field, name] : kSpecial) {
    const auto id = detail::find_gguf_special(file, *tokens, name);
    if (id) out[field] = tokens->names[*id];
  }
  constexpr const char* kTemplate = "tokenizer.chat_template";
  const GgufMetadata& metadata = file.metadata();
  const auto names = metadata.strings("tokenizer.chat_templates");
  if (names) {
    Json list = Json::array();
    const auto add = [&](std::string_view name, const std::string& key) {
      const auto text = metadata.string(key);
      if (text) list.push_back(Json::object({{"name", name}, {"template", *text}}));
    };
    add("default", kTemplate);
    for (const std::string_view name : *names) {
      if (name != "default") add(name, concat(kTemplate, ".", name));
    }
    out["chat_template"] = std::move(list);
  } else if (const auto text = metadata.string(kTemplate)) {
    out["chat_template"] = *text;
  }
  return out.dump();
}

NANOVLLM_INLINE std::optional<std::string> gguf_chat_template(const GgufFile& file) {
  const GgufMetadata& metadata = file.metadata();
  if (metadata.find("tokenizer.chat_templates") != nullptr) return std::nullopt;
  const auto text = metadata.string("tokenizer.chat_template");
  return text ? std::optional(std::string(*text)) : std::nullopt;
}

NANOVLLM_INLINE std::optional<std::int64_t> find_gguf_control_token(const GgufFile& file,
                                                                    std::string_view name) {
  const auto tokens = detail::read_gguf_tokens(file);
  if (!tokens) return std::nullopt;
  for (std::size_t id = 0; id < tokens->names.size(); ++id) {
    if (tokens->names[id] == name && tokens->type(id) == detail::GgufTokenType::control)
      return static_cast<std::int64_t>(id);
  }
  return std::nullopt;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
