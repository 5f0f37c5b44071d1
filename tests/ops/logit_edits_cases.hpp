#pragma once
/// Cases of the ops that change logits and remember tokens: `mark_tokens`, `edit_logits`,
/// `mark_drawn`, `token_logprobs`. What is expected is written down here anew: what sequences have
/// as lists, edits in float32 one rounding after another, log-probabilities in float64.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "nanovllm/ops/logit_edits.hpp"
#include "ops/rig.hpp"

namespace nanovllm::test::ops {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Lists of one step, after each other in a backend's memory.
template <class B, class T>
class Lists {
 public:
  Lists(B& backend, const std::vector<std::vector<T>>& lists)
      : starts_(backend, starts_of(lists)), values_(backend, joined(lists)) {}

  [[nodiscard]] ListsView<const T> view() { return {starts_.vector(), values_.vector()}; }

 private:
  static std::vector<std::int32_t> starts_of(const std::vector<std::vector<T>>& lists) {
    std::vector<std::int32_t> out{0};
    for (const auto& list : lists)
      out.push_back(out.back() + static_cast<std::int32_t>(list.size()));
    return out;
  }
  static std::vector<T> joined(const std::vector<std::vector<T>>& lists) {
    std::vector<T> out;
    for (const auto& list : lists) out.insert(out.end(), list.begin(), list.end());
    return out;
  }
  Array<B, std::int32_t> starts_;
  Array<B, T> values_;
};

/// The tokens of a sequence.
struct History {
  std::vector<TokenId> prompt, generated;

  [[nodiscard]] std::vector<TokenId> all() const {
    std::vector<TokenId> out = prompt;
    out.insert(out.end(), generated.begin(), generated.end());
    return out;
  }
  [[nodiscard]] bool has(TokenId token) const {
    const std::vector<TokenId> tokens = all();
    return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
  }
  [[nodiscard]] std::int64_t count(TokenId token) const {
    return std::count(generated.begin(), generated.end(), token);
  }
};

/// `TokenMarks` in a backend's memory, and what each slot should know.
template <class B>
class MarkMemory {
 public:
  MarkMemory(B& backend, std::int64_t slots, std::int64_t vocab, std::int64_t capacity)
      : histories(static_cast<std::size_t>(slots)),
        backend_(&backend),
        vocab_(vocab),
        capacity_(capacity),
        words_(backend, std::vector<std::uint32_t>(static_cast<std::size_t>(slots * vocab))),
        seen_(backend, slots * capacity),
        num_seen_(backend, std::vector<std::int32_t>(static_cast<std::size_t>(slots))) {}

  [[nodiscard]] TokenMarks view() {
    return {words_.matrix(vocab_), seen_.matrix(capacity_), num_seen_.vector()};
  }

  /// Fills slots anew.
  void fill(const std::map<std::int32_t, History>& slots) {
    std::vector<MarkHead> heads;
    std::vector<std::vector<TokenId>> lists;
    for (const auto& [slot, history] : slots) {
      heads.push_back({slot, static_cast<std::int32_t>(history.prompt.size())});
      lists.push_back(history.all());
      histories[static_cast<std::size_t>(slot)] = history;
    }
    Array<B, MarkHead> device_heads(*backend_, heads);
    Lists<B, TokenId> device_lists(*backend_, lists);
    backend_->run(MarkTokensArgs{view(), device_heads.vector(), device_lists.view()});
    num_seen_.download();  // waits, before the operands go
  }

  /// Token i was drawn for slot i of `slots`, -1: for none.
  void draw(const std::vector<std::int32_t>& slots, const std::vector<TokenId>& drawn) {
    std::vector<EditRow> rows;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      rows.push_back({.marks = slots[i]});
      if (slots[i] >= 0) {
        histories[static_cast<std::size_t>(slots[i])].generated.push_back(drawn[i]);
      }
    }
    Array<B, EditRow> device_rows(*backend_, rows);
    Array<B, TokenId> tokens(*backend_, drawn);
    backend_->run(MarkDrawnArgs{view(), device_rows.vector(), tokens.vector()});
    num_seen_.download();
  }

  /// Whether every word and every list is what the histories say.
  void check() {
    words_.download(), seen_.download(), num_seen_.download();
    for (std::size_t slot = 0; slot < histories.size(); ++slot) {
      INFO("slot " << slot);
      std::map<TokenId, std::uint32_t> expected;
      for (const TokenId token : histories[slot].prompt) expected[token] = 0x80000000u;
      for (const TokenId token : histories[slot].generated) ++expected[token];
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < vocab_; ++i) {
        const auto found = expected.find(static_cast<TokenId>(i));
        const auto at = static_cast<std::int64_t>(slot) * vocab_ + i;
        wrong += words_.host[static_cast<std::size_t>(at)] !=
                         (found == expected.end() ? 0 : found->second)
                     ? 1
                     : 0;
      }
      REQUIRE(wrong == 0);
      REQUIRE(num_seen_.host[slot] == static_cast<std::int32_t>(expected.size()));
      const auto begin = seen_.host.begin() + static_cast<std::int64_t>(slot) * capacity_;
      const std::set<TokenId> listed(begin, begin + num_seen_.host[slot]);
      REQUIRE(listed.size() == expected.size());
      for (const auto& [token, word] : expected) REQUIRE(listed.count(token) == 1);
    }
  }

  std::vector<History> histories;

 private:
  B* backend_;
  std::int64_t vocab_, capacity_;
  Array<B, std::uint32_t> words_;
  Array<B, TokenId> seen_;
  Array<B, std::int32_t> num_seen_;
};

/// `size` tokens, a function of `seed`; few of them distinct where `spread` is small.
inline std::vector<TokenId> random_tokens(std::int64_t size, std::int64_t spread,
                                          std::uint64_t seed) {
  std::vector<TokenId> out;
  for (std::int64_t i = 0; i < size; ++i) {
    const auto word = philox4x32(seed, {static_cast<std::uint32_t>(i), 0, 0, 5})[0];
    out.push_back(static_cast<TokenId>(word % static_cast<std::uint64_t>(spread)));
  }
  return out;
}

template <class B>
void mark_cases(B& backend) {
  for (const std::int64_t vocab : {1, 50, 5003, 151936}) {
    INFO("vocabulary " << vocab);
    MarkMemory<B> marks(backend, 4, vocab, std::min<std::int64_t>(vocab, 3000));
    marks.check();
    marks.fill({});
    marks.check();
    // A long one with repetitions, one without a prompt, one without generated tokens.
    marks.fill({{0, {random_tokens(2000, vocab, 1), random_tokens(700, vocab, 2)}},
                {1, {{}, random_tokens(90, std::min<std::int64_t>(vocab, 7), 3)}},
                {3, {random_tokens(33, vocab, 4), {}}}});
    marks.check();
    for (std::uint64_t step = 0; step < 5; ++step) {
      const TokenId again = random_tokens(1, vocab, 4)[0];  // of slot 3's prompt
      marks.draw({3, -1, 0, 1}, {step % 2 == 0 ? again : static_cast<TokenId>(vocab - 1), 0,
                                 random_tokens(1, vocab, 10 + step)[0], 0});
    }
    marks.check();
    // Slots that go to other sequences: nothing is left of those before.
    marks.fill({{0, {random_tokens(5, vocab, 21), random_tokens(5, vocab, 22)}},
                {2, {random_tokens(300, vocab, 23), {}}},
                {3, {{}, {}}}});
    marks.check();
    marks.draw({2, 3}, {0, static_cast<TokenId>(vocab / 2)});
    marks.check();
  }
}

/// The rows of a case and what edits them, on the host.
struct EditCase {
  std::int64_t vocab = 0;
  std::vector<EditRow> rows;
  std::vector<std::vector<TokenBias>> biases;
  std::vector<std::vector<bool>> masks;

  /// Every combination of mask, biases and penalties.
  EditCase(std::int64_t vocab_size, std::int64_t num_rows, std::int32_t num_slots)
      : vocab(vocab_size) {
    for (std::uint64_t m = 0; m < 3; ++m) {
      masks.emplace_back();
      for (std::int64_t i = 0; i < vocab; ++i) {
        const bool random =
            philox4x32(70 + m, {static_cast<std::uint32_t>(i), 0, 0, 0})[0] % 3 == 0;
        // Half of the tokens at random; long stretches; all but the last.
        masks.back().push_back(m == 0 ? random : m == 1 ? i / 97 % 2 == 0 : i + 1 != vocab);
      }
    }
    for (std::int64_t r = 0; r < num_rows; ++r) {
      EditRow row;
      if (r % 2 == 1) row.mask = static_cast<std::int32_t>(r / 2 % 3);
      if (r / 4 % 2 == 1) row.marks = static_cast<std::int32_t>(r) % num_slots;
      // Without marks these have no effect.
      if (r % 5 != 0) row.repetition = r % 5 == 1 ? 0.7f : 1.3f;
      if (r % 3 != 0) row.frequency = r % 3 == 1 ? 0.37f : -0.21f;
      if (r % 7 != 0) row.presence = r % 7 == 1 ? -1.1f : 0.83f;
      rows.push_back(row);
      biases.emplace_back();
      if (r / 2 % 2 == 0) continue;
      std::set<TokenId> biased;
      for (const TokenId token : random_tokens(r % 3 == 0 ? 300 : 5, vocab, 90 + r)) {
        if (!biased.insert(token).second) continue;
        const float kinds[] = {100, -100, 0.3f, -1.7f};
        biases.back().push_back({token, kinds[token % 4]});
      }
    }
  }

  [[nodiscard]] std::vector<std::uint32_t> mask_bits() const {
    std::vector<std::uint32_t> out;
    for (const auto& mask : masks) {
      const std::size_t begin = out.size();
      // Bits beyond the vocabulary mean nothing.
      out.resize(begin + static_cast<std::size_t>((vocab + 31) / 32), 0xAAAAAAAAu);
      for (std::size_t i = 0; i < mask.size(); ++i) {
        const std::uint32_t bit = 1u << (i % 32);
        if (mask[i])
          out[begin + i / 32] |= bit;
        else
          out[begin + i / 32] &= ~bit;
      }
    }
    return out;
  }

  /// A row's logits after the contract's steps. Each assignment to a volatile is one rounding.
  [[nodiscard]] std::vector<float> edited(std::size_t r, const std::vector<float>& logits,
                                          const std::vector<History>& histories) const {
    std::vector<float> out = logits;
    const EditRow& row = rows[r];
    for (std::size_t i = 0; row.mask >= 0 && i < out.size(); ++i) {
      if (!masks[static_cast<std::size_t>(row.mask)][i]) out[i] = -kInf;
    }
    for (const TokenBias& bias : biases[r]) out[static_cast<std::size_t>(bias.token)] += bias.bias;
    if (row.marks < 0) return out;
    const History& history = histories[static_cast<std::size_t>(row.marks)];
    const std::vector<TokenId> tokens = history.all();
    for (const TokenId token : std::set<TokenId>(tokens.begin(), tokens.end())) {
      volatile float x = out[static_cast<std::size_t>(token)];
      x = x > 0 ? x / row.repetition : x * row.repetition;
      const auto count = static_cast<float>(history.count(token));
      if (count > 0) {
        volatile float product = count * row.frequency;
        x = x - product;
        x = x - row.presence;
      }
      out[static_cast<std::size_t>(token)] = x;
    }
    return out;
  }
};

/// Equal bits, but that a NaN is as good as another.
inline bool same_logits(const float* x, const std::vector<float>& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(x[i]) && std::isnan(expected[i])) continue;
    if (std::memcmp(x + i, &expected[i], sizeof(float)) != 0) return false;
  }
  return true;
}

/// One EditCase with `pitch` logits from row to row.
template <class B>
void edit_logits_case(B& backend, const EditCase& edits, std::int64_t pitch, MarkMemory<B>& marks,
                      bool keeps_originals) {
  INFO("vocabulary " << edits.vocab << ", pitch " << pitch << ", originals " << keeps_originals);
  const auto n = static_cast<std::int64_t>(edits.rows.size());
  const std::int64_t vocab = edits.vocab;
  auto logits = Array<B, float>::random(backend, n * pitch, 31, -9, 9);
  for (std::int64_t r = 0; r < n && vocab > 40; ++r) {
    float* const row = logits.host.data() + r * pitch;
    row[3] = 0, row[4] = -0.f, row[5] = kInf, row[6] = -kInf, row[7] = kNan;
  }
  logits.upload();
  const auto before = logits.host;
  Array<B, float> originals(backend, keeps_originals ? n * vocab : 0);
  Array<B, EditRow> rows(backend, edits.rows);
  Array<B, std::uint32_t> masks(backend, edits.mask_bits());
  Lists<B, TokenBias> biases(backend, edits.biases);
  EditLogitsArgs args;
  args.logits = {logits.data(), {n, vocab}, {pitch, 1}};
  args.batch.rows = rows.vector();
  args.batch.biases = biases.view();
  args.batch.masks = masks.vector();
  args.marks = marks.view();
  if (keeps_originals) args.originals = originals.matrix(vocab);
  backend.run(args);
  logits.download(), originals.download();
  for (std::int64_t r = 0; r < n; ++r) {
    INFO("row " << r);
    const auto begin = before.begin() + r * pitch;
    const std::vector<float> row(begin, begin + vocab);
    const auto expected = edits.edited(static_cast<std::size_t>(r), row, marks.histories);
    REQUIRE(same_logits(logits.host.data() + r * pitch, expected));
    REQUIRE(std::memcmp(logits.host.data() + r * pitch + vocab, before.data() + r * pitch + vocab,
                        static_cast<std::size_t>(pitch - vocab) * sizeof(float)) == 0);
    if (!keeps_originals) continue;
    REQUIRE(std::memcmp(originals.host.data() + r * vocab, row.data(),
                        row.size() * sizeof(float)) == 0);
  }
  if constexpr (B::kAsynchronous) {
    const auto after = logits.host;
    const auto graph = backend.capture([&] { backend.run(args); });
    for (int replay = 0; replay < 2; ++replay) {
      logits.host = before;
      logits.upload();
      backend.replay(graph);
      logits.download();
      REQUIRE(same_bits(logits.host, after));
    }
  }
}

template <class B>
void edit_logits_cases(B& backend) {
  for (const std::int64_t vocab : {1, 50, 5003, 151936}) {
    MarkMemory<B> marks(backend, 3, vocab, std::min<std::int64_t>(vocab, 4000));
    marks.fill({{0, {random_tokens(40, vocab, 51), random_tokens(3000, vocab, 52)}},
                {1, {{}, random_tokens(400, std::min<std::int64_t>(vocab, 60), 53)}},
                {2, {random_tokens(200, std::min<std::int64_t>(vocab, 90), 54), {}}}});
    const EditCase edits(vocab, vocab > 100000 ? 8 : 40, 3);
    edit_logits_case(backend, edits, vocab, marks, true);
    edit_logits_case(backend, edits, vocab, marks, false);
    edit_logits_case(backend, edits, vocab + 5, marks, true);
    // What was drawn meanwhile counts.
    marks.draw({0, 1, 2}, {0, 0, static_cast<TokenId>(vocab - 1)});
    edit_logits_case(backend, edits, vocab, marks, false);
  }
}

/// Rows without slots and marks without memory, biases and masks alone, no rows.
template <class B>
void edit_logits_without_marks_case(B& backend) {
  EditCase edits(1000, 12, 1);
  for (EditRow& row : edits.rows) row.marks = -1;
  MarkMemory<B> none(backend, 0, 1000, 1);
  edit_logits_case(backend, edits, 1000, none, true);
  edits.rows.clear(), edits.biases.clear();
  edit_logits_case(backend, edits, 1000, none, false);
}

/// Scratch memory for `rows` rows of logits.
template <class B>
void reserve_rows(B& backend, std::int64_t rows, std::int64_t vocab) {
  backend.reserve({.limits = {.max_num_batched_tokens = rows, .max_num_seqs = rows},
                   .vocab_size = vocab,
                   .num_heads = 1,
                   .num_kv_heads = 1,
                   .head_dim = 64});
}

template <class B>
void token_logprobs_cases(B& backend) {
  for (const std::int64_t vocab : {1, 50, 5003, 151936}) {
    INFO("vocabulary " << vocab);
    const std::int64_t n = vocab > 100000 ? 3 : 9, pitch = vocab + 3;
    reserve_rows(backend, n, vocab);
    auto logits = Array<B, float>::random(backend, n * pitch, 61, -12, 12);
    for (std::int64_t r = 0; r < n; ++r) logits.host[static_cast<std::size_t>(r * pitch)] += 6;
    logits.upload();
    std::vector<TokenId> tokens;
    std::vector<std::vector<TokenId>> chosen;
    for (std::int64_t r = 0; r < n; ++r) {
      tokens.push_back(r % 3 == 0 ? 0 : static_cast<TokenId>(vocab - 1));
      chosen.push_back(random_tokens(r % 4 == 2 ? 600 : r % 4, vocab, 62 + r));
    }
    Array<B, TokenId> device_tokens(backend, tokens);
    Lists<B, TokenId> lists(backend, chosen);
    Array<B, float> logprobs(backend, n), more(backend, lists.view().values.extent(0));
    backend.run(TokenLogprobsArgs{MatrixView<const float>(logits.data(), {n, vocab}, {pitch, 1}),
                                  device_tokens.vector(), logprobs.vector(), lists.view(),
                                  more.vector()});
    logprobs.download(), more.download();
    std::int64_t at = 0;
    for (std::int64_t r = 0; r < n; ++r) {
      double sum = 0;
      for (std::int64_t i = 0; i < vocab; ++i) sum += std::exp(logits[r * pitch + i] - 20);
      const auto expected = [&](TokenId token) {
        return logits[r * pitch + token] - 20 - std::log(sum);
      };
      Worst worst;
      worst.add(logprobs[r], expected(tokens[static_cast<std::size_t>(r)]), 1e-5);
      for (const TokenId token : chosen[static_cast<std::size_t>(r)]) {
        worst.add(more[at++], expected(token), 1e-5);
      }
      INFO("row " << r);
      REQUIRE(worst.ratio() <= 1);
    }
  }
}

/// Logits that are infinite or no numbers.
template <class B>
void token_logprobs_limits_case(B& backend) {
  const std::vector<std::vector<float>> rows{
      {1, kInf, 2, kInf, kNan, -kInf},         // two share the probability
      {kNan, -kInf, kNan, kNan, -kInf, kNan},  // there is none to share
      {kNan, 0, -kInf, 0, kNan, -kInf},
      {-kInf, -kInf, 3e38f, -3e38f, 0, kNan},
  };
  const double half = std::log(0.5), none = -std::numeric_limits<double>::infinity();
  const std::vector<std::vector<double>> expected{{none, half, none, half, none, none},
                                                  {none, none, none, none, none, none},
                                                  {none, half, none, half, none, none},
                                                  {none, none, 0, none, -3e38, none}};
  std::vector<float> flat;
  std::vector<std::vector<TokenId>> chosen;
  for (const auto& row : rows) {
    flat.insert(flat.end(), row.begin(), row.end());
    chosen.push_back({0, 1, 2, 3, 4, 5});
  }
  reserve_rows(backend, 4, 6);
  Array<B, float> logits(backend, flat);
  Array<B, TokenId> tokens(backend, {1, 0, 3, 2});
  Lists<B, TokenId> lists(backend, chosen);
  Array<B, float> logprobs(backend, 4), more(backend, 24);
  backend.run(TokenLogprobsArgs{MatrixView<const float>(logits.data(), {4, 6}), tokens.vector(),
                                logprobs.vector(), lists.view(), more.vector()});
  logprobs.download(), more.download();
  for (std::int64_t r = 0; r < 4; ++r) {
    for (std::int64_t i = 0; i < 6; ++i) {
      INFO("row " << r << ", token " << i);
      const double x = more[6 * r + i];
      const double wanted = expected[static_cast<std::size_t>(r)][static_cast<std::size_t>(i)];
      if (r == 3 && i == 3) {
        REQUIRE(x == -kInf);  // 6e38 below the largest is below all floats
      } else {
        REQUIRE((x == wanted || std::abs(x - wanted) <= 1e-5 * std::max(1., std::abs(wanted))));
      }
      if (i == tokens.host[static_cast<std::size_t>(r)]) {
        REQUIRE(same_bits<float>({logprobs.host[static_cast<std::size_t>(r)]},
                                 {more.host[static_cast<std::size_t>(6 * r + i)]}));
      }
    }
  }
}

/// Runs `args` and returns what the ShapeError says that it throws.
template <class B, class Args>
std::string shape_error(B& backend, const Args& args) {
  try {
    backend.run(args);
  } catch (const ShapeError& error) {
    return error.what();
  }
  return "nothing thrown";
}

/// Operands that do not fit together are refused by name, on every backend.
template <class B>
void logit_edits_shape_cases(B& backend) {
  using Catch::Matchers::Contains;
  constexpr std::int64_t kVocab = 40;
  reserve_rows(backend, 3, kVocab);
  Array<B, std::uint32_t> words(backend, 200);
  Array<B, std::int32_t> ints(backend, std::vector<std::int32_t>(10));
  Array<B, float> floats(backend, 200);
  Array<B, EditRow> rows(backend, std::vector<EditRow>(10));
  const auto starts = [&](std::int64_t n) {
    return VectorView<const std::int32_t>(ints.data(), {n});
  };
  const auto tokens = [&](std::int64_t n) { return VectorView<const TokenId>(ints.data(), {n}); };
  TokenMarks marks{{words.data(), {2, kVocab}}, {ints.data(), {2, 5}}, {ints.data(), {2}}};

  MarkTokensArgs mark{marks, {}, {starts(1), tokens(0)}};
  REQUIRE(shape_error(backend, mark) == "nothing thrown");
  mark.lists.starts = starts(3);
  REQUIRE_THAT(shape_error(backend, mark), Contains("mark_tokens: 'lists.starts'"));
  mark.marks.seen = {ints.data(), {1, 5}};
  REQUIRE_THAT(shape_error(backend, mark), Contains("mark_tokens: 'marks.seen'"));
  mark.marks.seen = marks.seen;
  mark.marks.num_seen = {ints.data(), {3}};
  REQUIRE_THAT(shape_error(backend, mark), Contains("mark_tokens: 'marks.num_seen'"));

  EditLogitsArgs edit;
  edit.logits = {floats.data(), {2, kVocab}};
  edit.batch.rows = {rows.data(), {2}};
  edit.batch.biases.starts = starts(3);
  edit.batch.masks = {words.data(), {4}};
  edit.marks = marks;
  const auto refused = [&](EditLogitsArgs args, auto change, const std::string& name) {
    change(args);
    REQUIRE_THAT(shape_error(backend, args), Contains("edit_logits: '" + name + "'"));
  };
  REQUIRE(shape_error(backend, edit) == "nothing thrown");
  refused(
      edit, [&](auto& args) { args.batch.rows.extents[0] = 3; }, "rows");
  refused(
      edit, [&](auto& args) { args.batch.biases.starts = starts(2); }, "biases.starts");
  refused(
      edit, [&](auto& args) { args.batch.masks.extents[0] = 3; }, "masks");
  refused(
      edit, [&](auto& args) { args.marks.words.extents[1] = 39; }, "marks.words");
  refused(
      edit, [&](auto& args) { args.marks.seen.extents[0] = 1; }, "marks.seen");
  refused(
      edit, [&](auto& args) { args.marks.num_seen.extents[0] = 1; }, "marks.num_seen");
  refused(
      edit,
      [&](auto& args) {
        args.originals = {floats.data(), {2, 39}};
      },
      "originals");

  MarkDrawnArgs drawn{marks, {rows.data(), {3}}, tokens(3)};
  REQUIRE(shape_error(backend, drawn) == "nothing thrown");
  drawn.tokens = tokens(2);
  REQUIRE_THAT(shape_error(backend, drawn), Contains("mark_drawn: 'tokens'"));
  drawn.tokens = tokens(3);
  drawn.marks.num_seen = {ints.data(), {1}};
  REQUIRE_THAT(shape_error(backend, drawn), Contains("mark_drawn: 'marks.num_seen'"));

  TokenLogprobsArgs logprobs{MatrixView<const float>(floats.data(), {2, kVocab}),
                             tokens(2),
                             {floats.data(), {2}},
                             {starts(3), tokens(0)},
                             {floats.data(), {0}}};
  REQUIRE(shape_error(backend, logprobs) == "nothing thrown");
  const auto wrong = [&](TokenLogprobsArgs args, auto change, const std::string& name) {
    change(args);
    REQUIRE_THAT(shape_error(backend, args), Contains("token_logprobs: '" + name + "'"));
  };
  wrong(
      logprobs, [&](auto& args) { args.tokens = tokens(1); }, "tokens");
  wrong(
      logprobs, [&](auto& args) { args.logprobs.extents[0] = 1; }, "logprobs");
  wrong(
      logprobs, [&](auto& args) { args.chosen.starts = starts(2); }, "chosen.starts");
  wrong(
      logprobs, [&](auto& args) { args.chosen_logprobs.extents[0] = 1; }, "chosen_logprobs");
  if constexpr (B::kAsynchronous) backend.synchronize();
}

}  // namespace nanovllm::test::ops
