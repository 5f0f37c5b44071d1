#pragma once
/// The program `engine_bench`, whatever the backend: options, measurements, tables and JSON.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../../examples/command_line.hpp"
#include "commit.hpp"
#include "measure.hpp"
#include "models.hpp"
#include "nanovllm/cpu.hpp"
#include "nanovllm/engine.hpp"
#include "nanovllm/policy.hpp"
#include "nanovllm/with/eight_bits/fp8_kv.hpp"
#include "nanovllm/with/eight_bits/int8_kv.hpp"
#include "nanovllm/with/moe/expert_parallel.hpp"
#include "nanovllm/with/peers/options.hpp"
#include "report.hpp"
#include "sizing.hpp"

namespace engine_bench {

struct Options : Measurements {
  std::string model, shape;
  bool random_weights = false;
  std::string dtype = "bfloat16";
  std::int64_t num_seqs = 256;
  int tensor_parallel = 1;
  bool expert_parallel = false;
  int max_num_seqs = 256;
  int max_num_batched_tokens = 0;
  std::int64_t kv_blocks = 0;
  int num_threads = 0;
  std::string overlap = "default";
  std::string edits = "none";
  bool batch_invariant = false;
  bool peers = false;
  std::string kv_dtype = "auto";
  std::string quantization = "none";
  std::string json;
};

/// What probing the machine depends on.
struct ProbeOptions {
  int num_threads = 0;
  int num_ranks = 1;
};

template <class Models>
void add_options(CLI::App& app, Options& o) {
  app.add_option("--model", o.model, "checkpoint directory");
  std::vector<std::string> names;
  for (const auto& [name, shape] : Models::shapes()) names.push_back(name);
  app.add_option("--shape", o.shape, "sizes of a published model, with random weights")
      ->check(nanovllm::examples::one_of(names));
  app.add_flag("--random-weights", o.random_weights,
               "with --model: take its config.json alone; --shape implies it");
  app.add_option("--dtype", o.dtype, "type of weights, activations and KV cache")
      ->check(nanovllm::examples::one_of({"float32", "bfloat16"}))
      ->capture_default_str();
  const auto number = [&](const char* name, auto& value, const char* help) {
    app.add_option(name, value, help)->check(CLI::PositiveNumber)->capture_default_str();
  };
  const auto size = [&](const char* name, auto& value, const char* help) {
    app.add_option(name, value, help)->check(CLI::NonNegativeNumber)->capture_default_str();
  };
  number("--num-seqs", o.num_seqs, "workload: requests");
  app.add_option("--max-input", o.max_input, "workload: tokens of a prompt at the most, >= 100")
      ->check(CLI::Range(100, 1 << 20))
      ->capture_default_str();
  app.add_option("--max-output", o.max_output, "workload: output tokens at the most, >= 100")
      ->check(CLI::Range(100, 1 << 20))
      ->capture_default_str();
  app.add_flag("--workload", o.workload, "run the workload beside the other measurements");
  number("--tp", o.tensor_parallel, "tensor-parallel ranks");
  app.add_flag("--enable-expert-parallel", o.expert_parallel, "ranks have whole experts");
  number("--max-num-seqs", o.max_num_seqs,
         "sequences in a step at the most; raised to the largest batch size");
  size("--max-num-batched-tokens", o.max_num_batched_tokens,
       "tokens in a step at the most; 0 for the backend's default");
  size("--kv-blocks", o.kv_blocks, "blocks of the KV pool; 0 for a share of memory");
  size("--threads", o.num_threads, "CPU threads of all ranks; 0 for all");
  app.add_option("--overlap", o.overlap, "plan a step while another is computed")
      ->check(nanovllm::examples::one_of({"default", "on", "off"}))
      ->capture_default_str();
  app.add_option("--edits", o.edits,
                 "what the requests of --batch-sizes and the workload ask for beside their "
                 "temperature; 'one' is a mask for the first alone")
      ->check(nanovllm::examples::one_of({"none", "penalties", "mask", "both", "one"}))
      ->capture_default_str();
  const auto list = [&](const char* name, std::vector<std::int64_t>& values, const char* help) {
    app.add_option(name, values, help)
        ->delimiter(',')
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
  };
  list("--batch-sizes", o.batch_sizes, "measure decode steps of so many sequences: 1,8,64");
  list("--context", o.contexts, "with so many tokens each: 128,1024");
  list("--prefill", o.prefill, "measure prompts of so many tokens");
  list("--embed", o.embed, "measure embeddings of texts of so many tokens, beside their prefill");
  number("--num-texts", o.num_texts, "texts of --embed");
  list("--ttft", o.first_token, "measure the time to the first token of such a prompt");
  size("--warm-up-steps", o.repeats.warm_up_steps, "decode steps before the measured ones");
  number("--steps", o.repeats.steps, "decode steps measured");
  number("--repeats", o.repeats.prompts, "measurements of --prefill, --embed and --ttft");
  app.add_option("--json", o.json, "file for options, machine and results, overwritten");
}

/// What an option of 0 says: nothing.
[[nodiscard]] inline std::optional<int> unless_zero(int value) {
  return value == 0 ? std::nullopt : std::optional<int>(value);
}

inline nv::EngineConfig engine_config(const Options& o, const nv::Qwen3Config& model) {
  nv::EngineConfig config{.model = o.model,
                          .tensor_parallel = o.tensor_parallel,
                          .extras = {nv::ExpertParallel{.on = o.expert_parallel}},
                          .num_threads = unless_zero(o.num_threads),
                          .max_num_seqs = o.max_num_seqs,
                          .max_num_batched_tokens = unless_zero(o.max_num_batched_tokens),
                          .max_model_len = longest_sequence(o),
                          .seed = 0,
                          .on_load = nv::load_progress_line()};
  nv::check<nv::ConfigError>(config.max_model_len <= nv::max_context_length(model),
                             "the measurements need sequences of ", *config.max_model_len,
                             " tokens, but the model's context is ", nv::max_context_length(model));
  for (const std::int64_t batch : o.batch_sizes)
    config.max_num_seqs = std::max(config.max_num_seqs, static_cast<int>(batch));
  if (o.overlap != "default") config.overlap = o.overlap == "on";
  if (!o.peers) config.extras.set(nv::PeerOptions{.max_bytes = 0});
  if (o.kv_blocks != 0) config.kv_size = nv::KvSize::blocks(o.kv_blocks);
  return config;
}

/// Builds the engine and takes the measurements that the options ask for.
template <class Policy, class Prober, class Models>
std::pair<Results, std::string> run(const Options& o, const typename Models::Config& model) {
  using Element = typename Policy::Element;
  using Kv = typename nv::ElementsOf<Policy>::KvElement;
  using Engine = nv::Engine<typename Models::Model, Policy>;
  const nv::EngineConfig config = engine_config(o, model);
  const auto begin = std::chrono::steady_clock::now();
  Engine engine = o.random_weights ? Engine(model, nv::RandomWeights{}, config) : Engine(config);
  Results results;
  results.start_up_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::fprintf(stderr, "%s", engine.describe().c_str());
  const int max_batched_tokens =
      config.max_num_batched_tokens.value_or(Policy::Backend::kDefaultBatchedTokens);
  Prober prober({o.num_threads, o.tensor_parallel}, nv::kDType<Element>);
  const auto kv_row =
      model.head_dim * static_cast<std::int64_t>(sizeof(nv::KvStored<Kv>)) + nv::kKvScaleBytes<Kv>;
  double head_bytes = sizeof(Element);
  double layer_bytes = nv::kWeightBits<typename nv::ElementsOf<Policy>::Weight> / 8.;
  if constexpr (requires { Policy::kHeadBytes; }) {
    head_bytes = Policy::kHeadBytes;
    layer_bytes = Policy::kLayerBytes;
  }
  Bench<Engine> bench(engine, ModelWork(model, head_bytes, layer_bytes, kv_row),
                      [&] { return prober(); }, o.repeats, Policy::kv.block_size,
                      max_batched_tokens, {o.edits, model.vocab_size});
  for (const std::int64_t context : o.contexts) {
    for (const std::int64_t batch : o.batch_sizes)
      results.decodes.push_back(bench.decode(batch, context));
  }
  for (const std::int64_t length : o.prefill) results.prefills.push_back(bench.prefill(length));
  for (const std::int64_t length : o.embed)
    results.embeds.push_back(bench.embed(length, o.num_texts));
  for (const std::int64_t length : o.first_token)
    results.first_tokens.push_back(bench.first_token(length));
  if (o.workload) {
    results.workloads.push_back(
        bench.workload(make_workload(o.num_seqs, o.max_input, o.max_output, model.vocab_size)));
  }
  return {std::move(results), engine.describe()};
}

/// Every option as it was given, or else its default.
inline Json options_json(const CLI::App& app) {
  Json out = Json::object();
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_name() == "--help") continue;
    const bool is_flag = option->get_expected_max() == 0;
    std::string value = is_flag ? "false" : option->get_default_str();
    if (option->count() > 0) value = CLI::detail::join(option->results(), ",");
    out[option->get_lnames().front()] = value;
  }
  return out;
}

/// A file for the machine, the options and the results of a run.
class ResultFile {
 public:
  /// Opens `path`, so that no run begins whose results cannot be kept; an empty one stands for no
  /// file. Throws LoadError.
  explicit ResultFile(std::string path) : path_(std::move(path)) {
    if (path_.empty()) return;
    file_.open(path_, std::ios::trunc);
    nv::check<nv::LoadError>(file_.good(), "cannot write '", path_, "'");
  }

  /// Once. Throws Error when it cannot be written.
  /// @param engine  Engine::describe, or nothing where there were several.
  void write(const CLI::App& app, std::string_view engine, Json results) {
    if (path_.empty()) return;
    file_ << Json{{"machine", machine_json(engine, kCommit)},
                  {"options", options_json(app)},
                  {"results", std::move(results)}}
                 .dump(2)
          << '\n';
    file_.close();
    nv::check(file_.good(), "writing '", path_, "' failed");
  }

 private:
  std::string path_;
  std::ofstream file_;
};

/// The program, on the backend of the policies, with the ceilings that `Prober` finds and the models
/// of `Models` (models.hpp). `Policies` has `Float32` and `Bfloat16`, and may have `BatchInvariant`,
/// for `--batch-invariant`, `kHasPeers`, for `--peers`, `EightBits<weights, Kv>`, for
/// `--quantization fp8` and `--kv-dtype`, where `Kv` is the format of the cache, and `Int8` and
/// `Int4`, for `--quantization int8` and `int4`; or has `Quantized<kIsInt4, kHasHead>` instead of all
/// these, for `--quantization fp8` and `int4` and `--quantize-lm-head`. A policy may say how many bytes an element of its
/// weights takes, `kHeadBytes` in the vocabulary's matrices and `kLayerBytes` in others.
template <class Policies, class Prober, class Models = DenseModels>
int run_main(int argc, char** argv) {
  Options o;
  CLI::App app{
      "Measures the engine. By default it serves the workload of nano-vllm's bench.py: 256\n"
      "requests with prompts and outputs of 100 to 1,024 tokens, 142,827 prompt tokens and "
      "133,966\n"
      "output tokens in all. That is made for a GPU: with a model of 0.6 billion parameters it\n"
      "takes far too long on a few CPU cores, so reduce it with --num-seqs, --max-input and\n"
      "--max-output.\n"
      "--batch-sizes, --prefill, --embed and --ttft measure steps instead; --workload adds the "
      "workload.\n\n"
      "Every time stands beside its floor: the time to read the weights and the KV cache once, or\n"
      "to do the multiplications, whichever is longer, at the rates probed in the same run on the\n"
      "same threads. Weights that fit into a cache can beat it. Progress goes to standard error,\n"
      "tables to standard output."};
  add_options<Models>(app, o);
  constexpr bool kHasInvariant = requires { typename Policies::BatchInvariant; };
  constexpr bool kHasPeers = requires { requires Policies::kHasPeers; };
  constexpr bool kHasEightBits = requires {
    typename Policies::template EightBits<true, nv::bf16>;
  };
  if constexpr (kHasInvariant) {
    app.add_flag("--batch-invariant", o.batch_invariant,
                 "bfloat16 with the same bits whatever a request is batched with");
  }
  if constexpr (kHasPeers) {
    app.add_flag("--peers", o.peers,
                 "sums over ranks go through the memory of peers; not with --batch-invariant");
  }
  if constexpr (kHasEightBits) {
    app.add_option("--kv-dtype", o.kv_dtype, "the KV cache of bfloat16: as it is, or of 8 bits")
        ->check(nanovllm::examples::one_of({"auto", "int8", "fp8"}))
        ->capture_default_str();
    app.add_option("--quantization", o.quantization,
                   "the layers' weights of bfloat16: as they are, or of 8 bits (with --kv-dtype "
                   "auto or int8)")
        ->check(nanovllm::examples::one_of({"none", "fp8"}))
        ->capture_default_str();
  }
  constexpr bool kIsQuantized = requires { typename Policies::template Quantized<true, true>; };
  bool quantizes_head = false;
  if constexpr (kIsQuantized) {
    o.quantization = "fp8";
    app.add_option("--quantization", o.quantization,
                   "the layers' weights: in 8-bit floats or in integers of 4 bits")
        ->check(nanovllm::examples::one_of({"fp8", "int4"}))
        ->capture_default_str();
    app.add_flag("--quantize-lm-head", quantizes_head, "lm_head in 8-bit floats, too");
  }
  constexpr bool kHasIntegers = requires { typename Policies::Int4; };
  if constexpr (kHasIntegers) {
    app.add_option("--quantization", o.quantization,
                   "the weights of bfloat16: as they are, in integers of 8 bits, or those of the "
                   "layers in 4")
        ->check(nanovllm::examples::one_of({"none", "int8", "int4"}))
        ->capture_default_str();
  }
  if (const auto status = nanovllm::examples::parse_command_line(app, argc, argv)) return *status;
  o.workload = o.workload || (o.batch_sizes.empty() && o.prefill.empty() && o.embed.empty() &&
                              o.first_token.empty());
  o.random_weights = o.random_weights || !o.shape.empty();

  try {
    nv::check<nv::ConfigError>(o.model.empty() != o.shape.empty(),
                               "give either --model DIR or --shape NAME");
    const auto model =
        o.shape.empty() ? Models::Config::load(o.model) : config_of(Models::shapes().at(o.shape));
    ResultFile file(o.json);
    const auto run_chosen = [&] {
      if constexpr (kHasInvariant) {
        nv::check<nv::ConfigError>(!o.peers || !o.batch_invariant,
                                   "--peers is not for --batch-invariant");
        if (o.batch_invariant)
          return run<typename Policies::BatchInvariant, Prober, Models>(o, model);
      }
      if constexpr (kHasEightBits) {
        const bool weights = o.quantization == "fp8";
        nv::check<nv::ConfigError>(!weights || o.kv_dtype != "fp8",
                                   "--quantization fp8 is for --kv-dtype auto or int8, got fp8");
        const auto run_in = [&]<bool kWeights, class Kv>() {
          return run<typename Policies::template EightBits<kWeights, Kv>, Prober, Models>(o, model);
        };
        if (weights && o.kv_dtype == "int8") return run_in.template operator()<true, nv::Int8Kv>();
        if (weights) return run_in.template operator()<true, nv::bf16>();
        if (o.kv_dtype == "int8") return run_in.template operator()<false, nv::Int8Kv>();
        if (o.kv_dtype == "fp8") return run_in.template operator()<false, nv::Fp8Kv>();
      }
      if constexpr (kHasIntegers) {
        if (o.quantization == "int8") return run<typename Policies::Int8, Prober, Models>(o, model);
        if (o.quantization == "int4") return run<typename Policies::Int4, Prober, Models>(o, model);
      }
      if constexpr (kIsQuantized) {
        nv::check<nv::ConfigError>(o.dtype == "bfloat16", "expected --dtype bfloat16, got ",
                                   o.dtype);
        const auto run_with = [&]<bool kIsInt4>() {
          using Plain = typename Policies::template Quantized<kIsInt4, false>;
          using WithHead = typename Policies::template Quantized<kIsInt4, true>;
          return quantizes_head ? run<WithHead, Prober, Models>(o, model)
                                : run<Plain, Prober, Models>(o, model);
        };
        return o.quantization == "int4" ? run_with.template operator()<true>()
                                        : run_with.template operator()<false>();
      } else {
        return o.dtype == "float32" ? run<typename Policies::Float32, Prober, Models>(o, model)
                                    : run<typename Policies::Bfloat16, Prober, Models>(o, model);
      }
    };
    const auto [results, engine] = run_chosen();
    file.write(app, engine, to_json(results));
    std::printf("%s", engine.c_str());
    print(results);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "engine_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace engine_bench
