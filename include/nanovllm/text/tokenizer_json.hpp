#pragma once
/// Parses the JSON of a tokenizer.json; text/tokenizer_file.hpp says what it means.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/text/vocabulary.hpp"

namespace nanovllm {

/// A tokenizer.json: its two long lists, and everything else as an ordinary json value.
struct TokenizerJson {
  nlohmann::json rest;       ///< the document without model.vocab and model.merges
  StringList names;          ///< keys of model.vocab, in the file's order
  std::vector<TokenId> ids;  ///< values of model.vocab, each in [0, kMaxTokenIds)
  StringList merge_sides;    ///< left and right side of each merge, by rank
};

namespace detail {

/// Receives nlohmann's parse events. Vocabulary and merges, nearly all of the file, go straight
/// into flat lists: a json value for each would take longer than all the rest of loading.
class TokenizerJsonReader {
 public:
  using json = nlohmann::json;

  explicit TokenizerJsonReader(TokenizerJson& file) : file_(file) {}

  [[nodiscard]] bool has_vocab() const { return has_vocab_; }
  [[nodiscard]] bool has_merges() const { return has_merges_; }

  bool null() { return value(nullptr); }
  bool boolean(bool x) { return value(x); }
  bool number_integer(json::number_integer_t x) { return integer(x); }
  bool number_unsigned(json::number_unsigned_t x) { return integer(x); }
  bool number_float(json::number_float_t x, const std::string&) { return value(x); }
  bool binary(json::binary_t&) { return false; }

  bool string(std::string& text) {
    if (place_ != Place::kMerges) return value(std::move(text));
    if (in_pair_) {
      check<LoadError>(++pair_size_ <= 2, "merge ", file_.merge_sides.size() / 2 - 1,
                       " has more than two sides");
      file_.merge_sides.push_back(text);
    } else if (!text.starts_with("#version")) {
      const std::size_t space = text.find(' ');
      check<LoadError>(space != text.npos && text.find(' ', space + 1) == text.npos, "merge ",
                       file_.merge_sides.size() / 2,
                       " must be two tokens with a space between, got '", text, "'");
      file_.merge_sides.push_back(std::string_view(text).substr(0, space));
      file_.merge_sides.push_back(std::string_view(text).substr(space + 1));
    }
    return true;
  }

  bool key(std::string& text) {
    if (place_ == Place::kVocab) {
      file_.names.push_back(text);
    } else {
      keys_.back() = std::move(text);
    }
    return true;
  }

  bool start_object(std::size_t) {
    if (at_model("vocab")) {
      check<LoadError>(!std::exchange(has_vocab_, true), "model.vocab is there twice");
      place_ = Place::kVocab;
      return true;
    }
    open(json::object());
    return true;
  }

  bool end_object() {
    if (place_ == Place::kVocab) {
      place_ = Place::kElsewhere;
    } else {
      close();
    }
    return true;
  }

  bool start_array(std::size_t) {
    if (place_ == Place::kMerges && !in_pair_) {
      in_pair_ = true;
      pair_size_ = 0;
    } else if (at_model("merges")) {
      check<LoadError>(!std::exchange(has_merges_, true), "model.merges is there twice");
      place_ = Place::kMerges;
    } else {
      open(json::array());
    }
    return true;
  }

  bool end_array() {
    if (in_pair_) {
      check<LoadError>(pair_size_ == 2, "merge ", file_.merge_sides.size() / 2,
                       " has one side; two are needed");
      in_pair_ = false;
    } else if (place_ == Place::kMerges) {
      place_ = Place::kElsewhere;
    } else {
      close();
    }
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const json::exception& error) {
    throw LoadError(concat("not valid JSON: ", error.what()));
  }

 private:
  enum class Place { kElsewhere, kVocab, kMerges };

  bool at_model(std::string_view field) const {
    return place_ == Place::kElsewhere && keys_.size() == 2 && keys_[0] == "model" &&
           keys_[1] == field;
  }

  template <class Integer>
  bool integer(Integer x) {
    if (place_ != Place::kVocab) return value(x);
    const bool in_range = std::cmp_greater_equal(x, 0) && std::cmp_less(x, kMaxTokenIds);
    check<LoadError>(in_range, "token '", file_.names[file_.names.size() - 1], "' has the id ", x,
                     "; ids must be in [0, ", kMaxTokenIds, ")");
    file_.ids.push_back(static_cast<TokenId>(x));
    return true;
  }

  bool value(json x) {
    check<LoadError>(place_ != Place::kVocab, "model.vocab must map tokens to ids, got a ",
                     x.type_name());
    check<LoadError>(place_ != Place::kMerges, "model.merges must hold strings or pairs, got a ",
                     x.type_name());
    insert(std::move(x));
    return true;
  }

  /// Puts x where the parse stands; returns its place.
  json* insert(json x) {
    if (open_.empty()) return &(file_.rest = std::move(x));
    json& parent = *open_.back();
    if (parent.is_object()) return &(parent[keys_.back()] = std::move(x));
    parent.push_back(std::move(x));
    return &parent.back();
  }

  void open(json x) {
    check<LoadError>(place_ == Place::kElsewhere, "model.vocab and model.merges must be flat");
    open_.push_back(insert(std::move(x)));
    keys_.emplace_back();
  }

  void close() {
    open_.pop_back();
    keys_.pop_back();
  }

  TokenizerJson& file_;
  std::vector<json*> open_;        // containers that enclose the parse
  std::vector<std::string> keys_;  // the current key in each; "" in arrays
  Place place_ = Place::kElsewhere;
  bool has_vocab_ = false, has_merges_ = false, in_pair_ = false;
  int pair_size_ = 0;
};

}  // namespace detail

/// Both spellings of merges, "a b" and ["a", "b"], give the same lists. Throws LoadError when
/// `text` is not JSON or has no vocabulary or merges.
[[nodiscard]] inline TokenizerJson parse_tokenizer_json(std::string_view text) {
  TokenizerJson file;
  detail::TokenizerJsonReader reader(file);
  nlohmann::json::sax_parse(text, &reader);
  check<LoadError>(file.rest.is_object(), "expected a JSON object, got a ", file.rest.type_name());
  check<LoadError>(reader.has_vocab(), "model.vocab, an object of tokens and ids, is missing");
  check<LoadError>(reader.has_merges(), "model.merges, an array, is missing");
  return file;
}

}  // namespace nanovllm
