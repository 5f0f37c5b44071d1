#pragma once
/// The pictures of the course, docs/how_it_works/README.md. Nothing in them is made up: the
/// library's own scheduler, block manager and prefix caches run here on a few words, without a
/// model, and what they decide is drawn.

#include <nanovllm/core.hpp>
#include <nanovllm/kv.hpp>
#include <nanovllm/sched.hpp>
#include <nanovllm/with/radix.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "svg_picture.hpp"

namespace nanovllm::examples {

/// A tokeniser for lessons: a word is a token, and words have ids in the order in which they come.
class Words {
 public:
  [[nodiscard]] std::vector<TokenId> encode(std::string_view text) {
    std::vector<TokenId> ids;
    while (!text.empty()) {
      const std::size_t end = std::min(text.find(' '), text.size());
      if (end > 0) ids.push_back(id(text.substr(0, end)));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    return ids;
  }
  [[nodiscard]] const std::string& word(TokenId id) const {
    return words_[static_cast<std::size_t>(id)];
  }

 private:
  TokenId id(std::string_view word) {
    const auto found = std::find(words_.begin(), words_.end(), word);
    if (found == words_.end()) words_.emplace_back(word);
    return static_cast<TokenId>(std::distance(words_.begin(), std::ranges::find(words_, word)));
  }

  std::vector<std::string> words_;
};

/// Tokens a block in the lessons; the library's default is 16.
inline constexpr int kLessonBlock = 4;

/// An engine without a model: the scheduler plans, and what a step would draw is given beforehand.
template <template <int> class PrefixCache>
class Lesson {
 public:
  using Blocks = BlockManager<kLessonBlock, PrefixCache<kLessonBlock>>;
  using LessonScheduler = Scheduler<ContinuousBatching, Blocks, RecomputePreemption>;

  /// What one sequence has in a step.
  struct Share {
    std::size_t request = 0;  ///< in the order of `add`
    std::int32_t begin = 0, end = 0;
    bool draws = false;
  };

  /// @param cache_args  go to the prefix cache after the number of blocks.
  template <class... CacheArgs>
  Lesson(const BatchConfig& config, std::int32_t num_blocks, const CacheArgs&... cache_args)
      : scheduler_(config, Blocks(num_blocks, true, cache_args...)) {}

  /// A request that ends with the last word of `answer`. Returns its number.
  std::size_t add(std::string_view prompt, std::string_view answer) {
    Sequence& s = sequences_.emplace_back();
    s.id = static_cast<RequestId>(sequences_.size());
    s.tokens = words_.encode(prompt);
    s.num_prompt_tokens = s.num_known_tokens();
    answers_.push_back(words_.encode(answer));
    s.max_total_tokens = s.num_prompt_tokens + static_cast<std::int32_t>(answers_.back().size());
    scheduler_.add(s);
    return sequences_.size() - 1;
  }

  /// Plans, begins and commits a step. Returns what it computed, in the plan's order.
  std::vector<Share> step() {
    StepPlan plan = scheduler_.schedule();
    scheduler_.begin(plan);
    std::vector<Share> shares;
    std::vector<StepOutcome> outcomes;
    for (const PlannedSequence& p : plan.sequences) {
      const auto request = static_cast<std::size_t>(p.sequence->id) - 1;
      const bool draws = p.rows.count(RowKind::draw) > 0;
      shares.push_back({request, p.begin, p.end, draws});
      if (!draws) continue;
      const auto next = static_cast<std::size_t>(p.end - p.sequence->num_prompt_tokens);
      outcomes.push_back({p.sequence, std::span(answers_[request]).subspan(next, 1)});
    }
    scheduler_.commit(plan, outcomes);
    scheduler_.check_invariants();
    return shares;
  }
  void run() {
    while (scheduler_.has_work()) step();
  }

  [[nodiscard]] const Sequence& sequence(std::size_t request) const { return sequences_[request]; }
  [[nodiscard]] const Blocks& blocks() const { return scheduler_.blocks(); }
  [[nodiscard]] Words& words() { return words_; }
  [[nodiscard]] const std::string& word(TokenId id) const { return words_.word(id); }

 private:
  Words words_;
  std::deque<Sequence> sequences_;  // a sequence stays where it is
  std::vector<std::vector<TokenId>> answers_;
  LessonScheduler scheduler_;
};

template <int kBlockSize>
using LessonHash = HashPrefixCache<kBlockSize>;
template <int kBlockSize>
using LessonRadix = RadixPrefixCache<kBlockSize>;

/// Three sequences, their block tables, and the pool.
[[nodiscard]] inline std::string draw_block_tables() {
  Lesson<LessonHash> lesson({.max_num_seqs = 3, .max_num_batched_tokens = 32}, 12);
  lesson.add("Once upon a time there was a fox who", "lived in a deep dark wood .");
  lesson.step();
  lesson.add("Once upon a time there was a king", "and his wife was fair .");
  lesson.step();
  lesson.add("Why is the sea", "salt ? said the boy .");
  for (int i = 0; i < 3; ++i) lesson.step();

  constexpr int kLeft = 96, kWord = 58, kGap = 12, kBlockWidth = kLessonBlock * kWord;
  SvgPicture picture(kLeft + 4 * (kBlockWidth + kGap), 424, "Block tables and the KV pool");
  int y = 22;
  for (std::size_t i = 0; i < 3; ++i) {
    const Sequence& s = lesson.sequence(i);
    picture.text(8, y + 22, concat("sequence ", s.id));
    for (std::size_t b = 0; b < s.block_table.size(); ++b) {
      const int x = kLeft + static_cast<int>(b) * (kBlockWidth + kGap);
      picture.text(x, y - 6, concat("block_table[", b, "] = ", s.block_table[b]), {.size = 12});
      picture.box(x, y, kBlockWidth, 30, "none", true);
      for (int j = 0; j < kLessonBlock; ++j) {
        const std::int32_t position = static_cast<std::int32_t>(b) * kLessonBlock + j;
        if (position >= s.num_computed_tokens) continue;  // its keys and values are not there yet
        const bool is_shared = lesson.blocks().ref_count(s.block_table[b]) > 1;
        picture.word(x + j * kWord, y, kWord, lesson.word(s.tokens[position_of(position)]),
                     is_shared ? kPurple : kFills[i]);
      }
    }
    y += 66;
  }

  picture.text(8, y + 14, "the pool");
  for (BlockId block = 0; block < lesson.blocks().num_blocks(); ++block) {
    const int x = kLeft + block % 4 * (kBlockWidth + kGap), top = y + 16 + block / 4 * 70;
    const std::int32_t holders = lesson.blocks().ref_count(block);
    picture.text(x, top - 6,
                 concat("block ", block,
                        holders == 0   ? ": free"
                        : holders == 1 ? ""
                                       : ": shared by ",
                        holders > 1 ? std::to_string(holders) : std::string()),
                 {.size = 12});
    picture.box(x, top, kBlockWidth, 30, "none", true);
    for (std::size_t i = 0; i < 3; ++i) {
      const Sequence& s = lesson.sequence(i);
      const auto found = std::ranges::find(s.block_table, block);
      if (found == s.block_table.end()) continue;
      const auto first = std::distance(s.block_table.begin(), found) * kLessonBlock;
      for (int j = 0; j < kLessonBlock && first + j < s.num_computed_tokens; ++j) {
        const auto position = static_cast<std::int32_t>(first + j);
        const Slot slot = lesson.blocks().slot(s.block_table, position);
        const int at = x + static_cast<int>(slot % kLessonBlock) * kWord;
        picture.word(at, top, kWord, lesson.word(s.tokens[position_of(position)]),
                     holders > 1 ? kPurple : kFills[i]);
        picture.text(at + kWord / 2, top + 43, concat(slot), {.anchor = "middle", .size = 10});
      }
      break;  // what another sequence has in the block is the same
    }
  }
  return picture.str();
}

/// What the steps compute while three requests come one after the other.
[[nodiscard]] inline std::string draw_step_plans() {
  constexpr int kBudget = 8, kSteps = 7;
  Lesson<LessonHash> lesson({.max_num_seqs = 3, .max_num_batched_tokens = kBudget}, 32);
  std::vector<std::vector<Lesson<LessonHash>::Share>> steps;
  std::vector<std::string> arrivals(kSteps);
  for (int i = 0; i < kSteps; ++i) {
    const auto come = [&](std::string_view prompt, std::string_view answer) {
      const std::size_t request = lesson.add(prompt, answer);
      arrivals[static_cast<std::size_t>(i)] =
          concat("request ", request + 1, " comes, ", lesson.sequence(request).num_prompt_tokens,
                 " tokens");
    };
    if (i == 0) come("Once upon a time there", "was a fox who lived alone .");
    if (i == 1) come("A king had three sons and the youngest was called the fool", "by all .");
    if (i == 2) come("Why is the", "sea salt ?");
    steps.push_back(lesson.step());
  }

  constexpr int kLeft = 210, kWord = 70, kRow = 46;
  SvgPicture picture(kLeft + kBudget * kWord + 16, 74 + kSteps * kRow, "What seven steps compute");
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const int y = 24 + static_cast<int>(i) * kRow;
    picture.text(8, y + 13, concat("step ", i + 1));
    if (!arrivals[i].empty()) picture.text(8, y + 30, arrivals[i], {.size = 11});
    picture.box(kLeft, y, kBudget * kWord, 30, "none", true);
    int x = kLeft;
    for (const auto& share : steps[i]) {
      const Sequence& s = lesson.sequence(share.request);
      picture.text(x + 2, y - 4,
                   share.end - share.begin == 1 && share.begin >= s.num_prompt_tokens
                       ? concat("decode ", s.id)
                       : concat("prompt of ", s.id, ": [", share.begin, ", ", share.end, ")"),
                   {.size = 10});
      for (std::int32_t p = share.begin; p < share.end; ++p, x += kWord) {
        picture.word(x, y, kWord, lesson.word(s.tokens[position_of(p)]), kFills[share.request]);
        if (share.draws && p + 1 == share.end) picture.box(x, y + 26, kWord, 4, kEdge);
      }
    }
  }
  const int y = 32 + kSteps * kRow;
  picture.box(kLeft, y + 10, 22, 4, kEdge);
  picture.text(kLeft + 30, y + 16, "the row of this token gives logits: the next token is drawn",
               {.size = 12});
  return picture.str();
}

/// The tree of a radix cache after three prompts, and what it finds of a fourth.
[[nodiscard]] inline std::string draw_radix_tree() {
  Lesson<LessonRadix> lesson({.max_num_seqs = 4, .max_num_batched_tokens = 64}, 16,
                             std::uint64_t{1});
  for (const char* prompt :
       {"You are a guide . Answer in French . What is a castle",
        "You are a guide . Answer in English now . Where is", "Why is the sea salt"}) {
    lesson.add(prompt, "? !");
    lesson.run();
  }
  const std::vector<CachedBlock> entries = lesson.blocks().cache().entries();
  const std::vector<TokenId> prompt =
      lesson.words().encode("You are a guide . Answer in French . What was the king");
  const PrefixMatch match = lesson.blocks().match(prompt);

  constexpr int kWord = 60, kWidth = kLessonBlock * kWord, kStep = kWidth + 44, kRow = 62;
  // Children stand one column further to the right, and below what came before them.
  std::vector<int> columns, rows;
  int num_rows = 0, num_columns = 0;
  const auto place = [&](const auto& self, std::int32_t parent, int column) -> void {
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].parent != parent) continue;
      columns[i] = column, rows[i] = num_rows;
      num_columns = std::max(num_columns, column + 1);
      self(self, static_cast<std::int32_t>(i), column + 1);
      num_rows = std::max(num_rows, rows[i] + 1);
    }
  };
  columns.resize(entries.size()), rows.resize(entries.size());
  place(place, -1, 0);

  const auto left = [&](std::size_t i) { return 60 + columns[i] * kStep; };
  const auto top = [&](std::size_t i) { return 26 + rows[i] * kRow; };
  const int below = 26 + num_rows * kRow;
  SvgPicture picture(60 + num_columns * kStep - 30, below + 128, "A radix tree of blocks");
  picture.text(8, 45, "root");
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const CachedBlock& entry = entries[i];
    const bool has_parent = entry.parent >= 0;
    const int from_x = has_parent ? left(static_cast<std::size_t>(entry.parent)) + kWidth : 40;
    const int from_y = has_parent ? top(static_cast<std::size_t>(entry.parent)) + 15 : 41;
    const int middle = left(i) - 16, at = top(i) + 15;
    picture.arrow({{from_x, from_y}, {middle, from_y}, {middle, at}, {left(i) - 2, at}});
    const bool is_adopted = std::ranges::find(match.blocks, entry.block) != match.blocks.end();
    const bool is_copied = match.copy_tail == entry.block;
    picture.text(left(i), top(i) - 5, concat("block ", entry.block), {.size = 11});
    picture.box(left(i), top(i), kWidth, 30, "none", true);
    const std::size_t num_copied =
        static_cast<std::size_t>(match.num_tokens) - match.blocks.size() * kLessonBlock;
    for (std::size_t j = 0; j < entry.tokens.size(); ++j) {
      picture.word(left(i) + static_cast<int>(j) * kWord, top(i), kWord,
                   lesson.word(entry.tokens[j]),
                   is_adopted                    ? kGreen
                   : is_copied && j < num_copied ? kOrange
                                                 : kBlue);
    }
  }
  picture.text(8, below + 22,
               concat("a new prompt of ", prompt.size(), " tokens: ", match.num_tokens, " found, ",
                      static_cast<std::int32_t>(prompt.size()) - match.num_tokens, " to compute"));
  const int num_shared = static_cast<int>(match.blocks.size()) * kLessonBlock;
  for (int i = 0; i < static_cast<int>(prompt.size()); ++i) {
    picture.word(8 + i * kWord, below + 34, kWord, lesson.word(prompt[position_of(i)]),
                 i < num_shared         ? kGreen
                 : i < match.num_tokens ? kOrange
                                        : kGrey);
  }
  int x = 8;
  for (const auto& [fill, label, width] : {std::tuple{kGreen, "shared as it is", 130},
                                           {kOrange, "copied into a block of its own", 220},
                                           {kGrey, "to be computed", 130},
                                           {kBlue, "cached, of no use here", 0}}) {
    picture.box(x, below + 88, 14, 14, fill);
    picture.text(x + 20, below + 100, label, {.size = 12});
    x += width;
  }
  return picture.str();
}

}  // namespace nanovllm::examples
