#pragma once
/// Token masks of the states of terminals.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/api/grammar/bytes/grammar_vocabulary.hpp"
#include "nanovllm/api/grammar/bytes/mask_cache.hpp"
#include "nanovllm/api/grammar/ebnf/grammar_terminal.hpp"
#include "nanovllm/core/ids.hpp"

namespace nanovllm {

/// What the tokens of a vocabulary are to a state of a terminal. Immutable.
struct TerminalReach {
  /// Tokens that reach the terminal's end, and then have these bytes.
  struct Exit {
    std::string rest;
    std::vector<TokenId> tokens;
  };

  CompactMask inside;       ///< tokens that do not reach its end
  std::vector<Exit> exits;  ///< sorted by `rest`

  [[nodiscard]] std::size_t size_bytes() const {
    std::size_t size = inside.size_bytes() + exits.size() * sizeof(Exit);
    for (const Exit& exit : exits)
      size += exit.rest.capacity() + exit.tokens.capacity() * sizeof(TokenId);
    return size;
  }
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

inline std::shared_ptr<const TerminalReach> TerminalMasks::reach(int id,
                                                                 const GrammarTerminal& terminal,
                                                                 GrammarTerminal::State state) {
  const std::pair key(id, terminal.key(state, vocabulary_->max_token_bytes()));
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = reaches_.find(key); found != reaches_.end()) return found->second;
  }
  auto reach = std::make_shared<const TerminalReach>(
      terminal.is_between(state) ? make(terminal.needed(state), terminal.room(state))
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

inline TerminalReach TerminalMasks::make(const GrammarTerminal& terminal,
                                         GrammarTerminal::State state) const {
  if (!terminal.counts()) return make(terminal.dfa(), state.dfa);
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
inline TerminalReach TerminalMasks::make(const ByteDfa& dfa, ByteDfa::StateId state) const {
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
inline TerminalReach TerminalMasks::make(std::int32_t min, std::int32_t max) {
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

inline auto TerminalMasks::string_tokens() const -> std::vector<StringToken> {
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

inline TerminalReach TerminalMasks::reach_of(
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
