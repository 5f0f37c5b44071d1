// Weights in integers that are kept as a checkpoint: engines of it have the bits of engines that
// quantise the original, and a fault leaves nothing behind.

#include "nanovllm/with/eight_bits/checkpoint/save_quantized.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "memory_checkpoint.hpp"
#include "nanovllm/io/safetensors.hpp"
#include "nanovllm/with/eight_bits/cpu/linear.hpp"
#include "nanovllm/with/moe/qwen3_moe/qwen3_moe.hpp"
#include "safetensors_writer.hpp"
#include "weights_there.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
using Catch::Matchers::Contains;
using nanovllm_test::MemoryCheckpoint;
using nanovllm_test::TempDirectory;
namespace fs = std::filesystem;

namespace {

struct Int8Policy : FullPolicy {
  using Weight = Int8Group32;
};
struct Int4Policy : FullPolicy {
  using Weight = Int4Group32;
};
struct Int8FloatPolicy : FullFloat32Policy {
  using Weight = Int8Weights<float>;
};
struct Int4FloatPolicy : FullFloat32Policy {
  using Weight = Int4Weights<float>;
};

/// What an engine says of a prompt of 70 tokens and of what it generates after it.
template <class Policy, class Model = AnyModel>
Trace trace(const fs::path& model, int ranks = 1) {
  const EngineConfig config{.model = model,
                            .tensor_parallel = ranks,
                            .num_threads = 2,
                            .max_model_len = 128,
                            .kv_size = KvSize::blocks(32)};
  Engine<Model, Policy> engine(config);
  SamplingParams params{.temperature = 0.f, .max_tokens = 12, .ignore_eos = true, .logprobs = 0};
  params.prompt_logprobs = 0;
  const Output output = engine.generate(random_prompt(3, 70, 71), params);
  REQUIRE(output.error == "");
  Trace out = trace_of(output);
  for (const auto& entry : output.prompt_logprobs)
    if (entry) out.logprobs.push_back(entry->logprob);
  REQUIRE(out.logprobs.size() == 12 + 69);
  return out;
}

std::vector<float> noise(std::size_t count, std::uint64_t seed) {
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto words = philox4x32(seed, {static_cast<std::uint32_t>(i), 0, 0, 0});
    out[i] = static_cast<float>(2 * to_unit_interval(words[0]) - 1);
  }
  return out;
}

void add(MemoryCheckpoint& to, const std::string& name, std::vector<std::uint64_t> shape,
         const std::vector<float>& values) {
  to.add(name, FileDType::f32, std::move(shape),
         std::string(reinterpret_cast<const char*>(values.data()), values.size() * 4));
}

constexpr const char* kProjection = "model.layers.0.self_attn.q_proj.weight";
constexpr const char* kOther = "model.layers.0.mlp.down_proj.weight";
constexpr std::int64_t kRows = 37, kColumns = 331;

/// Two matrices, of no whole groups and words, a router, and a vector.
MemoryCheckpoint small_checkpoint() {
  MemoryCheckpoint out;
  out.texts["config.json"] = R"({"model_type": "qwen3", "rms_norm_eps": 1e-06, "torch_dtype": null,
    "quantization_config": {"quant_method": "fp8"}})";
  out.texts["tokenizer.json"] = "{\"of\": \"tokens\"}";
  std::vector<float> values = noise(std::size_t{kRows * kColumns}, 1);
  std::fill_n(values.begin() + 32, 64, 0.f);
  values[400] = 40.f;
  add(out, kProjection, {kRows, kColumns}, values);
  add(out, "model.norm.weight", {3}, {1.f, 2.f, 3.f});
  add(out, kOther, {9, 32}, noise(9 * 32, 2));
  add(out, "model.layers.0.mlp.gate.weight", {2, 5}, noise(10, 3));
  return out;
}

/// The matrix of that name in integers, as an engine has it.
template <class Matrix>
Matrix loaded(const Checkpoint& checkpoint, const std::string& name, std::int64_t rows,
              std::int64_t columns) {
  Matrix out(rows, columns);
  int num_kept = 0;
  const std::vector<Parameter<float>> parameters = {
      {.name = name,
       .shape = {rows, columns},
       .sink = [&](std::int64_t first,
                   MatrixView<const float> panel) { out.set_rows(first, panel); },
       .stored_sink =
           [&](std::int64_t first, const AnyStoredRows& panel) {
             ++num_kept;
             return out.set_rows(first, *panel.get<IntRows>());
           }}};
  std::vector<std::string> others;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) others.push_back(tensor.name);
  load_parameters<float>(checkpoint, parameters, {.ignored = others});
  CHECK((num_kept > 0) == (checkpoint.find(name) == nullptr));
  return out;
}

template <class Matrix>
bool is_same(const Matrix& a, const Matrix& b) {
  if (a.rows() != b.rows() || a.cols() != b.cols()) return false;
  const auto columns = static_cast<std::size_t>(a.cols());
  const auto groups = static_cast<std::size_t>(a.num_groups());
  std::vector<std::int8_t> codes[2] = {std::vector<std::int8_t>(columns),
                                       std::vector<std::int8_t>(columns)};
  std::vector<half> scales[2] = {std::vector<half>(groups), std::vector<half>(groups)};
  for (std::int64_t i = 0; i < a.rows(); ++i) {
    a.copy_codes(i, codes[0].data(), scales[0].data());
    b.copy_codes(i, codes[1].data(), scales[1].data());
    const auto same_bits = [](half x, half y) { return x.bits == y.bits; };
    if (codes[0] != codes[1] || !std::ranges::equal(scales[0], scales[1], same_bits)) return false;
  }
  return true;
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

/// Names of what is in a directory.
std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(directory))
    out.push_back(entry.path().filename().string());
  std::ranges::sort(out);
  return out;
}

/// The message of the `E` that saving raises, which leaves nothing in `folder`.
template <class E, class Policy = Int4FloatPolicy>
std::string refusal(const Checkpoint& checkpoint, const fs::path& folder) {
  const std::vector<std::string> before = names_in(folder);
  std::string message = "was saved";
  try {
    save_quantized<Policy>(checkpoint, folder / "saved");
  } catch (const E& error) {
    message = error.what();
  }
  CHECK(names_in(folder) == before);
  return message;
}

}  // namespace

TEMPLATE_TEST_CASE("engines of saved integers have the bits of those that quantise", "[quantized]",
                   Int8Policy, Int4Policy) {
  const TempDirectory folder;
  for (const std::string model : {"fairytale", kRandomModels[0], kRandomModels[1]}) {
    CAPTURE(model);
    const fs::path saved = folder.path() / model;
    save_quantized<TestType>(model_directory(model), saved);
    const Trace expected = trace<TestType>(model_directory(model)), got = trace<TestType>(saved);
    CHECK(got.tokens == expected.tokens);
    CHECK(got.logprobs == expected.logprobs);
    CHECK(fs::file_size(saved / "model.safetensors") <
          Checkpoint(model_directory(model)).total_bytes());
    CHECK(text_of(saved / "tokenizer.json") == text_of(model_directory(model) / "tokenizer.json"));
  }
  // Ranks of which each has whole groups.
  CHECK(trace<TestType>(folder.path() / "fairytale", 2).logprobs ==
        trace<TestType>(model_directory("fairytale"), 2).logprobs);
}

TEST_CASE("FP8 checkpoints are saved in integers", "[quantized]") {
  const TempDirectory folder;
  for (const std::string name : {"block", "dynamic", "ue8m0", "static"}) {
    CAPTURE(name);
    const fs::path model = "tests/fixtures/fp8/" + name, saved = folder.path() / name;
    save_quantized<Int4Policy>(model, saved);
    const Trace expected = trace<Int4Policy>(model), got = trace<Int4Policy>(saved);
    CHECK(got.tokens == expected.tokens);
    CHECK(got.logprobs == expected.logprobs);
    const Checkpoint checkpoint(saved);
    for (const CheckpointTensor& tensor : checkpoint.tensors()) {
      CHECK(tensor.dtype != FileDType::f8_e4m3);
      CHECK_FALSE(tensor.name.ends_with("_scale_inv"));
    }
  }
}

TEST_CASE("a mixture's experts are saved, its routers copied", "[quantized]") {
  using Mixture = Qwen3Moe<shapes::qwen3_moe_any>;
  const TempDirectory folder;
  const fs::path model = "tests/fixtures/gguf/qwen3_moe.gguf", saved = folder.path() / "saved";
  save_quantized<Int4Policy>(model, saved);
  const Trace expected = trace<Int4Policy, Mixture>(model), got = trace<Int4Policy, Mixture>(saved);
  CHECK(got.tokens == expected.tokens);
  CHECK(got.logprobs == expected.logprobs);
  const Checkpoint checkpoint(saved);
  CHECK(checkpoint.find("model.layers.1.mlp.experts.4.down_proj.weight_packed") != nullptr);
  const std::string router = "model.layers.1.mlp.gate.weight";
  const Checkpoint original(model);
  REQUIRE(checkpoint.find(router) != nullptr);
  CHECK(std::ranges::equal(checkpoint.find(router)->data, original.find(router)->data));
}

TEST_CASE("files of llama.cpp are saved unless they are quantised already", "[quantized]") {
  const TempDirectory folder;
  const fs::path model = "tests/fixtures/gguf/qwen3.gguf", saved = folder.path() / "of gguf";
  save_quantized<Int8Policy>(model, saved);
  CHECK(trace<Int8Policy>(saved).logprobs == trace<Int8Policy>(model).logprobs);
  CHECK_THAT(
      refusal<LoadError>(Checkpoint(fs::path("tests/fixtures/gguf/mixed.gguf")), folder.path()),
      Contains(", Q") && Contains("is quantised already: open the checkpoint itself"));
  CHECK_THAT(
      refusal<LoadError>(Checkpoint(fs::path("tests/fixtures/packed/awq_moe")), folder.path()),
      Contains("_proj.qweight', I32 [") && Contains("is quantised already"));
}

TEMPLATE_TEST_CASE("codes and scales are kept, whatever the shape", "[quantized]", Int8FloatPolicy,
                   Int4FloatPolicy) {
  using Matrix = MatrixOf<CpuBackend, typename TestType::Weight>;
  const TempDirectory folder;
  const fs::path path = folder.path() / "saved";
  const Checkpoint from(small_checkpoint());
  fs::create_directory(path);  // an empty one is as good as none
  std::uint64_t bytes = 0, total = 1;
  save_quantized<TestType>(
      from, path.string() + "/",
      {.num_threads = 3, .progress = [&](std::uint64_t done, std::uint64_t all) {
         bytes = done;
         total = all;
       }});
  CHECK(bytes == total);
  CHECK(bytes == (kRows * kColumns + 9 * 32) * 4);
  CHECK(names_in(folder.path()) == std::vector<std::string>{"saved"});
  CHECK(names_in(path) ==
        std::vector<std::string>{"config.json", "model.safetensors", "tokenizer.json"});
  const Checkpoint saved(path);
  const auto got = loaded<Matrix>(saved, kProjection, kRows, kColumns);
  CHECK(is_same(got, loaded<Matrix>(from, kProjection, kRows, kColumns)));
  CHECK(is_same(loaded<Matrix>(saved, kOther, 9, 32), loaded<Matrix>(from, kOther, 9, 32)));
  // Readers that know no integers get their values.
  std::vector<float> row(std::size_t{kColumns}), values(std::size_t{kRows * kColumns});
  const std::vector<Parameter<float>> parameters = {
      {.name = kProjection,
       .shape = {kRows, kColumns},
       .sink = [&](std::int64_t first, MatrixView<const float> panel) {
         std::copy_n(panel.data, panel.size(), values.data() + first * kColumns);
       }}};
  load_parameters<float>(
      saved, parameters,
      {.ignored = std::vector<std::string>{"model.norm.weight", "model.layers.0.mlp.gate.weight",
                                           "model.layers.0.mlp.down_proj.weight_packed",
                                           "model.layers.0.mlp.down_proj.weight_scale",
                                           "model.layers.0.mlp.down_proj.weight_shape"}});
  for (std::int64_t i = 0; i < kRows; ++i) {
    got.copy_row(i, row.data());
    CHECK(std::equal(row.begin(), row.end(), values.begin() + i * kColumns));
  }
  // Each tensor lies at a multiple of its elements, as readers of torch need it.
  const SafetensorsFile file(path / "model.safetensors");
  const auto* begin = reinterpret_cast<const std::byte*>(file.mapping()->bytes().data());
  for (const TensorInfo& tensor : file.tensors())
    CHECK((file.data(tensor).data() - begin) % (size_bits(tensor.dtype) / 8) == 0);
  const std::string config = text_of(path / "config.json");
  CHECK_THAT(config, Contains("\"rms_norm_eps\": 1e-06, \"torch_dtype\": null") &&
                         Contains("\"ignore\": [\"lm_head\", \"model.layers.0.mlp.gate\"]") &&
                         !Contains("fp8"));
}

TEST_CASE("what cannot be saved is named, and leaves nothing", "[quantized]") {
  const TempDirectory folder;
  const fs::path target = folder.path() / "saved";
  const Checkpoint small(small_checkpoint());
  SECTION("a target that is not empty") {
    fs::create_directory(target);
    folder.write("saved/mine", "x");
    CHECK(refusal<Error>(small, folder.path()) ==
          concat("cannot save to '", target.string(),
                 "': it is there already, and not an empty directory"));
    CHECK(text_of(target / "mine") == "x");
  }
  SECTION("no directory to write to") {
    folder.write("file", "x");

    try {
      save_quantized<Int4FloatPolicy>(small, folder.path() / "none" / "saved");
      FAIL("it was saved");
    } catch (const Error& error) {
      CHECK_THAT(error.what(), Contains("cannot make the directory '" +
                                        (folder.path() / "none" / "saved.").string()) &&
                                   Contains("No such file or directory"));
    }
  }
  SECTION("a target that cannot be renamed") {
    fs::create_directory(folder.path() / "elsewhere");
    fs::create_directory_symlink("elsewhere", target);
    CHECK_THROWS_WITH(save_quantized<Int4FloatPolicy>(small, target),
                      Contains("cannot save to '" + target.string() + "': renaming '"));
    CHECK(fs::is_symlink(target));
    CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 2);
    CHECK_THROWS_WITH(save_quantized<Int4FloatPolicy>(small, ""), Contains("must have a name"));
  }
  SECTION("a callback that throws") {
    const auto stop = [](std::uint64_t, std::uint64_t) { throw Error("stopped"); };
    CHECK_THROWS_WITH(save_quantized<Int4FloatPolicy>(small, target, {.progress = stop}),
                      "stopped");
    CHECK(fs::is_empty(folder.path()));
  }
  SECTION("two tensors that would have one name") {
    MemoryCheckpoint other = small_checkpoint();
    add(other, "model.layers.1.self_attn.k_proj.weight", {2, 32}, noise(64, 1));
    add(other, "model.layers.1.self_attn.k_proj.weight_shape", {1}, noise(1, 1));
    CHECK_THAT(refusal<LoadError>(Checkpoint(other), folder.path()),
               Contains("two tensors 'model.layers.1.self_attn.k_proj.weight_shape'") ||
                   Contains("is quantised already"));
  }
  SECTION("a disk without room") {
    struct rlimit before {};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    const struct rlimit small_files { 4096, before.rlim_max };
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &small_files) == 0);
    const std::string message = refusal<Error>(small, folder.path());
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    std::signal(SIGXFSZ, handler);
    CHECK_THAT(message, Contains("cannot write '" + target.string()) &&
                            Contains("/model.safetensors': File too large"));
  }
  SECTION("an element that is not finite") {
    MemoryCheckpoint other = small_checkpoint();
    std::vector<float> values = noise(64, 1);
    values[45] = std::numeric_limits<float>::infinity();
    add(other, "model.layers.1.self_attn.k_proj.weight", {2, 32}, values);
    CHECK_THAT(refusal<LoadError>(Checkpoint(other), folder.path()),
               Contains("'model.layers.1.self_attn.k_proj.weight' has an element in row 1 that is "
                        "not finite"));
  }
  SECTION("a matrix of another type") {
    MemoryCheckpoint other = small_checkpoint();
    other.add("model.embed_tokens.weight", FileDType::f8_e4m3, {2, 3}, "123456");
    CHECK_THAT(refusal<LoadError>(Checkpoint(other), folder.path()),
               Contains("'model.embed_tokens.weight', F8_E4M3 [2, 3], must be F32, F16 or BF16"));
  }
  SECTION("a model with other names") {
    if (!weights_there("tiny_gpt2")) return;
    CHECK_THAT(refusal<LoadError>(Checkpoint(fs::path("examples/models/tiny_gpt2")), folder.path()),
               Contains("no matrix of a layer that is named as Qwen3's are"));
  }
  SECTION("no config.json") {
    MemoryCheckpoint other = small_checkpoint();
    other.texts.clear();
    CHECK_THAT(refusal<LoadError>(Checkpoint(other), folder.path()), Contains("config.json"));
  }
}

TEST_CASE("what another process of the same number writes is left alone", "[quantized]") {
  const TempDirectory folder;
  const auto other = [](int i) { return concat("saved.", ::getpid(), ".", i, ".part"); };
  constexpr int kOthers = 200;  // more than this program saves
  for (int i = 0; i < kOthers; ++i) {
    fs::create_directory(folder.path() / other(i));
    folder.write(other(i) + "/theirs", "x");
  }
  save_quantized<Int4FloatPolicy>(Checkpoint(small_checkpoint()), folder.path() / "saved");
  CHECK(fs::exists(folder.path() / "saved" / "model.safetensors"));
  for (int i = 0; i < kOthers; ++i) CHECK(text_of(folder.path() / other(i) / "theirs") == "x");
}

TEST_CASE("a saved checkpoint that is cut off is refused", "[quantized]") {
  const TempDirectory folder;
  const fs::path saved = folder.path() / "saved";
  save_quantized<Int4Policy>(model_directory(kRandomModels[1]), saved);
  const fs::path file = saved / "model.safetensors";
  fs::resize_file(file, fs::file_size(file) - 1);
  CHECK_THROWS_AS(trace<Int4Policy>(saved), LoadError);
  CHECK_THROWS_WITH(trace<Int4Policy>(saved), Contains(file.string()));
}
