// What formats of weights and of the KV cache cost in quality, on the CPU:
//
//   format_quality MODEL [OTHER...] [--texts 24] [--tokens 400] [--chunks FILE] [--json FILE]
//
// MODEL is a checkpoint's directory. Each OTHER is a checkpoint of the same model, such as a GGUF
// file in another format: its values are compared as well, in float32. In float32 the model writes
// texts, drawn at temperature 1. Then each format computes them again, and its probabilities after
// every token are compared with those of float32, all else being float32; and with those of
// bfloat16, all else being bfloat16:
//
//   KL         divergence of the format's distribution from the exact one, in nats: mean and largest
//   top-1      positions at which both have the same likeliest token
//   perplexity of the texts, which is the model's entropy where nothing is rounded
//
// With --chunks the texts are the chunks in FILE, which llama.cpp's llama-perplexity writes with
// --save-all-logits, and what is compared is what it compares: the second half of each chunk,
// without the last token.
//
// Needs 24 bytes of memory for each position and token of the vocabulary.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../../examples/command_line.hpp"
#include "nanovllm/cpu.hpp"
#include "nanovllm/engine.hpp"
#include "nanovllm/engine/runner/runner.hpp"
#include "nanovllm/policy.hpp"
#include "nanovllm/with/any/all_models.hpp"
#include "nanovllm/with/eight_bits/cpu/fp8_matrix.hpp"
#include "nanovllm/with/eight_bits/cpu/linear.hpp"
#include "nanovllm/with/eight_bits/fp8_kv.hpp"
#include "nanovllm/with/eight_bits/int8_kv.hpp"
#include "nanovllm/with/eight_bits/static_fp8_kv.hpp"
#include "nanovllm/with/eight_bits/weights.hpp"

namespace nv = nanovllm;

namespace {

template <class ActivationT, class Kv, class WeightT = ActivationT>
struct FormatPolicy : nv::Float32Policy {
  using Weight = WeightT;
  using Activation = ActivationT;
  using KvElement = Kv;
};

/// `Fp8Matrix`, by which rows are multiplied as GPUs do more than 16 of them: rounded to 8 bits, 128
/// columns at a time (with/eight_bits/cuda/quantise.cuh).
class RoundingMatrix : public nv::cpu::Fp8Matrix {
  using nv::cpu::Fp8Matrix::Fp8Matrix;
};

template <class T, class Out>
void run_op(const nv::LinearArgs<T, RoundingMatrix, Out>& args, nv::cpu::Context& context) {
  const std::int64_t rows = args.x.extent(0), columns = args.x.extent(1);
  std::vector<T> rounded(static_cast<std::size_t>(rows * columns));
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t begin = 0; begin < columns; begin += RoundingMatrix::kBlock) {
      const std::int64_t end = std::min(begin + RoundingMatrix::kBlock, columns);
      float largest = 0.f;
      for (std::int64_t j = begin; j < end; ++j)
        largest = std::max(largest, std::abs(static_cast<float>(*args.x.at(i, j))));
      const float scale = largest > 0.f ? largest / nv::fp8_e4m3::kMax : 1.f;
      for (std::int64_t j = begin; j < end; ++j) {
        const nv::fp8_e4m3 stored(static_cast<float>(*args.x.at(i, j)) / scale);
        rounded[static_cast<std::size_t>(i * columns + j)] = T(static_cast<float>(stored) * scale);
      }
    }
  }
  const nv::cpu::Fp8Matrix* const weight = args.weight;
  linear(
      nv::LinearArgs<T, nv::cpu::Fp8Matrix, Out>{
          {rounded.data(), {rows, columns}}, weight, args.y, args.accumulate},
      context);
}

template <class T>
struct Fp8Products : nv::Fp8Weights<T> {
  template <class Backend, nv::MatrixRole kRole>
  using Matrix = std::conditional_t<kRole == nv::MatrixRole::dense, RoundingMatrix,
                                    typename Backend::template Matrix<T>>;
  static constexpr std::string_view kName = "and activations float8_e4m3";
};

/// The same with lm_head.
template <class T>
struct Fp8HeadProducts : Fp8Products<T> {
  template <class Backend, nv::MatrixRole kRole>
  using Matrix = std::conditional_t<kRole == nv::MatrixRole::head, RoundingMatrix,
                                    nv::MatrixOf<Backend, Fp8Products<T>, kRole>>;
  static constexpr std::string_view kName = "and activations float8_e4m3, lm_head too";
};

using Text = std::vector<nv::TokenId>;
using Row = std::vector<double>;  // log-probabilities of the vocabulary

struct Options {
  std::string model;
  std::vector<std::string> others;
  std::uint64_t num_texts = 24;
  std::int32_t num_tokens = 400;  // of a text, without its beginning
  std::string chunks, json;
};

struct Texts {
  std::vector<Text> tokens = {};
  std::size_t first = 0;  // what follows each token from this one on is compared,
  bool last = true;       // and what follows the last
};

constexpr std::int64_t kMaxLength = 512;

template <class Model>
Texts write_texts(const Options& options) {
  nv::Engine<Model, nv::Float32Policy> engine(
      {.model = options.model, .max_model_len = kMaxLength});
  std::vector<nv::Prompt> prompts;
  std::vector<nv::SamplingParams> params;
  constexpr const char* kBeginnings[] = {"Once upon a time",   "There was once a king",
                                         "In the deep forest", "A poor woman had",
                                         "The soldier said",   "Long ago"};
  for (std::uint64_t i = 0; i < options.num_texts; ++i) {
    prompts.emplace_back(kBeginnings[i % std::size(kBeginnings)]);
    params.push_back({.temperature = 1.f,
                      .top_k = 0,
                      .top_p = 1.f,
                      .seed = i,
                      .max_tokens = options.num_tokens,
                      .ignore_eos = true});
  }
  const std::vector<nv::Output> outputs = engine.generate(prompts, params);
  std::vector<Text> texts;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    nv::check(outputs[i].error.empty(), outputs[i].error);
    texts.push_back(engine.encode(prompts[i]));
    texts.back().insert(texts.back().end(), outputs[i].token_ids.begin(),
                        outputs[i].token_ids.end());
  }
  return {.tokens = std::move(texts)};
}

/// The chunks of a file of llama-perplexity: "_logits_", then the length of a chunk, the size of
/// the vocabulary, the number of chunks and their tokens, 4 bytes each; its log-probabilities are
/// not read. Throws a LoadError that names the file if it is another, or of another vocabulary.
Texts read_chunks(const std::string& path, std::int64_t vocab_size) {
  std::ifstream in(path, std::ios::binary);
  char magic[8] = {};
  std::int32_t length = 0, vocab = 0, num_chunks = 0;
  const auto read = [&](void* to, std::size_t num_bytes) {
    in.read(static_cast<char*>(to), static_cast<std::streamsize>(num_bytes));
    nv::check<nv::LoadError>(in.good(), path, ": cannot be read, or ends too early");
  };
  read(magic, sizeof(magic));
  nv::check<nv::LoadError>(std::string_view(magic, sizeof(magic)) == "_logits_", path,
                           ": expected \"_logits_\" at the beginning");
  read(&length, 4);
  read(&vocab, 4);
  read(&num_chunks, 4);
  nv::check<nv::LoadError>(length >= 4 && length <= kMaxLength, path, ": chunks of ", length,
                           " tokens; expected 4 to ", kMaxLength);
  nv::check<nv::LoadError>(vocab == vocab_size, path, ": a vocabulary of ", vocab,
                           "; the model's has ", vocab_size);
  Texts texts{.first = static_cast<std::size_t>(length) / 2, .last = false};
  for (std::int32_t i = 0; i < num_chunks; ++i) {
    Text& text = texts.tokens.emplace_back(static_cast<std::size_t>(length));
    read(text.data(), text.size() * sizeof(nv::TokenId));
    for (const nv::TokenId token : text) {
      nv::check<nv::LoadError>(token >= 0 && token < vocab, path, ": token ", token,
                               " is not in the vocabulary of ", vocab);
    }
  }
  return texts;
}

Row log_softmax(const float* logits, std::int64_t size) {
  const double most = *std::max_element(logits, logits + size);
  double sum = 0;
  for (std::int64_t i = 0; i < size; ++i) sum += std::exp(logits[i] - most);
  Row out;
  for (std::int64_t i = 0; i < size; ++i) out.push_back(logits[i] - most - std::log(sum));
  return out;
}

/// What follows each token of the texts that is compared, text by text.
template <class Model, class Policy>
std::vector<Row> probabilities(const std::string& directory, const Texts& texts) {
  constexpr int kBlockSize = Policy::kv.block_size;
  const nv::Checkpoint checkpoint(directory);
  const auto config = Model::Config::load(checkpoint);
  nv::Runner<Model, nv::RunnerPolicyOf<Policy>> runner(
      config,
      {.num_ranks = 1,
       .limits = {.max_num_batched_tokens = kMaxLength,
                  .max_num_seqs = kMaxLength,
                  .max_model_len = kMaxLength},
       .block_size = kBlockSize},
      [&](auto& weights, auto& backend, int) { weights.load(checkpoint, backend); });
  runner.allocate_kv(kMaxLength / kBlockSize + 1);
  std::vector<Row> out;
  for (const Text& text : texts.tokens) {
    nv::Sequence sequence;
    sequence.tokens = text;
    sequence.num_prompt_tokens = static_cast<std::int32_t>(text.size());
    sequence.scores.count = sequence.num_prompt_tokens - 1;
    for (std::int32_t block = 0; block * kBlockSize < sequence.num_prompt_tokens; ++block)
      sequence.block_table.push_back(block);
    nv::StepPlan plan;
    plan.num_tokens = sequence.num_prompt_tokens;
    plan.sequences.push_back({.sequence = &sequence,
                              .end = plan.num_tokens,
                              .rows = sequence.rows_in(0, plan.num_tokens)});
    nv::HostSamplingBatch sampling;
    for (std::size_t i = 0; i < text.size(); ++i) nv::append_sample(sampling, {});
    nv::StepInputs inputs;
    inputs.build(plan, kBlockSize, sampling);
    const std::int64_t rows = plan.num_tokens, vocab = config.vocab_size;
    std::vector<float> logits(static_cast<std::size_t>(rows * vocab));
    runner.run_logits(inputs, {logits.data(), {rows, vocab}});
    for (auto i = static_cast<std::int64_t>(texts.first); i < rows - (texts.last ? 0 : 1); ++i)
      out.push_back(log_softmax(logits.data() + i * vocab, vocab));
  }
  return out;
}

nlohmann::json compare(std::string_view name, const std::vector<Row>& exact,
                       const std::vector<Row>& got, const Texts& texts) {
  double sum = 0, largest = 0, surprise = 0;
  std::size_t num_equal = 0, num_next = 0, row = 0;
  for (const Text& text : texts.tokens) {
    for (std::size_t i = texts.first; i < text.size() - (texts.last ? 0 : 1); ++i, ++row) {
      const Row &p = exact[row], &q = got[row];
      double divergence = 0;
      for (std::size_t j = 0; j < p.size(); ++j) divergence += std::exp(p[j]) * (p[j] - q[j]);
      sum += divergence;
      largest = std::max(largest, divergence);
      num_equal += std::max_element(p.begin(), p.end()) - p.begin() ==
                           std::max_element(q.begin(), q.end()) - q.begin()
                       ? 1
                       : 0;
      if (i + 1 == text.size()) continue;
      surprise -= q[static_cast<std::size_t>(text[i + 1])];
      ++num_next;
    }
  }
  const auto count = static_cast<double>(row);
  const double equal = static_cast<double>(num_equal) / count;
  const double perplexity = std::exp(surprise / static_cast<double>(num_next));
  std::printf("%-44s KL %.2e, at most %.2e   top-1 %.2f%%   perplexity %.4f\n",
              std::string(name).c_str(), sum / count, largest, 100 * equal, perplexity);
  return {{"format", name},        {"positions", row}, {"kl_mean", sum / count},
          {"kl_largest", largest}, {"top_1", equal},   {"perplexity", perplexity}};
}

template <class Model>
nlohmann::json measure(const Options& options) {
  const std::string& directory = options.model;
  const Texts texts =
      options.chunks.empty()
          ? write_texts<Model>(options)
          : read_chunks(options.chunks, Model::Config::load(nv::Checkpoint(directory)).vocab_size);
  nlohmann::json out = nlohmann::json::array();
  const auto measure_beside = [&]<class T>(std::string_view base) {
    const auto exact = probabilities<Model, FormatPolicy<T, T>>(directory, texts);
    const auto add = [&]<class Kv>() {
      const std::string name = nv::concat(base, ", cache ", nv::kv_format_name<Kv>());
      out.push_back(
          compare(name, exact, probabilities<Model, FormatPolicy<T, Kv>>(directory, texts), texts));
    };
    if (std::is_same_v<T, float>) add.template operator()<nv::bf16>();
    add.template operator()<nv::Int8Kv>();
    add.template operator()<nv::Fp8Kv>();
    add.template operator()<nv::StaticFp8Kv>();
    const auto add_weights = [&]<class Format>() {
      out.push_back(compare(nv::concat(base, ", weights ", Format::kName), exact,
                            probabilities<Model, FormatPolicy<T, T, Format>>(directory, texts),
                            texts));
    };
    add_weights.template operator()<nv::Fp8Weights<T>>();
    add_weights.template operator()<nv::WithFp8Head<nv::Fp8Weights<T>>>();
    add_weights.template operator()<nv::Int8Weights<T>>();
    add_weights.template operator()<nv::Int4Weights<T>>();
    if constexpr (std::is_same_v<T, float>) {
      add_weights.template operator()<Fp8Products<T>>();
      add_weights.template operator()<Fp8HeadProducts<T>>();
      for (const std::string& other : options.others) {
        out.push_back(compare(nv::concat(base, ", ", other), exact,
                              probabilities<Model, FormatPolicy<T, T>>(other, texts), texts));
      }
    }
    return exact;
  };
  const auto exact = measure_beside.template operator()<float>("float32");
  const auto rounded = measure_beside.template operator()<nv::bf16>("bfloat16");
  out.push_back(compare("all bfloat16 against all float32", exact, rounded, texts));
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("What formats of weights and of the KV cache cost in quality");
  app.add_option("model", options.model, "directory of a checkpoint")->required();
  app.add_option("others", options.others, "checkpoints of the same model in other formats");
  app.add_option("--texts", options.num_texts, "texts that the model writes")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--tokens", options.num_tokens, "tokens of a text")
      ->capture_default_str()
      ->check(CLI::Range(2, 400));
  app.add_option("--chunks", options.chunks, "texts that llama-perplexity has written");
  app.add_option("--json", options.json, "file for the results");
  if (const auto status = nv::examples::parse_command_line(app, argc, argv)) return *status;
  try {
    nlohmann::json results;
    nv::with_model<nv::AllModels>(nv::Checkpoint(options.model),
                                  [&]<class Model>() { results = measure<Model>(options); });
    if (!options.json.empty()) std::ofstream(options.json) << results.dump(1) << "\n";
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
