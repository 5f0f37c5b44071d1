#pragma once
/// What a tokenizer.json asks for, checked against what this library does: byte-level BPE (the kind
/// of GPT-2, Qwen and Llama 3) over text in NFC or as it comes. Anything else is refused by name.

#include <cstddef>
#include <string>
#include <vector>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/text/added_tokens.hpp"
#include "nanovllm/text/sequence_template.hpp"

namespace nanovllm {

class MergeTable;
struct NamedToken;
struct TokenizerJson;
class Vocabulary;

/// One `Split` of the pre-tokeniser, with behaviour "Isolated".
struct SplitStep {
  std::string pattern;
  bool is_regex;  ///< else the pattern is searched for as it stands
};

/// More `Split`s than this are refused; real files have at most three. They are run one inside the
/// other.
inline constexpr std::size_t kMaxSplits = 64;

/// The steps of tokenization besides the vocabulary and the merges.
struct TokenizerSteps {
  bool nfc = false;
  bool ignore_merges = false;  ///< a piece that is a token of the model's vocabulary is that token
  std::vector<SplitStep> splits;
  std::vector<AddedToken> added_tokens;
  SequenceTemplate sequence_template;
};

/// Reads the steps from `TokenizerJson::rest`. Throws LoadError naming the field, what was expected
/// and what came.
[[nodiscard]] TokenizerSteps read_tokenizer_steps(const Json& document);

namespace detail {

/// The model's vocabulary and the added tokens, some of which may be in it.
[[nodiscard]] std::vector<NamedToken> all_tokens(const TokenizerJson& json,
                                                 const TokenizerSteps& steps);

/// The file's merges by the ids of their two sides. Throws LoadError for one whose tokens the
/// vocabulary lacks.
[[nodiscard]] MergeTable merge_table(const TokenizerJson& json, const Vocabulary& vocabulary);

}  // namespace detail

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/utf8.hpp"
#include "nanovllm/text/bpe.hpp"
#include "nanovllm/text/tokenizer_json.hpp"
#include "nanovllm/text/vocabulary.hpp"

namespace nanovllm {

namespace detail {

/// Reads everything but the two long lists. Each member throws LoadError naming the field, what was
/// expected and what came.
class TokenizerStepsReader {
 public:
  [[nodiscard]] static TokenizerSteps read(const Json& document) {
    TokenizerSteps steps;
    // "truncation" and "padding" are what a trainer's last call left behind: transformers sets both
    // anew in every call, and without its options neither cuts nor pads.
    check_model(field(document, "model"), steps);
    read_normalizer(field(document, "normalizer"), steps);
    const Json& pre_tokenizer = field(document, "pre_tokenizer");
    check<LoadError>(!pre_tokenizer.is_null(),
                     "pre_tokenizer is missing; one that ends in ByteLevel is needed");
    read_pre_tokenizer(pre_tokenizer, steps);
    read_post_processor(field(document, "post_processor"), steps.sequence_template);
    expect_type(field(document, "decoder"), "decoder", {"ByteLevel"});
    for (const Json& token : items(document, "added_tokens"))
      steps.added_tokens.push_back(added_token(token));
    return steps;
  }

 private:
  static constexpr std::string_view kTemplate = "post_processor TemplateProcessing.single";

  /// The value of `name`, null when it is absent.
  static const Json& field(const Json& object, const char* name) {
    static const Json null = nullptr;
    const Json* found = object.find(name);
    return found == nullptr ? null : *found;
  }

  /// "Sequence" of {"type": "Sequence", …}; the value itself for an error message otherwise.
  static std::string type_of(const Json& object) {
    const Json& type = object.is_object() ? field(object, "type") : object;
    return type.is_string() ? type.string() : shorten(type);
  }

  static std::string shorten(const Json& value) {
    std::string text = value.dump();
    if (text.size() <= 80) return text;
    text.resize(77);
    text.resize(utf8::complete_prefix(text));
    return text + "...";
  }

  static std::string expect_type(const Json& object, const char* what,
                                 std::initializer_list<std::string_view> supported) {
    const std::string type = type_of(object);
    std::string list;
    for (std::string_view name : supported) {
      if (object.is_object() && type == name) return type;
      list += concat(list.empty() ? "" : ", ", name);
    }
    throw LoadError(concat(what, " '", type, "' is not supported; supported: ", list));
  }

  static const Json& items(const Json& object, const char* name) {
    static const Json none = Json::array();
    const Json& value = field(object, name);
    check<LoadError>(value.is_null() || value.is_array(), name, " must be an array, got ",
                     shorten(value));
    return value.is_null() ? none : value;
  }

  static std::string text(const Json& object, const char* name, std::string_view owner) {
    const Json& value = field(object, name);
    check<LoadError>(value.is_string(), owner, ".", name, " must be a string, got ",
                     shorten(value));
    return value.string();
  }

  static bool flag(const Json& object, const char* name, std::string_view owner) {
    const Json& value = field(object, name);
    check<LoadError>(value.is_boolean(), owner, ".", name, " must be true or false, got ",
                     shorten(value));
    return value.boolean();
  }

  static void check_model(const Json& model, TokenizerSteps& steps) {
    expect_type(model, "model", {"BPE"});
    // unk_token, fuse_unk and byte_fallback have no effect: every byte has a token.
    for (const char* name : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json& value = field(model, name);
      const bool off = value.is_null() || value == Json("") || value == Json(0);
      check<LoadError>(off, "model.", name, " is ", shorten(value), "; only null is supported");
    }
    const bool is_set = !field(model, "ignore_merges").is_null();
    steps.ignore_merges = is_set && flag(model, "ignore_merges", "model");
  }

  static void read_normalizer(const Json& normalizer, TokenizerSteps& steps) {
    if (normalizer.is_null()) return;
    if (expect_type(normalizer, "normalizer", {"NFC", "Sequence"}) == "NFC") {
      steps.nfc = true;
      return;
    }
    for (const Json& step : items(normalizer, "normalizers")) {
      expect_type(step, "normalizer in a Sequence:", {"NFC"});
      steps.nfc = true;
    }
  }

  /// Any number of Splits, then ByteLevel.
  static void read_pre_tokenizer(const Json& pre_tokenizer, TokenizerSteps& steps) {
    const std::string type = expect_type(pre_tokenizer, "pre_tokenizer", {"ByteLevel", "Sequence"});
    if (type == "ByteLevel") return read_byte_level(pre_tokenizer, steps);
    const Json& list = items(pre_tokenizer, "pretokenizers");
    check<LoadError>(!list.empty() && type_of(list.back()) == "ByteLevel",
                     "pre_tokenizer must be a Sequence that ends in ByteLevel");
    check<LoadError>(list.size() - 1 <= kMaxSplits, "pre_tokenizer must have at most ", kMaxSplits,
                     " Splits, got ", list.size() - 1);
    for (std::size_t i = 0; i + 1 < list.size(); ++i) read_split(list[i], steps);
    read_byte_level(list.back(), steps);
  }

  static void read_split(const Json& split, TokenizerSteps& steps) {
    expect_type(split, "pre_tokenizer in a Sequence:", {"Split (then one ByteLevel)", "Split"});
    const std::string behavior = text(split, "behavior", "Split");
    check<LoadError>(behavior == "Isolated", "Split.behavior is '", behavior,
                     "'; only 'Isolated' is supported");
    check<LoadError>(!flag(split, "invert", "Split"),
                     "Split.invert is true; only false is supported");
    const Json& pattern = field(split, "pattern");
    check<LoadError>(pattern.is_object() && pattern.size() == 1 &&
                         (pattern.contains("Regex") || pattern.contains("String")),
                     "Split.pattern must be {\"Regex\": …} or {\"String\": …}, got ",
                     shorten(pattern));
    const bool is_regex = pattern.contains("Regex");
    steps.splits.push_back(
        {text(pattern, is_regex ? "Regex" : "String", "Split.pattern"), is_regex});
  }

  static void read_byte_level(const Json& byte_level, TokenizerSteps& steps) {
    check<LoadError>(!flag(byte_level, "add_prefix_space", "ByteLevel"),
                     "ByteLevel.add_prefix_space is true; only false is supported");
    if (field(byte_level, "use_regex").is_null() || flag(byte_level, "use_regex", "ByteLevel")) {
      steps.splits.push_back(
          {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
           true});
    }
  }

  /// ByteLevel shifts offsets, which are not asked for here. One template may add tokens.
  static void read_post_processor(const Json& post_processor, SequenceTemplate& out) {
    if (post_processor.is_null()) return;
    const std::string type = expect_type(post_processor, "post_processor",
                                         {"ByteLevel", "TemplateProcessing", "Sequence"});
    if (type == "TemplateProcessing") return read_template(post_processor, out);
    if (type != "Sequence") return;
    for (const Json& step : items(post_processor, "processors")) {
      expect_type(step, "post_processor in a Sequence:", {"ByteLevel", "TemplateProcessing"});
      read_post_processor(step, out);
    }
  }

  static void read_template(const Json& processor, SequenceTemplate& out) {
    const Json& single = items(processor, "single");
    SequenceTemplate added;
    int num_texts = 0;
    for (const Json& piece : single) {
      check<LoadError>(piece.is_object(), kTemplate, " must hold objects, got ", shorten(piece));
      const Json& token = field(piece, "SpecialToken");
      if (!token.is_null()) {
        add_template_token(processor, token, num_texts == 0 ? added.before : added.behind);
        continue;
      }
      const Json& sequence = field(piece, "Sequence");
      check<LoadError>(sequence.is_object() && field(sequence, "id") == Json("A"), kTemplate,
                       " must hold SpecialTokens and the Sequence A, got ", shorten(piece));
      ++num_texts;
    }
    check<LoadError>(num_texts == 1, kTemplate, " must have the text once, got ", shorten(single));
    check<LoadError>(out.size() == 0 || added.size() == 0,
                     "post_processor has two templates that add tokens; one is supported");
    if (added.size() > 0) out = std::move(added);
  }

  /// Appends what `special_tokens` says of a token of the template, which may be several ids.
  static void add_template_token(const Json& processor, const Json& token,
                                 std::vector<TokenId>& out) {
    check<LoadError>(token.is_object(), kTemplate, ": a SpecialToken must be an object, got ",
                     shorten(token));
    const std::string name = text(token, "id", kTemplate);
    const Json& tokens = field(processor, "special_tokens");
    const Json* entry = tokens.is_object() ? tokens.find(name) : nullptr;
    check<LoadError>(entry != nullptr && entry->is_object() && !items(*entry, "ids").empty(),
                     kTemplate, " adds '", name, "', which special_tokens has no ids for");
    for (const Json& id : items(*entry, "ids")) out.push_back(token_id(id, "special_tokens"));
  }

  static TokenId token_id(const Json& id, std::string_view owner) {
    check<LoadError>(
        id.is_number_unsigned() && std::cmp_less(id.get<std::uint64_t>(), kMaxTokenIds),
        "the id of ", owner, " must be in [0, ", kMaxTokenIds, "), got ", shorten(id));
    return id.get<TokenId>();
  }

  static AddedToken added_token(const Json& entry) {
    check<LoadError>(entry.is_object(), "added_tokens must hold objects, got ", shorten(entry));
    const char* owner = "an added token";
    return {.id = token_id(field(entry, "id"), owner),
            .content = text(entry, "content", owner),
            .single_word = flag(entry, "single_word", owner),
            .lstrip = flag(entry, "lstrip", owner),
            .rstrip = flag(entry, "rstrip", owner),
            .normalized = flag(entry, "normalized", owner),
            .special = flag(entry, "special", owner)};
  }
};

NANOVLLM_INLINE std::vector<NamedToken> all_tokens(const TokenizerJson& json,
                                                   const TokenizerSteps& steps) {
  std::vector<NamedToken> tokens;
  tokens.reserve(json.ids.size() + steps.added_tokens.size());
  for (std::size_t i = 0; i < json.ids.size(); ++i) tokens.push_back({json.names[i], json.ids[i]});
  for (const AddedToken& added : steps.added_tokens) tokens.push_back({added.content, added.id});
  return tokens;
}

NANOVLLM_INLINE MergeTable merge_table(const TokenizerJson& json, const Vocabulary& vocabulary) {
  const std::size_t num_merges = json.merge_sides.size() / 2;
  MergeTable table(num_merges);
  std::string joined;
  const auto id_of = [&](std::string_view name, std::size_t rank) {
    const std::optional<TokenId> id = vocabulary.find(name);
    check<LoadError>(id.has_value(), "merge ", rank, " needs the token '", name,
                     "', which model.vocab does not have");
    return *id;
  };
  for (std::size_t rank = 0; rank < num_merges; ++rank) {
    const std::string_view left = json.merge_sides[2 * rank];
    const std::string_view right = json.merge_sides[2 * rank + 1];
    joined.assign(left).append(right);
    const TokenId left_id = id_of(left, rank), right_id = id_of(right, rank);
    table.insert(left_id, right_id, Merge(static_cast<std::uint32_t>(rank), id_of(joined, rank)));
  }
  return table;
}

}  // namespace detail

NANOVLLM_INLINE TokenizerSteps read_tokenizer_steps(const Json& document) {
  return detail::TokenizerStepsReader::read(document);
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
