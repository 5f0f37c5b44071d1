// Settings with extreme values: the engine works, or a ConfigError names the setting.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/with/moe/expert_parallel.hpp"
#include "nanovllm/with/sessions/options.hpp"
#include "nanovllm/with/tiers/options.hpp"
#include "safetensors_writer.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
using Catch::Matchers::Contains;

namespace {

using FullEngine = Engine<AnyModel, FullFloat32Policy>;

struct Setting {
  const char* name;
  std::function<void(EngineConfig&, std::int64_t)> set;
};

/// `value`, or the nearest that a `T` can have.
template <class T>
T cut(std::int64_t value) {
  using Limits = std::numeric_limits<T>;
  if constexpr (std::is_unsigned_v<T>) {
    return value < 0 ? Limits::max() : static_cast<T>(value);
  } else {
    if (value > std::int64_t{Limits::max()}) return Limits::max();
    return value < std::int64_t{Limits::min()} ? Limits::min() : static_cast<T>(value);
  }
}

std::vector<Setting> settings(const std::filesystem::path& directory) {
  return {
      {"tensor_parallel", [](auto& c, auto n) { c.tensor_parallel = cut<int>(n); }},
      {"expert_tensor_parallel",
       [](auto& c, auto n) {
         c.extras.set(ExpertParallel{.on = false, .tensor_parallel = cut<int>(n)});
       }},
      {"device", [](auto& c, auto n) { c.device = cut<int>(n); }},
      {"num_threads", [](auto& c, auto n) { c.num_threads = cut<int>(n < 4097 ? 1 : n); }},
      {"max_num_seqs", [](auto& c, auto n) { c.max_num_seqs = cut<int>(n); }},
      {"max_num_batched_tokens", [](auto& c, auto n) { c.max_num_batched_tokens = cut<int>(n); }},
      {"max_model_len", [](auto& c, auto n) { c.max_model_len = n; }},
      {"kv_size", [](auto& c, auto n) { c.kv_size = KvSize::blocks(n); }},
      {"kv_size", [](auto& c, auto n) { c.kv_size = KvSize::bytes(n); }},
      {"kv_size",
       [](auto& c, auto n) { c.kv_size = KvSize::memory_share(static_cast<double>(n)); }},
      {"HostKv::size", [](auto& c, auto n) { c.extras.set(HostKv{KvSize::blocks(n)}); }},
      {"HostKv::size", [](auto& c, auto n) { c.extras.set(HostKv{KvSize::bytes(n)}); }},
      {"DiskKv::max_bytes",
       [directory](auto& c, auto n) {
         c.extras.set(HostKv{KvSize::blocks(4)});
         c.extras.set(DiskKv{.path = directory, .max_bytes = cut<std::uint64_t>(n)});
       }},
      {"DiskKv::min_tokens",
       [directory](auto& c, auto n) {
         c.extras.set(HostKv{KvSize::blocks(4)});
         c.extras.set(DiskKv{.path = directory, .min_tokens = cut<int>(n)});
       }},
      {"prefix_wait_tokens", [](auto& c, auto n) { c.prefix_wait_tokens = cut<int>(n); }},
      {"share_reads_from", [](auto& c, auto n) { c.share_reads_from = n; }},
      {"SessionOptions::max_blocks",
       [](auto& c, auto n) { c.extras.set(SessionOptions{cut<std::int32_t>(n)}); }},
      {"step_timeout",
       [](auto& c, auto n) {
         c.step_timeout = std::chrono::duration<double>(static_cast<double>(n));
       }},
      {"seed", [](auto& c, auto n) { c.seed = cut<std::uint64_t>(n); }},
  };
}

EngineConfig small_config() { return {.num_threads = 1, .kv_size = KvSize::blocks(16)}; }

}  // namespace

TEST_CASE("any value of a setting gives an engine that works, or an error with its name",
          "[engine][memory]") {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const Qwen3Config model = Qwen3Config::load(model_directory("group1_tied_yarn"));
  int num_refused = 0, num_served = 0;
  const nanovllm_test::TempDirectory directory;
  for (const Setting& setting : settings(directory.path())) {
    for (const std::int64_t value : {-kMost - 1, std::int64_t{-1}, std::int64_t{0}, std::int64_t{1},
                                     std::int64_t{1} << 50, kMost}) {
      INFO(setting.name << ", " << value);
      EngineConfig config = small_config();
      setting.set(config, value);
      try {
        FullEngine engine(model, RandomWeights{1}, config);
        const Output out =
            engine.generate(std::vector<TokenId>{1}, {.temperature = 0.f, .max_tokens = 1});
        CHECK(out.error == "");
        ++num_served;
      } catch (const ConfigError& error) {
        CHECK_THAT(error.what(), Contains(setting.name));
        ++num_refused;
      }
    }
  }
  CHECK(num_refused > 40);
  CHECK(num_served > 30);
}

TEST_CASE("what does not fit into memory is named with its bytes and those that there are",
          "[engine][memory]") {
  const Qwen3Config model = Qwen3Config::load(model_directory("group1_tied_yarn"));
  const auto error_of = [&](auto change) -> std::string {
    EngineConfig config = small_config();
    change(config);
    try {
      FullEngine(model, RandomWeights{1}, config);
    } catch (const Error& error) {  // what a program may catch
      return error.what();
    }
    return "no error";
  };
  const std::string kv =
      error_of([](auto& c) { c.kv_size = KvSize::bytes(std::int64_t{1} << 45); });
  CHECK_THAT(
      kv, Contains("kv_size: ") && Contains(" bytes were asked for") && Contains(" are available"));
  const std::string host =
      error_of([](auto& c) { c.extras.set(HostKv{KvSize::bytes(std::int64_t{1} << 45)}); });
  CHECK_THAT(host, Contains("HostKv::size: ") && Contains(" bytes are available for both"));
  const std::string seqs = error_of([](auto& c) { c.max_num_seqs = 2'000'000'000; });
  CHECK_THAT(seqs,
             Contains("max_num_seqs = 2000000000: the logits of a step take 2456000000000 ") &&
                 Contains("available there are"));
  const std::string tokens = error_of([](auto& c) {
    c.max_num_seqs = 1;
    c.max_num_batched_tokens = 2'147'483'647;
  });
  CHECK_THAT(tokens, Contains("max_num_batched_tokens = 2147483647: the hidden states of a step"));
  const std::string ranks = error_of([](auto& c) { c.tensor_parallel = 2'147'483'647; });
  CHECK_THAT(ranks, Contains("tensor_parallel = 2147483647 does not divide num_attention_heads"));
}
