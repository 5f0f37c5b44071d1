// Does without a server what `http_load` has done with one, for comparison.
//
//   engine_load --model DIR http_load_64.json http_load_256.json
//
// Each file is a result of http_load (--json). Its requests are made again, the same prompts and
// settings, as many at a time, by a program that calls the engine: a callback that hears of a
// request's end submits the next one. The runs come in the order of the files, in one engine.
// Linked with engine_factory.cpp or engine_factory.cu of examples/server, so the engine is that of
// `serve`.
#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "../../examples/command_line.hpp"
#include "../../examples/server/engine_factory.hpp"
#include "load.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/io/json.hpp"

namespace nv = nanovllm;
using http_load::AnswerClock;
using http_load::Clock;
using http_load::Load;
using http_load::Times;

namespace {

struct Options {
  std::string model, device = "auto", dtype = "bfloat16", json;
  int max_num_seqs = 256;
  std::int64_t kv_blocks = 0;
  std::vector<std::string> results;
};

/// The requests of a load, one engine's.
class Run {
 public:
  Run(nv::AnyEngine& engine, const Load& load) : engine_(engine), load_(load) {}

  /// Serves them all. Returns the result.
  nv::Json operator()() {
    const nv::EngineStats before = engine_.stats();
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < load_.concurrency; ++i) submit_next();
    engine_.run(stop_.get_token());
    const double seconds = http_load::seconds_between(begin, Clock::now());
    nv::check(num_failed_ == 0, num_failed_, " requests have failed");

    const nv::EngineStats after = engine_.stats();
    nv::Json result = result_json(load_, times_, seconds);
    result["steps"] = after.num_steps - before.num_steps;
    result["prefill_seconds"] = after.prefill_seconds - before.prefill_seconds;
    result["decode_seconds"] = after.decode_seconds - before.decode_seconds;
    result["host_seconds"] = after.host_seconds - before.host_seconds;
    return result;
  }

 private:
  void submit_next() {
    if (next_ >= load_.num_requests) return;
    const int index = next_++;
    // As http_load asks for it.
    const nv::SamplingParams params{.temperature = 1.f,
                                    .seed = static_cast<std::uint64_t>(index),
                                    .max_tokens = load_.num_output_tokens,
                                    .ignore_eos = true};
    engine_.submit(make_prompt(load_, index), params,
                   [this, clock = AnswerClock(times_)](const nv::TokenEvent& event) mutable {
                     if (!event.text.empty() || event.output != nullptr) clock.event();
                     if (event.output != nullptr) end(clock, *event.output);
                   });
  }

  void end(AnswerClock& clock, const nv::Output& output) {
    if (!output.error.empty()) ++num_failed_;
    clock.end(static_cast<std::int64_t>(output.token_ids.size()));
    submit_next();
    if (++num_ended_ == load_.num_requests) stop_.request_stop();
  }

  nv::AnyEngine& engine_;
  const Load load_;
  Times times_;
  std::stop_source stop_;
  int next_ = 0, num_ended_ = 0, num_failed_ = 0;
};

nv::Json read_result(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  nv::check<nv::LoadError>(file.good(), "cannot read '", path, "'");
  return nv::parse_json<nv::LoadError>(text, path);
}

int run(const Options& options) {
  std::vector<nv::Json> served;
  std::vector<Load> loads;
  for (const std::string& path : options.results) {
    served.push_back(read_result(path));
    loads.push_back(http_load::load_of(served.back()));
    nv::check<nv::ConfigError>(loads.back().num_texts == 0, path,
                               " is of embeddings, expected a result of completions");
  }
  nv::EngineConfig config{.model = options.model, .max_num_seqs = options.max_num_seqs};
  if (options.kv_blocks != 0) config.kv_size = nv::KvSize::blocks(options.kv_blocks);
  const auto engine = nv::examples::make_engine(options.device, {.dtype = options.dtype}, config);
  std::fprintf(stderr, "%s\n", engine->describe().c_str());

  nv::Json results = nv::Json::array();
  for (std::size_t i = 0; i < loads.size(); ++i) {
    nv::Json result = Run(*engine, loads[i])();
    const nv::Json& through_http = served[i];
    const double share =
        through_http["tokens_per_second"].get<double>() / result["tokens_per_second"].get<double>();
    http_load::print_result(result);
    std::printf("%lld steps, host %.3f s\n",
                static_cast<long long>(result["steps"].get<std::int64_t>()),
                result["host_seconds"].get<double>());
    std::printf("through HTTP %.1f%% of that\n", 100 * share);
    results.push_back(nv::Json::object(
        {{"engine", std::move(result)}, {"http", through_http}, {"share", share}}));
  }
  if (!options.json.empty()) std::ofstream(options.json) << results.dump() << '\n';
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Makes the requests of http_load's results again, without a server."};
  app.add_option("results", options.results, "files that http_load has written")->required();
  app.add_option("--model", options.model, "checkpoint directory")->required();
  app.add_option("--device", options.device, "where to run; auto takes a GPU if there is one")
      ->check(nv::examples::one_of({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--dtype", options.dtype, "type of weights, activations and KV cache")
      ->check(nv::examples::one_of({"float32", "bfloat16"}))
      ->capture_default_str();
  app.add_option("--max-num-seqs", options.max_num_seqs, "sequences in a step at the most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--kv-blocks", options.kv_blocks, "blocks of the KV pool; 0 for a share of memory")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--json", options.json, "file for the results");
  if (const auto status = nv::examples::parse_command_line(app, argc, argv)) return *status;
  try {
    return run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "engine_load: %s\n", error.what());
    return 1;
  }
}
