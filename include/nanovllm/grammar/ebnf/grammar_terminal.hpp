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
#include "nanovllm/grammar/bytes/byte_dfa.hpp"
#include "nanovllm/grammar/bytes/grammar_vocabulary.hpp"
#include "nanovllm/grammar/bytes/mask_cache.hpp"

namespace nanovllm {

class TerminalMasks;

/// A ByteDfa, and for a JSON string the number of its characters. Every state that can be reached
/// can be completed to an end. Immutable.
class GrammarTerminal {
 public:
  struct State {
    ByteDfa::StateId dfa = ByteDfa::kStart;
    std::int32_t length = 0;  ///< characters of a string so far, where they are counted

    auto operator<=>(const State&) const = default;
  };
  static constexpr std::int32_t kUnlimited = -1;

  /// What `dfa` reads.
  /// @param depth bytes of the longest token that is to be told whether it can be read.
  GrammarTerminal(ByteDfa dfa, std::size_t depth);

  /// A JSON string of min to max characters, 0 <= min <= max. An escape is one, and so is a pair of
  /// escapes that spells a character beyond U+FFFF.
  [[nodiscard]] static GrammarTerminal json_string(std::int32_t min = 0,
                                                   std::int32_t max = kUnlimited);

  /// A JSON string in which only quotes, backslashes and \b \f \n \r \t are escaped: one text for
  /// each value.
  [[nodiscard]] static GrammarTerminal json_key();

  /// Text up to the first `end`, and that.
  [[nodiscard]] static GrammarTerminal text_until(std::string_view end);

  /// Reads a byte. False where it cannot be read; `state` is unspecified then.
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

  /// Whether so many bytes may follow somewhere, as within a string, that a walk over the
  /// vocabulary takes long; and where it ends, it ends: TerminalMasks are for such.
  [[nodiscard]] bool is_wide() const { return is_wide_; }
  [[nodiscard]] static bool is_wide(const ByteDfa& dfa);
  [[nodiscard]] bool is_json_string() const { return counts_; }

  /// A negative number for terminals that all grammars share (any string, any key); otherwise 0.
  [[nodiscard]] int shared_id() const { return counts_ ? -1 : is_key_ ? -2 : 0; }

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
  bool ends_at_first_ = false, is_wide_ = false, counts_ = false, is_key_ = false;
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

#include <algorithm>
#include <limits>

#include "nanovllm/grammar/regex/regex_nfa.hpp"
#include "nanovllm/grammar/regex/regex_parser.hpp"

namespace nanovllm {

namespace detail {

/// Any JSON string. Escapes of surrogates come in pairs.
NANOVLLM_INLINE const std::shared_ptr<const ByteDfa>& json_string_dfa() {
  static const auto dfa = std::make_shared<const ByteDfa>(compile_regex(
      "\"([^\"\\\\\\x00-\\x1f]|\\\\([\"\\\\/bfnrt]|u([0-9A-CE-Fa-ce-f][0-9A-Fa-f]|[Dd][0-7])"
      "[0-9A-Fa-f]{2}|u[Dd][89ABab][0-9A-Fa-f]{2}\\\\u[Dd][C-Fc-f][0-9A-Fa-f]{2}))*\""));
  return dfa;
}

}  // namespace detail

NANOVLLM_INLINE bool GrammarTerminal::is_wide(const ByteDfa& dfa) {
  constexpr int kMany = 16;
  bool reads_many = false;
  for (std::size_t i = 0; i < dfa.num_states(); ++i) {
    const auto state = static_cast<ByteDfa::StateId>(i);
    if (dfa.accepts(state) && dfa.goes_on(state)) return false;
    for (int byte = 0, count = 0; byte < 256 && !reads_many; ++byte) {
      count += dfa.next(state, static_cast<std::uint8_t>(byte)) != ByteDfa::kDead;
      reads_many = count >= kMany;
    }
  }
  return reads_many;
}

NANOVLLM_INLINE GrammarTerminal::GrammarTerminal(ByteDfa dfa, std::size_t depth)
    : dfa_(std::make_shared<const ByteDfa>(std::move(dfa))), is_wide_(is_wide(*dfa_)) {
  constexpr std::size_t kFew = 32;  // each may have its own mask
  if (is_wide_ && dfa_->num_states() > kFew) alike_ = dfa_->alike_to_depth(depth);
}

NANOVLLM_INLINE GrammarTerminal GrammarTerminal::json_string(std::int32_t min, std::int32_t max) {
  GrammarTerminal out(detail::json_string_dfa());
  out.is_wide_ = out.counts_ = true;
  out.min_ = min;
  out.max_ = max;
  return out;
}

NANOVLLM_INLINE GrammarTerminal GrammarTerminal::json_key() {
  static const auto dfa = std::make_shared<const ByteDfa>(
      compile_regex("\"([^\"\\\\\\x00-\\x1f]|\\\\[\"\\\\bfnrt])*\""));
  GrammarTerminal out(dfa);
  out.is_wide_ = out.is_key_ = true;
  return out;
}

NANOVLLM_INLINE GrammarTerminal GrammarTerminal::text_until(std::string_view end) {
  GrammarTerminal out(
      std::make_shared<const ByteDfa>(compile_regex("(.|\\n)*" + escape_regex(end))));
  out.is_wide_ = out.ends_at_first_ = true;
  return out;
}

NANOVLLM_INLINE GrammarTerminal::Key GrammarTerminal::key(State state, std::size_t depth) const {
  if (!counts_)
    return {alike_.empty() ? state.dfa : alike_[static_cast<std::size_t>(state.dfa)], 0, 0};
  const auto most = static_cast<std::int32_t>(depth) + 1;  // no token has as many characters
  return {state.dfa, max_ == kUnlimited ? most : std::min(most, max_ - state.length),
          std::clamp(min_ - state.length, 0, most)};
}

NANOVLLM_INLINE std::size_t TerminalReach::size_bytes() const {
  std::size_t size = inside.size_bytes() + exits.size() * sizeof(Exit);
  for (const Exit& exit : exits)
    size += exit.rest.capacity() + exit.tokens.capacity() * sizeof(TokenId);
  return size;
}

NANOVLLM_INLINE std::shared_ptr<const TerminalReach> TerminalMasks::reach(
    int id, const GrammarTerminal& terminal, GrammarTerminal::State state) {
  const std::pair key(id, terminal.key(state, vocabulary_->max_token_bytes()));
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = reaches_.find(key); found != reaches_.end()) return found->second;
  }
  auto reach = std::make_shared<const TerminalReach>(
      terminal.is_between(state) ? make(std::get<2>(key.second), std::get<1>(key.second))
                                 : make(terminal, state));
  const std::size_t size = reach->size_bytes();
  const std::lock_guard lock(mutex_);
  if (num_bytes_ + size > max_bytes_) {
    reaches_.clear();
    num_bytes_ = 0;
  }
  if (reaches_.try_emplace(key, reach).second) num_bytes_ += size;
  return reach;
}

NANOVLLM_INLINE TerminalReach TerminalMasks::make(const GrammarTerminal& terminal,
                                                  GrammarTerminal::State state) const {
  if (!terminal.is_json_string()) return make(terminal.dfa(), state.dfa);
  struct Place {
    GrammarTerminal::State state;
    std::uint16_t depth, end;  // bytes read, and those of them up to the end; 0 before it
  };
  std::vector<TokenId> inside;
  std::vector<std::pair<std::string_view, TokenId>> exits;
  Place last{};
  vocabulary_->for_each_token(
      Place{state, 0, 0},
      [&](const Place& from, std::uint8_t byte, Place& to) {
        to = from;
        ++to.depth;
        if (from.end == 0) {
          if (!terminal.step(to.state, byte)) return false;
          if (terminal.accepts(to.state)) to.end = to.depth;
        }
        last = to;
        return true;
      },
      [&](TokenId token) {
        if (last.end == 0) return inside.push_back(token);
        exits.emplace_back(vocabulary_->bytes(token).substr(last.end), token);
      });
  return reach_of(std::move(inside), std::move(exits));
}

/// The same of what does not count, and is at its end where it may be.
NANOVLLM_INLINE TerminalReach TerminalMasks::make(const ByteDfa& dfa,
                                                  ByteDfa::StateId state) const {
  constexpr ByteDfa::StateId kBehindEnd = -2;
  std::vector<TokenId> inside;
  std::vector<std::pair<std::string_view, TokenId>> exits;
  ByteDfa::StateId last = state;
  vocabulary_->for_each_token(
      state,
      [&](ByteDfa::StateId from, std::uint8_t byte, ByteDfa::StateId& to) {
        to = from;
        if (from != kBehindEnd) to = dfa.next(from, byte);
        if (to >= 0 && dfa.accepts(to)) to = kBehindEnd;
        last = to;
        return to != ByteDfa::kDead;
      },
      [&](TokenId token) {
        if (last != kBehindEnd) return inside.push_back(token);
        std::string_view rest = vocabulary_->bytes(token);
        for (ByteDfa::StateId at = state; !dfa.accepts(at); rest.remove_prefix(1))
          at = dfa.next(at, static_cast<std::uint8_t>(rest.front()));
        exits.emplace_back(rest, token);
      });
  return reach_of(std::move(inside), std::move(exits));
}

/// Of a string that `min` to `max` characters are to follow in.
NANOVLLM_INLINE TerminalReach TerminalMasks::make(std::int32_t min, std::int32_t max) {
  std::call_once(has_string_tokens_, [&] { string_tokens_ = string_tokens(); });
  std::vector<TokenId> inside;
  std::vector<std::pair<std::string_view, TokenId>> exits;
  inside.reserve(string_tokens_.size());
  for (const StringToken& each : string_tokens_) {
    if (each.length > max) continue;
    if (each.end == 0) {
      inside.push_back(each.token);
    } else if (each.length >= min) {
      exits.emplace_back(vocabulary_->bytes(each.token).substr(each.end), each.token);
    }
  }
  return reach_of(std::move(inside), std::move(exits));
}

NANOVLLM_INLINE auto TerminalMasks::string_tokens() const -> std::vector<StringToken> {
  struct Place {
    GrammarTerminal::State state;
    std::uint16_t depth, length, end;
  };
  const GrammarTerminal string = GrammarTerminal::json_string();
  GrammarTerminal::State begin;
  [[maybe_unused]] const bool is_read = string.step(begin, '"');
  std::vector<StringToken> out;
  Place last{};
  vocabulary_->for_each_token(
      Place{begin, 0, 0, 0},
      [&](const Place& from, std::uint8_t byte, Place& to) {
        to = from;
        ++to.depth;
        if (from.end == 0) {
          if (!string.step(to.state, byte)) return false;
          if (string.accepts(to.state)) {
            to.end = to.depth;
          } else {
            to.length = static_cast<std::uint16_t>(to.length + string.is_between(from.state));
          }
        }
        last = to;
        return true;
      },
      [&](TokenId token) {
        out.push_back({token, last.length, last.end});
      });
  return out;
}

NANOVLLM_INLINE TerminalReach TerminalMasks::reach_of(
    std::vector<TokenId> inside, std::vector<std::pair<std::string_view, TokenId>> exits) const {
  TerminalReach out{
      CompactMask(std::move(inside), static_cast<std::size_t>(vocabulary_->vocab_size())), {}};
  std::sort(exits.begin(), exits.end());
  for (const auto& [rest, token] : exits) {
    if (out.exits.empty() || out.exits.back().rest != rest)
      out.exits.push_back({std::string(rest), {}});
    out.exits.back().tokens.push_back(token);
  }
  return out;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
