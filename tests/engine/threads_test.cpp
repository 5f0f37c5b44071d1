// The law of threads: while a thread is in `run`, every request ends, whoever else calls `step`,
// `generate`, `submit`, `abort` and turns of sessions.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/with/sessions.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

using namespace std::chrono_literals;
using TestEngine = Engine<AnyModel, Float32Policy>;
using Random = std::mt19937;

EngineConfig config(bool overlap) {
  return {.model = model_directory(kRandomModels[0]),
          .num_threads = 1,
          .max_num_seqs = 6,
          .max_model_len = 64,
          .overlap = overlap,
          .seed = 1};
}

int below(Random& random, int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); }

Prompt any_prompt(Random& random) {
  return random_prompt(random(), static_cast<std::size_t>(1 + below(random, 12)), 64);
}

SamplingParams tokens(int count) { return {.max_tokens = count, .ignore_eos = true}; }
SamplingParams any_params(Random& random) { return tokens(1 + below(random, 8)); }

/// Waits until `is_done`, for half a minute at the most: a stalled request would wait for ever.
bool comes(const std::function<bool()>& is_done) {
  for (int i = 0; i < 30'000 && !is_done(); ++i) std::this_thread::sleep_for(1ms);
  return is_done();
}

/// Calls `use` on a thread until `stop` is requested, with pauses in which `run` falls asleep.
template <class Use>
std::jthread repeat(std::uint32_t seed, std::atomic<int>& num_errors, Use use) {
  return std::jthread(
      [seed, use = std::move(use), &num_errors](const std::stop_token& stop) mutable {
        Random random(seed);
        try {
          while (!stop.stop_requested()) {
            use(random);
            std::this_thread::sleep_for(std::chrono::microseconds(below(random, 3000)));
          }
        } catch (...) {
          ++num_errors;
        }
      });
}

}  // namespace

TEST_CASE("defect: run stalls what another caller of step took and left", "[threads]") {
  TestEngine engine(config(GENERATE(false, true)));
  const std::jthread server([&](const std::stop_token& stop) { engine.run(stop); });
  for (int round = 0; round < 50; ++round) {
    std::this_thread::sleep_for(2ms);  // run falls asleep
    std::atomic<bool> has_ended = false;
    engine.submit(std::vector<TokenId>{1, 2, 3}, tokens(40), [&](const TokenEvent& event) {
      if (event.output != nullptr) has_ended = true;
    });
    engine.generate(std::vector<TokenId>{4, 5}, tokens(1));
    INFO("round " << round);
    const bool ended = comes([&] { return has_ended.load(); });
    if (!ended) engine.generate(std::vector<TokenId>{4, 5}, tokens(50));  // which serves it, too
    REQUIRE(ended);
  }
}

TEST_CASE("a thread that leaves run takes no other's wake-up with it", "[threads]") {
  TestEngine engine(config(GENERATE(false, true)));
  const std::jthread server([&](const std::stop_token& stop) { engine.run(stop); });
  for (int round = 0; round < 50; ++round) {
    std::atomic<bool> has_ended = false;
    {
      std::jthread guest([&](const std::stop_token& stop) { engine.run(stop); });
      std::this_thread::sleep_for(2ms);  // both fall asleep
      engine.submit(std::vector<TokenId>{1, 2, 3}, tokens(40), [&](const TokenEvent& event) {
        if (event.output != nullptr) has_ended = true;
      });
      guest.request_stop();
    }
    INFO("round " << round);
    const bool ended = comes([&] { return has_ended.load(); });
    if (!ended) engine.generate(std::vector<TokenId>{4, 5}, tokens(50));
    REQUIRE(ended);
  }
}

TEST_CASE("while a thread is in run, every request ends", "[threads]") {
  const bool overlap = GENERATE(false, true);
  const auto seed = GENERATE(std::uint32_t{1}, 2, 3);
  CAPTURE(overlap, seed);
  TestEngine engine(config(overlap));
  std::atomic<int> num_submitted = 0, num_ended = 0, num_errors = 0;
  const auto count_end = [&](const TokenEvent& event) {
    if (event.output != nullptr) ++num_ended;
  };
  // Eight threads. None but the first steps until its requests have ended.
  std::jthread server([&](const std::stop_token& stop) { engine.run(stop); });
  std::vector<std::jthread> users;
  users.push_back(repeat(seed, num_errors, [&](Random& random) {  // some of them twice
    ++num_submitted;
    engine.submit(any_prompt(random), any_params(random), [&](const TokenEvent& event) {
      if (event.output != nullptr && event.output->token_ids.size() == 3) {
        ++num_submitted;
        engine.submit(std::vector<TokenId>{7}, tokens(2), count_end);
      }
      count_end(event);
    });
  }));
  users.push_back(repeat(seed + 10, num_errors, [&](Random& random) {  // some taken back
    ++num_submitted;
    const RequestId id = engine.submit(any_prompt(random), tokens(20), count_end);
    if (below(random, 2) == 0) engine.abort(id);
  }));
  users.push_back(repeat(seed + 20, num_errors, [&](Random& random) {
    const Output output = engine.generate(any_prompt(random), any_params(random));
    if (output.finish_reason != FinishReason::length) ++num_errors;
  }));
  users.push_back(repeat(seed + 30, num_errors, [&](Random& random) {  // and inside a callback
    ++num_submitted;
    engine.submit(any_prompt(random), tokens(2), [&](const TokenEvent& event) {
      if (event.token != nullptr) engine.generate(std::vector<TokenId>{9}, tokens(1));
      count_end(event);
    });
  }));
  users.push_back(repeat(seed + 40, num_errors, [&](Random&) { engine.step(); }));
  users.push_back(
      repeat(seed + 50, num_errors, [&, session = Session(engine)](Random& random) mutable {
        const Output output = session.generate(any_prompt(random), any_params(random));
        if (output.finish_reason != FinishReason::length) ++num_errors;
        session.clear();
      }));
  users.push_back(
      repeat(seed + 60, num_errors, [&, session = Session(engine)](Random& random) mutable {
        ++num_submitted;
        session.submit(any_prompt(random), any_params(random), count_end);
        if (!comes([&] { return !session.is_busy(); })) ++num_errors;
        session.clear();
      }));
  std::this_thread::sleep_for(600ms);
  for (std::jthread& user : users) user.request_stop();
  users.clear();
  const bool all_ended = comes([&] { return num_ended == num_submitted; });
  CHECK(all_ended);
  CHECK(num_submitted > 20);
  CHECK(num_errors == 0);
  server.request_stop();
  server.join();
  engine.check_invariants();
  CHECK(engine.stats().num_waiting + engine.stats().num_running == 0);
}
