// How GPT-2's files become weights: names, transposition, and each rank's part.

#include <string>
#include <vector>

#include "catch.hpp"
#include "nanovllm/cpu/backend.hpp"
#include "nanovllm/with/gpt2/gpt2.hpp"
#include "with/gpt2/parity/gpt2_checkpoint.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
using Catch::Matchers::Contains;
using Weights = Gpt2Weights<float, CpuBackend>;
using Matrix = CpuBackend::Matrix<float>;

namespace {

constexpr std::uint64_t kSeed = 77;

nlohmann::json small() {
  return {{"model_type", "gpt2"}, {"n_embd", 12},      {"n_head", 6},     {"n_layer", 2},
          {"n_inner", 10},        {"n_positions", 16}, {"vocab_size", 11}};
}

Weights load(const std::filesystem::path& path, CpuBackend& backend, int rank = 0, int ranks = 1) {
  Weights out(Gpt2Config::load(path), rank, ranks);
  out.load(Checkpoint(path), backend);
  return out;
}

/// Row-major elements of a matrix, read row by row as embeddings.
std::vector<float> elements(CpuBackend& backend, const Matrix& matrix) {
  std::vector<TokenId> rows;
  for (std::int64_t i = 0; i < matrix.rows(); ++i) rows.push_back(static_cast<TokenId>(i));
  std::vector<float> out(static_cast<std::size_t>(matrix.rows() * matrix.cols()));
  backend.run(EmbeddingArgs<float, Matrix>{.tokens = {rows.data(), {matrix.rows()}},
                                           .table = &matrix,
                                           .out = {out.data(), {matrix.rows(), matrix.cols()}}});
  return out;
}

/// What matrix `got` must hold of the file's [in, out] tensor `name`: columns [column, …) as its
/// rows [first, first + count), of which inputs [begin, begin + cols()).
void check_transposed(const std::vector<float>& got, std::int64_t cols, std::int64_t first,
                      const std::string& name, std::int64_t in, std::int64_t out,
                      std::int64_t column, std::int64_t count, std::int64_t begin = 0) {
  const std::vector<float> file = gpt2_weight(name, {in, out}, kSeed);
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t j = 0; j < cols; ++j) {
      REQUIRE(got[static_cast<std::size_t>((first + i) * cols + j)] ==
              file[static_cast<std::size_t>((begin + j) * out + column + i)]);
    }
  }
}

}  // namespace

TEST_CASE("GPT-2's dense layers are transposed while they are loaded, where they need be",
          "[gpt2][weights]") {
  CpuBackend backend({.num_threads = 1});
  const Gpt2Files files(small(), kSeed, {.out_in = GENERATE(false, true)});
  const Weights weights = load(files.path(), backend);
  const Weights::Layer& layer = weights.layer(1);
  check_transposed(elements(backend, layer.qkv), 12, 0, "h.1.attn.c_attn.weight", 12, 36, 0, 36);
  check_transposed(elements(backend, layer.out), 12, 0, "h.1.attn.c_proj.weight", 12, 12, 0, 12);
  check_transposed(elements(backend, layer.fc), 12, 0, "h.1.mlp.c_fc.weight", 12, 10, 0, 10);
  check_transposed(elements(backend, layer.proj), 10, 0, "h.1.mlp.c_proj.weight", 10, 12, 0, 12);
  CHECK(elements(backend, weights.embedding()) == gpt2_weight("wte.weight", {11, 12}, kSeed));
  CHECK(elements(backend, weights.positions()) == gpt2_weight("wpe.weight", {16, 12}, kSeed));
  const auto bias = gpt2_weight("h.1.attn.c_attn.bias", {36}, kSeed);
  CHECK(std::equal(bias.begin(), bias.end(), layer.qkv_bias.data()));
  const auto norm = gpt2_weight("ln_f.bias", {12}, kSeed);
  CHECK(std::equal(norm.begin(), norm.end(), weights.final_norm().bias.data()));
}

TEST_CASE("a rank of GPT-2 has whole heads of q, k and v, and its part of the MLP",
          "[gpt2][weights]") {
  CpuBackend backend({.num_threads = 1});
  const Gpt2Files files(small(), kSeed, {.out_in = GENERATE(false, true)});
  const Weights weights = load(files.path(), backend, 1, 2);
  const Weights::Layer& layer = weights.layer(0);
  const std::vector<float> qkv = elements(backend, layer.qkv);
  REQUIRE(qkv.size() == 18 * 12);
  const auto bias = gpt2_weight("h.0.attn.c_attn.bias", {36}, kSeed);
  for (std::int64_t part = 0; part < 3; ++part) {
    check_transposed(qkv, 12, 6 * part, "h.0.attn.c_attn.weight", 12, 36, 12 * part + 6, 6);
    CHECK(std::equal(bias.begin() + 12 * part + 6, bias.begin() + 12 * part + 12,
                     layer.qkv_bias.data() + 6 * part));
  }
  check_transposed(elements(backend, layer.out), 6, 0, "h.0.attn.c_proj.weight", 12, 12, 0, 12, 6);
  check_transposed(elements(backend, layer.fc), 12, 0, "h.0.mlp.c_fc.weight", 12, 10, 5, 5);
  check_transposed(elements(backend, layer.proj), 5, 0, "h.0.mlp.c_proj.weight", 10, 12, 0, 12, 5);
  CHECK(layer.out_bias.size() == 12);
}

TEST_CASE("GPT-2's files may have a prefix, masks and a copy of the head", "[gpt2][weights]") {
  CpuBackend backend({.num_threads = 1});
  const Gpt2Files plain(small(), kSeed), old(small(), kSeed, {.prefix = "", .masks = true}),
      full(small(), kSeed, {.masks = true, .tied_head = true});
  const auto expected = elements(backend, load(plain.path(), backend).layer(0).fc);
  CHECK(elements(backend, load(old.path(), backend).layer(0).fc) == expected);
  CHECK(elements(backend, load(full.path(), backend).layer(0).fc) == expected);

  nlohmann::json untied = small();
  untied["tie_word_embeddings"] = false;
  const Gpt2Files own(untied, kSeed);
  CHECK(elements(backend, load(own.path(), backend).lm_head()) ==
        gpt2_weight("lm_head.weight", {11, 12}, kSeed));
}

TEST_CASE("what is missing or left over in GPT-2's files is named", "[gpt2][weights]") {
  CpuBackend backend({.num_threads = 1});
  nlohmann::json deeper = small();
  deeper["n_layer"] = 3;
  const Gpt2Files files(small(), kSeed), surplus(deeper, kSeed);
  Weights three(Gpt2Config::load(surplus.path()), 0, 1);
  CHECK_THROWS_WITH(three.load(Checkpoint(files.path()), backend),
                    Contains("'transformer.h.2.attn.c_attn.weight' is missing"));
  Weights two(Gpt2Config::load(files.path()), 0, 1);
  CHECK_THROWS_WITH(two.load(Checkpoint(surplus.path()), backend),
                    Contains("'transformer.h.2.ln_1.bias' [12] is in the checkpoint, but not in"));
}

TEST_CASE("GPT-2's noise leaves biases zero and norms one", "[gpt2][weights]") {
  CpuBackend backend({.num_threads = 1});
  const Gpt2Config config = Gpt2Config::from_json(small().dump());
  Weights weights(config, 0, 1);
  weights.randomize(5, backend);
  const Weights::Layer& layer = weights.layer(0);
  for (std::size_t i = 0; i < 36; ++i) CHECK(layer.qkv_bias.data()[i] == 0);
  CHECK(layer.mlp_norm.weight.data()[3] == 1);
  CHECK(layer.mlp_norm.bias.data()[3] == 0);
  const auto noise = elements(backend, layer.fc);
  CHECK(noise != elements(backend, weights.layer(1).fc));
  for (const float x : noise) CHECK((x != 0 && std::abs(x) < 0.04f));
}
