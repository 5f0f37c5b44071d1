// What the CPU's ops on logits promise beyond their contracts (tests/ops has those): they refuse
// tokens, slots and masks that do not exist, and depend on no number of threads.

#include "nanovllm/cpu/kernels/logit_edits.hpp"

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "catch.hpp"
#include "cpu/op_test.hpp"
#include "nanovllm/core/philox.hpp"

namespace nv = nanovllm;
using nv::EditRow;
using nv::TokenBias;
using nv::TokenId;

namespace {

constexpr std::int64_t kVocab = 1000, kSlots = 3;

template <class T>
nv::VectorView<T> view(std::vector<T>& values) {
  return {values.data(), {static_cast<std::int64_t>(values.size())}};
}

struct Marks {
  std::vector<std::uint32_t> words = std::vector<std::uint32_t>(kSlots * kVocab);
  std::vector<TokenId> seen;
  std::vector<std::int32_t> num_seen = std::vector<std::int32_t>(kSlots);
  std::int64_t capacity;

  explicit Marks(std::int64_t columns = kVocab)
      : seen(static_cast<std::size_t>(kSlots * columns), -1), capacity(columns) {}

  [[nodiscard]] nv::TokenMarks tensors() {
    return {{words.data(), {kSlots, kVocab}}, {seen.data(), {kSlots, capacity}}, view(num_seen)};
  }
};

/// One call of every op, on a pool of its own.
struct Step {
  nv::cpu::ThreadPool pool;
  nv::cpu::Context context;
  Marks marks;
  std::vector<nv::MarkHead> heads{{0, 2}, {2, 1}};
  std::vector<std::int32_t> list_starts{0, 5, 7};
  std::vector<TokenId> list_values{1, 2, 2, 999, 1, 5, 5};
  std::vector<EditRow> rows{{.repetition = 1.5f, .marks = 0, .mask = 1},
                            {},
                            {.frequency = .5f, .presence = .25f, .marks = 2}};
  std::vector<std::int32_t> bias_starts{0, 1, 1, 3};
  std::vector<TokenBias> bias_values{{1, 2.f}, {3, -100.f}, {5, .5f}};
  std::vector<std::uint32_t> masks;
  std::vector<float> logits, originals, logprobs, chosen_logprobs;
  std::vector<TokenId> tokens{0, 999, 5};
  std::vector<std::int32_t> chosen_starts{0, 2, 2, 3};
  std::vector<TokenId> chosen{7, 8, 9};

  explicit Step(int num_threads = 1, nv::cpu::Isa isa = nv::cpu::best_isa())
      : pool(num_threads), context{&pool, isa} {
    for (std::uint32_t i = 0; i < 2 * nv::mask_words(kVocab); ++i) {
      masks.push_back(nv::philox4x32(1, {i, 0, 0, 0})[0]);
    }
    for (std::uint32_t i = 0; i < 3 * kVocab; ++i) {
      logits.push_back(static_cast<float>(nv::philox4x32(2, {i, 0, 0, 0})[0]) * 0x1p-29f - 4);
    }
    originals.resize(logits.size());
    logprobs.resize(3);
    chosen_logprobs.resize(3);
  }

  void mark() {
    mark_tokens({marks.tensors(), view(heads), {view(list_starts), view(list_values)}}, context);
  }
  void edit() {
    nv::EditLogitsArgs args;
    args.logits = {logits.data(), {3, kVocab}};
    args.originals = {originals.data(), {3, kVocab}};
    args.batch.rows = view(rows);
    args.batch.biases = {view(bias_starts), view(bias_values)};
    args.batch.masks = view(masks);
    args.marks = marks.tensors();
    edit_logits(args, context);
  }
  void draw() { nv::cpu::mark_drawn({marks.tensors(), view(rows), view(tokens)}); }
  void find_logprobs() {
    token_logprobs({nv::MatrixView<const float>(originals.data(), {3, kVocab}),
                    view(tokens),
                    view(logprobs),
                    {view(chosen_starts), view(chosen)},
                    view(chosen_logprobs)},
                   context);
  }
};

/// The message of the `Error` that `work` throws on a step that `change` has spoilt.
template <class Error, class Change, class Work>
std::string message(Change change, Work work) {
  Step step;
  change(step);
  const auto logits = step.logits;
  std::string out = "nothing thrown";
  try {
    work(step);
  } catch (const Error& error) {
    out = error.what();
  }
  REQUIRE(step.logits == logits);
  return out;
}

}  // namespace

TEST_CASE("mark_tokens and mark_drawn refuse slots and tokens that do not exist") {
  using nv::ShapeError;
  const auto mark = [](auto change) {
    return message<ShapeError>(change, [](Step& step) { step.mark(); });
  };
  CHECK(mark([](Step&) {}) == "nothing thrown");
  CHECK(mark([](Step& s) { s.heads[1].slot = 3; }) ==
        "mark_tokens: slot of head 1 must be in [0, 3), got 3");
  CHECK(mark([](Step& s) { s.heads[0].slot = -1; }) ==
        "mark_tokens: slot of head 0 must be in [0, 3), got -1");
  CHECK(mark([](Step& s) { s.heads[1].slot = 0; }) ==
        "mark_tokens: slot 0 must be filled by one head, got another, 1");
  CHECK(mark([](Step& s) { s.heads[1].num_prompt_tokens = 3; }) ==
        "mark_tokens: num_prompt_tokens of head 1 must be in [0, 3), got 3");
  CHECK(mark([](Step& s) { s.list_values[6] = 1000; }) ==
        "mark_tokens: token 6 must be in [0, 1000), got 1000");
  CHECK(mark([](Step& s) { s.list_starts[2] = 8; }) ==
        "mark_tokens: 'lists.starts' must run from 0 to 7 at the most, got 0 to 8");
  CHECK(mark([](Step& s) { s.list_starts[1] = 8; }) ==
        "mark_tokens: 'lists.starts' must ascend, got 8 then 7");
  CHECK(mark([](Step& s) { s.marks = Marks(2); }) ==
        "mark_tokens: 'marks.seen' must have a column for each distinct token of a sequence, "
        "got 2");
  CHECK(mark([](Step& s) { s.marks = Marks(3); }) == "nothing thrown");

  const auto draw = [](auto change) {
    return message<ShapeError>(change, [](Step& step) { step.draw(); });
  };
  CHECK(draw([](Step&) {}) == "nothing thrown");
  CHECK(draw([](Step& s) { s.rows[1].marks = 3; }) ==
        "mark_drawn: slot of row 1 must be in [-1, 3), got 3");
  CHECK(draw([](Step& s) { s.tokens[2] = -1; }) ==
        "mark_drawn: token 2 must be in [0, 1000), got -1");
  CHECK(draw([](Step& s) { s.tokens[1] = -1; }) == "nothing thrown");  // a row without a slot
  CHECK(draw([](Step& s) { s.marks = Marks(0); }) ==
        "mark_drawn: 'marks.seen' must have a column for each distinct token of a sequence, "
        "got 0");
}

TEST_CASE("edit_logits and token_logprobs refuse what does not exist") {
  const auto edit = [](auto change) {
    return message<nv::ShapeError>(change, [](Step& step) { step.edit(); });
  };
  CHECK(edit([](Step& s) { s.rows[1].marks = 3; }) ==
        "edit_logits: slot of row 1 must be in [-1, 3), got 3");
  CHECK(edit([](Step& s) { s.rows[2].mask = 2; }) ==
        "edit_logits: mask of row 2 must be in [-1, 2), got 2");
  CHECK(edit([](Step& s) { s.rows[2].mask = -2; }) ==
        "edit_logits: mask of row 2 must be in [-1, 2), got -2");
  CHECK(edit([](Step& s) { s.bias_values[1].token = -1; }) ==
        "edit_logits: token of bias 1 must be in [0, 1000), got -1");
  CHECK(edit([](Step& s) { s.bias_starts[3] = 4; }) ==
        "edit_logits: 'biases.starts' must run from 0 to 3 at the most, got 0 to 4");
  const auto config = [](auto change) {
    return message<nv::ConfigError>(change, [](Step& step) { step.edit(); });
  };
  CHECK(config([](Step& s) { s.rows[0].repetition = 0; }) ==
        "edit_logits: repetition of row 0 must be finite and > 0, got 0.000000");
  CHECK_THAT(config([](Step& s) { s.rows[0].presence = std::numeric_limits<float>::infinity(); }),
             Catch::Matchers::Contains("frequency and presence of row 0 must be finite"));
  const auto logprobs = [](auto change) {
    return message<nv::ShapeError>(change, [](Step& step) { step.find_logprobs(); });
  };
  CHECK(logprobs([](Step&) {}) == "nothing thrown");
  CHECK(logprobs([](Step& s) { s.tokens[0] = 1000; }) ==
        "token_logprobs: token 0 must be in [0, 1000), got 1000");
  CHECK(logprobs([](Step& s) { s.chosen[2] = -5; }) ==
        "token_logprobs: chosen token 2 must be in [0, 1000), got -5");
}

TEST_CASE("Ops on logits depend on no number of threads, and edits on no instruction set") {
  const auto run = [](Step& step) { step.mark(), step.edit(), step.draw(), step.find_logprobs(); };
  Step one;
  run(one);
  REQUIRE(one.logits != one.originals);
  for (const nv::cpu::Isa isa : nv::test::available_isas()) {
    Step same_isa(1, isa);
    run(same_isa);
    for (const int threads : {1, 2, 5}) {
      Step other(threads, isa);
      run(other);
      REQUIRE(other.logits == one.logits);
      REQUIRE(other.originals == one.originals);
      REQUIRE(other.marks.words == one.marks.words);
      REQUIRE(other.marks.seen == one.marks.seen);
      REQUIRE(other.logprobs == same_isa.logprobs);
      REQUIRE(other.chosen_logprobs == same_isa.chosen_logprobs);
    }
  }
}

TEST_CASE("token_logprobs gives what sample gives, bit by bit") {
  Step step;
  step.originals = step.logits;
  std::vector<nv::SamplingRow> settings(3);
  for (std::size_t i = 0; i < 3; ++i) settings[i] = {.seed = i, .num_logprobs = 2};
  std::vector<TokenId> top(6);
  std::vector<float> drawn_logprobs(3), top_logprobs(6);
  std::vector<std::int32_t> no_bans(4);
  sample({{step.logits.data(), {3, kVocab}},
          {view(settings), {view(no_bans), {}}},
          view(step.tokens),
          view(drawn_logprobs),
          {top.data(), {3, 2}},
          {top_logprobs.data(), {3, 2}}},
         step.context);
  step.chosen = top;
  step.chosen_starts = {0, 2, 4, 6};
  step.chosen_logprobs.resize(6);
  step.find_logprobs();
  REQUIRE(step.logprobs == drawn_logprobs);
  REQUIRE(step.chosen_logprobs == top_logprobs);
}
