// A model of two layers that lives here alone: attention without positions, no MLP. It is served by
// the same engine as Qwen3, and gives what a formula in float64 gives. It is registered here, too:
// a program finds it by what config.json says, from files or from a checkpoint in memory.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "memory_checkpoint.hpp"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/model/layers/attention.hpp"
#include "nanovllm/model/layers/context.hpp"
#include "nanovllm/model/layers/decoder.hpp"
#include "nanovllm/model/model.hpp"
#include "nanovllm/model/parameter_list.hpp"
#include "nanovllm/with/any/all_models.hpp"
#include "nanovllm/with/any/make_engine.hpp"
#include "nanovllm/with/any/registry.hpp"
#include "safetensors_writer.hpp"

namespace toy {

namespace nv = nanovllm;

struct Config {
  std::int64_t vocab_size = 0, width = 0, num_heads = 0;
  std::vector<nv::TokenId> eos_token_ids;
  nv::GenerationConfig generation;

  static Config load(const nv::Checkpoint& checkpoint) {
    const auto json = nlohmann::json::parse(checkpoint.required_text("config.json"));
    Config out;
    json.at("vocab_size").get_to(out.vocab_size);
    json.at("width").get_to(out.width);
    json.at("num_heads").get_to(out.num_heads);
    return out;
  }
  [[nodiscard]] std::int64_t head_dim() const { return width / num_heads; }
};

inline std::int64_t max_context_length(const Config&) { return 64; }

constexpr std::int64_t kLayers = 2;

template <class Context>
struct Weights {
  using Backend = typename Context::Backend;
  using Matrix = typename Context::Matrix;
  struct Layer {
    typename Context::Vector norm;
    Matrix qkv, out;
  };
  struct Shard {
    std::int64_t first_token = 0, vocab_rows = 0;
  };

  explicit Weights(const Config& c) : config(c), table(c.vocab_size, c.width), last_norm(c.width) {
    for (std::int64_t i = 0; i < kLayers; ++i)
      layers.push_back({typename Context::Vector(c.width), Matrix(3 * c.width, c.width),
                        Matrix(c.width, c.width)});
  }

  nv::ParameterList<typename Context::Weight, Backend> list(Backend& backend) {
    nv::ParameterList<typename Context::Weight, Backend> out(backend);
    out.add_matrix("embedding", {table.rows(), table.cols()}, {}, table);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const std::string prefix = nv::concat("layer", i, ".");
      out.add_vector(prefix + "norm", layers[i].norm);
      out.add_matrix(prefix + "qkv", {layers[i].qkv.rows(), layers[i].qkv.cols()}, {},
                     layers[i].qkv);
      out.add_matrix(prefix + "out", {layers[i].out.rows(), layers[i].out.cols()}, {},
                     layers[i].out);
    }
    out.add_vector("norm", last_norm);
    return out;
  }
  void load(const nv::Checkpoint& checkpoint, Backend& backend,
            std::function<void(std::uint64_t, std::uint64_t)> progress) {
    list(backend).load(checkpoint, {}, std::move(progress));
  }
  void randomize(std::uint64_t seed, Backend& backend) { list(backend).randomize(seed, 0, 0.3f); }

  [[nodiscard]] nv::DecoderSizes sizes() const {
    return {.hidden_size = config.width,
            .num_layers = kLayers,
            .vocab_size = config.vocab_size,
            .heads = {config.num_heads, config.num_heads, config.head_dim()}};
  }
  [[nodiscard]] Shard shard() const { return {0, config.vocab_size}; }
  [[nodiscard]] const Matrix& embedding() const { return table; }
  [[nodiscard]] const Layer& layer(std::int64_t i) const {
    return layers[static_cast<std::size_t>(i)];
  }
  [[nodiscard]] const typename Context::Vector& final_norm() const { return last_norm; }
  [[nodiscard]] const Matrix& lm_head() const { return table; }

  Config config;
  Matrix table;
  std::vector<Layer> layers;
  typename Context::Vector last_norm;
};

template <class Context>
class Attention {
 public:
  Attention(const Context& context, const Config&, const nv::StepLimits& limits,
            const nv::DecoderSizes& sizes)
      : context_(context), attention_(context, limits.max_num_batched_tokens, sizes.heads) {}

  template <class Batch>
  void plan(const Batch& in) {
    attention_.plan(in);
  }
  template <class Stream, class Layer, class Batch, class Kv>
  void operator()(Stream& stream, const Layer& layer, const Batch& in, const Kv& kv) {
    using A = typename Context::Activation;
    stream.norm(nv::view_of(layer.norm));
    const nv::Qkv<A> qkv = attention_.project_qkv(stream.hidden(), layer.qkv);
    context_.backend.run(
        nv::KvStoreArgs<A, typename Context::KvElement>{qkv.k, qkv.v, in.slots, kv});
    stream.add(attention_.attend(qkv, in, kv), layer.out);
  }

 private:
  Context context_;
  nv::PagedAttention<Context> attention_;
};

struct NoMlp {
  template <class Context>
  NoMlp(const Context&, const Config&, const nv::StepLimits&, const nv::DecoderSizes&) {}
  template <class Stream, class Layer>
  void operator()(Stream&, const Layer&) {}
};

template <class Elements, class Backend, class Communicator,
          class Context = nv::LayerContext<Elements, Backend, Communicator>>
class Network : public nv::Decoder<Context, Weights<Context>, Attention<Context>, NoMlp> {
 public:
  Network(const Config& config, const nv::StepLimits& limits, Backend& backend, Communicator& comm)
      : Network::Decoder(config, toy::Weights<Context>(config), 1e-6f, limits, backend, comm) {
    nv::check<nv::ConfigError>(comm.size() == 1, "the toy has one rank");
  }
};

struct Model {
  using Config = toy::Config;
  static constexpr nv::ModelFamily kFamily{.model_type = "toy", .architecture = "ToyForCausalLM"};
  static constexpr nv::TextHints kText{.has_tokenizer = false, .has_chat_template = false};
  template <class Elements, class Backend, class Communicator>
  using Network = toy::Network<Elements, Backend, Communicator>;
};

static_assert(nv::ModelLike<Model> && nv::ModelLike<nv::Qwen3<nv::shapes::qwen3_any>>);
static_assert(!nv::ModelLike<Config>);

/// The models of a program that knows the toy as well.
using Registry = nv::JoinedModels<nv::AllModels, nv::Models<Model>>;

// ---- The formula ----

using Tensor = std::vector<double>;

struct Parameters {
  std::int64_t vocab = 31, width = 24, heads = 3;
  Tensor embedding, final_norm;
  std::vector<Tensor> norm, qkv, out;

  /// Writes a checkpoint and keeps its values.
  explicit Parameters(const nanovllm_test::TempDirectory& directory) {
    nanovllm_test::SafetensorsWriter file;
    std::uint64_t seed = 0;
    const auto tensor = [&](const std::string& name, std::vector<std::int64_t> shape) {
      std::int64_t size = 1;
      for (const std::int64_t extent : shape) size *= extent;
      std::vector<float> values;
      ++seed;
      for (std::int64_t i = 0; i < size; ++i) {
        const auto word = nv::philox4x32(seed, {static_cast<std::uint32_t>(i), 0, 0, 5})[0];
        values.push_back(static_cast<float>(nv::to_unit_interval(word)) - 0.5f);
      }
      file.add(name, "F32", shape, values);
      return Tensor(values.begin(), values.end());
    };
    embedding = tensor("embedding", {vocab, width});
    for (std::int64_t i = 0; i < kLayers; ++i) {
      const std::string prefix = nv::concat("layer", i, ".");
      norm.push_back(tensor(prefix + "norm", {width}));
      qkv.push_back(tensor(prefix + "qkv", {3 * width, width}));
      out.push_back(tensor(prefix + "out", {width, width}));
    }
    final_norm = tensor("norm", {width});
    directory.write("model.safetensors", file.bytes());
    directory.write("config.json", nlohmann::json{{"model_type", "toy"},
                                                  {"architectures", {"ToyForCausalLM"}},
                                                  {"vocab_size", vocab},
                                                  {"width", width},
                                                  {"num_heads", heads}}
                                       .dump());
  }

  [[nodiscard]] Tensor product(const Tensor& weight, const Tensor& x) const {
    Tensor y(weight.size() / x.size());
    for (std::size_t i = 0; i < weight.size(); ++i) y[i / x.size()] += weight[i] * x[i % x.size()];
    return y;
  }
  [[nodiscard]] Tensor normed(const Tensor& x, const Tensor& weight) const {
    double squares = 0;
    for (const double value : x) squares += value * value;
    Tensor y;
    for (std::size_t i = 0; i < x.size(); ++i)
      y.push_back(x[i] / std::sqrt(squares / static_cast<double>(width) + 1e-6) * weight[i]);
    return y;
  }

  /// Logits of the last token.
  [[nodiscard]] Tensor logits(const std::vector<nv::TokenId>& tokens) const {
    const auto w = static_cast<std::size_t>(width), d = w / static_cast<std::size_t>(heads);
    std::vector<Tensor> x;
    for (const nv::TokenId token : tokens) {
      const auto row = embedding.begin() + token * width;
      x.emplace_back(row, row + width);
    }
    for (std::size_t layer = 0; layer < norm.size(); ++layer) {
      std::vector<Tensor> rows;
      for (const Tensor& t : x) rows.push_back(product(qkv[layer], normed(t, norm[layer])));
      for (std::size_t i = 0; i < x.size(); ++i) {
        Tensor mixed(w);
        for (std::size_t c = 0; c < w; c += d) {
          Tensor p;
          for (std::size_t j = 0; j <= i; ++j) {
            double score = 0;
            for (std::size_t e = c; e < c + d; ++e) score += rows[i][e] * rows[j][w + e];
            p.push_back(std::exp(score / std::sqrt(static_cast<double>(d))));
          }
          double sum = 0;
          for (const double weight : p) sum += weight;
          for (std::size_t j = 0; j <= i; ++j)
            for (std::size_t e = c; e < c + d; ++e) mixed[e] += p[j] / sum * rows[j][2 * w + e];
        }
        const Tensor added = product(out[layer], mixed);
        for (std::size_t e = 0; e < w; ++e) x[i][e] += added[e];
      }
    }
    return product(embedding, normed(x.back(), final_norm));
  }
};

}  // namespace toy

using namespace nanovllm;

TEST_CASE("a model of two layers that this test alone knows is served by the engine",
          "[model][engine]") {
  const nanovllm_test::TempDirectory directory;
  const toy::Parameters parameters(directory);
  Engine<toy::Model, Float32Policy> engine(
      {.model = directory.path(), .num_threads = 2, .max_num_batched_tokens = 8});
  CHECK(engine.max_total_tokens() <= 64);
  CHECK_THROWS_WITH(engine.submit(ChatPrompt{}), Catch::Matchers::Contains("tokeniser"));

  std::vector<Prompt> prompts;
  for (std::uint64_t i = 0; i < 5; ++i) prompts.push_back(test::random_prompt(i, 1 + 5 * i, 31));
  const auto outputs =
      engine.generate(prompts, {.temperature = 0, .max_tokens = 10, .logprobs = 0});
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    INFO("prompt " << i);
    REQUIRE(outputs[i].token_ids.size() == 10);
    std::vector<TokenId> tokens = std::get<std::vector<TokenId>>(prompts[i]);
    for (std::size_t j = 0; j < 10; ++j) {
      const toy::Tensor logits = parameters.logits(tokens);
      const auto best = std::max_element(logits.begin(), logits.end());
      REQUIRE(outputs[i].token_ids[j] == best - logits.begin());
      double sum = 0;
      for (const double logit : logits) sum += std::exp(logit - *best);
      REQUIRE(std::abs(outputs[i].logprobs[j].logprob + std::log(sum)) < 1e-4);
      tokens.push_back(outputs[i].token_ids[j]);
    }
  }
}

TEST_CASE("a model of a user's own is found by its config.json, in files and in memory",
          "[model][registry]") {
  const nanovllm_test::TempDirectory directory;
  const toy::Parameters parameters(directory);
  const std::vector<TokenId> prompt = test::random_prompt(3, 9, 31);
  const SamplingParams greedy{.temperature = 0, .max_tokens = 10};
  const auto tokens = [&](AnyEngine& engine) {
    std::vector<TokenId> out;
    engine.submit(prompt, greedy, [&](const TokenEvent& event) {
      if (event.output != nullptr) out = event.output->token_ids;
    });
    while (engine.step()) {
    }
    return out;
  };
  Engine<toy::Model, Float32Policy> direct({.model = directory.path(), .num_threads = 1});
  const std::vector<TokenId> expected = direct.generate({prompt}, greedy)[0].token_ids;
  REQUIRE(expected.size() == 10);

  const auto found =
      make_engine<toy::Registry, Float32Policy>({.model = directory.path(), .num_threads = 1});
  CHECK(tokens(*found) == expected);

  const Checkpoint memory(nanovllm_test::MemoryCheckpoint::copy_of(Checkpoint(directory.path())));
  const auto in_memory = make_engine<toy::Registry, Float32Policy>(
      {.model = "/nowhere", .checkpoint = memory, .num_threads = 1});
  CHECK(tokens(*in_memory) == expected);

  // A program without it names what came, and what it has.
  CHECK_THROWS_WITH((make_engine<AllModels, Float32Policy>({.checkpoint = memory})),
                    Catch::Matchers::Contains("'architectures' has \"ToyForCausalLM\"") &&
                        Catch::Matchers::Contains("qwen3 (Qwen3ForCausalLM)") &&
                        Catch::Matchers::Contains("gpt2 (GPT2LMHeadModel)"));
}
