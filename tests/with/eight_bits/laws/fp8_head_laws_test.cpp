// lm_head in 8-bit floats (`WithFp8Head`), of tied and untied models, on one rank and on two: logits
// are those of float64 but for the format's rounding, all else has the bits it has without.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "memory_checkpoint.hpp"
#include "model/one_sequence.hpp"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/cpu/backend.hpp"
#include "nanovllm/kv/kv_pool.hpp"
#include "nanovllm/model/qwen3/qwen3.hpp"
#include "nanovllm/parallel/thread_group.hpp"
#include "nanovllm/with/eight_bits/checkpoint/tensor_scales.hpp"
#include "nanovllm/with/eight_bits/cpu/fp8_matrix.hpp"
#include "nanovllm/with/eight_bits/cpu/linear.hpp"
#include "nanovllm/with/eight_bits/weights.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
using Catch::Matchers::Contains;
using nanovllm_test::MemoryCheckpoint;

namespace {

using Fp8 = Fp8Weights<float>;
using Fp8AndHead = WithFp8Head<Fp8>;
using Int8AndHead = WithFp8Head<Int8Weights<float>>;

constexpr std::int64_t kHidden = 136;  // a whole group of columns and a part of one

struct Matrix {
  std::int64_t rows, columns;
  std::vector<float> values{};

  [[nodiscard]] float at(std::int64_t row, std::int64_t column) const {
    return values[static_cast<std::size_t>(row * columns + column)];
  }
};

Matrix noise(std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
  Matrix out{rows, columns};
  for (std::uint32_t i = 0; i < rows * columns; ++i)
    out.values.push_back(
        static_cast<float>(2 * to_unit_interval(philox4x32(seed, {i, 0, 0, 0})[0]) - 1) / 4);
  return out;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// A model of noise, with an lm_head of its own or tied to its embedding.
struct Model {
  std::int64_t vocab;
  bool tied;
  MemoryCheckpoint files{};
  Matrix head{};  ///< lm_head, or the embedding

  Model(std::int64_t vocab_in, bool tied_in, bool adds_head = true)
      : vocab(vocab_in), tied(tied_in) {
    files.texts["config.json"] =
        concat(R"({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": )",
               kHidden, R"(, "num_hidden_layers": 2, "num_attention_heads": 4,
                   "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 32,
                   "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
                   "vocab_size": )",
               vocab, R"(, "tie_word_embeddings": )", tied ? "true" : "false", "}");
    head = add("model.embed_tokens", vocab, kHidden);
    for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
      for (const auto& [name, rows, columns] : {std::tuple{"self_attn.q_proj", 32, int{kHidden}},
                                                {"self_attn.k_proj", 16, kHidden},
                                                {"self_attn.v_proj", 16, kHidden},
                                                {"self_attn.o_proj", kHidden, 32},
                                                {"mlp.gate_proj", 32, kHidden},
                                                {"mlp.up_proj", 32, kHidden},
                                                {"mlp.down_proj", kHidden, 32}})
        add(std::string(layer) + name, rows, columns);
      for (const auto& [name, size] : {std::pair{"input_layernorm", int{kHidden}},
                                       {"post_attention_layernorm", kHidden},
                                       {"self_attn.q_norm", 8},
                                       {"self_attn.k_norm", 8}})
        add_norm(std::string(layer) + name, size);
    }
    add_norm("model.norm", kHidden);
    if (!tied && adds_head) head = add("lm_head", vocab, kHidden);
  }

  Matrix add(const std::string& name, std::int64_t rows, std::int64_t columns) {
    Matrix out = noise(rows, columns, ++seed_);
    files.add(name + ".weight", FileDType::f32,
              {static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns)},
              bytes_of(out.values));
    return out;
  }
  void add_norm(const std::string& name, std::int64_t size) {
    files.add(name + ".weight", FileDType::f32, {static_cast<std::uint64_t>(size)},
              bytes_of(std::vector<float>(static_cast<std::size_t>(size), 1.f)));
  }
  [[nodiscard]] Checkpoint checkpoint() const { return Checkpoint(files); }

 private:
  std::uint64_t seed_ = 0;
};

template <class W>
using Network = Qwen3Network<shapes::qwen3_any, Elements<W>, CpuBackend, ThreadGroup>;

struct Outputs {
  std::vector<float> logits;  // [n, vocab]
  std::vector<float> hidden;  // [n, kHidden], normed: what lm_head multiplies
};

/// A rank's outputs for `tokens`, `chunk` of them a step; calls look(weights) ahead of the steps.
template <class W, class Look>
Outputs run_rank(const Model& model, const std::vector<TokenId>& tokens, std::size_t chunk,
                 ThreadGroup comm, const Look& look) {
  const Checkpoint checkpoint = model.checkpoint();
  const StepLimits limits{.max_num_batched_tokens = 64, .max_num_seqs = 64, .max_model_len = 64};
  CpuBackend backend(BackendConfig{.num_threads = 1});
  Network<W> network(Qwen3Config::load(checkpoint), limits, backend, comm);
  network.weights().load(checkpoint, backend);
  look(network.weights());
  KvPool<float, CpuBackend::Buffer<float>> kv(
      {2, network.num_kv_heads(), network.head_dim(), 16, sizeof(float)}, 8);
  OneSequence sequence(4);
  Outputs out;
  for (std::size_t begin = 0; begin < tokens.size(); begin += chunk) {
    const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(begin);
    const std::vector<TokenId> part(
        first, first + static_cast<std::ptrdiff_t>(std::min(chunk, tokens.size() - begin)));
    ForwardBatch batch = sequence.batch(part, static_cast<std::int32_t>(begin));
    batch.hidden_rows = batch.logit_rows;
    const auto n = static_cast<std::int64_t>(part.size());
    const std::int64_t width = network.padded_vocab_size();
    std::vector<float> logits(static_cast<std::size_t>(n * width)),
        hidden(static_cast<std::size_t>(n * kHidden));
    network.forward(batch, kv, {logits.data(), {n, width}}, {hidden.data(), {n, kHidden}});
    for (std::int64_t i = 0; i < n; ++i)
      out.logits.insert(out.logits.end(), logits.begin() + i * width,
                        logits.begin() + i * width + model.vocab);
    out.hidden.insert(out.hidden.end(), hidden.begin(), hidden.end());
  }
  return out;
}

std::vector<TokenId> some_tokens(const Model& model) {
  std::vector<TokenId> out;
  for (TokenId i = 0; i < 40; ++i) out.push_back(static_cast<TokenId>((i * 37 + 11) % model.vocab));
  return out;
}

template <class W>
Outputs run_one(const Model& model, std::size_t chunk = 40) {
  return run_rank<W>(model, some_tokens(model), chunk, ThreadGroup::make(1)[0], [](const auto&) {});
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// What an element may be off by: half a unit of the last of 3 bits, or of the smallest number that
/// there is with the scale of its block, of which the largest element is at most 1/4.
double rounding_of(float x) { return 1.001 * std::max(std::abs(x) / 16., 0.25 / 448 * 0x1p-10); }

/// The largest error of logits as a part of its bound, and of the bound that exact weights have.
std::pair<double, double> worst(const Model& model, const Outputs& got) {
  const auto rows = static_cast<std::int64_t>(got.hidden.size()) / kHidden;
  double of_format = 0, of_exact = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < model.vocab; ++j) {
      double exact = 0, size = 0, bound = 0;
      for (std::int64_t c = 0; c < kHidden; ++c) {
        const double h = got.hidden[static_cast<std::size_t>(i * kHidden + c)];
        exact += h * double{model.head.at(j, c)};
        size += std::abs(h * double{model.head.at(j, c)});
        bound += std::abs(h) * rounding_of(model.head.at(j, c));
      }
      const double error =
          std::abs(exact - double{got.logits[static_cast<std::size_t>(i * model.vocab + j)]});
      const double of_sums = size * kHidden * 0x1p-23 + 1e-6;
      of_format = std::max(of_format, error / (bound + of_sums));
      of_exact = std::max(of_exact, error / of_sums);
    }
  }
  return {of_format, of_exact};
}

/// The matrix in e4m3 with a scale for each 128 x 128 that no quantiser would choose, and its values.
struct Stored {
  std::string codes;
  std::vector<float> scales, values;

  Stored(std::int64_t rows, std::int64_t columns) {
    for (std::int64_t i = 0; i < ceil_div(rows, std::int64_t{128}); ++i)
      for (std::int64_t j = 0; j < ceil_div(columns, std::int64_t{128}); ++j)
        scales.push_back(std::ldexp(1.f + static_cast<float>(i) / 8, -9 - static_cast<int>(j)));
    const std::int64_t across = ceil_div(columns, std::int64_t{128});
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      fp8_e4m3 x;
      x.bits = static_cast<std::uint8_t>((i * 37 + i / columns * 11) & 0x7f);
      if (x.bits == 0x7f) x.bits = 0x55;
      codes.push_back(static_cast<char>(x.bits));
      values.push_back(
          static_cast<float>(x) *
          scales[static_cast<std::size_t>(i / columns / 128 * across + i % columns / 128)]);
    }
  }
};

/// `model`, whose lm_head is missing, with that one.
void add_head(Model& model, const Stored& head, bool with_scales = true,
              std::uint64_t rows_of_scales = 3) {
  std::string& json = model.files.texts["config.json"];
  json.insert(
      json.find('{') + 1,
      R"("quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},)");
  model.files.add("lm_head.weight", FileDType::f8_e4m3,
                  {static_cast<std::uint64_t>(model.vocab), kHidden}, head.codes);
  if (with_scales)
    model.files.add("lm_head.weight_scale_inv", FileDType::f32, {rows_of_scales, 2},
                    bytes_of(std::vector<float>(
                        head.scales.begin(),
                        head.scales.begin() + static_cast<std::ptrdiff_t>(2 * rows_of_scales))));
}

template <class Matrix>
std::vector<float> values_of(const Matrix& matrix) {
  std::vector<float> out(static_cast<std::size_t>(matrix.rows() * matrix.cols()));
  for (std::int64_t i = 0; i < matrix.rows(); ++i)
    matrix.copy_row(i, out.data() + i * matrix.cols());
  return out;
}

template <class W>
void load_only(const Model& model) {
  run_rank<W>(model, {}, 1, ThreadGroup::make(1)[0], [](const auto&) {});
}

}  // namespace

TEMPLATE_TEST_CASE("logits by lm_head in 8-bit floats are float64's but for its rounding",
                   "[laws][fp8_head]", Fp8AndHead, Int8AndHead) {
  for (const bool tied : {false, true}) {
    for (const std::int64_t vocab : {331, 128}) {
      CAPTURE(tied, vocab);
      const Model model(vocab, tied);
      const auto [of_format, of_exact] = worst(model, run_one<TestType>(model));
      CHECK(of_format <= 1);
      CHECK(of_format > 0.01);  // it is a bound of what is there
      CHECK(of_exact > 10);     // and something was rounded
    }
  }
}

TEST_CASE("lm_head in 8-bit floats leaves all ahead of it as it is", "[laws][fp8_head]") {
  for (const bool tied : {false, true}) {
    const Model model(331, tied);
    const Outputs with = run_one<Fp8AndHead>(model), without = run_one<Fp8>(model);
    CHECK(same_bits(with.hidden, without.hidden));
    CHECK_FALSE(same_bits(with.logits, without.logits));
    CHECK(worst(model, without).second <= 1);
  }
}

TEST_CASE("a tied model has its table and lm_head in 8 bits beside it", "[fp8_head]") {
  const auto look_at = [](const Model& model, const auto& look) {
    run_rank<Fp8AndHead>(model, {}, 1, ThreadGroup::make(1)[0], look);
  };
  look_at(Model(331, true), [](const auto& weights) {
    static_assert(std::is_same_v<decltype(weights.embedding()), const cpu::PackedMatrix<float>&>);
    static_assert(std::is_same_v<decltype(weights.lm_head()), const cpu::Fp8Matrix&>);
    CHECK(weights.embedding().rows() == 331);
    CHECK(weights.lm_head().rows() == 331);
    CHECK(weights.lm_head().size_bytes() < weights.embedding().size_bytes() / 3);
    CHECK(weights.lm_heads() == std::vector{&weights.lm_head()});
  });
  run_rank<Fp8>(Model(331, true), {}, 1, ThreadGroup::make(1)[0],
                [](const auto& weights) { CHECK(&weights.lm_head() == &weights.embedding()); });
}

TEST_CASE("a row's logits by lm_head in 8-bit floats are the same alone and among others",
          "[laws][fp8_head]") {
  for (const bool tied : {false, true}) {
    const Model model(331, tied);
    const Outputs whole = run_one<Fp8AndHead>(model);
    for (const std::size_t chunk : {1, 7, 17})
      CHECK(same_bits(run_one<Fp8AndHead>(model, chunk).logits, whole.logits));
  }
}

TEST_CASE("two ranks have lm_head in 8-bit floats as one has it", "[laws][fp8_head]") {
  for (const bool tied : {false, true}) {
    // Of 512 a rank has 256 rows, whole blocks, so the numbers are those of one rank. Of 331 it has
    // 192, and its blocks begin elsewhere.
    for (const std::int64_t vocab : {512, 331}) {
      CAPTURE(tied, vocab);
      const Model model(vocab, tied);
      std::vector<float> head;
      run_rank<Fp8AndHead>(model, {}, 1, ThreadGroup::make(1)[0],
                           [&](const auto& weights) { head = values_of(weights.lm_head()); });
      std::vector<ThreadGroup> ranks = ThreadGroup::make(2);
      Outputs outputs[2];
      std::vector<float> heads[2];
      std::vector<std::thread> threads;
      for (std::size_t rank = 0; rank < 2; ++rank)
        threads.emplace_back([&, rank] {
          outputs[rank] = run_rank<Fp8AndHead>(
              model, some_tokens(model), 40, ranks[rank],
              [&](const auto& weights) { heads[rank] = values_of(weights.lm_head()); });
        });
      for (std::thread& thread : threads) thread.join();
      CHECK(same_bits(outputs[0].logits, outputs[1].logits));
      CHECK(worst(model, outputs[0]).first <= 1);
      heads[0].insert(heads[0].end(), heads[1].begin(), heads[1].end());
      heads[0].resize(head.size());  // without padding
      if (vocab == 512) CHECK(same_bits(heads[0], head));
      const Outputs one = run_one<Fp8AndHead>(model);
      double difference = 0, largest = 0;
      for (std::size_t i = 0; i < one.logits.size(); ++i) {
        difference = std::max(difference, std::abs(double{one.logits[i]} - outputs[0].logits[i]));
        largest = std::max(largest, std::abs(double{one.logits[i]}));
      }
      CAPTURE(difference, largest);
      CHECK(difference < 0.2 * largest);  // the layers are rounded in other blocks, too
    }
  }
}

TEST_CASE("an lm_head that is stored in 8-bit floats is kept as it is", "[fp8_head]") {
  const Stored stored(331, kHidden);
  // Tied by config.json: the head that is there counts.
  for (const bool tied : {false, true}) {
    Model model(331, tied, false);
    add_head(model, stored);
    const auto check_head = [&](const auto& weights) {
      CHECK(same_bits(values_of(weights.lm_head()), stored.values));
      CHECK(weights.embedding().rows() == 331);
    };
    run_rank<Fp8AndHead>(model, {}, 1, ThreadGroup::make(1)[0], check_head);
    run_rank<Fp8>(model, {}, 1, ThreadGroup::make(1)[0], check_head);
    model.head = {331, kHidden, stored.values};
    CHECK(worst(model, run_one<Fp8AndHead>(model)).second <= 1);
  }
}

TEST_CASE("an lm_head for 8-bit floats that cannot be loaded is refused by name", "[fp8_head]") {
  CHECK_THROWS_WITH(load_only<Fp8AndHead>(Model(331, false, false)),
                    Contains("'lm_head.weight' is missing"));
  Model narrow(331, false, false);
  narrow.add("lm_head", 331, 128);
  CHECK_THROWS_WITH(load_only<Fp8AndHead>(narrow),
                    Contains("'lm_head.weight' must have shape [331, 136], got [331, 128]"));
  const Stored stored(331, kHidden);
  Model unscaled(331, false, false);
  add_head(unscaled, stored, false);
  CHECK_THROWS_WITH(load_only<Fp8AndHead>(unscaled),
                    Contains("'lm_head.weight' is F8_E4M3, but there are no scales"));
  Model few_scales(331, false, false);
  add_head(few_scales, stored, true, 2);
  CHECK_THROWS_WITH(load_only<Fp8AndHead>(few_scales), Contains("has scales of shape [2, 2]"));
}

TEST_CASE("the name of a format says that lm_head is in 8 bits", "[fp8_head]") {
  CHECK(weight_format_name<Fp8AndHead>() ==
        "float8_e4m3 in blocks of 128 x 128, lm_head in float8_e4m3");
  CHECK(weight_format_name<WithFp8Head<Int4Group128>>() ==
        "int4 in groups of 128, lm_head in float8_e4m3");
  CHECK(kWeightBits<WithFp8Head<Int4Group128>> == 4);
}
