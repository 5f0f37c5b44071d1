// The course's pictures: docs/images has what the library does today, and the lessons say what the
// pictures show.

#include "../../examples/how_it_works.hpp"

#include <fstream>
#include <iterator>

#include "catch.hpp"

using namespace nanovllm;
using namespace nanovllm::examples;

namespace {

std::string file_text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("the pictures of the course are what how_it_works draws", "[examples]") {
  CHECK(draw_block_tables() == file_text("docs/images/how_it_works_block_table.svg"));
  CHECK(draw_step_plans() == file_text("docs/images/how_it_works_step_plan.svg"));
  CHECK(draw_radix_tree() == file_text("docs/images/how_it_works_radix_tree.svg"));
}

TEST_CASE("a lesson's tokens are words, and a word has one id", "[examples]") {
  Words words;
  CHECK(words.encode("the fox and the king") == std::vector<TokenId>{0, 1, 2, 0, 3});
  CHECK(words.encode("  fox  ") == std::vector<TokenId>{1});
  CHECK(words.word(3) == "king");
}

TEST_CASE("a lesson computes every token once and ends each request with its answer",
          "[examples]") {
  Lesson<LessonHash> lesson({.max_num_seqs = 2, .max_num_batched_tokens = 5}, 8);
  const std::size_t a = lesson.add("one two three four five six seven", "eight nine");
  const std::size_t b = lesson.add("a b", "c d e");
  std::vector<std::int32_t> num_computed(2);
  for (int i = 0; i < 20 && lesson.sequence(b).status != SequenceStatus::finished; ++i) {
    std::int32_t sum = 0;
    for (const auto& share : lesson.step()) {
      CHECK(share.begin == num_computed[share.request]);
      num_computed[share.request] = share.end;
      sum += share.end - share.begin;
    }
    CHECK(sum <= 5);
  }
  CHECK(num_computed == std::vector<std::int32_t>{8, 4});  // the last token is drawn, not computed
  CHECK(lesson.sequence(a).num_known_tokens() == 9);
  CHECK(lesson.sequence(b).num_known_tokens() == 5);
}
