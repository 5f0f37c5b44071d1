// Sessions and their engine may go at the same time, on threads of their own.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "kv_stats.hpp"
#include "nanovllm/with/sessions.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

using TestEngine = Engine<AnyModel, Float32Policy>;

EngineConfig config(bool overlap) {
  return {.model = model_directory(kRandomModels[0]),
          .num_threads = 1,
          .max_model_len = 64,
          .kv_size = KvSize::blocks(16),
          .overlap = overlap};
}

const char* const kGone = "session: its engine is gone";

/// Turns, forks and ends of sessions until the engine is gone.
void use(Session session, std::uint64_t seed, std::atomic<int>& num_begun) {
  const SamplingParams params{
      .temperature = 1.f, .seed = seed, .max_tokens = 20, .ignore_eos = true};
  try {
    while (true) {
      const Output output = session.generate(random_prompt(seed, 9, 64), params);
      ++num_begun;
      const std::string refused = "the engine is being destroyed and takes no more requests";
      if (output.finish_reason == FinishReason::error && output.error != refused)
        throw Error("a turn failed: " + output.error);
      Session other = session.fork();
      if (seed % 2 == 0) std::swap(session, other);
      other.submit(random_prompt(seed, 5, 64), params);  // goes in its turn
      session.clear();
    }
  } catch (const RequestError&) {
  } catch (const Error& error) {
    if (error.what() != std::string(kGone)) throw;
  }
}

}  // namespace

TEST_CASE("an engine goes while its sessions are used, and waits for them", "[session][threads]") {
  const bool overlap = GENERATE(false, true);
  for (int round = 0; round < 6; ++round) {
    std::optional<TestEngine> engine(config(overlap));
    std::atomic<int> num_begun = 0, num_left = 0;
    std::vector<std::thread> threads;
    for (std::uint64_t i = 0; i < 3; ++i) {
      threads.emplace_back([&, i, session = Session(*engine)]() mutable {
        use(std::move(session), i, num_begun);
        ++num_left;
      });
    }
    while (num_begun == 0) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(round));
    engine.reset();
    for (std::thread& thread : threads) thread.join();
    CHECK(num_left == 3);
  }
}

TEST_CASE("the first sessions of an engine may be opened by several threads at once",
          "[session][threads]") {
  for (int round = 0; round < 6; ++round) {
    TestEngine engine(config(false));
    std::atomic<int> num_ready = 0;
    std::vector<std::optional<Session>> sessions(4);
    std::vector<std::thread> threads;
    for (auto& session : sessions) {
      threads.emplace_back([&] {
        for (++num_ready; num_ready < std::ssize(sessions);) std::this_thread::yield();
        session.emplace(engine);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (std::uint64_t i = 0; auto& session : sessions) {
      const Output output = session->generate(random_prompt(++i, 9, 64), {.max_tokens = 2});
      CHECK(output.error.empty());
      CHECK(session->tokens().size() > 9);
    }
    engine.check_invariants();
    CHECK(session_kv(engine.stats()).num_blocks > 0);
  }
}

TEST_CASE("a turn on another thread is aborted when the engine goes", "[session][threads]") {
  std::optional<TestEngine> engine(config(GENERATE(false, true)));
  Session session(*engine);
  std::atomic<bool> has_begun = false;
  Output output;
  std::thread thread([&] {
    const auto hear = [&](const TokenEvent&) {
      has_begun = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    };
    output =
        session.generate(random_prompt(1, 3, 64), {.max_tokens = 60, .ignore_eos = true}, hear);
  });
  while (!has_begun) std::this_thread::yield();
  engine.reset();
  thread.join();
  CHECK(output.finish_reason == FinishReason::abort);
  CHECK(output.token_ids.size() < 60);
  CHECK_FALSE(session.is_busy());
  CHECK(session.tokens().empty());
  CHECK_THROWS_WITH(session.clear(), kGone);
}
