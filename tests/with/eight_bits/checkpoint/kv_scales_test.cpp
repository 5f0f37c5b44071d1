// Scales of keys and values in checkpoints: each spelling is found, what is no such scale is refused
// by name, and the rows that a network stores have them.

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/with/eight_bits/static_fp8_kv.hpp"
#include "safetensors_writer.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
using Catch::Matchers::Contains;
using nanovllm_test::SafetensorsWriter;
using nanovllm_test::TempDirectory;

namespace {

const std::vector<std::string> kModules = {"layers.0.self_attn", "layers.1.self_attn"};

std::vector<KvScales> read(const SafetensorsWriter& tensors) {
  const TempDirectory directory;
  directory.write("model.safetensors", tensors.bytes());
  return read_kv_scales(Checkpoint(directory.path()), kModules);
}

void add(SafetensorsWriter& tensors, const std::string& name, float scale,
         const std::vector<std::int64_t>& shape = {1}) {
  tensors.add(name, "F32", shape, std::vector<float>{scale});
}

/// The spellings of keys' and values' scales, after a module's name.
struct Spelling {
  const char* k;
  const char* v;
};
constexpr Spelling kSpellings[] = {{".k_scale", ".v_scale"},
                                   {".k_proj.k_scale", ".v_proj.v_scale"},
                                   {".k_cache.scale", ".v_cache.scale"},
                                   {".k_proj.output_scale", ".v_proj.output_scale"}};

const std::filesystem::path kSource = model_directory(kRandomModels[0]);

/// The small model, and beside its tensors those that `add_scales` adds to each layer's module.
template <class AddScales>
void write_model(const TempDirectory& directory, const AddScales& add_scales) {
  const Checkpoint original(kSource);
  SafetensorsWriter tensors;
  for (const CheckpointTensor& tensor : original.tensors()) {
    tensors.add(
        tensor.name, std::string(name(tensor.dtype)), {tensor.shape.begin(), tensor.shape.end()},
        std::string_view(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size()));
  }
  const std::int64_t layers = Qwen3Config::load(original).num_hidden_layers;
  for (std::int64_t i = 0; i < layers; ++i)
    add_scales(tensors, concat("model.layers.", i, ".self_attn"), i);
  directory.write("config.json", original.required_text("config.json"));
  directory.write("model.safetensors", tensors.bytes());
}

KvScales scales_of_layer(std::int64_t i) {
  const auto x = static_cast<float>(i);
  return {.k = 0.0625f + x, .v = 0.03125f + 2 * x};
}

void add_scales_of_layers(SafetensorsWriter& tensors, const std::string& module, std::int64_t i) {
  add(tensors, module + ".k_scale", scales_of_layer(i).k);
  add(tensors, module + ".v_scale", scales_of_layer(i).v);
}

template <class Kv, class Communicator>
using NetworkOf =
    Qwen3Network<shapes::qwen3_any, Elements<float, float, Kv>, CpuBackend, Communicator>;
constexpr StepLimits kLimits{.max_num_batched_tokens = 8, .max_num_seqs = 8, .max_model_len = 16};

/// The pool after the forward pass of the prompt 1, 2, …, 5, whose slots are 0 to 4.
template <class Kv>
auto pool_after_prompt(NetworkOf<Kv, Single>& network) {
  constexpr std::int64_t kTokens = 5;
  KvPool<Kv, std::vector<KvStored<Kv>>> pool({.num_layers = network.num_layers(),
                                              .num_kv_heads = network.num_kv_heads(),
                                              .head_dim = network.head_dim(),
                                              .block_size = 8,
                                              .element_bytes = sizeof(KvStored<Kv>),
                                              .scale_bytes = kKvScaleBytes<Kv>},
                                             1);
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5};
  const std::vector<std::int32_t> positions = {0, 1, 2, 3, 4}, starts = {0, kTokens},
                                  lengths = {kTokens};
  const std::vector<Slot> slots = {0, 1, 2, 3, 4};
  const std::vector<BlockId> table = {0};
  ForwardBatch batch;
  batch.tokens = {tokens.data(), {kTokens}};
  batch.positions = {positions.data(), {kTokens}};
  batch.slots = {slots.data(), {kTokens}};
  batch.query_starts = {starts.data(), {2}};
  batch.kv_lens = {lengths.data(), {1}};
  batch.block_tables = {table.data(), {1, 1}};
  batch.has_prefix = false;
  network.forward(batch, pool, {});
  return pool;
}

}  // namespace

TEST_CASE("scales of keys and values are found under each of their names", "[fp8][weights]") {
  for (const auto& [k, v] : kSpellings) {
    CAPTURE(k, v);
    SafetensorsWriter tensors;
    add(tensors, kModules[0] + k, 0.5f);
    add(tensors, kModules[0] + v, 2.f, {});
    add(tensors, kModules[1] + k, 3.f, {1, 1, 1});
    add(tensors, kModules[1] + v, 0.0123f);
    CHECK(read(tensors) == std::vector<KvScales>{{.k = 0.5f, .v = 2.f}, {.k = 3.f, .v = 0.0123f}});
  }
  SafetensorsWriter both;
  add(both, kModules[1] + ".kv_scale", 0.5f);
  CHECK(read(both) == std::vector<KvScales>{{}, {.k = 0.5f, .v = 0.5f}});
  add(both, kModules[1] + ".k_scale", 0.75f);  // comes first, and a pair is not mixed
  CHECK_THROWS_WITH(read(both),
                    Contains("'layers.1.self_attn.k_scale' must have a scale of values beside it"));
  add(both, kModules[1] + ".v_scale", 0.25f);
  CHECK(read(both) == std::vector<KvScales>{{}, {.k = 0.75f, .v = 0.25f}});

  const SafetensorsWriter none = std::move(SafetensorsWriter().add(
      "layers.0.self_attn.q_proj.input_scale", "F32", {2}, std::vector<float>(2)));
  CHECK(read(none) == std::vector<KvScales>{{.k = 1.f, .v = 1.f}, {.k = 1.f, .v = 1.f}});
  SafetensorsWriter narrow;
  narrow.add(kModules[0] + ".k_scale", "BF16", {1}, std::vector<bf16>{bf16(0.75f)});
  narrow.add(kModules[0] + ".v_scale", "F16", {1}, std::vector<half>{half(1.25f)});
  CHECK(read(narrow) == std::vector<KvScales>{{.k = 0.75f, .v = 1.25f}, {}});
}

TEST_CASE("what is no scale of a cache is refused by name", "[fp8][weights]") {
  const auto refused = [](const SafetensorsWriter& tensors, const std::string& message) {
    CHECK_THROWS_AS(read(tensors), LoadError);
    CHECK_THROWS_WITH(read(tensors), Contains(message));
  };
  const auto with_k = [](const std::string& dtype, const std::vector<std::int64_t>& shape,
                         const auto& elements) {
    SafetensorsWriter tensors;
    tensors.add("layers.0.self_attn.k_scale", dtype, shape, elements);
    add(tensors, "layers.0.self_attn.v_scale", 1.f);
    return tensors;
  };
  const std::string k = "'layers.0.self_attn.k_scale' ";
  refused(with_k("F32", {2, 1, 1}, std::vector<float>(2, 1.f)),
          k + "must be one scale for the whole tensor of keys or values, of shape [] or [1], got "
              "[2, 1, 1]");
  refused(with_k("F32", {0}, std::vector<float>()), k + "must be one scale for the whole tensor");
  refused(with_k("I32", {1}, std::vector<std::int32_t>(1, 1)),
          k + "must be F32, F16, BF16 or F8_E8M0, got I32");
  const std::string positive = k + "must be a positive scale, and finite when multiplied by 448, ";
  const auto of_value = [&](float x) { return with_k("F32", {1}, std::vector<float>{x}); };
  refused(of_value(0.f), positive + "got 0");
  refused(of_value(-1.f), positive + "got -1");
  refused(of_value(1e37f), positive + "got 99999999");
  refused(of_value(std::numeric_limits<float>::infinity()), positive + "got inf");
  refused(of_value(std::numeric_limits<float>::quiet_NaN()), positive + "got nan");

  SafetensorsWriter alone;
  add(alone, "layers.1.self_attn.k_proj.k_scale", 1.f);
  refused(alone,
          "'layers.1.self_attn.k_proj.k_scale' must have a scale of values beside it, of the same "
          "layer");
  SafetensorsWriter several;
  add(several, "layers.2.self_attn.k_scale", 1.f);
  add(several, "layers.0.self_attn.attention.v_scale", 1.f);
  refused(several,
          "'layers.2.self_attn.k_scale' is a scale of keys or values under a name that is "
          "not read");
  refused(several, "'layers.0.self_attn.attention.v_scale' is a scale of keys or values under");
}

TEST_CASE("a network stores its keys and values by the scales of the checkpoint",
          "[fp8][weights]") {
  const TempDirectory scaled, plain;
  write_model(scaled, add_scales_of_layers);
  write_model(plain, [](const auto&...) {});
  const Qwen3Config config = Qwen3Config::load(kSource);
  CpuBackend backend({.num_threads = 1});
  Single comm = Single::make(1)[0];
  NetworkOf<StaticFp8Kv, Single> network(config, kLimits, backend, comm);
  NetworkOf<float, Single> exact(config, kLimits, backend, comm);
  exact.weights().load(Checkpoint(plain.path()), backend);
  auto expected = pool_after_prompt<float>(exact);
  for (const bool has_scales : {true, false}) {
    CAPTURE(has_scales);
    network.weights().load(Checkpoint(has_scales ? scaled.path() : plain.path()), backend);
    auto pool = pool_after_prompt<StaticFp8Kv>(network);
    for (std::int64_t layer = 0; layer < network.num_layers(); ++layer) {
      const KvScales scales = has_scales ? scales_of_layer(layer) : KvScales{};
      const KvView<StaticFp8Kv> view = pool.layer(layer);
      const KvView<float> floats = expected.layer(layer);
      for (std::int64_t head = 0; head < 2 * network.num_kv_heads(); ++head) {
        const float scale = head < network.num_kv_heads() ? scales.k : scales.v;
        fp8_e4m3* const tile = view.k(0, head);
        for (std::int64_t i = 0; i < 5; ++i) CHECK(view.scales(tile)[i] == scale);
        if (layer > 0) continue;  // attention has read what was rounded
        for (std::int64_t i = 0; i < 5 * network.head_dim(); ++i)
          REQUIRE(tile[i].bits == fp8_e4m3(floats.k(0, head)[i] / scale).bits);
      }
    }
  }
}

TEST_CASE("all ranks have a checkpoint's scales, and other formats do not look at them",
          "[fp8][weights]") {
  const Qwen3Config config = Qwen3Config::load(kSource);
  CpuBackend backend({.num_threads = 1});
  const TempDirectory scaled;
  write_model(scaled, add_scales_of_layers);
  std::vector<ThreadGroup> ranks = ThreadGroup::make(2);
  for (ThreadGroup& rank : ranks) {
    NetworkOf<StaticFp8Kv, ThreadGroup> network(config, kLimits, backend, rank);
    network.weights().load(Checkpoint(scaled.path()), backend);
    for (std::int64_t i = 0; i < network.num_layers(); ++i)
      CHECK(network.weights().layer(i).kv_scales == scales_of_layer(i));
  }

  for (const Spelling& spelling : kSpellings) {
    const std::string k = spelling.k, v = spelling.v;
    CAPTURE(k);
    const TempDirectory of_heads;
    write_model(of_heads, [&](SafetensorsWriter& tensors, const std::string& module, std::int64_t) {
      tensors.add(module + k, "F32", {2, 1, 1}, std::vector<float>(2, 0.5f));
      tensors.add(module + v, "F32", {2, 1, 1}, std::vector<float>(2, 0.5f));
      add(tensors, module + ".q_scale", 0.5f);
      add(tensors, module + ".q_cache.scale", 0.5f);
      add(tensors, module + ".kv_scale", -1.f);
    });
    Single comm = Single::make(1)[0];
    NetworkOf<float, Single> floats(config, kLimits, backend, comm);
    CHECK_NOTHROW(floats.weights().load(Checkpoint(of_heads.path()), backend));
    CHECK(floats.weights().layer(0).kv_scales == KvScales{});
    NetworkOf<StaticFp8Kv, Single> network(config, kLimits, backend, comm);
    CHECK_THROWS_WITH(network.weights().load(Checkpoint(of_heads.path()), backend),
                      Contains(concat("'model.layers.1.self_attn", k, "' must be one scale")) &&
                          Contains(concat("'model.layers.0.self_attn", v, "' must be one scale")));
  }
}
