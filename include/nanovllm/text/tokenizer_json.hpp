#pragma once
/// Parses the JSON of a tokenizer.json; text/tokenizer_file.hpp says what it means.

#include <string_view>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/text/vocabulary.hpp"

namespace nanovllm {

/// A tokenizer.json: its two long lists, and everything else as an ordinary JSON value.
struct TokenizerJson {
  Json rest;                 ///< the document; model.vocab and model.merges are null
  StringList names;          ///< keys of model.vocab, in the file's order
  std::vector<TokenId> ids;  ///< values of model.vocab, each in [0, kMaxTokenIds)
  StringList merge_sides;    ///< left and right side of each merge, by rank
};

/// Both spellings of merges, "a b" and ["a", "b"], give the same lists. Throws LoadError when
/// `text` is not JSON or has no vocabulary or merges.
[[nodiscard]] TokenizerJson parse_tokenizer_json(std::string_view text);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

namespace detail {

/// Receives the file's contents. Vocabulary and merges, nearly all of the file, go straight into
/// flat lists: a JSON value for each would take longer than all the rest of loading.
class TokenizerJsonReader final : public JsonEvents {
 public:
  explicit TokenizerJsonReader(TokenizerJson& file) : file_(file) {}

  [[nodiscard]] bool has_vocab() const { return has_vocab_; }
  [[nodiscard]] bool has_merges() const { return has_merges_; }
  [[nodiscard]] Json take_rest() { return rest_.take(); }

  void scalar(Json&& value) override {
    if (place_ == Place::kVocab && (value.is_number_integer() || value.is_big_integer()))
      return add_id(value);
    check_elsewhere(value.type_name());
    rest_.scalar(std::move(value));
  }

  void string(std::string& text) override {
    if (place_ == Place::kMerges) return add_merge(text);
    check_elsewhere("string");
    rest_.string(text);
  }

  void key(std::string& text) override {
    if (place_ == Place::kVocab) return file_.names.push_back(text);
    if (depth_ <= path_.size()) path_[depth_ - 1] = text;
    rest_.key(text);
  }

  void begin_object() override {
    if (at_model("vocab")) {
      check<LoadError>(!std::exchange(has_vocab_, true), "model.vocab is there twice");
      place_ = Place::kVocab;
      return;
    }
    open();
    rest_.begin_object();
  }

  void end_object() override {
    if (place_ == Place::kVocab) {
      place_ = Place::kElsewhere;
      return;
    }
    --depth_;
    rest_.end_object();
  }

  void begin_array() override {
    if (place_ == Place::kMerges && !in_pair_) {
      in_pair_ = true;
      pair_size_ = 0;
    } else if (at_model("merges")) {
      check<LoadError>(!std::exchange(has_merges_, true), "model.merges is there twice");
      place_ = Place::kMerges;
    } else {
      open();
      rest_.begin_array();
    }
  }

  void end_array() override {
    if (in_pair_) {
      check<LoadError>(pair_size_ == 2, "merge ", file_.merge_sides.size() / 2,
                       " has one side; two are needed");
      in_pair_ = false;
    } else if (place_ == Place::kMerges) {
      place_ = Place::kElsewhere;
    } else {
      --depth_;
      rest_.end_array();
    }
  }

 private:
  enum class Place { kElsewhere, kVocab, kMerges };

  [[nodiscard]] bool at_model(std::string_view field) const {
    return place_ == Place::kElsewhere && depth_ == 2 && path_[0] == "model" && path_[1] == field;
  }

  void open() {
    check<LoadError>(place_ == Place::kElsewhere, "model.vocab and model.merges must be flat");
    if (++depth_ <= path_.size()) path_[depth_ - 1].clear();
  }

  void check_elsewhere(std::string_view type) const {
    check<LoadError>(place_ != Place::kVocab, "model.vocab must map tokens to ids, got a ", type);
    check<LoadError>(place_ != Place::kMerges, "model.merges must hold strings or pairs, got a ",
                     type);
  }

  void add_id(const Json& id) {
    const bool in_range =
        id.is_number_unsigned() && std::cmp_less(id.get<std::uint64_t>(), kMaxTokenIds);
    check<LoadError>(in_range, "token '", file_.names[file_.names.size() - 1], "' has the id ",
                     id.dump(), "; ids must be in [0, ", kMaxTokenIds, ")");
    file_.ids.push_back(id.get<TokenId>());
  }

  void add_merge(std::string_view text) {
    if (in_pair_) {
      check<LoadError>(++pair_size_ <= 2, "merge ", file_.merge_sides.size() / 2 - 1,
                       " has more than two sides");
      file_.merge_sides.push_back(text);
    } else if (!text.starts_with("#version")) {
      const std::size_t space = text.find(' ');
      check<LoadError>(space != text.npos && text.find(' ', space + 1) == text.npos, "merge ",
                       file_.merge_sides.size() / 2,
                       " must be two tokens with a space between, got '", text, "'");
      file_.merge_sides.push_back(text.substr(0, space));
      file_.merge_sides.push_back(text.substr(space + 1));
    }
  }

  TokenizerJson& file_;
  JsonBuilder rest_;
  std::array<std::string, 2> path_;  // the current key in the outermost containers; "" in arrays
  std::size_t depth_ = 0;
  Place place_ = Place::kElsewhere;
  bool has_vocab_ = false, has_merges_ = false, in_pair_ = false;
  int pair_size_ = 0;
};

}  // namespace detail

NANOVLLM_INLINE TokenizerJson parse_tokenizer_json(std::string_view text) {
  TokenizerJson file;
  detail::TokenizerJsonReader reader(file);
  try {
    read_json(text, reader);
  } catch (const JsonError& error) {
    throw LoadError(concat("the file is ", error.what()));
  }
  file.rest = reader.take_rest();
  check<LoadError>(file.rest.is_object(), "expected a JSON object, got a ", file.rest.type_name());
  check<LoadError>(reader.has_vocab(), "model.vocab, an object of tokens and ids, is missing");
  check<LoadError>(reader.has_merges(), "model.merges, an array, is missing");
  return file;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
