#pragma once
/// What a step makes of the rows that it computes, one for each token.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace nanovllm {

enum class RowKind {
  score,   ///< logits, which say how likely the token after it is
  draw,    ///< logits, from which the token after it is drawn
  hidden,  ///< the hidden state itself
};

/// The rows of tokens [first, first + count) of a sequence are for one thing.
struct RowUse {
  RowKind kind = RowKind::draw;
  std::int32_t first = 0, count = 0;

  [[nodiscard]] std::int32_t end() const { return first + count; }
  /// Its rows among those of tokens [begin, end).
  [[nodiscard]] RowUse within(std::int32_t begin, std::int32_t end) const {
    const std::int32_t from = std::max(first, begin);
    return {kind, from, std::max(0, std::min(this->end(), end) - from)};
  }
  friend bool operator==(const RowUse&, const RowUse&) = default;
};

/// What the rows of a sequence are for in one step: a use of each kind, most of them without rows.
class RowUses {
  using enum RowKind;

 public:
  RowUses() = default;
  RowUses(std::initializer_list<RowUse> uses) {
    for (const RowUse& use : uses) add(use);
  }

  /// Sets the use of its kind; nothing where `use` has no rows.
  void add(const RowUse& use) {
    if (use.count > 0) rows_[static_cast<std::size_t>(use.kind)] = {use.first, use.count};
  }

  /// In the order in which the results are laid out, those without rows as well.
  [[nodiscard]] std::array<RowUse, 3> all() const { return {of(score), of(draw), of(hidden)}; }
  [[nodiscard]] RowUse of(RowKind kind) const {
    const Rows& rows = rows_[static_cast<std::size_t>(kind)];
    return {kind, rows.first, rows.count};
  }
  [[nodiscard]] std::int32_t count(RowKind kind) const { return of(kind).count; }
  [[nodiscard]] std::int32_t num_logits() const { return count(score) + count(draw); }
  /// Rows that the sequence gets something for: a token, or its hidden state.
  [[nodiscard]] std::int32_t num_outputs() const { return count(draw) + count(hidden); }

  friend bool operator==(const RowUses&, const RowUses&) = default;

 private:
  struct Rows {
    std::int32_t first = 0, count = 0;
    friend bool operator==(const Rows&, const Rows&) = default;
  };
  std::array<Rows, 3> rows_{};  ///< by kind
};

}  // namespace nanovllm
