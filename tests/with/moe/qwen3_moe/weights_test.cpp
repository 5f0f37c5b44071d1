// How files become weights of a Qwen3 mixture of experts: names, each rank's part, 8-bit floats.

#include "nanovllm/with/moe/qwen3_moe/weights.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/cpu/backend.hpp"
#include "nanovllm/with/eight_bits/cpu/fp8_matrix.hpp"
#include "nanovllm/with/eight_bits/weights.hpp"
#include "with/moe/parity/qwen3_moe_checkpoint.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
using Catch::Matchers::Contains;
using Weights = Qwen3MoeWeights<float, CpuBackend, float>;

namespace {

constexpr std::uint64_t kSeed = 78;

/// Layers 1 and 3 have 3 experts, 0 and 2 have none.
nlohmann::json small() {
  return {{"architectures", {"Qwen3MoeForCausalLM"}},
          {"model_type", "qwen3_moe"},
          {"hidden_size", 12},
          {"intermediate_size", 10},
          {"moe_intermediate_size", 6},
          {"num_experts", 3},
          {"num_experts_per_tok", 2},
          {"decoder_sparse_step", 2},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 2},
          {"head_dim", 4},
          {"vocab_size", 11},
          {"max_position_embeddings", 16},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 1e4}};
}

template <class W = Weights>
W load(const std::filesystem::path& path, CpuBackend& backend, int rank = 0, int ranks = 1) {
  W out(Qwen3MoeConfig::load(path), rank, ranks);
  out.load(Checkpoint(path), backend);
  return out;
}

/// Rows [first, first + count) of columns [column, …) of the file's matrix are those of `matrix`
/// from row `at` on.
template <class Matrix>
void check_part(const Matrix& matrix, std::int64_t at, const std::string& name,
                const std::vector<std::int64_t>& shape, std::int64_t first, std::int64_t count,
                std::int64_t column = 0) {
  INFO(name);
  const std::vector<float> file = moe_weight(name, shape, kSeed);
  std::vector<float> row(static_cast<std::size_t>(matrix.cols()));
  for (std::int64_t i = 0; i < count; ++i) {
    matrix.copy_row(at + i, row.data());
    const auto from = file.begin() + (first + i) * shape[1] + column;
    REQUIRE(std::equal(row.begin(), row.end(), from));
  }
}

}  // namespace

TEST_CASE("layers have a router and experts, or an MLP", "[moe][weights]") {
  CpuBackend backend({.num_threads = 1});
  const MoeFiles files(small(), kSeed);
  const Weights weights = load(files.path(), backend);
  CHECK(weights.sizes().intermediate_size == 10);
  for (const std::int64_t i : {0, 2}) {
    CHECK(weights.layer(i).experts.empty());
    CHECK(weights.layer(i).router.rows() == 0);
  }
  const std::string dense = "model.layers.2.mlp.", sparse = "model.layers.3.mlp.";
  check_part(weights.layer(2).gate_up, 0, dense + "gate_proj.weight", {10, 12}, 0, 10);
  check_part(weights.layer(2).gate_up, 10, dense + "up_proj.weight", {10, 12}, 0, 10);
  check_part(weights.layer(2).down, 0, dense + "down_proj.weight", {12, 10}, 0, 12);
  const Weights::Layer& layer = weights.layer(3);
  REQUIRE(layer.experts.size() == 3);
  CHECK(layer.gate_up.rows() == 0);
  check_part(layer.router, 0, sparse + "gate.weight", {3, 12}, 0, 3);
  for (std::size_t e = 0; e < 3; ++e) {
    const std::string expert = sparse + "experts." + std::to_string(e) + ".";
    check_part(layer.experts[e].gate_up, 0, expert + "gate_proj.weight", {6, 12}, 0, 6);
    check_part(layer.experts[e].gate_up, 6, expert + "up_proj.weight", {6, 12}, 0, 6);
    check_part(layer.experts[e].down, 0, expert + "down_proj.weight", {12, 6}, 0, 12);
  }
}

TEST_CASE("a rank has its part of every expert, and the whole router", "[moe][weights]") {
  CpuBackend backend({.num_threads = 1});
  const MoeFiles files(small(), kSeed);
  const Weights weights = load(files.path(), backend, 1, 2);
  const Weights::Layer& layer = weights.layer(1);
  const std::string expert = "model.layers.1.mlp.experts.2.";
  check_part(layer.router, 0, "model.layers.1.mlp.gate.weight", {3, 12}, 0, 3);
  REQUIRE(layer.experts[2].gate_up.rows() == 6);
  check_part(layer.experts[2].gate_up, 0, expert + "gate_proj.weight", {6, 12}, 3, 3);
  check_part(layer.experts[2].gate_up, 3, expert + "up_proj.weight", {6, 12}, 3, 3);
  check_part(layer.experts[2].down, 0, expert + "down_proj.weight", {12, 6}, 0, 12, 3);

  CHECK_THROWS_WITH(Weights(Qwen3MoeConfig::load(files.path()), 0, 4),
                    Contains("does not divide num_attention_heads = 2"));
  // Where all layers have experts, nothing is `intermediate_size` wide.
  nlohmann::json all = small();
  all["decoder_sparse_step"] = 1, all["intermediate_size"] = 11;
  CHECK_NOTHROW(Weights(Qwen3MoeConfig::from_json(all.dump()), 0, 2));
  all["mlp_only_layers"] = {0};
  CHECK_THROWS_WITH(Weights(Qwen3MoeConfig::from_json(all.dump()), 0, 2),
                    Contains("does not divide intermediate_size = 11"));
}

TEST_CASE("expert parallel, a rank has whole experts and no others", "[moe][weights]") {
  CpuBackend backend({.num_threads = 1});
  const MoeFiles files(small(), kSeed);
  Qwen3MoeConfig config = Qwen3MoeConfig::load(files.path());
  config.expert_parallel = true;
  std::int64_t next = 0;
  for (const int rank : {0, 1}) {
    Weights weights(config, rank, 2);
    weights.load(Checkpoint(files.path()), backend);
    const Weights::Layer& layer = weights.layer(3);
    const std::string mlp = "model.layers.3.mlp.";
    check_part(layer.router, 0, mlp + "gate.weight", {3, 12}, 0, 3);
    REQUIRE(layer.experts.size() == (rank == 0 ? 1 : 2));
    CHECK((layer.gate_up.rows() == 0 && layer.down.rows() == 0));
    for (const auto& expert : layer.experts) {
      const std::string name = mlp + "experts." + std::to_string(next++) + ".";
      REQUIRE(expert.gate_up.rows() == 12);
      check_part(expert.gate_up, 0, name + "gate_proj.weight", {6, 12}, 0, 6);
      check_part(expert.gate_up, 6, name + "up_proj.weight", {6, 12}, 0, 6);
      check_part(expert.down, 0, name + "down_proj.weight", {12, 6}, 0, 12);
    }
    // A layer without experts is divided as ever.
    check_part(weights.layer(2).down, 0, "model.layers.2.mlp.down_proj.weight", {12, 10}, 0, 12,
               rank * 5);
    weights.randomize(5, backend);
  }
  CHECK(next == 3);

  // What ranks do not divide is the same noise on all.
  Weights a(config, 0, 2), b(config, 1, 2);
  a.randomize(5, backend), b.randomize(5, backend);
  const auto row_of = [](const auto& matrix, std::int64_t row) {
    std::vector<float> out(static_cast<std::size_t>(matrix.cols()));
    matrix.copy_row(row, out.data());
    return out;
  };
  CHECK(row_of(a.layer(1).router, 2) == row_of(b.layer(1).router, 2));
  CHECK(row_of(a.layer(1).experts[0].down, 0) != row_of(b.layer(1).experts[0].down, 0));
  CHECK(row_of(a.layer(1).qkv, 0) != row_of(b.layer(1).qkv, 0));

  // The tensors of other ranks' experts must be there, and no more.
  const auto refused = [&](int experts, const char* text) {
    Qwen3MoeConfig wrong = config;
    wrong.num_experts = experts;
    Weights weights(wrong, 0, 2);
    CHECK_THROWS_WITH(weights.load(Checkpoint(files.path()), backend), Contains(text));
  };
  refused(4, "'model.layers.1.mlp.experts.3.up_proj.weight' is missing");
  refused(2, "'model.layers.1.mlp.experts.2.up_proj.weight' [6, 12] is in the checkpoint");
  config.num_experts = 1;
  CHECK_THROWS_WITH(Weights(config, 0, 2),
                    Contains("expert_parallel: each of the 2 ranks must have an expert"));
}

TEST_CASE("a mesh of ranks divides experts and their columns", "[moe][weights]") {
  CpuBackend backend({.num_threads = 1});
  nlohmann::json json = small();
  json["num_attention_heads"] = json["num_key_value_heads"] = 4;
  json["intermediate_size"] = 8;
  const MoeFiles files(json, kSeed);
  Qwen3MoeConfig config = Qwen3MoeConfig::load(files.path());
  config.expert_parallel = true;
  config.expert_tensor_parallel = 2;
  // Ranks 0 and 1 have halves of expert 0, ranks 2 and 3 of experts 1 and 2.
  for (const int rank : {0, 1, 2, 3}) {
    CAPTURE(rank);
    Weights weights(config, rank, 4);
    weights.load(Checkpoint(files.path()), backend);
    const Weights::Layer& layer = weights.layer(3);
    REQUIRE(layer.experts.size() == (rank < 2 ? 1 : 2));
    std::int64_t next = rank < 2 ? 0 : 1;
    for (const auto& expert : layer.experts) {
      const std::string name = "model.layers.3.mlp.experts." + std::to_string(next++) + ".";
      const std::int64_t begin = rank % 2 * 3;
      REQUIRE(expert.gate_up.rows() == 6);
      check_part(expert.gate_up, 0, name + "gate_proj.weight", {6, 12}, begin, 3);
      check_part(expert.gate_up, 3, name + "up_proj.weight", {6, 12}, begin, 3);
      check_part(expert.down, 0, name + "down_proj.weight", {12, 6}, 0, 12, begin);
    }
  }
  config.num_experts = 1;
  CHECK_THROWS_WITH(Weights(config, 0, 4),
                    Contains("expert_parallel: each of the 2 groups of ranks must have an expert"));
  config.num_experts = 3, config.expert_tensor_parallel = 0;
  CHECK_THROWS_WITH(Weights(config, 0, 4),
                    Contains("expert_tensor_parallel must divide tensor_parallel = 4, got 0"));
  config.expert_tensor_parallel = 4;
  CHECK_THROWS_WITH(Weights(config, 0, 4), Contains("expert_tensor_parallel = 4 does not divide "
                                                    "moe_intermediate_size = 6"));
}

TEST_CASE("tensors of experts that are missing or too many are named", "[moe][weights]") {
  CpuBackend backend({.num_threads = 1});
  const MoeFiles files(small(), kSeed);
  const auto refused = [&](const char* key, int value, const char* text) {
    nlohmann::json json = small();
    json[key] = value;
    Weights weights(Qwen3MoeConfig::from_json(json.dump()), 0, 1);
    CHECK_THROWS_WITH(weights.load(Checkpoint(files.path()), backend), Contains(text));
  };
  refused("num_experts", 4, "'model.layers.1.mlp.experts.3.up_proj.weight' is missing");
  refused("num_experts", 2,
          "'model.layers.1.mlp.experts.2.up_proj.weight' [6, 12] is in the checkpoint");
  refused("moe_intermediate_size", 8,
          "'model.layers.1.mlp.experts.0.down_proj.weight' must have shape [12, 8], got [12, 6]");
  refused("decoder_sparse_step", 4, "'model.layers.1.mlp.gate_proj.weight' is missing");
}

TEST_CASE("experts in 8-bit floats are dequantised or kept, the router is in 16 bits",
          "[moe][weights][fp8]") {
  nlohmann::json json = small();
  json["quantization_config"] = {
      {"quant_method", "fp8"},
      {"activation_scheme", "dynamic"},
      {"fmt", "e4m3"},
      {"weight_block_size", {128, 128}},
      {"modules_to_not_convert", {"lm_head", "model.layers.1.mlp.gate"}}};
  // Every matrix of an expert is one block; its scale is a power of two for each.
  nanovllm_test::SafetensorsWriter file;
  const auto scale_of = [](const std::string& name) {
    return name.find("gate_proj") != name.npos ? 0.25f : name.find("up") != name.npos ? 0.5f : 2.f;
  };
  for (const auto& [name, shape] : moe_tensors(json)) {
    const std::vector<float> values = moe_weight(name, shape, kSeed);
    if (name.find(".experts.") == name.npos) {
      file.add(name, "F32", shape, values);
      continue;
    }
    std::vector<std::uint8_t> stored;
    for (const float x : values) stored.push_back(fp8_e4m3(x).bits);
    file.add(name, "F8_E4M3", shape, stored);
    file.add(name + "_scale_inv", "F32", {1, 1}, std::vector<float>{scale_of(name)});
  }
  nanovllm_test::TempDirectory directory;
  directory.write("config.json", json.dump());
  directory.write("model.safetensors", file.bytes());

  CpuBackend backend({.num_threads = 1});
  const auto check = [&](const auto& weights, std::size_t at_expert = 2) {
    const auto& layer = weights.layer(1);
    check_part(layer.router, 0, "model.layers.1.mlp.gate.weight", {3, 12}, 0, 3);
    const auto check_rows = [&](const auto& matrix, std::int64_t at, const std::string& name,
                                const std::vector<std::int64_t>& shape) {
      const std::vector<float> values = moe_weight(name, shape, kSeed);
      std::vector<float> row(static_cast<std::size_t>(shape[1]));
      for (std::int64_t i = 0; i < shape[0]; ++i) {
        matrix.copy_row(at + i, row.data());
        for (std::int64_t j = 0; j < shape[1]; ++j) {
          const fp8_e4m3 stored(values[static_cast<std::size_t>(i * shape[1] + j)]);
          REQUIRE(row[static_cast<std::size_t>(j)] == static_cast<float>(stored) * scale_of(name));
        }
      }
    };
    const std::string expert = "model.layers.1.mlp.experts.2.";
    check_rows(layer.experts[at_expert].gate_up, 0, expert + "gate_proj.weight", {6, 12});
    check_rows(layer.experts[at_expert].gate_up, 6, expert + "up_proj.weight", {6, 12});
    check_rows(layer.experts[at_expert].down, 0, expert + "down_proj.weight", {12, 6});
  };
  check(load(directory.path(), backend));
  using Fp8 = Qwen3MoeWeights<Fp8Weights<float>, CpuBackend, float>;
  check(load<Fp8>(directory.path(), backend));
  Qwen3MoeConfig whole = Qwen3MoeConfig::load(directory.path());
  whole.expert_parallel = true;
  Fp8 second(whole, 1, 2);
  second.load(Checkpoint(directory.path()), backend);
  check(second, 1);  // it has experts 1 and 2
}
