// How many tokens a step drafts, on made-up machines.

#include "nanovllm/with/speculation/draft_length.hpp"

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "catch.hpp"

using namespace nanovllm;

namespace {

/// A machine, requests and drafts: seconds of a step by its rows and whether it drafts, how likely a
/// token is drawn as drafted, and how many of those asked for are drafted.
struct Machine {
  std::function<double(double rows, bool drafts)> seconds;
  std::int32_t num_sequences = 1;
  double rate = 0.7;
  double share = 1;
  std::int32_t num_rows = 2048;
  bool plans_ahead = false;  ///< steps that do not draft, while the one before is computed
};

struct Run {
  std::map<std::int32_t, int> num_steps;  ///< by length, of the second half
  double tokens_a_second = 0;

  [[nodiscard]] std::int32_t usual() const {
    std::int32_t most = 0;
    int count = 0;
    for (const auto& [length, steps] : num_steps)
      if (steps > count) most = length, count = steps;
    return most;
  }
};

/// Steps with the mean of what chance would give.
Run run(const Machine& machine, std::int32_t max, bool adaptive = true, int num_steps = 2000) {
  DraftLength length(max, adaptive);
  std::vector<Acceptance> all(static_cast<std::size_t>(machine.num_sequences));
  std::vector<const Acceptance*> sequences;
  for (const Acceptance& one : all) sequences.push_back(&one);
  Run out;
  double tokens = 0, seconds = 0, owed_accepted = 0, owed_drafted = 0;
  std::function<void()> finish_step;  // the one before
  const auto choose = [&] { return length.choose(sequences, 0, machine.num_rows); };
  for (int i = 0; i < num_steps; ++i) {
    const bool is_ahead = machine.plans_ahead && finish_step && choose() == 0;
    if (finish_step) finish_step();
    const std::int32_t k = is_ahead ? 0 : choose();
    std::int64_t rows = machine.num_sequences;
    for (Acceptance& one : all) {
      tokens += 1;
      if (k == 0) continue;
      owed_drafted += machine.share * k;
      const auto drafted = static_cast<std::int32_t>(std::min<double>(k, owed_drafted));
      owed_drafted -= drafted;
      owed_accepted += machine.rate * (1 - std::pow(machine.rate, drafted)) / (1 - machine.rate);
      const auto accepted = static_cast<std::int32_t>(std::min<double>(drafted, owed_accepted));
      owed_accepted -= accepted;
      one.add(k, drafted, accepted, accepted < drafted);
      length.all().add(k, drafted, accepted, accepted < drafted);
      rows += drafted;
      tokens += accepted;
    }
    const double time = machine.seconds(static_cast<double>(rows), k > 0);
    seconds += time;
    finish_step = [&length, k, rows, time] {
      length.measure(k, rows, time);
      length.count(k);
    };
    if (i >= num_steps / 2) ++out.num_steps[k];
  }
  out.tokens_a_second = tokens / seconds;
  return out;
}

double memory_bound(double rows, bool) { return 4e-3 * (1 + 0.003 * rows); }

}  // namespace

TEST_CASE("rows that cost little are drafted, more the likelier they are", "[draft_length]") {
  CHECK(run({.seconds = memory_bound, .rate = 0.8}, 7).usual() == 7);
  const std::int32_t rarely = run({.seconds = memory_bound, .rate = 0.2}, 7).usual();
  CHECK(rarely >= 1);
  CHECK(rarely <= 4);
}

TEST_CASE("rows that cost as much as steps are not drafted", "[draft_length]") {
  const auto proportional = [](double rows, bool) { return 1e-3 * rows; };
  for (const std::int32_t num_sequences : {1, 8, 64}) {
    const Run with = run({.seconds = proportional, .num_sequences = num_sequences, .rate = 0.5}, 5);
    CHECK(with.usual() == 0);
    CHECK(with.tokens_a_second > 0.98 * 1e3);  // what probes and the first steps cost
  }
}

TEST_CASE("a load that fills the machine turns drafts off, and a small one on", "[draft_length]") {
  const auto roofline = [](double rows, bool) { return std::max(4e-3, 2e-5 * rows); };
  CHECK(run({.seconds = roofline, .num_sequences = 1}, 5).usual() == 5);
  CHECK(run({.seconds = roofline, .num_sequences = 16}, 5).usual() == 5);
  CHECK(run({.seconds = roofline, .num_sequences = 200}, 5).usual() == 0);
  // 100 sequences have room for one more row each.
  CHECK(run({.seconds = roofline, .num_sequences = 100, .rate = 0.6}, 5).usual() == 1);
}

TEST_CASE("the cost of not planning ahead counts", "[draft_length]") {
  const auto host = [](double rows, bool drafts) {
    return memory_bound(rows, false) + (drafts ? 4e-3 : 0);
  };
  CHECK(run({.seconds = host, .rate = 0.3}, 5).usual() == 0);
  CHECK(run({.seconds = host, .rate = 0.9}, 5).usual() == 5);
}

TEST_CASE("a drafter that has nothing to say costs its probes", "[draft_length]") {
  const auto slower = [](double rows, bool drafts) {
    return memory_bound(rows, drafts) * (drafts ? 1.1 : 1);
  };
  const Run with = run({.seconds = slower, .share = 0}, 5);
  CHECK(with.usual() == 0);
  CHECK(with.tokens_a_second > 0.98 / memory_bound(1, false));
  CHECK(with.num_steps.size() > 1);  // it is asked now and then
}

TEST_CASE("what drafts are worth is tried where steps are planned ahead, too", "[draft_length]") {
  const auto proportional = [](double rows, bool) { return 1e-3 * rows; };
  const Run never = run({.seconds = proportional, .rate = 0.5, .plans_ahead = true}, 5);
  CHECK(never.usual() == 0);
  CHECK(never.num_steps.size() > 1);
  CHECK(never.tokens_a_second > 0.98 * 1e3);
  CHECK(run({.seconds = memory_bound, .rate = 0.8, .plans_ahead = true}, 7).usual() == 7);
}

TEST_CASE("a fixed length is always the same", "[draft_length]") {
  const auto proportional = [](double rows, bool) { return 1e-3 * rows; };
  const Run with = run({.seconds = proportional, .rate = 0.1}, 3, false);
  CHECK(with.num_steps.size() == 1);
  CHECK(with.usual() == 3);
  const DraftLength length(3, false);
  CHECK(length.choose({}, 4, 100) == 0);
  const Acceptance one;
  const std::vector<const Acceptance*> four(4, &one);
  CHECK(length.choose(four, 2, 100) == 3);
  CHECK(length.choose(four, 2, 15) == 2);
  CHECK(length.choose(four, 2, 7) == 1);  // of one sequence
  CHECK(length.choose(four, 2, 6) == 0);
}

TEST_CASE("times between two that were measured are on a line", "[draft_length]") {
  StepSeconds seconds;
  CHECK(!seconds.at(4));
  CHECK(!seconds.knows(4));
  seconds.add(4, 1000.0);  // the first one may record a graph
  CHECK(!seconds.knows(4));
  seconds.add(4, 1.0);
  CHECK(seconds.at(1) == 1.0);
  CHECK(seconds.at(9) == 1.0);
  seconds.add(8, 1000.0);
  CHECK(seconds.at(9) == 1.0);
  seconds.add(8, 3.0);
  CHECK(seconds.at(6) == 2.0);
  CHECK(seconds.at(100) == 3.0);
  CHECK(seconds.at(3, 0.5, 2) == 0.75);  // half way from 2 rows to 4
  CHECK(seconds.knows(2));
  CHECK(seconds.knows(16));
  CHECK(!seconds.knows(17));
  CHECK(!seconds.knows(1));
  for (int i = 0; i < 100; ++i) seconds.add(8, 5.0);
  CHECK(*seconds.at(8) == Approx(5.0));
  seconds.add(8, 1000.0);  // one that was disturbed
  CHECK(*seconds.at(8) < 9);
}
