#pragma once
/// The regular parts of a grammar: what one automaton reads, from its first byte to its last.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/grammar/byte_dfa.hpp"
#include "nanovllm/grammar/grammar_vocabulary.hpp"
#include "nanovllm/grammar/mask_cache.hpp"

namespace nanovllm {

class TerminalMasks;

/// A ByteDfa, and for a JSON string the number of its characters. Whatever state it is led to, some
/// bytes lead from there to an end. Immutable.
class GrammarTerminal {
 public:
  struct State {
    ByteDfa::StateId dfa = ByteDfa::kStart;
    std::int32_t length = 0;  ///< characters of a string so far, as far as they count

    friend auto operator<=>(const State&, const State&) = default;
  };
  static constexpr std::int32_t kUnlimited = -1;

  /// What `dfa` reads.
  /// @param depth bytes of the longest token that is to be told whether it can be read.
  GrammarTerminal(ByteDfa dfa, std::size_t depth);

  /// A JSON string of min to max characters, 0 <= min <= max. An escape is one, and so is a pair of
  /// escapes that spells a character beyond U+FFFF.
  [[nodiscard]] static GrammarTerminal json_string(std::int32_t min = 0,
                                                   std::int32_t max = kUnlimited);

  /// Text up to the first `end`, and that.
  [[nodiscard]] static GrammarTerminal text_until(std::string_view end);

  /// Reads a byte. False where it cannot be read; `state` is of no use then.
  [[nodiscard]] bool step(State& state, std::uint8_t byte) const {
    if (ends_at_first_ && accepts(state)) return false;
    const ByteDfa::StateId from = state.dfa;
    state.dfa = dfa_->next(from, byte);
    if (state.dfa == ByteDfa::kDead) return false;
    return !counts_ || count(state, from);
  }

  [[nodiscard]] bool accepts(State state) const { return dfa_->accepts(state.dfa); }

  [[nodiscard]] bool goes_on(State state) const {
    return dfa_->goes_on(state.dfa) && !(ends_at_first_ && accepts(state));
  }

  /// Whether so many bytes may follow somewhere, as within a string, that a walk over the vocabulary
  /// takes long; and where it ends, it ends: TerminalMasks are for such.
  [[nodiscard]] bool is_wide() const { return is_wide_; }
  [[nodiscard]] static bool is_wide(const ByteDfa& dfa);
  [[nodiscard]] bool is_json_string() const { return counts_; }

  /// Whether it is a string that `state` is in, between two characters.
  [[nodiscard]] bool is_between(State state) const { return counts_ && is_between(state.dfa); }

  /// States of one key can read the same, as far as texts of `depth` bytes are concerned; not above
  /// the constructor's.
  using Key = std::tuple<ByteDfa::StateId, std::int32_t, std::int32_t>;
  [[nodiscard]] Key key(State state, std::size_t depth) const;

  [[nodiscard]] const ByteDfa& dfa() const { return *dfa_; }

  /// Bytes of memory; what strings share is left out.
  [[nodiscard]] std::size_t size_bytes() const {
    return sizeof(*this) + alike_.size() * sizeof(ByteDfa::StateId) +
           (counts_ ? 0 : dfa_->size_bytes());
  }

 private:
  explicit GrammarTerminal(std::shared_ptr<const ByteDfa> dfa) : dfa_(std::move(dfa)) {}

  [[nodiscard]] bool is_between(ByteDfa::StateId state) const {
    const ByteDfa::StateId end = dfa_->next(state, std::uint8_t{'"'});
    return end != ByteDfa::kDead && dfa_->accepts(end);
  }

  [[nodiscard]] bool count(State& state, ByteDfa::StateId from) const {
    if (dfa_->accepts(state.dfa)) return state.length >= min_;
    if (from == ByteDfa::kStart) return true;
    if (max_ != kUnlimited && state.length == max_ && is_between(from)) return false;
    if (is_between(state.dfa) && (max_ != kUnlimited || state.length < min_)) ++state.length;
    return true;
  }

  std::shared_ptr<const ByteDfa> dfa_;
  std::vector<ByteDfa::StateId> alike_;  // [state], or empty where all states are told apart
  bool ends_at_first_ = false, is_wide_ = false, counts_ = false;
  std::int32_t min_ = 0, max_ = kUnlimited;
};

/// What the tokens of a vocabulary are to a state of a terminal. Immutable.
struct TerminalReach {
  /// Tokens that reach the terminal's end, and then have these bytes.
  struct Exit {
    std::string rest;
    std::vector<TokenId> tokens;
  };

  CompactMask inside;       ///< tokens that do not reach its end
  std::vector<Exit> exits;  ///< sorted by `rest`

  [[nodiscard]] std::size_t size_bytes() const;
};

/// The reaches of wide terminals, worked out when they are first asked for and remembered within
/// `max_bytes`: when they need more, all are forgotten. Thread-safe. One that nearly all tokens are
/// in takes 2 ms for 150,000 of them; of strings less, since how long each token is in a string is
/// found out but once, when the first is asked for. All JSON strings of a vocabulary may share one.
class TerminalMasks {
 public:
  explicit TerminalMasks(std::shared_ptr<const GrammarVocabulary> vocabulary,
                         std::size_t max_bytes = std::size_t{32} << 20)
      : vocabulary_(std::move(vocabulary)), max_bytes_(max_bytes) {}

  /// `id` tells terminals apart; strings of whatever length have one.
  [[nodiscard]] std::shared_ptr<const TerminalReach> reach(int id, const GrammarTerminal& terminal,
                                                           GrammarTerminal::State state);

 private:
  /// A token from within a string, between two characters.
  struct StringToken {
    TokenId token;
    std::uint16_t length;  ///< characters of the string that it begins
    std::uint16_t end;     ///< its bytes up to the string's end; 0 where it does not come to that
  };

  [[nodiscard]] TerminalReach make(const GrammarTerminal& terminal,
                                   GrammarTerminal::State state) const;
  [[nodiscard]] TerminalReach make(const ByteDfa& dfa, ByteDfa::StateId state) const;
  [[nodiscard]] TerminalReach make(std::int32_t min, std::int32_t max);
  [[nodiscard]] std::vector<StringToken> string_tokens() const;
  [[nodiscard]] TerminalReach reach_of(
      std::vector<TokenId> inside, std::vector<std::pair<std::string_view, TokenId>> exits) const;

  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  std::size_t max_bytes_;
  std::once_flag has_string_tokens_;
  std::vector<StringToken> string_tokens_;
  std::mutex mutex_;
  std::map<std::pair<int, GrammarTerminal::Key>, std::shared_ptr<const TerminalReach>> reaches_;
  std::size_t num_bytes_ = 0;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/grammar/grammar_terminal.inc"
#endif
