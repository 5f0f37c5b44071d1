#pragma once
/// The program `generate`, whatever the backends: one JSON request a line in, one JSON result a
/// line out. `generate --help` and examples/README.md state the format; jsonl.hpp reads and writes
/// it.

#include <nanovllm/engine.hpp>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "batch_run.hpp"
#include "with_model.hpp"

namespace nanovllm::examples {

namespace nv = nanovllm;

struct GenerateOptions {
  std::string model, input, output;
  std::string device = "auto", dtype = "bfloat16";
  int tensor_parallel = 1;
  int max_num_seqs = 256;
  int max_num_batched_tokens = 0;
  std::int64_t max_model_len = 0;
  std::int64_t kv_blocks = 0, host_kv_blocks = 0;
  std::string disk_kv_path;
  double disk_kv_gib = 16;
  int num_threads = 0;
  int window = 0;
  bool as_finished = false;
  std::optional<std::uint64_t> seed;
  bool no_prefix_cache = false;
};

/// Opens the files and serves. A process that only follows rank 0 touches neither.
template <class Engine>
void run(Engine& engine, const GenerateOptions& options, bool follows) {
  if (follows) return engine.run_worker();
  LineReader input(options.input);
  std::ofstream output(options.output, std::ios::binary | std::ios::trunc);
  nv::check<nv::LoadError>(output.good(), "cannot write '", options.output, "'");
  const int window = options.window != 0 ? options.window : std::max(256, 4 * options.max_num_seqs);
  const BatchCounts counts =
      serve_batch(engine, input, output, !options.as_finished, static_cast<std::size_t>(window));
  const nv::EngineStats stats = engine.stats();
  std::fprintf(stderr,
               "%zu lines, %zu errors, %lld prompt tokens computed, %lld from the prefix cache, "
               "%lld generated\n",
               counts.lines, counts.errors, static_cast<long long>(stats.num_prefill_tokens),
               static_cast<long long>(stats.num_hit_tokens),
               static_cast<long long>(stats.num_sampled_tokens));
}

using Processes = std::shared_ptr<nv::ProcessGroup>;

template <class Policy, nv::Qwen3Shape... kShapes>
bool run_policy(const GenerateOptions& options, const Processes& processes) {
  return with_model<kShapes...>(nv::ModelConfig::load(options.model), [&]<class Model>() {
    nv::EngineConfig config{.model = options.model,
                            .tensor_parallel = options.tensor_parallel,
                            .num_threads = options.num_threads,
                            .max_num_seqs = options.max_num_seqs,
                            .max_num_batched_tokens = options.max_num_batched_tokens,
                            .max_model_len = options.max_model_len,
                            .host_kv_size = nv::KvSize::blocks(options.host_kv_blocks),
                            .prefix_caching = !options.no_prefix_cache,
                            .processes = processes,
                            .seed = options.seed,
                            .on_load = nv::load_progress_line()};
    if (options.kv_blocks != 0) config.kv_size = nv::KvSize::blocks(options.kv_blocks);
    if (!options.disk_kv_path.empty()) config.disk_kv_path = options.disk_kv_path;
    config.disk_kv_bytes = static_cast<std::uint64_t>(options.disk_kv_gib * (1 << 30));
    nv::Engine<Model, Policy> engine(std::move(config));
    run(engine, options, processes && processes->rank() != 0);
    return true;
  });
}

/// `kShapes` are those that get code of their own.
template <class Float32Policy, class Bfloat16Policy, nv::Qwen3Shape... kShapes>
bool run_dtype(const GenerateOptions& options, const Processes& processes) {
  return options.dtype == "float32" ? run_policy<Float32Policy, kShapes...>(options, processes)
                                    : run_policy<Bfloat16Policy, kShapes...>(options, processes);
}

/// A place where the program can run, with one of the instances of `run_dtype`.
struct Device {
  const char* name;
  bool (*is_present)();
  bool (*run)(const GenerateOptions&, const Processes&);
};

/// The one that was asked for, or the first that is present.
inline const Device& choose(const std::vector<Device>& devices, const std::string& name) {
  for (const Device& device : devices) {
    if (name == "auto" ? device.is_present() : name == device.name) return device;
  }
  throw nv::ConfigError(nv::concat("--device ", name, ": this program was built without it"));
}

inline void add_options(CLI::App& app, GenerateOptions& options) {
  app.add_option("--model", options.model, "checkpoint directory")->required();
  app.add_option("--input", options.input, "file of requests, '-' for standard input")->required();
  app.add_option("--output", options.output, "file of results, overwritten")->required();
  app.add_option("--device", options.device, "where to run; auto takes a GPU if there is one")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--dtype", options.dtype, "type of weights, activations and KV cache")
      ->check(CLI::IsMember({"float32", "bfloat16"}))
      ->capture_default_str();
  app.add_option("--tp", options.tensor_parallel,
                 "tensor-parallel ranks: GPUs or shares of the CPU")
      ->capture_default_str();
  app.add_option("--max-num-seqs", options.max_num_seqs, "sequences in a step at the most")
      ->capture_default_str();
  app.add_option("--max-num-batched-tokens", options.max_num_batched_tokens,
                 "tokens in a step at the most; 0 for the device's default")
      ->capture_default_str();
  app.add_option("--max-model-len", options.max_model_len,
                 "tokens of a sequence at the most; 0 for the model's own")
      ->capture_default_str();
  app.add_option("--kv-blocks", options.kv_blocks, "blocks of the KV pool; 0 for a share of memory")
      ->capture_default_str();
  app.add_option("--host-kv-blocks", options.host_kv_blocks,
                 "blocks in host memory, for prefixes that the pool has no more room for")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--disk-kv-path", options.disk_kv_path,
                 "directory for such prefixes, below host memory, for later runs, too");
  app.add_option("--disk-kv-gib", options.disk_kv_gib, "size of its files at the most, in GiB")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--window", options.window,
                 "lines read and not answered at the most; 0 for four times --max-num-seqs, at "
                 "least 256")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag("--as-finished", options.as_finished,
               "write results as they finish, not in the order of the input");
  app.add_option("--num-threads", options.num_threads, "CPU threads; 0 for all")
      ->capture_default_str();
  app.add_option("--seed", options.seed,
                 "seed of requests without their own; a random one if not given");
  app.add_flag("--no-prefix-cache", options.no_prefix_cache,
               "compute every prompt from its first token");
}

/// The program, on one of `devices`, the best of which comes first.
inline int generate_main(int argc, char** argv, const std::vector<Device>& devices) {
  GenerateOptions options;
  CLI::App app{
      "Runs a batch of requests through a Qwen3 checkpoint.\n\n"
      "Each input line is a JSON object with 'id' and one of 'prompt', 'prompt_token_ids',\n"
      "'messages' (with optional 'tools' and 'enable_thinking'), and optionally 'session', the\n"
      "name of a conversation whose turns are the lines of that name, and 'sampling' with\n"
      "temperature, top_k, top_p, min_p, seed, n, best_of, max_tokens, min_tokens, ignore_eos,\n"
      "stop_token_ids, stop, include_stop_str_in_output, skip_special_tokens, logprobs,\n"
      "priority, beam_width, length_penalty, early_stopping, repetition_penalty,\n"
      "frequency_penalty, presence_penalty, logit_bias, allowed_token_ids, bad_words,\n"
      "logprob_token_ids, prompt_logprobs.\n"
      "Each output line, in input order, has 'id', 'text', 'token_ids', 'finish_reason',\n"
      "'num_prompt_tokens', 'num_cached_tokens' and, if asked for, 'logprobs',\n"
      "'prompt_logprobs', 'alternatives' and 'beam_score'; or 'id' and 'error'. A bad line costs "
      "that line alone. Blank lines are "
      "skipped. Input is\n"
      "read as it comes, and a result is written as soon as it and all before it are there.\n\n"
      "With --tp N the ranks are threads of this process. Started N times by torchrun or mpirun,\n"
      "each process is one rank; rank 0 reads the input and writes the output."};
  add_options(app, options);
  CLI11_PARSE(app, argc, argv);

  Processes processes;
  try {
    processes = nv::ProcessGroup::from_environment();
    choose(devices, options.device).run(options, processes);
    return 0;
  } catch (const std::exception& error) {
    const std::string who = processes ? nv::concat(" (rank ", processes->rank(), ")") : "";
    std::fprintf(stderr, "generate%s: %s\n", who.c_str(), error.what());
    return 1;
  }
}

}  // namespace nanovllm::examples
