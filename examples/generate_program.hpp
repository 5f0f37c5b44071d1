#pragma once
/// The program `generate`, whatever the backends: one JSON request a line in, one JSON result a
/// line out. `generate --help` and examples/README.md state the format; jsonl.hpp reads and writes
/// it.

#include <nanovllm/full_policy.hpp>
#include <nanovllm/with/any/all_models.hpp>

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "batch_progress.hpp"
#include "batch_run.hpp"
#include "command_line.hpp"
#include "engine_options.hpp"
#include "number_formats.hpp"
#include "open_engine.hpp"
#include "processes.hpp"

namespace nanovllm::examples {

namespace nvllm = nanovllm;

struct GenerateOptions {
  EngineOptions engine;
  std::string input, output;
  int window = 0;
  bool as_finished = false;
  std::optional<std::uint64_t> seed;
  bool no_prefix_cache = false;
};

/// Opens the files and serves. A process that only follows rank 0 touches neither.
inline void run(nvllm::AnyEngine& engine, const GenerateOptions& options, bool follows) {
  if (follows) return engine.run_worker();
  LineReader input(options.input);
  std::ofstream file;
  const bool is_file = options.output != "-";
  if (is_file) file.open(options.output, std::ios::binary | std::ios::trunc);
  std::ostream& output = is_file ? file : std::cout;
  nvllm::check<nvllm::LoadError>(output.good(), "cannot write '", options.output, "'");
  const int window =
      options.window != 0 ? options.window : std::max(256, 4 * options.engine.max_num_seqs);
  // Not between results on the same terminal.
  const bool is_between = !is_file && ::isatty(STDOUT_FILENO) == 1;
  BatchProgress progress(options.input, is_between ? nullptr : stderr);
  const BatchCounts counts =
      serve_batch(engine, input, output, !options.as_finished, static_cast<std::size_t>(window),
                  options.seed, [&](std::size_t num_done, std::size_t num_alive) {
                    progress.show(num_done, num_alive, engine);
                  });
  const nvllm::EngineStats stats = engine.stats();
  std::fprintf(stderr,
               "%zu lines, %zu errors, %lld prompt tokens computed, %lld from the prefix cache, "
               "%lld generated%s\n",
               counts.lines, counts.errors, static_cast<long long>(stats.num_prefill_tokens),
               static_cast<long long>(stats.num_hit_tokens),
               static_cast<long long>(stats.num_sampled_tokens), progress.end(stats).c_str());
}

/// The engine of one of `Models`, and of the types that were asked for.
template <class Models, class Float32Policy, class Bfloat16Policy>
std::unique_ptr<nvllm::AnyEngine> make(const GenerateOptions& options, nvllm::EngineConfig config) {
  const NumberFormats& formats = options.engine.formats;
  return with_formats<Float32Policy, Bfloat16Policy>(formats, [&]<class Policy>() {
    return open_engine<Models, Policy>(formats, std::move(config));
  });
}

/// A place where the program can run, with one of the instances of `make`.
struct Device {
  const char* name;
  bool (*is_present)();
  std::unique_ptr<nvllm::AnyEngine> (*make)(const GenerateOptions&, nvllm::EngineConfig);
};

/// The one that was asked for, or the first that is present.
inline const Device& choose(const std::vector<Device>& devices, const std::string& name) {
  for (const Device& device : devices) {
    if (name == "auto" ? device.is_present() : name == device.name) return device;
  }
  throw nvllm::ConfigError(nvllm::concat("--device ", name, ": this program was built without it"));
}

inline void add_options(CLI::App& app, GenerateOptions& options) {
  add_engine_options(app, options.engine);
  app.add_option("--input", options.input, "file of requests, '-' for standard input")->required();
  app.add_option("--output", options.output,
                 "file of results, overwritten, '-' for standard output")
      ->required();
  add_number(app, "--window", options.window,
             "lines read and not answered at the most; 0 for four times --max-num-seqs, at "
             "least 256");
  app.add_flag("--as-finished", options.as_finished,
               "write results as they finish, not in the order of the input");
  add_number(app, "--seed", options.seed,
             "requests without a seed of their own draw by this one and their line's place in the "
             "input, whatever the other lines are; a random one if not given");
  app.add_flag("--no-prefix-cache", options.no_prefix_cache,
               "compute every prompt from its first token");
}

/// The program, on one of `devices`, the best of which comes first.
inline int generate_main(int argc, char** argv, const std::vector<Device>& devices) {
  GenerateOptions options;
  CLI::App app{concat(
      "Runs a batch of requests through a checkpoint.\n\n"
      "Each input line is a JSON object with 'id' and one of 'prompt', 'prompt_token_ids',\n"
      "'messages' (with optional 'tools' and 'enable_thinking'), and optionally 'session', the\n"
      "name of a conversation whose turns are the lines of that name, and 'sampling' with\n",
      sampling_field_names(),
      ".\n"
      "Each output line, in input order, has 'id', 'text', 'token_ids', 'finish_reason',\n"
      "'num_prompt_tokens', 'num_cached_tokens' and, if asked for, 'logprobs',\n"
      "'prompt_logprobs', 'alternatives' and 'beam_score'; or 'id' and 'error'. A bad line costs "
      "that line alone. Blank lines are "
      "skipped. Input is\n"
      "read as it comes, and a result is written as soon as it and all before it are there.\n\n"
      "With --tp N the ranks are threads of this process. Built with NANOVLLM_MPI and started N\n"
      "times by mpirun, each process is one rank; rank 0 reads the input and writes the output.")};
  add_options(app, options);
  if (const auto status = parse_command_line(app, argc, argv)) return *status;

  Processes processes;
  try {
    processes.join();
    nvllm::EngineConfig config = engine_config(options.engine, processes.group());
    config.prefix_caching = !options.no_prefix_cache;
    config.seed = options.seed;
    const std::string drafts = drafts_line(config);
    const std::unique_ptr<nvllm::AnyEngine> engine =
        choose(devices, options.engine.device).make(options, std::move(config));
    if (!processes.follows()) std::fputs(drafts.c_str(), stderr);
    run(*engine, options, processes.follows());
    return 0;
  } catch (const std::exception& error) {
    processes.fail(error.what());
    std::fprintf(stderr, "generate: %s\n", error.what());
    return 1;
  }
}

/// The same on the CPU, for a list of models.
template <class Models>
int generate_main(int argc, char** argv) {
  return generate_main(argc, argv,
                       {{"cpu", [] { return true; }, make<Models, FullFloat32Policy, FullPolicy>}});
}

}  // namespace nanovllm::examples
