#pragma once
/// Text to token ids and back, as Hugging Face's `tokenizers` does it, from its tokenizer.json.
///
///   nv::Tokenizer tokenizer = nv::Tokenizer::from_file("Qwen3-0.6B");
///   std::vector<nv::TokenId> ids = tokenizer.encode("Hello, world!");
///   std::string text = tokenizer.decode(ids);
///
/// Encoding goes: added tokens out of the raw text, NFC, added tokens out of the normalised text,
/// split by the file's regular expression, byte-pair encoding of each piece. Ids are equal to the
/// reference's for every valid UTF-8 text; docs/tokenizer.md says what this rests on and which
/// files are supported. For text of a stream of tokens see text/detokenizer.hpp.

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"

namespace nanovllm {

/// An immutable tokenizer. Copies are cheap and share one state, which lives as long as any copy;
/// every member may be called from several threads at once.
class Tokenizer {
 public:
  /// Loads a tokenizer.json, or the one in a model's directory. Throws LoadError, which names the
  /// file, when it cannot be read or asks for something that is not supported.
  [[nodiscard]] static Tokenizer from_file(const std::filesystem::path& path);

  /// Loads the content of a tokenizer.json. Throws LoadError.
  [[nodiscard]] static Tokenizer from_json(std::string_view json);

  /// The ids of `text`; no token is added. Text that spells an added token gives that token. Bytes
  /// that are not UTF-8 are read as U+FFFD, one for each maximal invalid subpart. Throws
  /// RequestError when the text has 4 GiB or more or the pattern gives up on it, which the usual
  /// patterns never do.
  [[nodiscard]] std::vector<TokenId> encode(std::string_view text) const;

  /// The same for text of at most `max_tokens` tokens; throws ContextLengthError for one of more, naming
  /// the limit and a number of tokens that the text exceeds or reaches. Text that is too long by
  /// `min_tokens` is refused without a look at it, other text at the token too many, so that time
  /// and memory follow the limit and not the text. (Two copies of the text at most, for text that
  /// is not UTF-8 or not in NFC.)
  [[nodiscard]] std::vector<TokenId> encode(std::string_view text, std::size_t max_tokens) const;

  /// A number of tokens that no text of `num_bytes` bytes stays below: as many as it takes of the
  /// longest token, NFC's shrinking allowed for. Constant time. 0 if an added token swallows white
  /// space around it.
  [[nodiscard]] std::size_t min_tokens(std::size_t num_bytes) const;

  /// Bytes of working memory that wait for the next calls of encode(). Each thread that was
  /// encoding at one time leaves at most kMaxIdleScratch, and its word cache of 1 MiB.
  [[nodiscard]] std::size_t idle_scratch_bytes() const;
  static constexpr std::size_t kMaxIdleScratch = std::size_t{1} << 20;

  /// The text of `ids`: their bytes put together, and what is not UTF-8 in that as U+FFFD, one for
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
#include "nanovllm/text/tokenizer.inc"
#endif
