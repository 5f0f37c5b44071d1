#pragma once
/// Text to token ids and back, as Hugging Face's `tokenizers` does it, from its tokenizer.json.
///
///   nvllm::Tokenizer tokenizer = nvllm::Tokenizer::from_file("Qwen3-0.6B");
///   std::vector<nvllm::TokenId> ids = tokenizer.encode("Hello, world!");
///   std::string text = tokenizer.decode(ids);
///
/// Encoding goes: added tokens out of the raw text, NFC, added tokens out of the normalised text,
/// split by the file's regular expression, byte-pair encoding of each piece (with ignore_merges, of
/// each that is no token as it stands). Ids are equal to the
/// reference's for every valid UTF-8 text; docs/tokenizer.md says what this rests on and which
/// files are supported. For text of a stream of tokens see text/detokenizer.hpp.
/// Longer than 400 lines: the bodies of the class, and its state, stand after it.

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/text/sequence_template.hpp"

namespace nanovllm {

class Checkpoint;

/// An immutable tokenizer. Copies are cheap and share one state, which lives as long as any copy;
/// every member may be called from several threads at once.
class Tokenizer {
 public:
  /// Loads a tokenizer.json, or the one in a model's directory. Throws LoadError, which names the
  /// file, when it cannot be read or asks for something that is not supported.
  [[nodiscard]] static Tokenizer from_file(const std::filesystem::path& path);

  /// Loads the tokenizer.json of a checkpoint. Throws LoadError as `from_file`.
  [[nodiscard]] static Tokenizer from_checkpoint(const Checkpoint& checkpoint);

  /// Loads the content of a tokenizer.json. Throws LoadError.
  [[nodiscard]] static Tokenizer from_json(std::string_view json);

  /// The ids of `text`; no token is added. Text that spells an added token gives that token. Bytes
  /// that are not UTF-8 are read as U+FFFD, one for each maximal invalid subpart. Throws
  /// RequestError when the text has 4 GiB or more or the pattern gives up on it, which the usual
  /// patterns never do.
  [[nodiscard]] std::vector<TokenId> encode(std::string_view text) const;

  /// The same for text of at most `max_tokens` tokens; throws ContextLengthError for one of more,
  /// naming the limit and a number of tokens that the text exceeds or reaches. Text that is too
  /// long by `min_tokens` is refused without a look at it, other text at the token too many, so
  /// that time and memory follow the limit and not the text. (Two copies of the text at most, for
  /// text that is not UTF-8 or not in NFC.) Throws Cancelled within some milliseconds of a request
  /// to stop; in a single word of several MiB within some tenths of a second.
  [[nodiscard]] std::vector<TokenId> encode(std::string_view text, std::size_t max_tokens,
                                            const std::stop_token& stop = {}) const;

  /// The ids of `text` with the tokens around it that the file's TemplateProcessing adds to a text,
  /// as transformers' `tokenizer(text)` gives them. Limits and errors are those of `encode`.
  [[nodiscard]] std::vector<TokenId> encode_with_template(std::string_view text,
                                                          std::size_t max_tokens = std::size_t(-1),
                                                          const std::stop_token& stop = {}) const;
  [[nodiscard]] const SequenceTemplate& sequence_template() const;  ///< those tokens

  /// A number of tokens that no text of `num_bytes` bytes stays below: as many as it takes of the
  /// longest token, NFC's shrinking allowed for. Constant time. 0 if an added token swallows white
  /// space around it.
  [[nodiscard]] std::size_t min_tokens(std::size_t num_bytes) const;

  /// Bytes of working memory that wait for the next calls of encode(). Each thread that was
  /// encoding at one time leaves at most kMaxIdleScratch, and its word cache of 1 MiB.
  [[nodiscard]] std::size_t idle_scratch_bytes() const;
  static constexpr std::size_t kMaxIdleScratch = std::size_t{1} << 20;

  /// The text of `ids`: their bytes joined, and what is not UTF-8 in that as U+FFFD, one for
  /// each maximal invalid subpart. Ids without token are skipped.
  [[nodiscard]] std::string decode(std::span<const TokenId> ids,
                                   bool skip_special_tokens = true) const;

  /// The bytes that a token stands for, often not valid UTF-8 by themselves; empty for an id
  /// without token. Valid as long as any copy of this tokenizer.
  [[nodiscard]] std::string_view token_bytes(TokenId id) const;

  /// Whether the file lists the token as added and special, such as `<|im_end|>`.
  [[nodiscard]] bool is_special(TokenId id) const;

  /// The id of a token as tokenizer.json spells it: "<|im_end|>", "Ġworld" for " world".
  [[nodiscard]] std::optional<TokenId> token_to_id(std::string_view token) const;

  /// One past the largest id that has a token. A model's logits may have more entries.
  [[nodiscard]] std::size_t vocab_size() const;

 private:
  struct State;
  struct Workspace;
  class Lease;
  struct Encoding;

  explicit Tokenizer(std::shared_ptr<const State> state) : state_(std::move(state)) {}

  std::shared_ptr<const State> state_;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <mutex>
#include <system_error>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/utf8.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/io/mapped_file.hpp"
#include "nanovllm/text/added_tokens.hpp"
#include "nanovllm/text/bpe.hpp"
#include "nanovllm/text/check_stop.hpp"
#include "nanovllm/text/nfc.hpp"
#include "nanovllm/text/pretokenizer.hpp"
#include "nanovllm/text/tokenizer_file.hpp"
#include "nanovllm/text/tokenizer_json.hpp"
#include "nanovllm/text/vocabulary.hpp"

namespace nanovllm {

/// What an encoding thread must not share.
struct Tokenizer::Workspace {
  RegexScratch regex;
  BpeScratch bpe;
  WordCache words;
  std::string lossy;
  std::string normalized;
  std::string name;  // of a piece

  /// The memory that grows with the text.
  [[nodiscard]] std::size_t scratch_bytes() const {
    return bpe.bytes() + lossy.capacity() + normalized.capacity() + name.capacity();
  }

  /// Frees that memory if it is more than may wait for the next call.
  void trim() {
    if (scratch_bytes() <= kMaxIdleScratch) return;
    bpe = {};
    std::string().swap(lossy);  // an assignment would keep the memory
    std::string().swap(normalized);
    std::string().swap(name);
  }
};

struct Tokenizer::State {
  explicit State(const TokenizerJson& json) : State(json, read_tokenizer_steps(json.rest)) {}

  State(const TokenizerJson& json, const TokenizerSteps& steps)
      : nfc(steps.nfc),
        sequence_template(steps.sequence_template),
        vocabulary(detail::all_tokens(json, steps)),
        bpe(detail::byte_tokens(vocabulary), detail::merge_table(json, vocabulary)) {
    for (const SplitStep& step : steps.splits) {
      splits.push_back(step.is_regex ? SplitPattern::regex(step.pattern)
                                     : SplitPattern::literal(step.pattern));
    }
    if (steps.ignore_merges) {
      whole.resize(vocabulary.size());
      for (const TokenId id : json.ids) whole[static_cast<std::size_t>(id)] = true;
    }
    for (std::size_t id = 0; id < vocabulary.size(); ++id) {
      const std::size_t size = vocabulary.bytes(static_cast<TokenId>(id)).size();
      longest_token = std::max(longest_token, size);
    }
    longest_text = longest_token;
    std::vector<AddedToken> raw, normalized;
    special.resize(vocabulary.size());
    std::string storage;
    for (AddedToken token : steps.added_tokens) {
      if (token.special) special[token.id] = true;
      longest_text = std::max(longest_text, token.content.size());
      swallows |= token.lstrip || token.rstrip;
      if (token.normalized && nfc) {
        token.content = std::string(nanovllm::nfc(token.content, storage));
        longest_text = std::max(longest_text, token.content.size());
      }
      (token.normalized ? normalized : raw).push_back(std::move(token));
    }
    in_raw_text = AddedTokenMatcher(std::move(raw));
    in_normalized_text = AddedTokenMatcher(std::move(normalized));
    idle.reserve(kMaxIdle);
  }

  bool nfc;
  SequenceTemplate sequence_template;
  Vocabulary vocabulary;
  Bpe bpe;
  std::vector<SplitPattern> splits;
  std::vector<bool> special;      // by id
  std::vector<bool> whole;        // by id: a piece may be this token; empty without ignore_merges
  std::size_t longest_token = 1;  // bytes that one token of byte-pair encoding covers at most
  std::size_t longest_text = 1;   // bytes of text after NFC that any token covers at most, unless
  bool swallows = false;          // an added token takes in white space
  AddedTokenMatcher in_raw_text;
  AddedTokenMatcher in_normalized_text;

  static constexpr std::size_t kMaxIdle = 64;
  mutable std::mutex mutex;
  mutable std::vector<std::unique_ptr<Workspace>> idle;  // guarded by mutex; has room for kMaxIdle
};

/// A workspace of the state's, for the length of one call. There are as many as there ever were
/// calls at one time, up to a limit, and their word caches stay warm.
class Tokenizer::Lease {
 public:
  explicit Lease(const State& state) : state_(state) {
    {
      const std::lock_guard lock(state.mutex);
      if (!state.idle.empty()) {
        workspace_ = std::move(state.idle.back());
        state.idle.pop_back();
      }
    }
    if (!workspace_) workspace_ = std::make_unique<Workspace>();
  }
  ~Lease() {
    workspace_->trim();
    const std::lock_guard lock(state_.mutex);
    if (state_.idle.size() < State::kMaxIdle) state_.idle.push_back(std::move(workspace_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  Workspace& operator*() const { return *workspace_; }

 private:
  const State& state_;
  std::unique_ptr<Workspace> workspace_;
};

/// One call of encode(), from the outermost step to the innermost.
struct Tokenizer::Encoding {
  const State& state;
  Workspace& workspace;
  std::vector<TokenId>& ids;
  std::size_t max_tokens;
  const std::stop_token& stop;
  std::size_t num_bytes = 0;  // of the text

  void run(std::string_view text) {
    num_bytes = text.size();
    if (utf8::valid_prefix(text) != text.size()) {
      workspace.lossy.clear();
      utf8::append_lossy(workspace.lossy, text);
      text = workspace.lossy;
    }
    const auto found = [&](TokenId id) {
      expect_more(1);
      ids.push_back(id);
    };
    const auto encode_plain = [&](std::string_view plain) { pre_tokenize(plain, 0); };
    const auto encode_raw = [&](std::string_view raw) {
      const std::string_view part = state.nfc ? nfc(raw, workspace.normalized, stop) : raw;
      state.in_normalized_text.split(part, found, encode_plain, stop);
    };
    state.in_raw_text.split(text, found, encode_raw, stop);
  }

  void pre_tokenize(std::string_view text, std::size_t step) {
    if (step == state.splits.size()) return encode_piece(text);
    state.splits[step].split(text, workspace.regex,
                             [&](std::string_view piece) { pre_tokenize(piece, step + 1); });
  }

  void encode_piece(std::string_view piece) {
    check_stop(stop);
    if (piece.size() > WordCache::kMaxBytes) {
      expect_more((piece.size() - 1) / state.longest_token + 1);
      merge(piece);
      return expect_more(0);
    }
    WordCache::Entry entry = workspace.words.find(piece);
    if (entry.matches()) {
      entry.append_to(ids);
    } else {
      const std::size_t before = ids.size();
      merge(piece);
      entry.store(std::span(ids).subspan(before));
    }
    expect_more(0);
  }

  /// Appends the tokens of a piece.
  void merge(std::string_view piece) {
    if (!state.whole.empty() && piece.size() <= state.longest_token) {
      workspace.name.clear();
      byte_level::append_name(workspace.name, piece);
      const std::optional<TokenId> id = state.vocabulary.find(workspace.name);
      if (id && state.whole[static_cast<std::size_t>(*id)]) return ids.push_back(*id);
    }
    state.bpe.encode(piece, workspace.bpe, ids, stop);
  }

  /// Throws when the ids so far and `more` are more than allowed.
  void expect_more(std::size_t more) const {
    if (ids.size() + more > max_tokens) [[unlikely]]
      refuse(num_bytes, ids.size() + more, max_tokens);
  }

  [[noreturn]] static void refuse(std::size_t num_bytes, std::size_t num_tokens,
                                  std::size_t max_tokens) {
    throw ContextLengthError(concat("the text of ", num_bytes, " bytes has at least ", num_tokens,
                                    " tokens, but at most ", max_tokens, " are accepted"),
                             static_cast<std::int64_t>(num_tokens),
                             static_cast<std::int64_t>(max_tokens));
  }
};

namespace detail {

/// Loads `json`; `path` is named in errors.
NANOVLLM_INLINE Tokenizer named_tokenizer(std::string_view json, const std::string& path) {
  try {
    return Tokenizer::from_json(json);
  } catch (const LoadError& error) {
    throw LoadError(concat("'", path, "': ", error.what()));
  }
}

}  // namespace detail

NANOVLLM_INLINE Tokenizer Tokenizer::from_file(const std::filesystem::path& path) {
  std::error_code ignored;
  const bool is_directory = std::filesystem::is_directory(path, ignored);
  const std::filesystem::path file = is_directory ? path / "tokenizer.json" : path;
  return detail::named_tokenizer(MappedFile(file).text(), file.string());
}

NANOVLLM_INLINE Tokenizer Tokenizer::from_checkpoint(const Checkpoint& checkpoint) {
  constexpr const char* kFile = "tokenizer.json";
  return detail::named_tokenizer(checkpoint.required_text(kFile), checkpoint.path_of(kFile));
}

NANOVLLM_INLINE Tokenizer Tokenizer::from_json(std::string_view json) {
  return Tokenizer(std::make_shared<const State>(parse_tokenizer_json(json)));
}

NANOVLLM_INLINE std::size_t Tokenizer::min_tokens(std::size_t num_bytes) const {
  // Composing shrinks text to two sevenths at most: a spelling of U+0390 has 7 bytes and its
  // composed form 2. Bytes that are not UTF-8 never become fewer.
  constexpr std::size_t kNfcShrinks = 4;
  if (state_->swallows || num_bytes == 0) return 0;
  return (num_bytes - 1) / (state_->longest_text * (state_->nfc ? kNfcShrinks : 1)) + 1;
}

NANOVLLM_INLINE std::vector<TokenId> Tokenizer::encode(std::string_view text) const {
  return encode(text, std::numeric_limits<std::size_t>::max());
}

NANOVLLM_INLINE std::vector<TokenId> Tokenizer::encode(std::string_view text,
                                                       std::size_t max_tokens,
                                                       const std::stop_token& stop) const {
  check<RequestError>(text.size() < (std::uint64_t{1} << 32),
                      "a text to encode must be below 4 GiB, got ", text.size(), " bytes");
  if (const std::size_t least = min_tokens(text.size()); least > max_tokens)
    Encoding::refuse(text.size(), least, max_tokens);
  std::vector<TokenId> ids;
  ids.reserve(std::min(text.size() / 4, max_tokens) + 4);
  const Lease workspace(*state_);
  Encoding{*state_, *workspace, ids, max_tokens, stop}.run(text);
  return ids;
}

NANOVLLM_INLINE std::vector<TokenId> Tokenizer::encode_with_template(
    std::string_view text, std::size_t max_tokens, const std::stop_token& stop) const {
  std::vector<TokenId> ids = state_->sequence_template.wrap(encode(text, max_tokens, stop));
  if (ids.size() > max_tokens) Encoding::refuse(text.size(), ids.size(), max_tokens);
  return ids;
}

NANOVLLM_INLINE const SequenceTemplate& Tokenizer::sequence_template() const {
  return state_->sequence_template;
}

NANOVLLM_INLINE std::size_t Tokenizer::idle_scratch_bytes() const {
  const std::lock_guard lock(state_->mutex);
  std::size_t bytes = 0;
  for (const auto& workspace : state_->idle) bytes += workspace->scratch_bytes();
  return bytes;
}

NANOVLLM_INLINE std::string Tokenizer::decode(std::span<const TokenId> ids,
                                              bool skip_special_tokens) const {
  std::string bytes;
  for (TokenId id : ids) {
    if (!(skip_special_tokens && is_special(id))) bytes += token_bytes(id);
  }
  if (utf8::valid_prefix(bytes) == bytes.size()) return bytes;
  std::string text;
  utf8::append_lossy(text, bytes);
  return text;
}

NANOVLLM_INLINE std::string_view Tokenizer::token_bytes(TokenId id) const {
  return state_->vocabulary.bytes(id);
}

NANOVLLM_INLINE bool Tokenizer::is_special(TokenId id) const {
  return id >= 0 && static_cast<std::size_t>(id) < state_->special.size() && state_->special[id];
}

NANOVLLM_INLINE std::optional<TokenId> Tokenizer::token_to_id(std::string_view token) const {
  return state_->vocabulary.find(token);
}

NANOVLLM_INLINE std::size_t Tokenizer::vocab_size() const { return state_->vocabulary.size(); }

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
