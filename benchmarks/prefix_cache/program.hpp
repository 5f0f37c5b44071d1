#pragma once
/// The program `prefix_cache`, whatever the backend: options, runs, a table and JSON.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <istream>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "../../examples/command_line.hpp"
#include "../engine_bench/program.hpp"
#include "measure.hpp"
#include "nanovllm/engine.hpp"
#include "nanovllm/model/qwen3/qwen3.hpp"
#include "workload.hpp"

namespace prefix_bench {

using engine_bench::Json;

struct Options {
  std::string model, shape;
  bool random_weights = false;
  std::vector<std::string> workloads{"shared", "chat", "tree", "unique"};
  std::vector<std::string> caches{"hash", "radix", "none"};
  std::vector<int> block_sizes;
  std::vector<double> pools{1.0};
  std::vector<double> host_pools{0.0};
  SharedSpec shared;
  ChatSpec chat;
  TreeSpec tree;
  UniqueSpec unique;
  std::int32_t output_tokens = 8;
  std::int32_t num_samples = 1;
  std::uint64_t seed = 0;
  int max_num_seqs = 16;
  int max_num_batched_tokens = 0;
  int num_threads = 0;
  int repeats = 1;
  std::string json;
};

/// One row: a workload, a cache, a pool.
struct Case {
  std::string workload, cache;
  int block_size = 0;
  double pool = 0;              ///< share of what the workload needs
  std::int64_t num_blocks = 0;  ///< what that is
  double host_pool = 0;         ///< the same in host memory
  std::int64_t num_host_blocks = 0;
  std::vector<RunResult> runs{};  ///< when all are done, the fastest first

  [[nodiscard]] const RunResult& median() const { return runs[runs.size() / 2]; }
};

/// "8-32", or "8" for exactly that many.
inline std::istream& operator>>(std::istream& in, Length& length) {
  char dash = 0;
  in >> length.min;
  length.max = length.min;
  if (in.peek() == '-') in >> dash >> length.max;
  if (length.min < 1 || length.max < length.min) in.setstate(std::ios::failbit);
  return in;
}
inline std::ostream& operator<<(std::ostream& out, const Length& length) {
  return out << length.min << '-' << length.max;
}

inline void add_workload_options(CLI::App& app, Options& o) {
  const auto number = [&](const char* name, auto& value, const char* help) {
    app.add_option(name, value, help)->check(CLI::PositiveNumber)->capture_default_str();
  };
  const auto length = [&](const char* name, Length& value, const char* help) {
    app.add_option(name, value, help)->capture_default_str();
  };
  number("--requests", o.shared.num_requests, "shared: requests");
  number("--prefixes", o.shared.num_prefixes, "shared: different prefixes");
  number("--prefix-tokens", o.shared.prefix_tokens, "shared: tokens of a prefix");
  length("--own-tokens", o.shared.own, "shared: tokens behind the prefix");
  number("--chats", o.chat.num_chats, "chat: conversations at a time");
  number("--turns", o.chat.num_turns, "chat: turns of each");
  number("--system-tokens", o.chat.system_tokens, "chat: tokens that all begin with");
  app.add_option("--tool-share", o.chat.tool_share, "chat: share of turns that are tool results")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  length("--user-tokens", o.chat.user, "chat: tokens of a user's turn");
  length("--tool-tokens", o.chat.tool, "chat: tokens of a tool result");
  number("--trees", o.tree.num_trees, "tree: roots");
  number("--root-tokens", o.tree.root_tokens, "tree: tokens of a root");
  number("--children", o.tree.num_children, "tree: children of a node");
  number("--levels", o.tree.num_levels, "tree: levels below the root");
  length("--thought-tokens", o.tree.thought, "tree: tokens of a node below the root");
  number("--unique-requests", o.unique.num_requests, "unique: requests");
  length("--unique-tokens", o.unique.prompt, "unique: tokens of a prompt");
  number("--output-tokens", o.output_tokens, "tokens of every answer");
  number("--samples", o.num_samples, "answers to every request (SamplingParams::n)");
  app.add_option("--seed", o.seed, "of all texts")->capture_default_str();
}

/// @param block_sizes  those that the program is compiled for, the default first
inline void add_options(CLI::App& app, Options& o, const std::vector<int>& block_sizes) {
  app.add_option("--model", o.model, "checkpoint directory");
  std::vector<std::string> names;
  for (const auto& [name, shape] : engine_bench::DenseModels::shapes()) names.push_back(name);
  app.add_option("--shape", o.shape,
                 "sizes of a published model, with random weights; fairytale without --model")
      ->check(nanovllm::examples::one_of(names));
  app.add_flag("--random-weights", o.random_weights, "with --model: take its config.json alone");
  const auto names_of = [&](const char* name, std::vector<std::string>& value, const char* help) {
    app.add_option(name, value, help)
        ->delimiter(',')
        ->check(nanovllm::examples::one_of(value))
        ->capture_default_str();
  };
  names_of("--workloads", o.workloads, "shared, chat, tree, unique");
  names_of("--caches", o.caches, "hash, radix, none");
  o.block_sizes = {block_sizes.front()};
  app.add_option("--block-sizes", o.block_sizes, "tokens a block")
      ->delimiter(',')
      ->check(CLI::IsMember(block_sizes))
      ->capture_default_str();
  app.add_option("--pool", o.pools,
                 "size of the KV pool, as a share of what the workload needs: 1,0.5")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--host-pool", o.host_pools, "the same for the pool in host memory; 0 for none")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  add_workload_options(app, o);
  const auto number = [&](const char* name, auto& value, const char* help) {
    app.add_option(name, value, help)->check(CLI::PositiveNumber)->capture_default_str();
  };
  number("--max-num-seqs", o.max_num_seqs, "sequences in a step at the most");
  app.add_option("--max-num-batched-tokens", o.max_num_batched_tokens,
                 "tokens in a step at the most; 0 for the backend's default")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--threads", o.num_threads, "CPU threads; 0 for all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  number("--repeats", o.repeats, "runs of every row, in turn; the median one is reported");
  app.add_option("--json", o.json, "file for options, machine and results, overwritten");
}

[[nodiscard]] inline Workload make_workload(const std::string& name, const Options& o,
                                            std::int64_t vocab_size) {
  const TextSource source(o.seed, vocab_size);
  if (name == "shared") return make_shared(o.shared, o.output_tokens, source);
  if (name == "chat") return make_chats(o.chat, o.output_tokens, source);
  if (name == "tree") return make_trees(o.tree, o.output_tokens, source);
  return make_unique(o.unique, o.output_tokens, source);
}

/// Serves `workload` in a new engine with the pools of `c`. Returns what that cost, and the engine
/// in words.
template <class Policy>
std::pair<RunResult, std::string> run(const Options& o, const nv::Qwen3Config& model,
                                      const Workload& workload, const Case& c) {
  using Engine = nv::Engine<nv::Qwen3<nv::shapes::qwen3_any>, Policy>;
  using Cache = typename Policy::template PrefixCache<Policy::kv.block_size>;
  const nv::EngineConfig config{
      .model = o.model,
      .extras = {nv::HostKv{nv::KvSize::blocks(c.num_host_blocks)}},
      .num_threads = engine_bench::unless_zero(o.num_threads),
      .max_num_seqs = o.max_num_seqs,
      .max_num_batched_tokens = engine_bench::unless_zero(o.max_num_batched_tokens),
      .max_model_len = longest_sequence(workload) + 1,
      .kv_size = nv::KvSize::blocks(c.num_blocks),
      .seed = 0};
  Engine engine = o.random_weights ? Engine(model, nv::RandomWeights{}, config) : Engine(config);
  RunResult result = Server<Engine>(engine, workload, o.num_samples).run(Cache::num_evictions);
  return {std::move(result), engine.describe()};
}

template <class Base>
std::pair<RunResult, std::string> run_cache(const Options& o, const nv::Qwen3Config& model,
                                            const Workload& workload, const Case& c) {
  if (c.cache == "hash") return run<HashPolicy<Base>>(o, model, workload, c);
  if (c.cache == "radix") return run<RadixPolicy<Base>>(o, model, workload, c);
  return run<NonePolicy<Base>>(o, model, workload, c);
}

inline void print_header() {
  std::printf("%-8s %-6s %5s %5s %5s %8s %10s %10s %6s %6s %9s %8s %9s %9s %9s %9s\n", "workload",
              "cache", "block", "pool", "host", "blocks", "prompt", "computed", "hits", "host",
              "evicted", "preempt", "seconds", "TTFT p50", "p99 ms", "all p50");
}

inline void print(const Case& c) {
  const auto count = [](std::int64_t n) { return static_cast<long long>(n); };
  const RunResult& r = c.median();
  std::printf(
      "%-8s %-6s %5d %5.2f %5.2f %8lld %10lld %10lld %5.1f%% %5.1f%% %9lld %8lld %9.3f %9.1f "
      "%9.1f %9.1f\n",
      c.workload.c_str(), c.cache.c_str(), c.block_size, c.pool, c.host_pool, count(c.num_blocks),
      count(r.num_prompt_tokens), count(r.num_computed_tokens()), 100 * r.hit_rate(),
      100 * r.host_hit_rate(), count(r.num_evictions), count(r.num_preemptions), r.seconds,
      1e3 * r.first_token.median(), 1e3 * r.first_token.quantile(0.99), 1e3 * r.all_begun.median());
  std::fflush(stdout);
}

[[nodiscard]] inline Json to_json(const Case& c) {
  const RunResult& r = c.median();
  Json seconds = Json::array();
  for (const RunResult& each : c.runs) seconds.push_back(each.seconds);
  return {{"workload", c.workload},
          {"cache", c.cache},
          {"block_size", c.block_size},
          {"pool_share", c.pool},
          {"num_blocks", c.num_blocks},
          {"host_pool_share", c.host_pool},
          {"num_host_blocks", c.num_host_blocks},
          {"num_requests", r.num_requests},
          {"num_prompt_tokens", r.num_prompt_tokens},
          {"num_output_tokens", r.num_output_tokens},
          {"num_computed_tokens", r.num_computed_tokens()},
          {"num_queried_tokens", r.num_queried_tokens},
          {"num_hit_tokens", r.num_hit_tokens},
          {"num_host_hit_tokens", r.num_host_hit_tokens},
          {"hit_rate", r.hit_rate()},
          {"num_evictions", r.num_evictions},
          {"num_preemptions", r.num_preemptions},
          {"num_steps", r.num_steps},
          {"seconds", r.seconds},
          {"seconds_of_all_runs", std::move(seconds)},
          {"host_seconds", r.host_seconds},
          {"first_token_seconds", engine_bench::detail::to_json(r.first_token)},
          {"all_samples_begun_seconds", engine_bench::detail::to_json(r.all_begun)}};
}

/// Runs all cases, `repeats` times in turn. Returns them, and one of their engines in words.
template <class Policy, int kOther>
std::pair<std::vector<Case>, std::string> run_all(const Options& o, const nv::Qwen3Config& model) {
  using Other = SizedPolicy<Policy, kOther>;
  std::vector<Case> cases;
  std::string engine;
  for (const std::string& name : o.workloads) {
    const Workload workload = make_workload(name, o, model.vocab_size);
    nv::check<nv::ConfigError>(longest_sequence(workload) < nv::max_context_length(model), "'",
                               name, "' has sequences of ", longest_sequence(workload),
                               " tokens, but the model's context is ",
                               nv::max_context_length(model));
    const std::size_t first = cases.size();
    for (const int block_size : o.block_sizes) {
      for (const double pool : o.pools) {
        for (const double host_pool : o.host_pools) {
          for (const std::string& cache : o.caches)
            cases.push_back({name, cache, block_size, pool,
                             pool_blocks(workload, pool, block_size) +
                                 sample_blocks(workload, o.num_samples, block_size),
                             host_pool,
                             host_pool > 0 ? pool_blocks(workload, host_pool, block_size) : 0});
        }
      }
    }
    for (int i = 0; i < o.repeats; ++i) {
      for (std::size_t j = first; j < cases.size(); ++j) {
        Case& c = cases[j];
        auto [result, words] = c.block_size == kOther ? run_cache<Other>(o, model, workload, c)
                                                      : run_cache<Policy>(o, model, workload, c);
        c.runs.push_back(std::move(result));
        engine = std::move(words);
      }
    }
    for (std::size_t j = first; j < cases.size(); ++j) {
      std::ranges::sort(cases[j].runs, {}, &RunResult::seconds);
      print(cases[j]);
    }
  }
  return {std::move(cases), std::move(engine)};
}

/// The program, on the backend of `Policy`, with its block size and one other.
template <class Policy, int kOther>
int run_main(int argc, char** argv) {
  Options o;
  CLI::App app{
      "Serves requests whose prompts begin alike, in an engine with each prefix cache, and counts\n"
      "what each had to compute.\n"
      "  shared  many requests after a few prefixes, in random order\n"
      "  chat    conversations with tool results; every prompt is the whole history and more\n"
      "  tree    trees of thought; every prompt is the path to its node\n"
      "  unique  nothing in common\n"
      "A request that builds on another's answer is submitted when that is there, all others at\n"
      "once; the time to the first token counts from there. Answers are greedy and of one length.\n"
      "The defaults take seconds on two cores. For a GPU:\n"
      "  --shape qwen3_0_6b --workloads shared --requests 512 --prefixes 8 --prefix-tokens 2048\n"
      "  --own-tokens 16-128 --output-tokens 64 --max-num-seqs 256 --repeats 3"};
  add_options(app, o, {Policy::kv.block_size, kOther});
  if (const auto status = nanovllm::examples::parse_command_line(app, argc, argv)) return *status;
  if (o.model.empty() && o.shape.empty()) o.shape = "fairytale";
  o.random_weights = o.random_weights || !o.shape.empty();

  try {
    nv::check<nv::ConfigError>(o.model.empty() || o.shape.empty(),
                               "give --model DIR or --shape NAME, not both");
    const nv::Qwen3Config model =
        o.shape.empty() ? nv::Qwen3Config::load(o.model)
                        : engine_bench::config_of(engine_bench::DenseModels::shapes().at(o.shape));
    engine_bench::ResultFile file(o.json);
    print_header();
    const auto [cases, engine] = run_all<Policy, kOther>(o, model);
    Json results = Json::array();
    for (const Case& c : cases) results.push_back(to_json(c));
    file.write(app, engine, std::move(results));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "prefix_cache: %s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace prefix_bench
