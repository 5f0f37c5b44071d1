#pragma once
/// The time to the first token of a prompt whose prefix is computed, or comes from the pool, from
/// host memory, from disk or from a file.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nanovllm/with/sessions.hpp"
#include "program.hpp"

namespace prefix_bench {

struct LadderOptions {
  std::string shape = "fairytale", json;
  std::filesystem::path directory = std::filesystem::temp_directory_path();
  int prefix_tokens = 400, own_tokens = 16, repeats = 5, num_threads = 0;
};

/// One rung: what it is, and the seconds of each run.
struct Rung {
  std::string name;
  Samples seconds{};
};

template <class Policy>
class Ladder {
 public:
  using Engine = nv::Engine<nv::Qwen3<nv::shapes::qwen3_any>, Policy>;

  Ladder(const LadderOptions& o, const nv::Qwen3Config& model)
      : options_(o), model_(model), source_(1, model.vocab_size) {
    const std::int64_t block = Policy::kv.block_size;
    const std::int64_t length = o.prefix_tokens + o.own_tokens + 8;
    options_.directory /= "nanovllm_ladder";  // of its own: it is removed
    blocks_ = 2 * ((length + block - 1) / block) + 4;
  }

  std::vector<Rung> run() {
    std::vector<Rung> rungs{
        {"computed"}, {"in the pool"}, {"in host memory"}, {"on disk"}, {"in a file"}};
    for (int i = -1; i < options_.repeats; ++i) {  // the first pays for first uses
      const Tokens prefix = text(options_.prefix_tokens);
      std::array<double, 5> seconds{};
      {
        Engine engine = make();
        ask(engine, text(options_.prefix_tokens));
        seconds[0] = ask(engine, prefix);
        seconds[1] = ask(engine, prefix);
        nv::save_cache(engine, options_.directory);
        for (int other = 0; other < 3; ++other) ask(engine, text(options_.prefix_tokens));
        const std::int64_t before = num_host_hits(engine);
        seconds[2] = ask(engine, prefix);
        nv::check(num_host_hits(engine) - before >= options_.prefix_tokens / 2,
                  "ladder: the prefix was not found in host memory");
      }
      seconds[3] = ask_from_disk(prefix);
      Engine engine = make();
      ask(engine, text(options_.prefix_tokens));
      const auto begin = Clock::now();
      nv::check(nv::load_cache(engine, options_.directory) > 0, "ladder: nothing was loaded");
      seconds[4] = std::chrono::duration<double>(Clock::now() - begin).count();
      const std::int64_t before = engine.stats().num_hit_tokens;
      seconds[4] += ask(engine, prefix);
      nv::check(engine.stats().num_hit_tokens - before >= options_.prefix_tokens / 2,
                "ladder: the prefix was not found in what was loaded");
      for (std::size_t rung = 0; rung < rungs.size() && i >= 0; ++rung)
        rungs[rung].seconds.add(seconds[rung]);
    }
    std::filesystem::remove_all(options_.directory);
    return rungs;
  }

 private:
  using Clock = std::chrono::steady_clock;

  Engine make(bool has_disk = false) {
    nv::EngineConfig config{.extras = {nv::HostKv{nv::KvSize::blocks(2 * blocks_)}},
                            .num_threads = engine_bench::unless_zero(options_.num_threads),
                            .max_num_seqs = 64,
                            .max_model_len = options_.prefix_tokens + options_.own_tokens + 8,
                            .kv_size = nv::KvSize::blocks(blocks_),
                            .seed = 0};
    nv::DiskKv disk{.min_tokens = 1};
    if (has_disk) disk.path = options_.directory / "tier";
    config.extras.set(disk);
    return Engine(model_, nv::RandomWeights{}, std::move(config));
  }

  static std::int64_t num_host_hits(const Engine& engine) {
    return engine.stats().template of<nv::HostKvStats>().num_hit_tokens;
  }

  /// One engine writes the files, and another, whose tiers in memory have nothing of it, reads
  /// them: as far as they are in the system's page cache, from there.
  double ask_from_disk(const Tokens& prefix) {
    {
      Engine engine = make(true);
      ask(engine, prefix);
      for (int other = 0; other < 3; ++other) ask(engine, text(options_.prefix_tokens));
      const auto host = [&] { return engine.stats().template of<nv::HostKvStats>(); };
      for (nv::HostKvStats s = host(); s.num_free_blocks < s.num_blocks; s = host()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // while the disk keeps up
        engine.step();
      }
    }
    Engine engine = make(true);
    ask(engine, text(options_.prefix_tokens));
    const double seconds = ask(engine, prefix);
    nv::check(
        engine.stats().template of<nv::DiskKvStats>().num_hit_tokens >= options_.prefix_tokens / 2,
        "ladder: the prefix was not found on disk");
    return seconds;
  }

  Tokens text(int length) { return source_.text(std::int64_t{length}); }

  /// Seconds to the first token of a prompt that begins with `prefix`.
  double ask(Engine& engine, Tokens prefix) {
    const Tokens own = text(options_.own_tokens);
    prefix.insert(prefix.end(), own.begin(), own.end());
    return engine.generate(prefix, {.temperature = 0.f, .max_tokens = 2, .ignore_eos = true})
        .timings.first_token;
  }

  LadderOptions options_;
  const nv::Qwen3Config model_;
  TextSource source_;
  std::int64_t blocks_;
};

/// The program, on the backend of `Policy`.
template <class Policy>
int run_ladder(int argc, char** argv) {
  LadderOptions o;
  CLI::App app{
      "Times the first token of a prompt with a long prefix that is computed, or is in the KV "
      "pool,\n"
      "in the second tier of the prefix cache in host memory, in the third on disk, or in a file\n"
      "of save_cache, whose loading counts. For a GPU: --shape qwen3_0_6b --prefix-tokens 16384"};
  std::vector<std::string> names;
  for (const auto& [name, shape] : engine_bench::DenseModels::shapes()) names.push_back(name);
  app.add_option("--shape", o.shape, "sizes of a published model, with random weights")
      ->check(nanovllm::examples::one_of(names))
      ->capture_default_str();
  const auto number = [&](const char* name, int& value, const char* help) {
    app.add_option(name, value, help)->check(CLI::PositiveNumber)->capture_default_str();
  };
  number("--prefix-tokens", o.prefix_tokens, "tokens of the prefix");
  number("--own-tokens", o.own_tokens, "tokens behind it");
  number("--repeats", o.repeats, "runs; medians are reported");
  app.add_option("--threads", o.num_threads, "CPU threads; 0 for all");
  app.add_option("--directory", o.directory, "for a folder of files, which are removed")
      ->capture_default_str();
  app.add_option("--json", o.json, "file for options and results, overwritten");
  if (const auto status = nanovllm::examples::parse_command_line(app, argc, argv)) return *status;
  try {
    engine_bench::ResultFile file(o.json);
    const nv::Qwen3Config model =
        engine_bench::config_of(engine_bench::DenseModels::shapes().at(o.shape));
    Json results = Json::array();
    for (const Rung& rung : Ladder<Policy>(o, model).run()) {
      std::printf("%-16s %9.2f ms\n", rung.name.c_str(), 1e3 * rung.seconds.median());
      results.push_back({{"prefix", rung.name},
                         {"first_token_seconds", engine_bench::detail::to_json(rung.seconds)}});
    }
    file.write(app, "", std::move(results));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "prefix_cache_ladder: %s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace prefix_bench
