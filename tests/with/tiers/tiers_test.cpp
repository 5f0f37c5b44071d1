// The slot `Tiers`: the same tokens whatever it is, and errors that name it.

#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "kv_stats.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/tiers/no_tiers.hpp"
#include "nanovllm/with/sessions.hpp"
#include "nanovllm/with/tiers/disk_tier.hpp"
#include "nanovllm/with/tiers/host_tier.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
namespace fs = std::filesystem;

namespace {

struct DevicePolicy : Float32Policy {
  using Tiers = NoTiers;
  static constexpr KvConfig kv{.block_size = 8};
};
struct HostPolicy : DevicePolicy {
  using Tiers = HostTier;
};
struct HostSwapPolicy : HostPolicy {
  using Preemption = SwapPreemption;
};
struct DiskPolicy : DevicePolicy {
  using Tiers = DiskTier;
};

struct Folder {
  Folder() { fs::remove_all(path); }
  ~Folder() { fs::remove_all(path); }
  fs::path path = fs::temp_directory_path() / concat("nanovllm_tiers_", ::getpid());
};

EngineConfig config() {
  return {.model = model_directory("group4_untied_sharded"),
          .num_threads = 2,
          .max_num_seqs = 4,
          .kv_size = KvSize::blocks(9)};
}

/// Several requests at once in a pool that is too small for them, twice, so that sequences are
/// preempted and prefixes evicted.
template <class Policy>
EngineStats serve(EngineConfig settings, std::vector<std::vector<TokenId>>& tokens) {
  Engine<AnyModel, Policy> engine(std::move(settings));
  std::vector<Prompt> prompts;
  for (std::uint64_t i = 0; i < 8; ++i) prompts.emplace_back(random_prompt(i % 5, 18 + i, 90));
  const SamplingParams greedy{.temperature = 0.f, .max_tokens = 20, .ignore_eos = true};
  for (int round = 0; round < 2; ++round) {
    for (const Output& output : engine.generate(prompts, greedy)) {
      CHECK(output.error.empty());
      tokens.push_back(output.token_ids);
    }
    engine.check_invariants();
  }
  return engine.stats();
}

template <class Policy>
std::string refusal(const std::function<void(EngineConfig&)>& change) {
  EngineConfig settings = config();
  change(settings);
  try {
    Engine<AnyModel, Policy> engine(std::move(settings));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("tokens do not depend on where blocks are kept", "[tiers]") {
  std::vector<std::vector<TokenId>> expected, tokens;
  const EngineStats device = serve<DevicePolicy>(config(), expected);
  REQUIRE(expected.size() == 16);
  CHECK((device.num_preemptions > 0 && host_kv(device).num_swapped_out == 0));
  CHECK((host_kv(device).num_blocks == 0 && host_kv(device).num_hit_tokens == 0));
  CHECK(device.num_free_kv_blocks == device.num_kv_blocks);

  EngineConfig settings = config();
  serve<HostPolicy>(settings, tokens);  // a tier of no blocks
  CHECK(tokens == expected);

  settings.extras.set(HostKv{KvSize::blocks(40)});
  tokens.clear();
  const EngineStats host = serve<HostPolicy>(settings, tokens);
  CHECK(tokens == expected);
  CHECK((host_kv(host).num_blocks == 40 && host_kv(host).num_hit_tokens > 0));

  tokens.clear();
  CHECK(host_kv(serve<HostSwapPolicy>(settings, tokens)).num_swapped_out > 0);
  CHECK(tokens == expected);

  const Folder folder;
  settings.extras.edit<DiskKv>().path = folder.path;
  settings.extras.edit<DiskKv>().min_tokens = 1;
  for (int start = 0; start < 2; ++start) {
    tokens.clear();
    const EngineStats disk = serve<DiskPolicy>(settings, tokens);
    CHECK(tokens == expected);
    CHECK((start == 0 || disk_kv(disk).num_hit_tokens > 0));
    CHECK(disk_kv(disk).num_failures == 0);
  }
}

TEST_CASE("a setting that the tiers do not have names the slot and the line to write", "[tiers]") {
  using Catch::Matchers::Contains;
  for (const KvSize size :
       {KvSize::blocks(4), KvSize::bytes(1 << 20), KvSize::memory_share(0.1), KvSize::blocks(-1)}) {
    CHECK_THAT(refusal<DevicePolicy>([&](EngineConfig& c) { c.extras.set(HostKv{size}); }),
               Contains("HostKv::size is set") && Contains("the policy's Tiers, NoTiers, ") &&
                   Contains("'using Tiers = nanovllm::HostTier;'"));
  }
  CHECK(refusal<DevicePolicy>([](EngineConfig& c) {
          c.extras.set(HostKv{KvSize::bytes(0)});
        }).empty());

  struct Case {
    const char* field;
    std::function<void(EngineConfig&)> change;
  };
  const Case cases[] = {
      {"DiskKv::path", [](EngineConfig& c) { c.extras.edit<DiskKv>().path = "/nowhere"; }},
      {"DiskKv::max_bytes", [](EngineConfig& c) { c.extras.edit<DiskKv>().max_bytes = 1 << 20; }},
      {"DiskKv::min_tokens", [](EngineConfig& c) { c.extras.edit<DiskKv>().min_tokens = 1; }},
  };
  for (const Case& c : cases) {
    for (const auto& [tiers, error] : {std::pair("NoTiers", refusal<DevicePolicy>(c.change)),
                                       std::pair("HostTier", refusal<HostPolicy>(c.change))}) {
      CHECK_THAT(error, Contains(concat(c.field, " is set")) &&
                            Contains(concat("the policy's Tiers, ", tiers, ", ")) &&
                            Contains("'using Tiers = nanovllm::DiskTier;'"));
    }
  }
}

TEST_CASE("a pool in host memory is a number of blocks or bytes", "[tiers]") {
  const KvShape shape{.num_layers = 2,
                      .num_kv_heads = 1,
                      .head_dim = 4,
                      .block_size = 16,
                      .element_bytes = 4};  // 1,024 bytes a block
  EngineConfig c;
  const auto blocks_of = [&](const KvSize& size) {
    c.extras.set(HostKv{size});
    HostTier::validate(c);
    return HostTier::num_outside(c, {.shape = shape, .num_blocks = 60, .is_on_device = true});
  };
  CHECK(blocks_of(HostKv{}.size) == 0);
  CHECK(blocks_of(KvSize::blocks(5)) == 5);
  CHECK(blocks_of(KvSize::bytes(0)) == 0);
  CHECK(blocks_of(KvSize::bytes(3 * 1024 + 1023)) == 3);
  CHECK(blocks_of(KvSize::blocks(1000)) == 1000);  // no matter what the device has
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH(blocks_of(KvSize::blocks(-1)),
                    Contains("HostKv::size must be a number") && Contains("got -1"));
  CHECK_THROWS_WITH(blocks_of(KvSize::memory_share(0.5)), Contains("a share of the memory, 0.5"));
  CHECK_THROWS_WITH(blocks_of(KvSize::bytes(1000)), Contains("1000 bytes hold 0 blocks"));
  CHECK_THROWS_AS(blocks_of(KvSize::blocks(-1)), ConfigError);
  c.extras.set(HostKv{KvSize::memory_share(0.5)});
  CHECK_THROWS_AS(DiskTier::validate(c), ConfigError);

  // In host memory beside another pool there.
  PoolPlan pool{.shape = shape, .num_blocks = 60, .available_bytes = 100 * 1024};
  c.extras.set(HostKv{KvSize::blocks(40)});
  CHECK(HostTier::num_outside(c, pool) == 40);
  c.extras.set(HostKv{KvSize::blocks(41)});
  CHECK_THROWS_WITH(HostTier::num_outside(c, pool),
                    "HostKv::size: 41 blocks of 1024 bytes were asked for, and kv_size has 60; "
                    "102400 bytes are available for both");
  pool.is_on_device = true;
  CHECK(HostTier::num_outside(c, pool) == 41);
}

TEST_CASE("without tiers there is no host pool, neither in the books nor in memory", "[tiers]") {
  STATIC_REQUIRE(std::is_same_v<BlocksOf<DevicePolicy>, BlockManager<8>>);
  STATIC_REQUIRE(std::is_same_v<BlocksOf<HostPolicy>, TieredBlockManager<8>>);
  STATIC_REQUIRE(std::is_same_v<BlocksOf<DiskPolicy>, BlocksOf<HostPolicy>>);
  // Both tiers have one runner.
  STATIC_REQUIRE(std::is_same_v<RunnerOf<HostPolicy>, RunnerOf<DiskPolicy>>);
  STATIC_REQUIRE(!std::is_same_v<RunnerOf<HostPolicy>, RunnerOf<DevicePolicy>>);
  STATIC_REQUIRE(!HasHostBlocks<RunnerOf<DevicePolicy>::Pool>);
  STATIC_REQUIRE(HasHostBlocks<RunnerOf<DiskPolicy>::Pool>);
  using Pool = RunnerOf<DevicePolicy>::Pool;
  const KvShape shape{
      .num_layers = 1, .num_kv_heads = 1, .head_dim = 4, .block_size = 8, .element_bytes = 4};
  CHECK(Pool(shape, 2).num_blocks() == 2);
  CHECK_THROWS_WITH(Pool(shape, 2, 1), Catch::Matchers::Contains("the policy's Tiers has none"));
  CHECK(describe<DevicePolicy>().find("\nTiers          NoTiers\n") != std::string::npos);
}

TEST_CASE("a conversation and the prefix cache are saved and loaded without tiers", "[tiers]") {
  const Folder folder;
  const SamplingParams greedy{.temperature = 0.f, .max_tokens = 12, .ignore_eos = true};
  const auto prompt = random_prompt(3, 30, 90);
  const auto more = random_prompt(4, 9, 90);
  std::vector<TokenId> expected;
  {
    Engine<AnyModel, DevicePolicy> engine(config());
    Session session(engine);
    static_cast<void>(session.generate(prompt, greedy));
    fs::create_directories(folder.path);
    session.save(folder.path / "session.kv");
    save_cache(engine, folder.path);
    expected = session.generate(more, greedy).token_ids;
    REQUIRE(expected.size() == 12);
  }
  Engine<AnyModel, DevicePolicy> engine(config());
  CHECK(load_cache(engine, folder.path) > 0);
  Session session = Session::load(engine, folder.path / "session.kv");
  const Output output = session.generate(more, greedy);
  CHECK(output.token_ids == expected);
  CHECK(output.num_cached_tokens > 30);
  engine.check_invariants();
}

TEST_CASE("samples and beams that are preempted are computed again without tiers", "[tiers]") {
  EngineConfig settings = config();
  std::vector<std::vector<TokenId>> tokens[2];
  for (const std::int64_t num_blocks : {64, 12}) {
    settings.kv_size = KvSize::blocks(num_blocks);
    Engine<AnyModel, DevicePolicy> engine(settings);
    const SamplingParams greedy{.temperature = 0.f, .max_tokens = 30, .ignore_eos = true};
    SamplingParams search = greedy;
    search.n = 2;
    search.beam_width = 2;
    const std::vector<Prompt> prompts{random_prompt(1, 20, 90), random_prompt(2, 21, 90),
                                      random_prompt(3, 22, 90)};
    for (const Output& output :
         engine.generate(prompts, std::vector<SamplingParams>{search, greedy, greedy})) {
      CHECK(output.error.empty());
      tokens[num_blocks == 64].push_back(output.token_ids);
    }
    CHECK((engine.stats().num_preemptions > 0) == (num_blocks == 12));
    engine.check_invariants();
  }
  CHECK(tokens[0] == tokens[1]);
}
