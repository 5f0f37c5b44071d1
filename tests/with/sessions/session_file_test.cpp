// Sessions and prefix caches that go to a file and come back, in this process and in another.

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "kv_stats.hpp"
#include "nanovllm/with/radix/radix_prefix_cache.hpp"
#include "nanovllm/with/sessions.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
namespace fs = std::filesystem;

namespace {

template <class Cache, int kBlockSize = 16>
struct CachePolicy : Float32Policy {
  template <int>
  using PrefixCache = Cache;
  using Ranks = ThreadRanks;
  static constexpr KvConfig kv{.block_size = kBlockSize};
};
using HashPolicy = CachePolicy<HashPrefixCache<16>>;
using RadixPolicy = CachePolicy<RadixPrefixCache<16>>;
using UncachedPolicy = CachePolicy<NoPrefixCache<16>>;
using SmallBlocksPolicy = CachePolicy<NoPrefixCache<5>, 5>;
struct HalfKvPolicy : UncachedPolicy {
  using KvElement = bf16;
};
template <class Policy>
using TestEngine = Engine<AnyModel, Policy>;

EngineConfig config() {
  return {.model = model_directory("fairytale"),
          .num_threads = 2,
          .max_model_len = 256,
          .kv_size = KvSize::blocks(64)};
}

SamplingParams sampled(std::int32_t max_tokens = 9) {
  return {
      .temperature = 1.f, .seed = 7, .max_tokens = max_tokens, .ignore_eos = true, .logprobs = 0};
}

std::vector<TokenId> tokens_of(std::uint64_t seed, std::size_t length) {
  return random_prompt(seed, length, 4000);
}

struct Folder {
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  [[nodiscard]] std::size_t num_files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(path), fs::directory_iterator()));
  }
  fs::path path = fs::temp_directory_path() / concat("nanovllm_session_", ::getpid());
};

/// Tokens and log-probabilities to the bit.
std::string bits_of(const Output& output) {
  std::string out = output.error;
  for (const TokenLogprobs& l : output.logprobs) {
    std::array<char, 64> text{};
    std::snprintf(text.data(), text.size(), "%d:%a ", l.token_id, static_cast<double>(l.logprob));
    out += text.data();
  }
  return out;
}

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void put(const fs::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

template <class Work>
std::string fault_of(const Work& work) {
  try {
    work();
  } catch (const LoadError& error) {
    return error.what();
  }
  return "none";
}

}  // namespace

TEST_CASE("files of conversations and of prefix caches have mode 0600", "[session_file]") {
  const Folder folder;
  const mode_t before = ::umask(0);
  TestEngine<HashPolicy> engine(config());
  Session session(engine);
  session.generate(tokens_of(1, 37), sampled());
  session.save(folder.path / "session");
  save_cache(engine, folder.path / "cache");
  ::umask(before);
  CHECK(fs::status(folder.path / "session").permissions() == fs::perms(0600));
  CHECK(fs::status(folder.path / "cache" / "prefix_cache.kv").permissions() == fs::perms(0600));
  CHECK(fs::status(folder.path / "cache").permissions() == fs::perms(0700));
}

TEMPLATE_TEST_CASE("a session goes on to the bit as if it had not been saved", "[session_file]",
                   HashPolicy, RadixPolicy, UncachedPolicy) {
  const Folder folder;
  const fs::path path = folder.path / "session";
  EngineConfig c = config();
  c.overlap = GENERATE(false, true);
  TestEngine<TestType> engine(c);
  Session session(engine);
  session.generate(tokens_of(1, 37), sampled());
  session.save(path);
  CHECK(folder.num_files() == 1);
  const std::vector<TokenId> tokens = session.tokens();
  const Output expected = session.generate(tokens_of(2, 7), sampled());

  TestEngine<TestType> other(c);
  Session loaded = Session::load(other, path);
  CHECK(loaded.tokens() == tokens);
  CHECK(session_kv(other.stats()).num_blocks == 3);
  other.check_invariants();
  const Output output = loaded.generate(tokens_of(2, 7), sampled());
  CHECK(bits_of(output) == bits_of(expected));
  CHECK(output.num_cached_tokens == 45);
  CHECK(output.num_cached_tokens == expected.num_cached_tokens);
  CHECK(other.stats().num_prefill_tokens == 8);
  other.check_invariants();

  // Beside the one that it was saved from, more than once, and where there is no room.
  Session again = Session::load(engine, path), and_again = Session::load(engine, path);
  CHECK(bits_of(and_again.generate(tokens_of(2, 7), sampled())) == bits_of(expected));
  CHECK(bits_of(again.generate(tokens_of(2, 7), sampled())) == bits_of(expected));
  engine.check_invariants();
  const int most = GENERATE(0, 2);
  c.extras.set(SessionOptions{.max_blocks = most});
  TestEngine<TestType> small(c);
  Session cut = Session::load(small, path);
  CHECK(session_kv(small.stats()).num_blocks == most);
  CHECK(cut.generate(tokens_of(2, 7), sampled()).token_ids == expected.token_ids);
  small.check_invariants();
}

TEST_CASE("goes on with a saved session, as another process", "[.child]") {
  TestEngine<HashPolicy> engine(config());
  Session session = Session::load(engine, std::getenv("NANOVLLM_TEST_SESSION"));
  put(std::getenv("NANOVLLM_TEST_RESULT"), bits_of(session.generate(tokens_of(2, 7), sampled())));
}

TEST_CASE("a session goes on in another process", "[session_file]") {
  const Folder folder;
  const fs::path path = folder.path / "session", result = folder.path / "result";
  TestEngine<HashPolicy> engine(config());
  Session session(engine);
  session.generate(tokens_of(1, 37), sampled());
  session.save(path);
  const std::string program = fs::read_symlink("/proc/self/exe").string();
  const std::string command =
      concat("NANOVLLM_TEST_SESSION='", path.string(), "' NANOVLLM_TEST_RESULT='", result.string(),
             "' '", program, "' '[.child]' > /dev/null");
  REQUIRE(std::system(command.c_str()) == 0);
  CHECK(content_of(result) == bits_of(session.generate(tokens_of(2, 7), sampled())));
}

TEST_CASE("neither block size nor ranks are part of a session's file", "[session_file]") {
  const Folder folder;
  const fs::path path = folder.path / "session";
  TestEngine<HashPolicy> engine(config());
  Session session(engine);
  session.generate(tokens_of(1, 37), sampled());
  session.save(path);
  const Output expected = session.generate(tokens_of(2, 7), sampled());
  TestEngine<SmallBlocksPolicy> blocks_of_five(config());
  EngineConfig c = config();
  c.tensor_parallel = 2;
  TestEngine<HashPolicy> two_ranks(c);
  Session small = Session::load(blocks_of_five, path), halves = Session::load(two_ranks, path);
  for (const Output& output :
       {small.generate(tokens_of(2, 7), sampled()), halves.generate(tokens_of(2, 7), sampled())}) {
    CHECK(output.token_ids == expected.token_ids);
    CHECK(output.num_cached_tokens == 45);
    for (std::size_t i = 0; i < expected.logprobs.size(); ++i)
      CHECK(output.logprobs[i].logprob == Approx(expected.logprobs[i].logprob).margin(1e-4));
  }
  // And back: two ranks' shares come together.
  halves = Session::load(two_ranks, path);
  halves.save(folder.path / "again");
  CHECK(content_of(folder.path / "again") == content_of(path));
}

TEST_CASE("messages are saved, and conversations without blocks", "[session_file]") {
  const Folder folder;
  const fs::path path = folder.path / "session";
  TestEngine<RadixPolicy> engine(config());
  Session session(engine);
  const std::vector<ChatMessage> hello{{"user", "Hello \"you\"\n"}};
  session.generate(hello, sampled());
  session.save(path);
  Session loaded = Session::load(engine, path);
  REQUIRE(loaded.messages().size() == 2);
  CHECK(loaded.messages()[0].fields().dump() == hello[0].fields().dump());
  CHECK(bits_of(loaded.generate(hello, sampled())) == bits_of(session.generate(hello, sampled())));

  const Session empty(engine);
  empty.save(path);
  CHECK(Session::load(engine, path).tokens().empty());
  Session appended(engine);
  appended.append(tokens_of(1, 20));
  appended.save(path);
  CHECK(Session::load(engine, path).tokens() == tokens_of(1, 20));
}

TEST_CASE("defect: a conversation that filled the context is saved and not loaded",
          "[session_file]") {
  const Folder folder;
  const fs::path file = folder.path / "full.kv";
  EngineConfig c = config();
  c.max_model_len = 64;
  TestEngine<HashPolicy> engine(c);
  Session session(engine);
  const Output output = session.generate(tokens_of(1, 40), sampled(100));
  REQUIRE(output.finish_reason == FinishReason::length);
  REQUIRE(session.tokens().size() == 64);
  session.save(file);
  Session loaded = Session::load(engine, file);
  CHECK(loaded.tokens() == session.tokens());
  for (Session* full : {&session, &loaded}) {  // neither has room for one more
    const Output more = full->generate(std::vector<TokenId>{}, sampled(1));
    CHECK(more.finish_reason == FinishReason::error);
    CHECK_THAT(more.error, Catch::Matchers::Contains("the prompt has 64 tokens"));
  }
  // Another engine has room, or not enough.
  c.max_model_len = 65;
  TestEngine<HashPolicy> larger(c);
  Session goes_on = Session::load(larger, file);
  const Output last = goes_on.generate(std::vector<TokenId>{}, sampled(5));
  CHECK(last.finish_reason == FinishReason::length);
  CHECK(last.num_cached_tokens == 63);
  c.max_model_len = 63;
  TestEngine<HashPolicy> smaller(c);
  CHECK_THROWS_WITH(Session::load(smaller, file),
                    Catch::Matchers::Contains("the conversation has 64 tokens, but at most 63"));
  CHECK(session_kv(smaller.stats()).num_blocks == 0);
}

TEST_CASE("a file that is altered or cut off anywhere changes nothing", "[session_file]") {
  const Folder folder;
  const fs::path path = folder.path / "session", bad = folder.path / "bad";
  TestEngine<HashPolicy> engine(config());
  Session session(engine);
  session.generate(tokens_of(1, 37), sampled());
  session.save(path);
  const std::string whole = content_of(path);
  const std::int64_t num_held = session_kv(engine.stats()).num_blocks;
  const auto refuses = [&](const std::string& content) {
    put(bad, content);
    return fault_of([&] { static_cast<void>(Session::load(engine, bad)); })
        .starts_with(concat("'", bad.string(), "': "));
  };
  const std::size_t step = whole.size() / 300;
  for (std::size_t at = 0; at < whole.size(); at += at < 1200 ? 1 : step) {
    CAPTURE(at);
    std::string altered = whole;
    altered[at] = static_cast<char>(altered[at] ^ 4);
    CHECK(refuses(altered));
    CHECK(refuses(whole.substr(0, at)));
  }
  CHECK(refuses(whole.substr(0, whole.size() - 1)));
  CHECK(refuses(whole + '\0'));
  CHECK(session_kv(engine.stats()).num_blocks == num_held);
  engine.check_invariants();
  CHECK_THROWS_AS(Session::load(engine, folder.path / "none"), LoadError);
}

TEST_CASE("a file of another model, checkpoint, type, version or kind is refused by name",
          "[session_file]") {
  const Folder folder;
  const fs::path path = folder.path / "session", model = folder.path / "model";
  TestEngine<HashPolicy> engine(config());
  Session session(engine);
  session.generate(tokens_of(1, 37), sampled());
  session.save(path);
  save_cache(engine, folder.path);
  const std::string of = concat("'", path.string(), "' is of another model: ");
  const auto fault = [&](auto& other) {
    return fault_of([&] { static_cast<void>(Session::load(other, path)); });
  };

  TestEngine<HalfKvPolicy> half(config());
  CHECK(fault(half) == of + "type of K/V: expected bfloat16, got float32");

  EngineConfig c = config();
  c.model = model_directory(kRandomModels[1]);
  c.max_model_len = 100;
  TestEngine<HashPolicy> another(c);
  CHECK(fault(another).starts_with(of + "K/V layers: expected "));

  // The same shapes; one byte of one weight differs.
  fs::copy(model_directory("fairytale"), model, fs::copy_options::recursive);
  fs::permissions(model, fs::perms::owner_all);
  for (const auto& entry : fs::directory_iterator(model)) {
    if (entry.path().extension() != ".safetensors") continue;
    fs::permissions(entry.path(), fs::perms::owner_all);
    std::string content = content_of(entry.path());
    content.back() = static_cast<char>(content.back() ^ 1);
    put(entry.path(), content);
  }
  c = config();
  c.model = model;
  TestEngine<HashPolicy> altered(c);
  CHECK(fault(altered).starts_with(of + "weights: expected "));

  const Qwen3Config shape = Qwen3Config::load(model_directory("fairytale"));
  TestEngine<HashPolicy> noise(shape, RandomWeights{3}, config());
  CHECK(fault(noise).find("weights: expected noise of seed 3, got ") != std::string::npos);

  std::string content = content_of(path);
  content[12] = 2;
  put(path, content);
  CHECK(fault(engine) == concat("'", path.string(), "': expected version 1, got 2"));
  const fs::path cache = folder.path / "prefix_cache.kv";
  CHECK(
      fault_of([&] { static_cast<void>(Session::load(engine, cache)); }) ==
      concat("'", cache.string(), "': expected the file of a session, got that of a prefix cache"));
}

TEST_CASE("a file that cannot be written leaves the one that was there", "[session_file]") {
  const Folder folder;
  TestEngine<HashPolicy> engine(config());
  Session session(engine);
  session.generate(tokens_of(1, 20), sampled());
  CHECK_THROWS_WITH(session.save(folder.path / "no" / "folder"),
                    Catch::Matchers::StartsWith("cannot write '"));
  const fs::path path = folder.path / "session";
  session.save(path);
  const std::string before = content_of(path);
  session.submit(tokens_of(2, 5), sampled());
  CHECK_THROWS_WITH(session.save(path),
                    Catch::Matchers::StartsWith("session: it was saved while a turn is under way"));
  CHECK(content_of(path) == before);
  CHECK(folder.num_files() == 1);
}

TEMPLATE_TEST_CASE("a prefix cache is found again as it was", "[session_file]", HashPolicy,
                   RadixPolicy) {
  const Folder folder;
  EngineConfig c = config();
  c.overlap = GENERATE(false, true);
  TestEngine<TestType> engine(c);
  for (std::uint64_t i = 0; i < 3; ++i) {
    std::vector<TokenId> prompt = tokens_of(1, 20 + 17 * i);
    for (const TokenId token : tokens_of(10 + i, 11)) prompt.push_back(token);
    engine.generate(prompt, sampled());
  }
  engine.submit(tokens_of(1, 60), sampled(30));  // a step may be under way
  for (int i = 0; i < 3; ++i) engine.step();
  save_cache(engine, folder.path / "cache");
  TestEngine<TestType> other(c);
  const std::int32_t num_blocks = load_cache(other, folder.path / "cache");
  CHECK(num_blocks >= 6);
  CHECK(other.stats().num_free_kv_blocks == 64);
  other.check_invariants();
  while (engine.step()) {
  }
  for (std::uint64_t i = 0; i < 4; ++i) {
    std::vector<TokenId> prompt = tokens_of(1, 19 + 17 * i);
    prompt.push_back(5);
    const Output expected = engine.generate(prompt, sampled());
    const Output output = other.generate(prompt, sampled());
    CHECK(bits_of(output) == bits_of(expected));
    CHECK(output.num_cached_tokens == expected.num_cached_tokens);
    CHECK(output.num_cached_tokens >= 16);
  }
  other.check_invariants();
  CHECK(load_cache(other, folder.path / "cache") == num_blocks);  // it had all of it
  other.check_invariants();
}

TEST_CASE("a prefix cache's file is refused where it does not fit", "[session_file]") {
  const Folder folder;
  const fs::path path = folder.path / "prefix_cache.kv";
  TestEngine<RadixPolicy> engine(config());
  engine.generate(tokens_of(1, 40), sampled());
  save_cache(engine, folder.path);
  TestEngine<SmallBlocksPolicy> small(config());
  CHECK(fault_of([&] { load_cache(small, folder.path); }) ==
        concat("'", path.string(), "': expected blocks of 5 tokens, got 16"));
  TestEngine<UncachedPolicy> uncached(config());
  CHECK_THROWS_WITH(load_cache(uncached, folder.path),
                    "load_cache: the engine has no prefix cache, or prefix_caching is off");
  CHECK_THROWS_WITH(save_cache(uncached, folder.path),
                    "save_cache: the policy's prefix cache keeps nothing, or has no entries()");
  const std::string whole = content_of(path);
  TestEngine<RadixPolicy> other(config());
  for (std::size_t at = 0; at < whole.size(); at += at < 1200 ? 7 : whole.size() / 100) {
    std::string altered = whole;
    altered[at] = static_cast<char>(altered[at] ^ 16);
    put(path, altered);
    CAPTURE(at);
    CHECK(fault_of([&] { load_cache(other, folder.path); }) != "none");
    put(path, whole.substr(0, at));
    CHECK(fault_of([&] { load_cache(other, folder.path); }) != "none");
  }
  CHECK(other.generate(tokens_of(1, 40), sampled()).num_cached_tokens == 0);
  other.check_invariants();
}
