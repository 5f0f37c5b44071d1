#pragma once
/// The law of the disk tier: what an earlier engine has written, and a later one reads, does not
/// show in what is generated; whatever is wrong with the files, and whatever ends meanwhile.
///
/// Who includes this defines `BackendFloat32`, the policy, `kBitEqual`, and `num_devices()`, which
/// says 'skipped' when it is 0, before.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "kv_stats.hpp"
#include "nanovllm/with/beams.hpp"
#include "nanovllm/with/radix/radix_prefix_cache.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
namespace fs = std::filesystem;

namespace {

using HashPolicy = PolicyWith<BackendFloat32, 8>;

struct RadixPolicy : HashPolicy {
  template <int kBlockSize>
  using PrefixCache = RadixPrefixCache<kBlockSize>;
  using Preemption = SwapPreemption;
};

using DiskEngine = Engine<AnyModel, HashPolicy>;

struct Folder {
  explicit Folder(const char* suffix = "")
      : path(fs::temp_directory_path() / concat("nanovllm_disk_laws_", ::getpid(), suffix)) {
    fs::remove_all(path);
  }
  ~Folder() { fs::remove_all(path); }
  [[nodiscard]] std::vector<fs::path> files() const {
    std::vector<fs::path> out;
    for (const auto& entry : fs::directory_iterator(path)) out.push_back(entry.path());
    std::sort(out.begin(), out.end());
    return out;
  }
  fs::path path;
};

/// Files that cannot be read before `release` lets them: pipes without a writer. Then they are no
/// files of ours.
class Gates {
 public:
  explicit Gates(const Folder& folder) : files_(folder.files()) {
    for (const fs::path& file : files_) {
      fs::remove(file);
      REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
    }
  }
  ~Gates() { release(); }
  /// From now on, whatever is read comes back.
  void release() {
    if (thread_.joinable()) return;
    thread_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        // Held open for a while, because a reader may look for a writer a little later than it comes.
        std::vector<int> writers;
        for (const fs::path& file : files_) {
          const int writer = ::open(file.c_str(), O_WRONLY | O_NONBLOCK);
          if (writer >= 0) writers.push_back(writer);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        for (const int writer : writers) ::close(writer);
      }
    });
  }

 private:
  std::vector<fs::path> files_;
  std::jthread thread_;
};

const std::string kModel = "fairytale";

std::int64_t vocab() {
  static const std::int64_t size = Qwen3Config::load(model_directory(kModel)).vocab_size;
  return size;
}

/// A pool of one and a half sequences, and as small a one in host memory.
EngineConfig config_of(const Folder& folder, std::int64_t num_host_blocks = 16) {
  EngineConfig config{.model = model_directory(kModel), .num_threads = 1, .max_model_len = 128};
  config.kv_size = KvSize::blocks(9);
  config.extras.set(HostKv{KvSize::blocks(num_host_blocks)});
  config.extras.edit<DiskKv>().path = folder.path;
  config.extras.edit<DiskKv>().min_tokens = 1;
  return config;
}

/// Every second prompt goes on after the same 40 tokens.
std::vector<TokenId> prompt_of(std::size_t i) {
  std::vector<TokenId> prompt = random_prompt(i % 2 == 0 ? 7 : 100 + i, 40, vocab());
  for (const TokenId token : random_prompt(20 + i, 3 + i, vocab())) prompt.push_back(token);
  return prompt;
}
constexpr std::size_t kNumPrompts = 8;

SamplingParams params_of(std::size_t i) {
  return {.temperature = i % 3 == 0 ? 0.8f : 0.f,
          .seed = i,
          .max_tokens = 9,
          .ignore_eos = true,
          .logprobs = 0};
}

std::vector<Trace> undisturbed() {
  Engine<AnyModel, HashPolicy> engine({.model = model_directory(kModel),
                                       .num_threads = 1,
                                       .max_model_len = 128,
                                       .prefix_caching = false});
  std::vector<Trace> out;
  for (std::size_t i = 0; i < kNumPrompts; ++i)
    out.push_back(trace_of(engine.generate(prompt_of(i), params_of(i))));
  return out;
}

const std::vector<Trace>& expected() {
  static const std::vector<Trace> traces = undisturbed();
  return traces;
}

void check_output(const Output& output, std::size_t i) {
  CAPTURE(i);
  CHECK(output.error == "");
  CHECK(output.token_ids == expected()[i].tokens);
  const Trace trace = trace_of(output);
  if (kBitEqual) {
    CHECK(trace.logprobs == expected()[i].logprobs);
    return;
  }
  REQUIRE(trace.logprobs.size() == expected()[i].logprobs.size());
  for (std::size_t j = 0; j < trace.logprobs.size(); ++j)
    CHECK(std::abs(trace.logprobs[j] - expected()[i].logprobs[j]) < 1e-5f);
}

/// Steps until nothing is written any more: every block of the host is free or may be given up.
template <class Engine>
EngineStats settle(Engine& engine) {
  for (int i = 0; i < 10'000; ++i) {
    engine.step();
    const EngineStats stats = engine.stats();
    if (host_kv(stats).num_free_blocks == host_kv(stats).num_blocks) return stats;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  FAIL("blocks of the host stay pinned");
  return {};
}

/// Serves all prompts one by one, checks each, and lets the disk keep up.
template <class Engine>
EngineStats serve(Engine& engine, int num_rounds = 1) {
  for (int round = 0; round < num_rounds; ++round) {
    for (std::size_t i = 0; i < kNumPrompts; ++i) {
      check_output(engine.generate(prompt_of(i), params_of(i)), i);
      engine.check_invariants();
      settle(engine);
      engine.check_invariants();
    }
  }
  const EngineStats stats = settle(engine);
  CHECK(stats.num_free_kv_blocks == stats.num_kv_blocks);
  return stats;
}

/// An engine that has come and gone, and what it has left.
std::size_t fill(const Folder& folder) {
  DiskEngine engine(config_of(folder));
  serve(engine);
  return folder.files().size();
}

bool has_parts(const Folder& folder) {
  const std::vector<fs::path> files = folder.files();
  return std::any_of(files.begin(), files.end(),
                     [](const fs::path& file) { return file.extension() != ".kvblock"; });
}

/// There are as many files as the books say, as soon as an idle engine has written what it writes.
template <class Engine>
void check_books(Engine& engine, const Folder& folder) {
  const auto agree = [&] {
    return !has_parts(folder) &&
           disk_kv(engine.stats()).num_blocks == static_cast<std::int64_t>(folder.files().size());
  };
  for (int i = 0; i < 10'000 && !agree(); ++i) {
    engine.step();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(agree());
}

/// Steps until `done`, for ten seconds at the most.
template <class Engine, class Done>
void step_until(Engine& engine, const Done& done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!done()) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    engine.step();
    engine.check_invariants();
  }
}

/// Submits prompt `i`; its output comes to `output`.
template <class Engine>
RequestId submit(Engine& engine, std::size_t i, std::optional<Output>& output) {
  return engine.submit(prompt_of(i), params_of(i), [&output](const TokenEvent& event) {
    if (event.output != nullptr) output = *event.output;
  });
}

}  // namespace

TEMPLATE_TEST_CASE("read from disk = computed", "[laws][disk]", HashPolicy, RadixPolicy) {
  if (num_devices() < 1) return;
  const bool overlap = GENERATE(false, true);
  const std::int64_t num_host_blocks = GENERATE(4, 16);
  CAPTURE(overlap, num_host_blocks);
  const Folder folder;
  EngineConfig config = config_of(folder, num_host_blocks);
  config.overlap = overlap;
  {
    Engine<AnyModel, TestType> engine(config);
    const EngineStats stats = serve(engine);
    CHECK(disk_kv(stats).num_writes > 8);
    CHECK(disk_kv(stats).num_failures == 0);
    check_books(engine, folder);
  }
  REQUIRE(!has_parts(folder));
  Engine<AnyModel, TestType> engine(config);
  check_books(engine, folder);
  const Output first = engine.generate(prompt_of(0), params_of(0));
  check_output(first, 0);
  CHECK(disk_kv(engine.stats()).num_hit_tokens == first.num_cached_tokens);
  CHECK(first.num_cached_tokens >= (num_host_blocks == 4 ? 8 : 32));
  const EngineStats stats = serve(engine, 2);
  CHECK(disk_kv(stats).num_failures == 0);
  CHECK(disk_kv(stats).num_hit_tokens > first.num_cached_tokens);
  CHECK(disk_kv(stats).num_hit_tokens <= host_kv(stats).num_hit_tokens);
  check_books(engine, folder);

  // All at once, in two engines that share the directory.
  Engine<AnyModel, TestType> other(config);
  std::vector<std::optional<Output>> outputs(2 * kNumPrompts);
  for (std::size_t i = 0; i < kNumPrompts; ++i) {
    submit(engine, i, outputs[i]);
    submit(other, i, outputs[kNumPrompts + i]);
  }
  for (bool some = true; some;) {
    some = engine.step();
    some = other.step() || some;
    engine.check_invariants();
    other.check_invariants();
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    REQUIRE(outputs[i]);
    check_output(*outputs[i], i % kNumPrompts);
  }
  CHECK(disk_kv(settle(other)).num_hit_tokens > 0);
  CHECK(disk_kv(settle(engine)).num_failures == 0);
}

namespace {

template <int kBlockSize>
struct SwappingPolicy : PolicyWith<BackendFloat32, kBlockSize> {
  using Preemption = SwapPreemption;
};

/// The content of each file.
std::map<std::string, std::string> contents_of(const Folder& folder) {
  std::map<std::string, std::string> out;
  for (const fs::path& path : folder.files()) {
    std::ifstream file(path, std::ios::binary);
    out[path.filename().string()] = {std::istreambuf_iterator<char>(file), {}};
  }
  return out;
}

}  // namespace

TEMPLATE_TEST_CASE("swapping, a disk tier, overlap and aborts at once change no token and no file",
                   "[laws][disk]", SwappingPolicy<1>, SwappingPolicy<2>, SwappingPolicy<4>) {
  if (num_devices() < 1) return;
  constexpr int kBlock = TestType::kv.block_size;
  std::mt19937 random(20261125);
  const auto below = [&](unsigned n) { return random() % n; };
  std::vector<Prompt> prompts;
  std::vector<SamplingParams> params;
  for (std::uint64_t i = 0; i < 40; ++i) {
    std::vector<TokenId> tokens = random_prompt(below(4), 8 + below(40), vocab());
    prompts.emplace_back(std::move(tokens));
    params.push_back({.temperature = 1.f,
                      .seed = i,
                      .max_tokens = static_cast<int>(10 + below(30)),
                      .ignore_eos = true});
  }
  std::vector<Output> expected;
  {
    Engine<AnyModel, TestType> engine({.model = model_directory(kModel), .num_threads = 1});
    expected = engine.generate(prompts, params);
  }
  const Folder folder("_busy");
  EngineConfig config = config_of(folder, 120 / kBlock);
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = 64;
  config.kv_size = KvSize::blocks(96 / kBlock);
  config.extras.edit<DiskKv>().min_tokens = 8;
  config.overlap = true;
  std::int64_t num_swapped_out = 0, num_disk_hit_tokens = 0;
  for (int round = 0; round < 4; ++round) {  // each finds the files of those before it
    CAPTURE(round);
    Engine<AnyModel, TestType> engine(config);
    std::vector<std::optional<Output>> outputs(prompts.size());
    std::vector<RequestId> ids;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      ids.push_back(engine.submit(prompts[i], params[i], [&outputs, i](const TokenEvent& event) {
        if (event.output != nullptr) outputs[i] = *event.output;
      }));
    }
    while (engine.step()) {
      if (below(3) == 0) engine.abort(ids[below(static_cast<unsigned>(ids.size()))]);
      engine.check_invariants();
    }
    settle(engine);
    engine.check_invariants();
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      CAPTURE(i);
      REQUIRE(outputs[i]);
      CHECK(outputs[i]->error == "");
      const std::vector<TokenId>& tokens = outputs[i]->token_ids;
      const std::vector<TokenId>& all = expected[i].token_ids;
      REQUIRE(tokens.size() <= all.size());
      CHECK(std::equal(tokens.begin(), tokens.end(), all.begin()));
      if (outputs[i]->finish_reason == FinishReason::length) CHECK(tokens == all);
    }
    const EngineStats stats = engine.stats();
    CHECK(disk_kv(stats).num_failures == 0);
    num_swapped_out += host_kv(stats).num_swapped_out;
    num_disk_hit_tokens += disk_kv(stats).num_hit_tokens;
  }
  CHECK((num_swapped_out > 0 && num_disk_hit_tokens > 0));
  if (!kBitEqual) return;  // then the last bits of keys and values depend on the batch

  // The files are those of an engine that serves the same requests one by one.
  const Folder calm_folder("_calm");
  config.extras.edit<DiskKv>().path = calm_folder.path;
  config.overlap = false;
  {
    Engine<AnyModel, TestType> engine(config);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      CHECK(engine.generate(prompts[i], params[i]).token_ids == expected[i].token_ids);
      settle(engine);
    }
  }
  const std::map<std::string, std::string> calm = contents_of(calm_folder);
  std::size_t num_compared = 0;
  for (const auto& [name, content] : contents_of(folder)) {
    const auto found = calm.find(name);
    if (found == calm.end()) continue;
    CAPTURE(name);
    CHECK(content == found->second);
    ++num_compared;
  }
  CHECK(num_compared > 40);
}

TEST_CASE("samples and beams of what was read = of what was computed", "[laws][disk]") {
  if (num_devices() < 1) return;
  const bool beams = GENERATE(false, true);
  CAPTURE(beams);
  const Folder folder;
  SamplingParams params{.max_tokens = 12, .ignore_eos = true};
  if (beams) {
    params.beam_width = 3;
  } else {
    params.temperature = 0.9f;
    params.seed = 5;
    params.n = 4;
  }
  const auto answer_of = [&](DiskEngine& engine, std::size_t i) {
    const Output output = engine.generate(prompt_of(i), params);
    CHECK(output.error == "");
    std::vector<std::vector<TokenId>> answer{output.token_ids};
    for (const Completion& other : output.alternatives) answer.push_back(other.token_ids);
    engine.check_invariants();
    return answer;
  };
  EngineConfig config = config_of(folder);
  config.kv_size = KvSize::blocks(20);
  EngineConfig plain = config;
  plain.prefix_caching = false;
  plain.extras.edit<DiskKv>().path.reset();
  plain.kv_size.reset();
  DiskEngine undisturbed(plain);
  std::int64_t num_hits = 0;
  for (int run = 0; run < 2; ++run) {
    DiskEngine engine(config);
    for (std::size_t i = 0; i < 4; ++i) {
      CAPTURE(run, i);
      CHECK(answer_of(engine, i) == answer_of(undisturbed, i));
      settle(engine);
    }
    num_hits = disk_kv(engine.stats()).num_hit_tokens;
    CHECK((num_hits > 0 || run == 0));
    for (std::size_t i = 4; i < kNumPrompts; ++i) {  // all that is in the pool goes down
      check_output(engine.generate(prompt_of(i), params_of(i)), i);
      settle(engine);
    }
  }
}

TEST_CASE("files that are bad cost time and nothing else", "[laws][disk]") {
  if (num_devices() < 1) return;
  const Folder folder;
  const std::size_t num_files = fill(folder);
  REQUIRE(num_files > 8);
  std::size_t i = 0;
  for (const fs::path& file : folder.files()) {
    const std::uintmax_t size = fs::file_size(file);
    if (i % 3 == 0) {
      fs::resize_file(file, size / 2);
    } else if (i % 3 == 1) {
      std::fstream content(file, std::ios::in | std::ios::out | std::ios::binary);
      content.seekg(static_cast<std::streamoff>(size) - 100);
      const char old = static_cast<char>(content.get());
      content.seekp(static_cast<std::streamoff>(size) - 100);
      content.put(static_cast<char>(old ^ 4));
    }
    ++i;
  }
  DiskEngine engine(config_of(folder));
  const EngineStats stats = serve(engine, 2);
  CHECK(disk_kv(stats).num_failures > 0);
  check_books(engine, folder);

  for (const fs::path& file : folder.files()) fs::remove(file);  // by another process
  DiskEngine other(config_of(folder));
  for (std::size_t p = 0; p < kNumPrompts; ++p)
    check_output(engine.generate(prompt_of(p), params_of(p)), p);
}

TEST_CASE("the limit in bytes holds, and another model's files are not used", "[laws][disk]") {
  if (num_devices() < 1) return;
  const Folder folder;
  fill(folder);
  const std::uintmax_t one = fs::file_size(folder.files().front());
  EngineConfig config = config_of(folder);
  config.extras.edit<DiskKv>().max_bytes = 5 * one + one / 2;
  DiskEngine engine(config);
  CHECK(folder.files().size() == 5);
  serve(engine);
  for (int i = 0; i < 10'000 && disk_kv(settle(engine)).num_blocks != 5; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // one goes before one comes
  CHECK(disk_kv(engine.stats()).num_blocks == 5);
  CHECK(folder.files().size() == 5);

  EngineConfig noise = config_of(folder);
  DiskEngine other(Qwen3Config::load(model_directory(kModel)), RandomWeights{.seed = 3}, noise);
  for (std::size_t i = 0; i < 3; ++i) CHECK(other.generate(prompt_of(i), params_of(i)).error == "");
  const EngineStats stats = settle(other);
  CHECK((disk_kv(stats).num_hit_tokens == 0 && disk_kv(stats).num_failures == 0));
}

TEST_CASE("a request that waits for the disk holds nobody up, and can be aborted", "[disk]") {
  if (num_devices() < 1) return;
  const Folder folder;
  fill(folder);
  EngineConfig config = config_of(folder);
  DiskEngine engine(config);
  Gates gates(folder);
  std::optional<Output> first, second, duplicate;
  const RequestId id = submit(engine, 0, first);
  submit(engine, 0, duplicate);  // waits for the load of the other
  // Of this one there are files, too, but not before its first token: they cannot be used.
  std::vector<TokenId> fresh = random_prompt(999, 30, vocab());
  engine.submit(fresh, params_of(1), [&](const TokenEvent& event) {
    if (event.output != nullptr) second = *event.output;
  });
  step_until(engine, [&] { return second.has_value(); });
  CHECK((!first && !duplicate));
  CHECK(engine.stats().num_waiting == 2);
  CHECK(host_kv(engine.stats()).num_free_blocks < 16);  // taken to be read to

  // Nothing else to do: a step waits for a while and says that there is work.
  const auto begin = std::chrono::steady_clock::now();
  int num_steps = 0;
  for (; std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(60); ++num_steps)
    REQUIRE(engine.step());
  CHECK(num_steps <= 40);

  CHECK(engine.abort(id));
  step_until(engine, [&] { return first.has_value(); });
  CHECK(first->finish_reason == FinishReason::abort);
  CHECK(engine.stats().num_waiting == 1);
  gates.release();
  step_until(engine, [&] { return duplicate.has_value(); });
  check_output(*duplicate, 0);
  const EngineStats stats = settle(engine);
  CHECK((stats.num_waiting == 0 && disk_kv(stats).num_hit_tokens == 0 &&
         disk_kv(stats).num_failures > 0));
}

TEST_CASE("reset and destruction while blocks are read", "[disk]") {
  if (num_devices() < 1) return;
  const bool resets = GENERATE(false, true);
  const Folder folder;
  fill(folder);
  std::optional<Output> output, duplicate;
  std::optional<DiskEngine> engine(std::in_place, config_of(folder));
  Gates gates(folder);
  submit(*engine, 0, output);
  submit(*engine, 0, duplicate);
  for (int i = 0; i < 3; ++i) REQUIRE(engine->step());
  CHECK((!output && !duplicate));
  gates.release();  // the block that is read at the moment is waited for
  if (resets) {
    engine->reset();
    engine->check_invariants();
    CHECK(engine->stats().num_waiting == 2);
    CHECK(host_kv(engine->stats()).num_free_blocks == 16);  // nothing is read any more
    step_until(*engine, [&] { return output && duplicate; });
    check_output(*output, 0);
    check_output(*duplicate, 0);
    settle(*engine);
  } else {
    engine.reset();
    REQUIRE((output && duplicate));
    CHECK(output->finish_reason == FinishReason::abort);
    CHECK(duplicate->finish_reason == FinishReason::abort);
  }
}

TEST_CASE("an engine that goes has written what it had begun to", "[disk]") {
  if (num_devices() < 1) return;
  const Folder folder;
  for (int run = 0; run < 3; ++run) {
    DiskEngine engine(config_of(folder));
    for (std::size_t i = 0; i < 3; ++i) {
      const std::size_t p = i + 2 * static_cast<std::size_t>(run);
      check_output(engine.generate(prompt_of(p), params_of(p)), p);
    }
  }
  CHECK(!folder.files().empty());
  CHECK(!has_parts(folder));
  DiskEngine engine(config_of(folder));
  CHECK(disk_kv(serve(engine)).num_failures == 0);
}

TEST_CASE("run hears of requests while others wait for the disk", "[disk]") {
  if (num_devices() < 1) return;
  const Folder folder;
  fill(folder);
  DiskEngine engine(config_of(folder));
  Gates gates(folder);
  std::atomic<int> num_done = 0;
  const auto count = [&](const TokenEvent& event) {
    if (event.output != nullptr) ++num_done;
  };
  std::jthread thread([&](const std::stop_token& stop) { engine.run(stop); });
  const auto wait_for = [&](int wanted) {
    for (int i = 0; i < 10'000 && num_done < wanted; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(num_done == wanted);
  };
  engine.submit(prompt_of(0), params_of(0), count);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  engine.submit(random_prompt(999, 30, vocab()), params_of(1), count);
  wait_for(1);
  gates.release();
  wait_for(2);
}

TEST_CASE("every rank's part comes back from disk", "[laws][disk]") {
  if (num_devices() < 2) {
    std::cout << "skipped: two devices are needed\n";
    return;
  }
  const Folder folder;
  EngineConfig config = config_of(folder);
  config.tensor_parallel = 2;
  std::vector<Trace> first;
  for (int run = 0; run < 2; ++run) {
    DiskEngine engine(config);
    for (std::size_t i = 0; i < kNumPrompts; ++i) {
      CAPTURE(run, i);
      const Output output = engine.generate(prompt_of(i), params_of(i));
      CHECK(output.error == "");
      if (run == 0) first.push_back(trace_of(output));
      CHECK(output.token_ids == first[i].tokens);
      for (std::size_t j = 0; j < first[i].logprobs.size(); ++j)
        CHECK(std::abs(output.logprobs[j].logprob - first[i].logprobs[j]) < 2e-5f);
      settle(engine);
    }
    CHECK(disk_kv(engine.stats()).num_failures == 0);
    CHECK((disk_kv(engine.stats()).num_hit_tokens > 0 || run == 0));
  }
  config.tensor_parallel = 1;  // a rank's part of a block is another then
  DiskEngine engine(config);
  check_output(engine.generate(prompt_of(1), params_of(1)), 1);
  CHECK(disk_kv(engine.stats()).num_hit_tokens == 0);
}

TEST_CASE("settings of the disk tier that cannot be are named", "[disk]") {
  if (num_devices() < 1) return;
  using Catch::Matchers::Contains;
  const Folder folder;
  const auto check_refused = [](const EngineConfig& config, const char* what) {
    CHECK_THROWS_AS(DiskEngine(config), ConfigError);
    CHECK_THROWS_WITH(DiskEngine(config), Contains(what));
  };
  check_refused(config_of(folder, 0), "HostKv::size is 0");
  EngineConfig config = config_of(folder);
  config.prefix_caching = false;
  check_refused(config, "DiskKv::path needs a prefix cache");
  config = config_of(folder);
  config.extras.edit<DiskKv>().min_tokens = 0;
  check_refused(config, "DiskKv::min_tokens must be >= 1, got 0");
  config = config_of(folder);
  config.extras.edit<DiskKv>().max_bytes = 100;
  check_refused(config, "DiskKv::max_bytes: 100 bytes have no room");
  config = config_of(folder);
  config.extras.edit<DiskKv>().path = "/proc/nowhere";
  check_refused(config, "/proc/nowhere");
}
