// The law of salts: two salts never share a block, in any tier of the prefix cache, while one salt
// shares as all do without. What is generated does not depend on it.

#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "kv_stats.hpp"
#include "nanovllm/with/radix/radix_prefix_cache.hpp"
#include "nanovllm/with/sessions.hpp"
#include "nanovllm/with/sessions/kv_file.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

using HashPolicy = PolicyWith<FullFloat32Policy, 8>;
struct RadixPolicy : HashPolicy {
  template <int kBlockSize>
  using PrefixCache = RadixPrefixCache<kBlockSize>;
};
template <class Policy>
using TestEngine = Engine<AnyModel, Policy>;

struct Folder {
  Folder() { fs::remove_all(path); }
  ~Folder() { fs::remove_all(path); }
  fs::path path = fs::temp_directory_path() / concat("nanovllm_salt_", ::getpid());
};

EngineConfig config() {
  return {.model = model_directory("fairytale"),
          .num_threads = 1,
          .max_model_len = 128,
          .kv_size = KvSize::blocks(64)};
}

std::vector<TokenId> tokens_of(std::uint64_t seed, std::size_t length = 43) {
  return random_prompt(seed, length, 4000);
}

Prompt salted(std::vector<TokenId> tokens, std::string salt) {
  Prompt prompt(std::move(tokens));
  prompt.cache_salt = std::move(salt);
  return prompt;
}

SamplingParams greedy(std::int32_t max_tokens = 4) {
  return {.temperature = 0.f, .max_tokens = max_tokens, .ignore_eos = true, .logprobs = 0};
}

/// Serves what pushes all else out of a pool of few blocks, and waits for the disk.
template <class Engine>
void fill_pool(Engine& engine) {
  for (std::uint64_t seed = 900; seed < 904; ++seed)
    CHECK(engine.generate(tokens_of(seed, 60), greedy()).error == "");
  for (int i = 0; i < 200; ++i) {
    static_cast<void>(engine.step());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

const std::array<std::string, 4> kSalts = {"", "alice", "bob", "Alice"};

}  // namespace

TEMPLATE_TEST_CASE("a prompt finds what was computed with its salt, and nothing else",
                   "[laws][cache_salt]", HashPolicy, RadixPolicy) {
  EngineConfig c = config();
  c.overlap = GENERATE(false, true);
  TestEngine<TestType> engine(c);
  std::optional<Trace> expected;
  std::optional<std::int32_t> num_found;
  for (const std::string& salt : kSalts) {
    for (int round = 0; round < 2; ++round) {
      CAPTURE(salt, round);
      const Output output = engine.generate(salted(tokens_of(1), salt), greedy());
      REQUIRE(output.error == "");
      const Trace trace = trace_of(output);
      if (!expected) expected = trace;
      CHECK(trace.tokens == expected->tokens);
      CHECK(trace.logprobs == expected->logprobs);
      if (round == 0) {
        CHECK(output.num_cached_tokens == 0);
      } else {
        CHECK(output.num_cached_tokens >= 32);
        CHECK(output.num_cached_tokens == num_found.value_or(output.num_cached_tokens));
        num_found = output.num_cached_tokens;
      }
      engine.check_invariants();
    }
  }
}

TEMPLATE_TEST_CASE("samples and beams of a salted prompt share its blocks, and no others do",
                   "[laws][cache_salt]", HashPolicy, RadixPolicy) {
  TestEngine<TestType> engine(config());
  SamplingParams params = greedy(12);
  if (GENERATE(false, true)) {
    params.beam_width = 3;
  } else {
    params.temperature = 1.f;
    params.seed = 3;
    params.n = 3;
  }
  params.logprobs.reset();
  const auto answer_of = [&](const std::string& salt) {
    const Output output = engine.generate(salted(tokens_of(1), salt), params);
    CHECK(output.error == "");
    std::vector<std::vector<TokenId>> answer{output.token_ids};
    for (const Completion& other : output.alternatives) answer.push_back(other.token_ids);
    engine.check_invariants();
    return std::pair(answer, output.num_cached_tokens);
  };
  const auto first = answer_of("alice"), again = answer_of("alice"), other = answer_of("bob");
  CHECK((first.first == again.first && first.first == other.first));
  CHECK((first.second == 0 && again.second >= 32 && other.second == 0));
}

TEMPLATE_TEST_CASE("a prefix in host memory is found with its salt alone", "[laws][cache_salt]",
                   HashPolicy, RadixPolicy) {
  EngineConfig c = config();
  c.kv_size = KvSize::blocks(16);
  c.extras.set(HostKv{KvSize::blocks(64)});
  TestEngine<TestType> engine(c);
  const Trace expected = trace_of(engine.generate(salted(tokens_of(1), "alice"), greedy()));
  fill_pool(engine);
  for (const char* salt : {"bob", "", "alice"}) {
    CAPTURE(salt);
    const std::int64_t before = host_kv(engine.stats()).num_hit_tokens;
    const Output output = engine.generate(salted(tokens_of(1), salt), greedy());
    CHECK(trace_of(output).tokens == expected.tokens);
    const bool is_hers = std::string(salt) == "alice";
    CHECK((output.num_cached_tokens > 0) == is_hers);
    CHECK((host_kv(engine.stats()).num_hit_tokens > before) == is_hers);
    engine.check_invariants();
  }
}

TEMPLATE_TEST_CASE("a prefix on disk is found with its salt alone", "[laws][cache_salt]",
                   HashPolicy, RadixPolicy) {
  const Folder folder;
  EngineConfig c = config();
  c.kv_size = KvSize::blocks(16);
  c.extras.set(HostKv{KvSize::blocks(32)});
  c.extras.edit<DiskKv>().path = folder.path;
  c.extras.edit<DiskKv>().min_tokens = 1;
  std::optional<Trace> expected;
  {
    TestEngine<TestType> engine(c);
    expected = trace_of(engine.generate(salted(tokens_of(1), "alice"), greedy()));
    fill_pool(engine);
  }
  TestEngine<TestType> engine(c);
  for (const char* salt : {"bob", "", "alice"}) {
    CAPTURE(salt);
    const std::int64_t before = disk_kv(engine.stats()).num_hit_tokens;
    const Output output = engine.generate(salted(tokens_of(1), salt), greedy());
    CHECK(trace_of(output).tokens == expected->tokens);
    const bool is_hers = std::string(salt) == "alice";
    CHECK((output.num_cached_tokens > 0) == is_hers);
    CHECK((disk_kv(engine.stats()).num_hit_tokens > before) == is_hers);
    engine.check_invariants();
  }
  CHECK(disk_kv(engine.stats()).num_failures == 0);
}

TEST_CASE("requests of several salts wait for nothing that another reads from the disk",
          "[laws][cache_salt]") {
  const Folder folder;
  EngineConfig c = config();
  c.kv_size = KvSize::blocks(16);
  c.extras.set(HostKv{KvSize::blocks(32)});
  c.extras.edit<DiskKv>().path = folder.path;
  c.extras.edit<DiskKv>().min_tokens = 1;
  {
    TestEngine<HashPolicy> engine(c);
    CHECK(engine.generate(salted(tokens_of(1), "alice"), greedy()).error == "");
    fill_pool(engine);
  }
  TestEngine<HashPolicy> engine(c);
  std::vector<Prompt> prompts;
  for (const char* salt : {"alice", "bob", "alice", ""})
    prompts.push_back(salted(tokens_of(1), salt));
  const std::vector<Output> outputs = engine.generate(prompts, greedy());
  for (const Output& output : outputs) CHECK(output.token_ids == outputs[0].token_ids);
  CHECK(outputs[0].num_cached_tokens > 0);
  CHECK(outputs[1].num_cached_tokens == 0);
  CHECK(outputs[2].num_cached_tokens > 0);
  CHECK(outputs[3].num_cached_tokens == 0);
  engine.check_invariants();
}

TEMPLATE_TEST_CASE("the file of a prefix cache keeps its salts", "[laws][cache_salt]", HashPolicy,
                   RadixPolicy) {
  const Folder folder;
  {
    TestEngine<TestType> engine(config());
    for (const char* salt : {"alice", ""})
      CHECK(engine.generate(salted(tokens_of(1), salt), greedy()).error == "");
    save_cache(engine, folder.path);
  }
  TestEngine<TestType> engine(config());
  CHECK(load_cache(engine, folder.path) >= 10);
  engine.check_invariants();
  for (const std::string& salt : kSalts) {
    CAPTURE(salt);
    const Output output = engine.generate(salted(tokens_of(1), salt), greedy());
    CHECK((output.num_cached_tokens > 0) == (salt == "alice" || salt.empty()));
  }
}

TEMPLATE_TEST_CASE("a conversation keeps the salt of its first prompt", "[laws][cache_salt]",
                   HashPolicy, RadixPolicy) {
  TestEngine<TestType> engine(config());
  Session session(engine);
  CHECK(session.generate(salted(tokens_of(1), "alice"), greedy()).error == "");
  const auto num_found = [&](const std::vector<TokenId>& tokens, const char* salt) {
    return engine.generate(salted(tokens, salt), greedy(1)).num_cached_tokens;
  };
  // What it has said is in the cache with its salt alone.
  std::vector<TokenId> said = session.tokens();
  CHECK(num_found(said, "") == 0);
  CHECK(num_found(said, "bob") == 0);
  CHECK(num_found(said, "alice") >= 32);

  CHECK(session.generate(tokens_of(2, 9), greedy()).num_cached_tokens >= 43);
  CHECK(session.generate(salted(tokens_of(3, 9), "alice"), greedy()).num_cached_tokens >= 52);
  const Output refused = session.generate(salted(tokens_of(4, 9), "bob"), greedy());
  CHECK(refused.finish_reason == FinishReason::error);
  CHECK_THAT(refused.error, Contains("cache_salt must be that of the conversation's first prompt"));
  CHECK_THROWS_AS(session.append(salted(tokens_of(4, 9), "bob")), RequestError);

  Session fork = session.fork();
  CHECK(fork.generate(salted(tokens_of(4, 9), "bob"), greedy()).finish_reason ==
        FinishReason::error);
  CHECK(fork.generate(tokens_of(5, 9), greedy()).num_cached_tokens >= 60);
  said = fork.tokens();
  CHECK(num_found(said, "alice") > num_found(said, ""));

  session.clear();
  CHECK(session.generate(salted(tokens_of(6), "bob"), greedy()).error == "");
  CHECK(num_found(session.tokens(), "bob") >= 32);
  CHECK(num_found(session.tokens(), "alice") == 0);

  Session plain(engine);
  plain.append(tokens_of(7));
  const Output late = plain.generate(salted(tokens_of(8, 9), "alice"), greedy());
  CHECK_THAT(late.error, Contains("which had none"));
  Session appended(engine);
  appended.append(salted(tokens_of(7), "alice"));
  CHECK(appended.generate(tokens_of(8, 9), greedy()).num_cached_tokens == 0);
  CHECK(num_found(appended.tokens(), "alice") >= 32);
  CHECK(num_found(appended.tokens(), "") == 0);
  engine.check_invariants();
}

TEMPLATE_TEST_CASE("the file of a conversation keeps its salt", "[laws][cache_salt]", HashPolicy,
                   RadixPolicy) {
  const Folder folder;
  fs::create_directories(folder.path);
  const fs::path path = folder.path / "session";
  std::vector<TokenId> said;
  {
    TestEngine<TestType> engine(config());
    Session session(engine);
    CHECK(session.generate(salted(tokens_of(1), "alice"), greedy()).error == "");
    session.save(path);
    said = session.tokens();
  }
  TestEngine<TestType> engine(config());
  Session session = Session::load(engine, path);
  CHECK(session.tokens() == said);
  for (const char* salt : {"", "bob", "alice"}) {
    CAPTURE(salt);
    const Output output = engine.generate(salted(said, salt), greedy(1));
    CHECK((output.num_cached_tokens > 0) == (std::string(salt) == "alice"));
  }
  CHECK(session.generate(salted(tokens_of(2, 9), "bob"), greedy()).finish_reason ==
        FinishReason::error);
  CHECK(session.generate(salted(tokens_of(2, 9), "alice"), greedy()).num_cached_tokens >= 43);
}

TEST_CASE("a file's salt that is none is refused", "[cache_salt]") {
  const Folder folder;
  fs::create_directories(folder.path);
  TestEngine<HashPolicy> engine(config());
  Session(engine).save(folder.path / "good");
  SectionReader good(folder.path / "good", kKvFormat);
  Json header = parse_json(good.read_text("the header"), "the header");
  header["cache_salt"] = "alice";
  SectionWriter bad(folder.path / "bad", kKvFormat);
  bad.write(header.dump());
  bad.finish();
  CHECK_THROWS_AS(Session::load(engine, folder.path / "bad"), LoadError);
  CHECK_THROWS_WITH(Session::load(engine, folder.path / "bad"),
                    Contains("expected a cache_salt of 64 hexadecimal digits, got \"alice\""));
}

TEST_CASE("the entries of a prefix cache come back from a file with their salts", "[cache_salt]") {
  const Folder folder;
  fs::create_directories(folder.path);
  const fs::path path = folder.path / "entries";
  const auto read = [&](const std::vector<TokenId>& section) {
    SectionWriter out(path, kKvFormat);
    write_tokens(out, section);
    out.finish();
    SectionReader in(path, kKvFormat);
    return read_entries(in, 2, 100);
  };
  {
    SectionWriter out(path, kKvFormat);
    write_entries(out, std::vector<CachedBlock>{{.tokens = {1, 2}},
                                                {.tokens = {1, 2}, .salt = CacheSalt::of("alice")},
                                                {.parent = 1, .tokens = {3}},
                                                {.tokens = {4}, .salt = CacheSalt::of("bob")}});
    out.finish();
  }
  SectionReader in(path, kKvFormat);
  const std::vector<CachedBlock> entries = read_entries(in, 2, 100);
  REQUIRE(entries.size() == 4);
  CHECK((!entries[0].salt && !entries[2].salt));
  CHECK((entries[1].salt == CacheSalt::of("alice") && entries[3].salt == CacheSalt::of("bob")));
  CHECK((entries[1].parent == -1 && entries[2].parent == 1 && entries[3].parent == -1));
  CHECK((entries[1].tokens == std::vector<TokenId>{1, 2} && entries[3].tokens.size() == 1));

  CHECK(read({-2, 9, 9, 9, 9, 9, 9, 9, 9, 1, 7}).front().salt);
  CHECK_THROWS_WITH(read({-2, 9, 9, 9}), Contains("expected a salt of 8 numbers, got 3"));
  CHECK_THROWS_AS(read({-2, 9, 9, 9, 9, 9, 9, 9, 9}), LoadError);
  CHECK_THROWS_AS(read({-2, 9, 9, 9, 9, 9, 9, 9, 9, 3, 1, 1, 1}), LoadError);
  CHECK_THROWS_AS(read({-3, 1, 7}), LoadError);
}

TEST_CASE("a salt that is too long is refused", "[cache_salt]") {
  TestEngine<HashPolicy> engine(config());
  const auto output_of = [&](std::size_t length) {
    return engine.generate(salted(tokens_of(1), std::string(length, 'x')), greedy());
  };
  CHECK(output_of(kMaxCacheSaltBytes).error == "");
  CHECK(output_of(kMaxCacheSaltBytes + 1).error ==
        "cache_salt must have at most 512 bytes, got 513");
  CHECK_THROWS_AS(engine.submit(salted(tokens_of(1), std::string(513, 'x'))), RequestError);
}
