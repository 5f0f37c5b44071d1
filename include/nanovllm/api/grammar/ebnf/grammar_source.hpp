#pragma once
/// A constraint to texts of a context-free grammar.

#include <cstddef>
#include <memory>
#include <string_view>

#include "nanovllm/api/grammar/bytes/compile_budget.hpp"
#include "nanovllm/api/grammar/bytes/grammar_vocabulary.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"

namespace nanovllm {

class TerminalMasks;  // api/grammar/ebnf/terminal_masks.hpp

/// Texts of a grammar, then a stop token. A token may come next if and only if some text of the
/// grammar continues with it, however the text is split into tokens.
///
/// All readings of a text are followed at once, as Earley's parser does it ("An Efficient
/// Context-Free Parsing Algorithm", 1970). Within strings a mask is a stored one plus a check of
/// the tokens that end the string; elsewhere it is a walk over the vocabulary's tree, which ends
/// early, since little may follow. A grammar of JSON has a handful of readings at a time; one that
/// comes to have more than kMaxReadings ends the request with a RequestError.
class GrammarSource final : public TokenMaskSource {
 public:
  static constexpr std::size_t kMaxReadings = 10'000;
  /// Memory for the masks of terminals that are not plain strings.
  static constexpr std::size_t kMaxMaskBytes = std::size_t{8} << 20;

  /// @param strings for the same vocabulary: the masks of JSON strings, which sources share.
  /// Throws RequestError as make_grammar_network does.
  GrammarSource(std::shared_ptr<const GrammarVocabulary> vocabulary,
                std::shared_ptr<TerminalMasks> strings, std::string_view ebnf,
                const GrammarLimits& limits = {}, const CompileBudget& budget = CompileBudget());

  [[nodiscard]] std::unique_ptr<TokenMatcher> matcher() const override;
  [[nodiscard]] int vocab_size() const override;

  /// Bytes of memory when all masks that it may keep exist, without those of `strings`.
  [[nodiscard]] std::size_t size_bytes() const;

 private:
  struct Compiled;
  class Matcher;

  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace nanovllm

#if NANOVLLM_GRAMMAR_BODIES

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/api/grammar/ebnf/grammar_network.hpp"
#include "nanovllm/api/grammar/ebnf/grammar_readings.hpp"
#include "nanovllm/api/grammar/ebnf/terminal_masks.hpp"

namespace nanovllm {

/// What the matchers of a source share.
struct GrammarSource::Compiled {
  std::shared_ptr<const GrammarVocabulary> vocabulary;
  std::shared_ptr<TerminalMasks> strings, others;
  GrammarNetwork network;
  GrammarReadings begin{};
};

class GrammarSource::Matcher final : public TokenMatcher {
 public:
  explicit Matcher(std::shared_ptr<const Compiled> compiled)
      : compiled_(std::move(compiled)), now_(compiled_->begin) {}

  [[nodiscard]] std::unique_ptr<TokenMatcher> clone() const override {
    return std::make_unique<Matcher>(*this);
  }

  [[nodiscard]] bool accept(TokenId token) override {
    if (compiled_->vocabulary->is_stop(token)) {
      if (!now_.may_end) return false;
      now_.items.clear();
      return true;
    }
    const std::string_view bytes = compiled_->vocabulary->bytes(token);
    if (bytes.empty()) return false;
    GrammarReader reader(compiled_->network, kMaxReadings, false);
    GrammarReadings before = now_, after;
    for (char byte : bytes) {
      if (!reader.step(before, static_cast<std::uint8_t>(byte), after)) return false;
      std::swap(before, after);
    }
    now_ = std::move(before);
    return true;
  }

  void fill(std::span<std::uint32_t> bits) const override {
    GrammarReader reader(compiled_->network, kMaxReadings, true);
    std::vector<GrammarReadings> path(1);
    path[0].position = now_.position;
    path[0].used = now_.used;
    path[0].unused = now_.unused;
    path[0].unused_scope = now_.unused_scope;
    std::vector<std::uint32_t> inside;
    for (const GrammarReadings::Item& item : now_.items) {
      const auto number = static_cast<std::size_t>(
          compiled_->network.nodes[static_cast<std::size_t>(item.node)].what);
      const GrammarTerminal& terminal = compiled_->network.terminals[number];
      if (!terminal.is_wide()) {
        path[0].items.push_back(item);
        continue;
      }
      const auto reach =
          terminal.shared_id() < 0
              ? compiled_->strings->reach(terminal.shared_id(), terminal, item.state)
              : compiled_->others->reach(static_cast<int>(number), terminal, item.state);
      inside.assign(bits.size(), 0);
      reach->inside.fill(inside);
      const std::vector<TokenId> used = used_tokens(item);
      for (const TokenId token : used)
        inside[static_cast<std::size_t>(token) / 32] &= ~(1u << (token % 32));
      for (std::size_t i = 0; i < bits.size(); ++i) bits[i] |= inside[i];
      allow_exits(reader, item, *reach, used, bits);
    }
    if (!path[0].items.empty()) walk(reader, path, bits);
    if (now_.may_end)
      for (TokenId token : compiled_->vocabulary->stop_token_ids()) allow_token(bits, token);
  }

  [[nodiscard]] bool is_finished() const override { return now_.items.empty(); }

 private:
  [[nodiscard]] const GrammarNetwork::Node& node_of(const GrammarReadings::Item& item) const {
    return compiled_->network.nodes[static_cast<std::size_t>(item.node)];
  }

  /// The tokens that `item`, whose text must be unused, must not take: with them the text is a used
  /// one, or cannot become an unused one. Sorted.
  [[nodiscard]] std::vector<TokenId> used_tokens(const GrammarReadings::Item& item) const {
    std::vector<TokenId> out;
    const GrammarNetwork::Node& node = node_of(item);
    if (!node.unused) return out;
    const UnusedText& unused = compiled_->network.unused[static_cast<std::size_t>(*node.unused)];
    const ByteDfa& dfa = compiled_->network.terminals[static_cast<std::size_t>(node.what)].dfa();
    const std::int32_t scope = GrammarReadings::scope_of(item);
    const std::string_view begin =
        item.state == GrammarTerminal::State{} ? std::string_view() : now_.unused;
    unused.for_each_taken(now_.used, scope, [&](std::string_view taken) {
      if (!taken.starts_with(begin)) return;
      const std::string_view rest = taken.substr(begin.size());
      const ByteDfa::StateId end = dfa.next(item.state.dfa, rest);
      if (end == ByteDfa::kDead || !dfa.accepts(end)) return;
      compiled_->vocabulary->for_each_token(
          std::size_t{0},
          [&](std::size_t depth, std::uint8_t byte, std::size_t& next) {
            next = depth + 1;
            return depth >= rest.size() || static_cast<std::uint8_t>(rest[depth]) == byte;
          },
          [&](TokenId token) {
            const std::size_t size = compiled_->vocabulary->bytes(token).size();
            if (size >= rest.size() ||
                !unused.can_end(dfa, dfa.next(item.state.dfa, rest.substr(0, size)),
                                taken.substr(0, begin.size() + size), now_.used, scope))
              out.push_back(token);
          });
    });
    std::sort(out.begin(), out.end());
    return out;
  }

  /// The tokens that end the terminal of `item`, and whose rest may come after it.
  /// @param used tokens that are not allowed, sorted.
  void allow_exits(GrammarReader& reader, const GrammarReadings::Item& item,
                   const TerminalReach& reach, const std::vector<TokenId>& used,
                   std::span<std::uint32_t> bits) const {
    const bool is_unused = node_of(item).unused.has_value();
    const auto allow = [&](TokenId token) {
      if (!std::binary_search(used.begin(), used.end(), token)) allow_token(bits, token);
    };
    std::vector<GrammarReadings> path(1);  // after each byte of the last rest that could be read
    reader.leave(now_, item, path[0]);
    std::string_view last;
    std::size_t num_read = 0;                              // bytes of `last` that could be
    for (const TerminalReach::Exit& exit : reach.exits) {  // sorted: what is common is read once
      const std::string_view rest = exit.rest;
      // What may follow can depend on the text that ended, so each token is tried.
      if (is_unused && rest.find('"') != rest.npos) {
        for (const TokenId token : exit.tokens)
          if (Matcher(*this).accept(token)) allow_token(bits, token);
        continue;
      }
      const auto common = static_cast<std::size_t>(
          std::mismatch(rest.begin(), rest.end(), last.begin(), last.end()).first - rest.begin());
      if (common > num_read) continue;  // it has the byte that could not
      last = rest;
      for (num_read = common; num_read < rest.size(); ++num_read)
        if (!step(reader, path, num_read, static_cast<std::uint8_t>(rest[num_read]))) break;
      if (num_read < rest.size()) continue;
      for (const TokenId token : exit.tokens) allow(token);
    }
  }

  /// The tokens that can be read from path[0].
  void walk(GrammarReader& reader, std::vector<GrammarReadings>& path,
            std::span<std::uint32_t> bits) const {
    compiled_->vocabulary->for_each_token(
        std::size_t{0},
        [&](std::size_t depth, std::uint8_t byte, std::size_t& next) {
          next = depth + 1;
          return step(reader, path, depth, byte);
        },
        [&](TokenId token) { allow_token(bits, token); });
  }

  /// From path[depth] to the next.
  static bool step(GrammarReader& reader, std::vector<GrammarReadings>& path, std::size_t depth,
                   std::uint8_t byte) {
    if (path.size() < depth + 2) path.resize(depth + 2);
    return reader.step(path[depth], byte, path[depth + 1]);
  }

  std::shared_ptr<const Compiled> compiled_;
  GrammarReadings now_;
};

NANOVLLM_GRAMMAR_INLINE GrammarSource::GrammarSource(
    std::shared_ptr<const GrammarVocabulary> vocabulary, std::shared_ptr<TerminalMasks> strings,
    std::string_view ebnf, const GrammarLimits& limits, const CompileBudget& budget) {
  auto compiled = std::make_shared<Compiled>(Compiled{
      vocabulary, std::move(strings), std::make_shared<TerminalMasks>(vocabulary, kMaxMaskBytes),
      make_grammar_network(ebnf, vocabulary->max_token_bytes(), limits, budget)});
  GrammarReader(compiled->network, kMaxReadings, false).begin(compiled->begin);
  compiled_ = std::move(compiled);
}

NANOVLLM_GRAMMAR_INLINE std::unique_ptr<TokenMatcher> GrammarSource::matcher() const {
  return std::make_unique<Matcher>(compiled_);
}

NANOVLLM_GRAMMAR_INLINE int GrammarSource::vocab_size() const {
  return compiled_->vocabulary->vocab_size();
}

NANOVLLM_GRAMMAR_INLINE std::size_t GrammarSource::size_bytes() const {
  std::size_t num_masks = 0;
  for (const GrammarTerminal& terminal : compiled_->network.terminals)
    if (terminal.is_wide() && !terminal.is_json_string()) num_masks += terminal.dfa().num_states();
  const std::size_t mask_bytes =
      sizeof(std::uint32_t) * num_mask_words(static_cast<std::size_t>(vocab_size()));
  return sizeof(Compiled) + compiled_->network.size_bytes() +
         std::min(kMaxMaskBytes, num_masks * mask_bytes);
}

}  // namespace nanovllm

#endif  // NANOVLLM_GRAMMAR_BODIES
