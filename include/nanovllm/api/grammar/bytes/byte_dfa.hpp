#pragma once
/// Automata over bytes: nondeterministic ones, and tables of states that are made of them.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nanovllm/api/grammar/bytes/compile_budget.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm {

/// States and how they lead on. A text matches if its bytes lead from `start` to an `accept` state.
struct ByteNfa {
  using StateId = std::int32_t;

  struct State {
    enum class Kind : std::uint8_t {
      bytes,       ///< to `next` by one byte in low…high
      split,       ///< to `next` and to `other`, by nothing
      text_begin,  ///< to `next` by nothing, before the first byte of the text
      text_end,    ///< to `next` by nothing, after the last byte of the text
      accept,      ///< the text may end here
      reject,      ///< leads nowhere
    };

    Kind kind;
    std::uint8_t low = 0, high = 0;
    StateId next = -1, other = -1;
  };

  std::vector<State> states;
  StateId start = 0;
};

/// An automaton in which every state can still be completed to a match: a byte either leads
/// to a state from which some text matches, or to kDead. Immutable.
class ByteDfa {
 public:
  using StateId = std::int32_t;
  static constexpr StateId kDead = -1, kStart = 0;

  /// Limit of a pattern's table: states times kinds of bytes (those that the pattern
  /// distinguishes); four bytes each.
  static constexpr std::size_t kMaxTransitions = std::size_t{1} << 23;

  /// Makes `nfa` deterministic. Throws RequestError when that needs more than kMaxTransitions or
  /// the budget, or when no text matches. A pattern of n characters may need 2^n states:
  /// (a|b)*a(a|b){n}.
  explicit ByteDfa(const ByteNfa& nfa, const CompileBudget& budget = CompileBudget()) {
    check<RequestError>(make(nfa, budget), kNoText);
  }

  /// The same; nothing where no text matches.
  [[nodiscard]] static std::optional<ByteDfa> make_if_any(const ByteNfa& nfa,
                                                          const CompileBudget& budget);

  /// Reads a double quote, what this one reads, and another. It must not itself read a quote where
  /// it may end.
  [[nodiscard]] ByteDfa in_quotes() const;

  [[nodiscard]] StateId next(StateId state, std::uint8_t byte) const {
    return transitions_[static_cast<std::size_t>(state) * num_kinds_ + kind_[byte]];
  }

  /// Where `bytes` lead from `state`, which may be kDead.
  [[nodiscard]] StateId next(StateId state, std::string_view bytes) const {
    for (std::size_t i = 0; i < bytes.size() && state != kDead; ++i)
      state = next(state, static_cast<std::uint8_t>(bytes[i]));
    return state;
  }

  /// Whether the text may end here.
  [[nodiscard]] bool accepts(StateId state) const {
    return (flags_[static_cast<std::size_t>(state)] & kAccepts) != 0;
  }

  /// Whether any byte may follow.
  [[nodiscard]] bool goes_on(StateId state) const {
    return (flags_[static_cast<std::size_t>(state)] & kGoesOn) != 0;
  }

  [[nodiscard]] std::size_t num_states() const { return flags_.size(); }

  /// Bytes of one kind lead to the same state from any; kinds are numbered from 0 without gaps.
  [[nodiscard]] std::uint8_t kind(std::uint8_t byte) const { return kind_[byte]; }
  [[nodiscard]] std::size_t num_kinds() const { return num_kinds_; }

  /// A number for each state. States of one number can read the same texts of up to `depth` bytes,
  /// so what reads no more than that need not tell them apart: of x{1,500} most states are alike.
  /// They may be told apart all the same, where finding out would take long.
  /// A quarter of the budget is used at most.
  [[nodiscard]] std::vector<StateId> alike_to_depth(
      std::size_t depth, const CompileBudget& budget = CompileBudget()) const;

  /// Bytes of memory.
  [[nodiscard]] std::size_t size_bytes() const {
    return transitions_.size() * sizeof(StateId) + flags_.size() + sizeof(*this);
  }

 private:
  friend class DfaExplorer;

  static constexpr std::uint8_t kAccepts = 1, kGoesOn = 2;

  ByteDfa() = default;

  static constexpr const char* kNoText = "the regular expression matches no text at all";

  [[nodiscard]] bool make(const ByteNfa& nfa, const CompileBudget& budget);
  [[nodiscard]] bool drop_dead_ends();  ///< false where nothing is left

  std::array<std::uint8_t, 256> kind_{};
  std::size_t num_kinds_ = 0;
  std::vector<StateId> transitions_;  // [state][kind]
  std::vector<std::uint8_t> flags_;   // [state]
};

namespace detail {

/// Sets of states of an automaton, as they become states of the deterministic one.
/// Source: Rabin and Scott, "Finite Automata and Their Decision Problems", 1959.
class SubsetConstruction {
 public:
  /// The states that read a byte, sorted; kAccept among them if the text may end.
  using Subset = std::vector<ByteNfa::StateId>;
  static constexpr ByteNfa::StateId kAccept = -1;

  SubsetConstruction(const ByteNfa& nfa, CompileBudget budget)
      : nfa_(nfa), budget_(std::move(budget)), seen_(nfa.states.size(), 0) {}

  /// What can be reached from `from` by nothing. `at_begin`: before the first byte of the text.
  [[nodiscard]] Subset closure(std::span<const ByteNfa::StateId> from, bool at_begin) {
    Subset subset;
    bool accepts = false, meets_end = false;
    visit(from, at_begin, false, [&](ByteNfa::StateId id, Kind kind) {
      if (kind == Kind::bytes) subset.push_back(id);
      accepts |= kind == Kind::accept;
      meets_end |= kind == Kind::text_end;
    });
    if (!accepts && meets_end) {
      visit(from, at_begin, true,
            [&](ByteNfa::StateId, Kind kind) { accepts |= kind == Kind::accept; });
    }
    if (accepts) subset.push_back(kAccept);
    std::sort(subset.begin(), subset.end());
    budget_.spend(8 + 2 * subset.size());
    return subset;
  }

  /// The number of `subset`, a new one if it was not met before.
  ByteDfa::StateId number(Subset&& subset) {
    const std::size_t size = subset.size();
    const auto [found, is_new] =
        numbers_.try_emplace(std::move(subset), static_cast<ByteDfa::StateId>(subsets_.size()));
    if (is_new) {
      subsets_.push_back(&found->first);
      budget_.spend(16 + size);
      check<RequestError>((memory_ += size) <= kMaxMemory,
                          "the regular expression has too many states at a time to be made "
                          "deterministic");
    }
    return found->second;
  }

  [[nodiscard]] std::size_t size() const { return subsets_.size(); }
  [[nodiscard]] const Subset& operator[](std::size_t i) const { return *subsets_[i]; }

 private:
  using Kind = ByteNfa::State::Kind;

  /// Remembered states that a pattern may cost: 64 MiB.
  static constexpr std::size_t kMaxMemory = std::size_t{1} << 24;

  struct Hash {
    std::size_t operator()(const Subset& subset) const {
      std::uint64_t hash = 0xcbf29ce484222325u;
      for (ByteNfa::StateId id : subset)
        hash = (hash ^ static_cast<std::uint32_t>(id)) * 0x9E3779B97F4A7C15u, hash ^= hash >> 29;
      return hash;
    }
  };

  template <class Use>
  void visit(std::span<const ByteNfa::StateId> from, bool at_begin, bool at_end, Use&& use) {
    ++round_;
    stack_.assign(from.begin(), from.end());
    std::size_t num_visits = 1;
    for (; !stack_.empty(); ++num_visits) {
      const ByteNfa::StateId id = stack_.back();
      stack_.pop_back();
      std::uint32_t& seen = seen_[static_cast<std::size_t>(id)];
      if (std::exchange(seen, round_) == round_) continue;
      const ByteNfa::State& state = nfa_.states[static_cast<std::size_t>(id)];
      use(id, state.kind);
      const bool leads_on = state.kind == Kind::split ||
                            (state.kind == Kind::text_begin && at_begin) ||
                            (state.kind == Kind::text_end && at_end);
      if (leads_on) stack_.push_back(state.next);
      if (state.kind == Kind::split) stack_.push_back(state.other);
    }
    budget_.spend(num_visits);
  }

  const ByteNfa& nfa_;
  CompileBudget budget_;
  std::unordered_map<Subset, ByteDfa::StateId, Hash> numbers_;
  std::vector<const Subset*> subsets_;  // by number; keys of a map stay where they are
  std::vector<std::uint32_t> seen_;     // [state of the NFA]: the round that saw it last
  std::vector<ByteNfa::StateId> stack_;
  std::uint32_t round_ = 0;
  std::size_t memory_ = 0;
};

}  // namespace detail

inline bool ByteDfa::make(const ByteNfa& nfa, const CompileBudget& budget) {
  using detail::SubsetConstruction;
  // A kind of bytes ends where a range of the pattern begins or ends; kinds are in order.
  std::array<bool, 257> begins{};
  for (const ByteNfa::State& state : nfa.states) {
    if (state.kind != ByteNfa::State::Kind::bytes) continue;
    begins[state.low] = begins[state.high + 1u] = true;
  }
  std::uint8_t kind = 0;
  for (std::size_t byte = 1; byte < 256; ++byte) kind_[byte] = begins[byte] ? ++kind : kind;
  num_kinds_ = kind + std::size_t{1};

  SubsetConstruction subsets(nfa, budget);
  subsets.number(subsets.closure(std::span(&nfa.start, 1), true));
  std::vector<std::vector<ByteNfa::StateId>> targets(num_kinds_);
  for (std::size_t at = 0; at < subsets.size(); ++at) {
    check<RequestError>((at + 1) * num_kinds_ <= kMaxTransitions,
                        "the regular expression needs more than ", kMaxTransitions,
                        " transitions to be matched: a table of more than ", at, " states and ",
                        num_kinds_, " kinds of bytes");
    for (auto& list : targets) list.clear();
    bool accepts = false;
    for (ByteNfa::StateId id : subsets[at]) {
      if (id == SubsetConstruction::kAccept) {
        accepts = true;
        continue;
      }
      const ByteNfa::State& state = nfa.states[static_cast<std::size_t>(id)];
      for (std::size_t k = kind_[state.low]; k <= kind_[state.high]; ++k)
        targets[k].push_back(state.next);
      budget.spend(kind_[state.high] - kind_[state.low] + std::size_t{1});
    }
    budget.spend(num_kinds_);
    flags_.push_back(accepts ? kAccepts : 0);
    StateId target = kDead;
    for (std::size_t k = 0; k < num_kinds_; ++k) {
      if (k == 0 || targets[k] != targets[k - 1]) {  // neighbours often lead to the same
        SubsetConstruction::Subset subset = subsets.closure(targets[k], false);
        target = subset.empty() ? kDead : subsets.number(std::move(subset));
      }
      transitions_.push_back(target);
    }
  }
  return drop_dead_ends();
}

inline std::optional<ByteDfa> ByteDfa::make_if_any(const ByteNfa& nfa,
                                                   const CompileBudget& budget) {
  ByteDfa out;
  if (!out.make(nfa, budget)) return std::nullopt;
  return out;
}

inline ByteDfa ByteDfa::in_quotes() const {
  constexpr std::uint8_t kQuote = '"';
  ByteDfa out;
  out.kind_ = kind_;
  // The quote is a kind of its own.
  const bool is_alone = std::count(kind_.begin(), kind_.end(), kind_[kQuote]) == 1;
  if (!is_alone) out.kind_[kQuote] = static_cast<std::uint8_t>(num_kinds_);
  out.num_kinds_ = num_kinds_ + (is_alone ? 0 : 1);
  const std::size_t quote = out.kind_[kQuote];
  const auto end = static_cast<StateId>(num_states() + 1);
  out.transitions_.assign((num_states() + 2) * out.num_kinds_, kDead);
  out.transitions_[quote] = 1;
  out.flags_.assign(num_states() + 2, kGoesOn);
  for (StateId state = 0; state + 1 < end; ++state) {
    StateId* row = &out.transitions_[static_cast<std::size_t>(state + 1) * out.num_kinds_];
    const auto moved = [](StateId target) { return target == kDead ? kDead : target + 1; };
    for (std::size_t k = 0; k < num_kinds_; ++k)
      row[k] = moved(transitions_[static_cast<std::size_t>(state) * num_kinds_ + k]);
    row[quote] = moved(next(state, kQuote));
    if (!accepts(state)) continue;
    check<RequestError>(row[quote] == kDead, "a text has a quote where it ends");
    row[quote] = end;
  }
  out.flags_.back() = kAccepts;
  return out;
}

/// By rounds: two states are alike to depth d + 1 if every byte leads both to states that are alike
/// to depth d, or neither to any. Source: Moore, "Gedanken-Experiments on Sequential
/// Machines", 1956.
inline std::vector<ByteDfa::StateId> ByteDfa::alike_to_depth(std::size_t depth,
                                                             const CompileBudget& budget) const {
  const std::size_t n = num_states();
  std::vector<StateId> alike(n, 0), next(n);
  std::vector<StateId> seen(n * num_kinds_);               // [state][kind]: the number it leads to
  std::unordered_map<std::uint64_t, std::size_t> of_hash;  // a state for each hash of its row
  std::size_t count = 1, num_spent = 0;
  const std::size_t max_steps = budget.left() / 4;
  for (std::size_t d = 0; d < depth; ++d) {
    const std::size_t cost = seen.size() / 4;
    if ((num_spent += cost) > max_steps) {
      std::iota(alike.begin(), alike.end(), 0);
      return alike;
    }
    budget.spend(cost);
    of_hash.clear();
    std::size_t new_count = 0;
    for (std::size_t state = 0; state < n; ++state) {
      StateId* row = &seen[state * num_kinds_];
      std::uint64_t hash = 0xcbf29ce484222325u;
      for (std::size_t k = 0; k < num_kinds_; ++k) {
        const StateId target = transitions_[state * num_kinds_ + k];
        row[k] = target == kDead ? kDead : alike[static_cast<std::size_t>(target)];
        hash = (hash ^ static_cast<std::uint32_t>(row[k])) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
      }
      const auto [found, is_new] = of_hash.try_emplace(hash, state);
      const StateId* other = &seen[found->second * num_kinds_];
      // Rows of one hash that differ are rare, and no harm is done if they are new each.
      next[state] = !is_new && std::equal(row, row + num_kinds_, other)
                        ? next[found->second]
                        : static_cast<StateId>(new_count++);
    }
    alike.swap(next);
    if (new_count == std::exchange(count, new_count)) break;  // and so in all further rounds
  }
  return alike;
}

/// States from which no match can be reached lose their transitions, those to them become kDead,
/// and the others are renumbered.
inline bool ByteDfa::drop_dead_ends() {
  // By counting, the states that lead to each state, then all that lead to one that accepts.
  const std::size_t n = flags_.size();
  std::vector<std::uint32_t> begin(n + 1, 0);
  for (StateId target : transitions_)
    if (target != kDead) ++begin[static_cast<std::size_t>(target) + 1];
  for (std::size_t i = 0; i < n; ++i) begin[i + 1] += begin[i];
  std::vector<std::uint32_t> sources(begin[n]), filled(begin.begin(), begin.end() - 1);
  for (std::size_t i = 0; i < transitions_.size(); ++i) {
    if (transitions_[i] == kDead) continue;
    sources[filled[static_cast<std::size_t>(transitions_[i])]++] =
        static_cast<std::uint32_t>(i / num_kinds_);
  }
  std::vector<bool> lives(n, false);
  std::vector<std::uint32_t> stack;
  const auto revive = [&](std::size_t state) {
    if (lives[state]) return;
    lives[state] = true;
    stack.push_back(static_cast<std::uint32_t>(state));
  };
  for (std::size_t i = 0; i < n; ++i)
    if (flags_[i] & kAccepts) revive(i);
  while (!stack.empty()) {
    const std::size_t state = stack.back();
    stack.pop_back();
    for (std::size_t i = begin[state]; i < begin[state + 1]; ++i) revive(sources[i]);
  }
  if (!lives[kStart]) return false;

  std::vector<StateId> renumbered(n, kDead);
  StateId next_id = 0;
  for (std::size_t i = 0; i < n; ++i)
    if (lives[i]) renumbered[i] = next_id++;
  for (std::size_t i = 0; i < n; ++i) {
    if (!lives[i]) continue;
    const auto to = static_cast<std::size_t>(renumbered[i]);
    flags_[to] = flags_[i];
    for (std::size_t k = 0; k < num_kinds_; ++k) {
      const StateId target = transitions_[i * num_kinds_ + k];
      const StateId kept = target == kDead ? kDead : renumbered[static_cast<std::size_t>(target)];
      transitions_[to * num_kinds_ + k] = kept;
      if (kept != kDead) flags_[to] |= kGoesOn;
    }
  }
  flags_.resize(static_cast<std::size_t>(next_id));
  transitions_.resize(flags_.size() * num_kinds_);
  flags_.shrink_to_fit();
  transitions_.shrink_to_fit();
  return true;
}

}  // namespace nanovllm
