#pragma once
/// The program `generate`, whatever the backends: one JSON request a line in, one JSON result a
/// line out. `generate --help` and examples/README.md state the format; jsonl.hpp reads and writes
/// it.

#include <nanovllm/engine.hpp>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "jsonl.hpp"
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
  std::int64_t kv_blocks = 0;
  int num_threads = 0;
  std::optional<std::uint64_t> seed;
  bool no_prefix_cache = false;
};

/// Writes result lines in input order, each as soon as all before it are out.
class OrderedWriter {
 public:
  explicit OrderedWriter(const std::string& path)
      : stream_(path, std::ios::binary | std::ios::trunc) {
    nv::check<nv::LoadError>(stream_.good(), "cannot write '", path, "'");
  }

  void put(std::size_t index, std::string line) {
    pending_.emplace(index, std::move(line));
    for (auto next = pending_.find(next_); next != pending_.end(); next = pending_.find(++next_)) {
      stream_ << next->second;
      pending_.erase(next);
    }
    stream_.flush();
    nv::check(stream_.good(), "writing the output failed after ", next_, " lines");
  }

 private:
  std::ofstream stream_;
  std::map<std::size_t, std::string> pending_;
  std::size_t next_ = 0;
};

/// Feeds the input to the engine and the results to the writer.
template <class Engine>
void serve(Engine& engine, std::istream& input, OrderedWriter& writer) {
  std::size_t count = 0;
  for (std::string text; std::getline(input, text);) {
    const std::optional<BatchLine> line = parse_batch_line(text);
    if (!line) continue;  // blank
    const std::size_t index = count++;
    if (!line->request) {
      writer.put(index, error_line(line->id, line->error));
      continue;
    }
    const bool with_logprobs = line->request->sampling.logprobs.has_value();
    try {
      engine.submit(line->request->prompt, line->request->sampling,
                    [&writer, index, id = line->id, with_logprobs](const nv::TokenEvent& event) {
                      if (event.output) {
                        writer.put(index, result_line(id, *event.output, with_logprobs));
                      }
                    });
    } catch (const nv::RequestError& error) {
      writer.put(index, error_line(line->id, error.what()));
    }
  }
  while (engine.step()) {
  }
  const nv::EngineStats stats = engine.stats();
  std::fprintf(
      stderr,
      "%zu lines, %lld prompt tokens computed, %lld from the prefix cache, %lld generated\n", count,
      static_cast<long long>(stats.num_prefill_tokens),
      static_cast<long long>(stats.num_hit_tokens),
      static_cast<long long>(stats.num_sampled_tokens));
}

/// Opens the files and serves. A process that only follows rank 0 touches neither.
template <class Engine>
void run(Engine& engine, const GenerateOptions& options, bool follows) {
  if (follows) return engine.run_worker();
  std::ifstream file;
  if (options.input != "-") {
    file.open(options.input, std::ios::binary);
    nv::check<nv::LoadError>(file.good(), "cannot read '", options.input, "'");
  }
  OrderedWriter writer(options.output);
  serve(engine, options.input == "-" ? std::cin : file, writer);
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
                            .prefix_caching = !options.no_prefix_cache,
                            .processes = processes,
                            .seed = options.seed,
                            .on_load = nv::load_progress_line()};
    if (options.kv_blocks != 0) config.kv_size = nv::KvSize::blocks(options.kv_blocks);
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
      "'messages' (with optional 'tools' and 'enable_thinking'), and optionally 'sampling' with\n"
      "temperature, top_k, top_p, min_p, seed, max_tokens, min_tokens, ignore_eos,\n"
      "stop_token_ids, stop, include_stop_str_in_output, skip_special_tokens, logprobs.\n"
      "Each output line, in input order, has 'id', 'text', 'token_ids', 'finish_reason',\n"
      "'num_prompt_tokens', 'num_cached_tokens' and, if asked for, 'logprobs'; or 'id' and\n"
      "'error'. A bad line costs that line alone. Blank lines are skipped.\n\n"
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
