#include "nanovllm/sched/row_use.hpp"

#include <array>

#include "catch.hpp"
#include "nanovllm/sched/sequence.hpp"

using namespace nanovllm;

namespace {

Sequence sequence_of(std::int32_t num_tokens) {
  Sequence s;
  s.tokens.assign(static_cast<std::size_t>(num_tokens), 7);
  s.num_prompt_tokens = num_tokens;
  return s;
}

}  // namespace

TEST_CASE("rows of a use are those that a range of tokens has", "[row_use]") {
  const RowUse use{RowKind::score, 4, 6};
  CHECK(use.end() == 10);
  CHECK(use.within(0, 20) == use);
  CHECK(use.within(4, 10) == use);
  CHECK(use.within(0, 7) == RowUse{RowKind::score, 4, 3});
  CHECK(use.within(7, 20) == RowUse{RowKind::score, 7, 3});
  CHECK(use.within(5, 6) == RowUse{RowKind::score, 5, 1});
  CHECK(use.within(0, 4).count == 0);
  CHECK(use.within(10, 20).count == 0);
  CHECK(use.within(6, 6).count == 0);
  CHECK(RowUse{}.within(0, 5).count == 0);
}

TEST_CASE("a list of uses counts rows by kind, and has no use without rows", "[row_use]") {
  const RowUses rows{{RowKind::score, 2, 3}, {RowKind::draw, 5, 4}, {RowKind::hidden, 8, 1}};
  CHECK(rows.of(RowKind::score) == RowUse{RowKind::score, 2, 3});
  CHECK(rows.of(RowKind::draw) == RowUse{RowKind::draw, 5, 4});
  CHECK(rows.num_logits() == 7);
  CHECK(rows.num_outputs() == 5);
  CHECK(rows.all() ==
        std::array{rows.of(RowKind::score), rows.of(RowKind::draw), rows.of(RowKind::hidden)});

  const RowUses scores{{RowKind::score, 2, 3}, {RowKind::draw, 5, 0}, {RowKind::hidden, 5, -1}};
  CHECK(scores == RowUses{{RowKind::score, 2, 3}});
  CHECK(scores.of(RowKind::hidden) == RowUse{RowKind::hidden, 0, 0});
  CHECK(scores.num_logits() == 3);
  CHECK(scores.num_outputs() == 0);
}

TEST_CASE("a sequence says what the rows of a range are for", "[row_use]") {
  Sequence s = sequence_of(8);
  CHECK(s.rows_in(0, 7) == RowUses{});
  CHECK(s.rows_in(0, 8) == RowUses{{RowKind::draw, 7, 1}});
  CHECK(s.rows_in(7, 11) == RowUses{{RowKind::draw, 7, 4}});  // three guesses
  s.pending.push(0, 1);
  CHECK(s.rows_in(7, 8) == RowUses{});
  CHECK(s.rows_in(8, 9) == RowUses{{RowKind::draw, 8, 1}});
  s.pending.clear();
  s.output = RowKind::hidden;
  CHECK(s.rows_in(0, 5) == RowUses{});
  CHECK(s.rows_in(5, 8) == RowUses{{RowKind::hidden, 7, 1}});
}

TEST_CASE("rows of a prompt that are scored come before those that draw", "[row_use]") {
  Sequence s = sequence_of(8);
  s.scores.count = 7;
  CHECK(s.rows_in(0, 3) == RowUses{{RowKind::score, 0, 3}});
  CHECK(s.rows_in(0, 8) == RowUses{{RowKind::score, 0, 7}, {RowKind::draw, 7, 1}});
  s.scores = s.scores.within(3, s.num_prompt_tokens);
  CHECK(s.scores == RowUse{RowKind::score, 3, 4});
  CHECK(s.rows_in(0, 3) == RowUses{});  // computed again, and not scored again
  CHECK(s.rows_in(0, 5) == RowUses{{RowKind::score, 3, 2}});
  CHECK(s.rows_in(5, 8) == RowUses{{RowKind::score, 5, 2}, {RowKind::draw, 7, 1}});
}
