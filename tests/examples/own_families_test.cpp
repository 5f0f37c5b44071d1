// The families of examples/own_families.hpp: an engine gives what a formula in float64 gives, and
// make_engine finds them by what config.json says.
#include "../../examples/own_families.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/engine.hpp"
#include "nanovllm/policy.hpp"
#include "nanovllm/with/any/make_engine.hpp"
#include "safetensors_writer.hpp"

using namespace nanovllm;
using examples::Llama, examples::Qwen2;

namespace {

using Tensor = std::vector<double>;

constexpr std::int64_t kHidden = 32, kLayers = 2, kHeads = 4, kKvHeads = 2, kHeadDim = 8,
                       kWidth = 20, kVocab = 31;
constexpr double kTheta = 100, kEps = 1e-5;

nlohmann::json config_json(bool is_llama) {
  nlohmann::json out = {{"model_type", is_llama ? "llama" : "qwen2"},
                        {"architectures", {is_llama ? "LlamaForCausalLM" : "Qwen2ForCausalLM"}},
                        {"hidden_size", kHidden},
                        {"num_hidden_layers", kLayers},
                        {"num_attention_heads", kHeads},
                        {"num_key_value_heads", kKvHeads},
                        {"intermediate_size", kWidth},
                        {"vocab_size", kVocab},
                        {"max_position_embeddings", 256},
                        {"rms_norm_eps", kEps},
                        {"rope_theta", kTheta},
                        {"tie_word_embeddings", !is_llama}};
  if (is_llama)
    out["rope_scaling"] = {{"rope_type", "llama3"},
                           {"factor", 8.0},
                           {"low_freq_factor", 1.0},
                           {"high_freq_factor", 4.0},
                           {"original_max_position_embeddings", 64}};
  return out;
}

/// A checkpoint of noise, and the model in float64.
class Reference {
 public:
  Reference(const nanovllm_test::TempDirectory& directory, bool is_llama) : is_llama_(is_llama) {
    add("model.embed_tokens.weight", {kVocab, kHidden}, 1);
    for (std::int64_t i = 0; i < kLayers; ++i) {
      const std::string layer = concat("model.layers.", i, ".");
      add(layer + "input_layernorm.weight", {kHidden}, 1);
      add(layer + "post_attention_layernorm.weight", {kHidden}, 1);
      for (const auto& [name, heads] : {std::pair("q", kHeads), {"k", kKvHeads}, {"v", kKvHeads}}) {
        const std::string module = concat(layer, "self_attn.", name, "_proj.");
        add(module + "weight", {heads * kHeadDim, kHidden}, .5);
        if (!is_llama) add(module + "bias", {heads * kHeadDim}, 1);
      }
      add(layer + "self_attn.o_proj.weight", {kHidden, kHeads * kHeadDim}, .5);
      add(layer + "mlp.gate_proj.weight", {kWidth, kHidden}, .5);
      add(layer + "mlp.up_proj.weight", {kWidth, kHidden}, .5);
      add(layer + "mlp.down_proj.weight", {kHidden, kWidth}, .5);
    }
    add("model.norm.weight", {kHidden}, 1);
    if (is_llama) add("lm_head.weight", {kVocab, kHidden}, 1);
    directory.write("model.safetensors", file_.bytes());
    directory.write("config.json", config_json(is_llama).dump());
  }

  /// Logits of the last token.
  [[nodiscard]] Tensor logits(const std::vector<TokenId>& tokens) const {
    std::vector<Tensor> x;
    for (const TokenId token : tokens) {
      const auto row = of("model.embed_tokens.weight").begin() + token * kHidden;
      x.emplace_back(row, row + kHidden);
    }
    for (std::int64_t i = 0; i < kLayers; ++i) {
      const std::string layer = concat("model.layers.", i, ".");
      std::vector<Tensor> k, v;
      for (std::size_t t = 0; t < x.size(); ++t) {
        const Tensor in = normed(x[t], layer + "input_layernorm");
        const Tensor q = rotated(project(in, layer + "self_attn.q_proj"), t);
        k.push_back(rotated(project(in, layer + "self_attn.k_proj"), t));
        v.push_back(project(in, layer + "self_attn.v_proj"));
        add_to(x[t], project(attend(q, k, v), layer + "self_attn.o_proj"));
      }
      for (Tensor& row : x) {
        const Tensor in = normed(row, layer + "post_attention_layernorm");
        Tensor gate = project(in, layer + "mlp.gate_proj");
        const Tensor up = project(in, layer + "mlp.up_proj");
        for (std::size_t c = 0; c < gate.size(); ++c) gate[c] *= up[c] / (1 + std::exp(-gate[c]));
        add_to(row, project(gate, layer + "mlp.down_proj"));
      }
    }
    return project(normed(x.back(), "model.norm"), is_llama_ ? "lm_head" : "model.embed_tokens");
  }

 private:
  void add(const std::string& name, const std::vector<std::int64_t>& shape, double scale) {
    std::int64_t size = 1;
    for (const std::int64_t extent : shape) size *= extent;
    std::vector<float> values;
    for (std::int64_t i = 0; i < size; ++i) {
      const auto word =
          philox4x32(tensors_.size() + 1, {static_cast<std::uint32_t>(i), 0, 0, 5})[0];
      values.push_back(static_cast<float>(scale * (to_unit_interval(word) - 0.5)));
    }
    file_.add(name, "F32", shape, values);
    tensors_[name] = Tensor(values.begin(), values.end());
  }
  [[nodiscard]] const Tensor& of(const std::string& name) const { return tensors_.at(name); }

  [[nodiscard]] Tensor project(const Tensor& x, const std::string& module) const {
    const Tensor& weight = of(module + ".weight");
    Tensor y(weight.size() / x.size());
    for (std::size_t i = 0; i < weight.size(); ++i) y[i / x.size()] += weight[i] * x[i % x.size()];
    if (tensors_.contains(module + ".bias")) add_to(y, of(module + ".bias"));
    return y;
  }
  [[nodiscard]] Tensor normed(const Tensor& x, const std::string& module) const {
    double squares = 0;
    for (const double value : x) squares += value * value;
    Tensor y = of(module + ".weight");
    for (std::size_t i = 0; i < x.size(); ++i)
      y[i] *= x[i] / std::sqrt(squares / static_cast<double>(kHidden) + kEps);
    return y;
  }
  static void add_to(Tensor& x, const Tensor& y) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  /// Source of Llama 3's kind: transformers, modeling_rope_utils.py, by wavelengths.
  [[nodiscard]] double frequency(std::size_t i) const {
    const double plain = std::pow(kTheta, -2. * static_cast<double>(i) / kHeadDim);
    const double wavelength = 2 * std::numbers::pi / plain;
    if (!is_llama_ || wavelength < 64. / 4) return plain;
    if (wavelength > 64. / 1) return plain / 8;
    const double smooth = (64 / wavelength - 1) / (4 - 1);
    return (1 - smooth) * plain / 8 + smooth * plain;
  }
  [[nodiscard]] Tensor rotated(Tensor x, std::size_t position) const {
    for (std::size_t head = 0; head < x.size(); head += kHeadDim) {
      for (std::size_t i = 0; i < kHeadDim / 2; ++i) {
        const double angle = static_cast<double>(position) * frequency(i);
        double &a = x[head + i], &b = x[head + i + kHeadDim / 2];
        const double turned = a * std::cos(angle) - b * std::sin(angle);
        b = b * std::cos(angle) + a * std::sin(angle);
        a = turned;
      }
    }
    return x;
  }
  [[nodiscard]] static Tensor attend(const Tensor& q, const std::vector<Tensor>& k,
                                     const std::vector<Tensor>& v) {
    Tensor out(q.size());
    for (std::size_t head = 0; head < kHeads; ++head) {
      const std::size_t at = head * kHeadDim, kv_at = head / (kHeads / kKvHeads) * kHeadDim;
      Tensor p;
      double sum = 0;
      for (const Tensor& key : k) {
        double score = 0;
        for (std::size_t c = 0; c < kHeadDim; ++c) score += q[at + c] * key[kv_at + c];
        p.push_back(std::exp(score / std::sqrt(static_cast<double>(kHeadDim))));
        sum += p.back();
      }
      for (std::size_t t = 0; t < v.size(); ++t) {
        for (std::size_t c = 0; c < kHeadDim; ++c) out[at + c] += p[t] / sum * v[t][kv_at + c];
      }
    }
    return out;
  }

  bool is_llama_;
  nanovllm_test::SafetensorsWriter file_;
  std::map<std::string, Tensor> tensors_;
};

template <class Model>
void check_model(bool is_llama) {
  const nanovllm_test::TempDirectory directory;
  const Reference reference(directory, is_llama);
  Engine<Model, Float32Policy> engine(
      {.model = directory.path(), .num_threads = 2, .max_num_batched_tokens = 16});
  CHECK(engine.model_config().rope.type == (is_llama ? RopeType::llama3 : RopeType::standard));
  std::vector<Prompt> prompts;
  for (std::uint64_t i = 0; i < 4; ++i)
    prompts.push_back(test::random_prompt(i, 1 + 30 * i, kVocab));
  const auto outputs = engine.generate(prompts, {.temperature = 0, .max_tokens = 8, .logprobs = 0});
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    INFO("prompt " << i);
    REQUIRE(outputs[i].token_ids.size() == 8);
    std::vector<TokenId> tokens = std::get<std::vector<TokenId>>(prompts[i]);
    for (std::size_t j = 0; j < 8; ++j) {
      const Tensor logits = reference.logits(tokens);
      double sum = 0;
      for (const double logit : logits) sum += std::exp(logit);
      const TokenId token = outputs[i].token_ids[j];
      const double expected = logits[static_cast<std::size_t>(token)] - std::log(sum);
      CHECK(std::abs(outputs[i].logprobs[j].logprob - expected) < 2e-5);
      CHECK(expected > *std::ranges::max_element(logits) - std::log(sum) - 1e-5);
      tokens.push_back(token);
    }
  }
  const auto found = make_engine<examples::AllAndOwnModels, Float32Policy>(
      {.model = directory.path(), .num_threads = 1});
  CHECK(found->vocab_size() == kVocab);
  CHECK_THROWS_WITH((make_engine<AllModels, Float32Policy>({.model = directory.path()})),
                    Catch::Matchers::Contains("but this program was built for qwen3"));
}

}  // namespace

TEST_CASE("Llama 3 and Qwen2.5 of a program's own are what a formula gives", "[model][registry]") {
  SECTION("Llama 3") { check_model<Llama>(true); }
  SECTION("Qwen2.5") { check_model<Qwen2>(false); }
}

TEST_CASE("a Llama of another kind is refused by name", "[config]") {
  const auto error_of = [](const char* key, const nlohmann::json& value) {
    const nanovllm_test::TempDirectory directory;
    nlohmann::json json = config_json(true);
    json[nlohmann::json::json_pointer(key)] = value;
    directory.write("config.json", json.dump());
    try {
      static_cast<void>(Llama::Config::load(Checkpoint(directory.path())));
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(error_of("/head_dim", 8).empty());
  using Catch::Matchers::Contains;
  CHECK_THAT(error_of("/mlp_bias", true), Contains("'mlp_bias' must be false"));
  CHECK_THAT(error_of("/model_type", "mistral"), Contains("\"llama\""));
  CHECK_THAT(error_of("/rope_scaling/rope_type", "yarn"),
             Contains("'rope.rope_type' must be \"default\" or \"llama3\""));
  CHECK_THAT(error_of("/rope_scaling/high_freq_factor", 1.0),
             Contains("'rope.high_freq_factor' (1.000000) must exceed 'rope.low_freq_factor' ("));
  CHECK_THAT(error_of("/rope_scaling/factor", nullptr), Contains("'rope.factor' is missing"));
}
