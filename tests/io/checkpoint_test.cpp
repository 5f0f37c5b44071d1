#include "nanovllm/io/checkpoint.hpp"

#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "memory_checkpoint.hpp"
#include "nanovllm/core/error.hpp"

using namespace nanovllm;
using Catch::Matchers::Contains;
using nanovllm_test::MemoryCheckpoint;

namespace {

/// Cannot be read the first time.
struct Reluctant {
  int* num_reads;

  [[nodiscard]] std::string name() const { return "reluctant"; }
  [[nodiscard]] std::optional<std::string> text(std::string_view) const { return std::nullopt; }
  [[nodiscard]] std::vector<CheckpointTensor> read_tensors() {
    if (++*num_reads == 1) throw LoadError("not yet");
    return {{.name = "scalar", .dtype = FileDType::u8, .data = std::as_bytes(std::span("x", 1))}};
  }
};

struct WithoutTensors {
  [[nodiscard]] std::string name() const { return {}; }
  [[nodiscard]] std::optional<std::string> text(std::string_view) const { return {}; }
};

static_assert(CheckpointLike<MemoryCheckpoint> && CheckpointLike<Reluctant>);
static_assert(!CheckpointLike<WithoutTensors> && !CheckpointLike<std::string>);

/// A checkpoint of one tensor "t" of so many bytes.
Checkpoint of_size(FileDType dtype, std::vector<std::uint64_t> shape, std::size_t size) {
  MemoryCheckpoint files;
  files.add("t", dtype, std::move(shape), std::string(size, 'x'));
  return Checkpoint(std::move(files));
}

}  // namespace

TEST_CASE("a checkpoint of a user's kind has its texts and tensors by name", "[checkpoint]") {
  MemoryCheckpoint files;
  files.texts["config.json"] = "{}";
  files.add("b", FileDType::f32, {1, 2}, std::string(8, 'b'));
  files.add("a", FileDType::bf16, {}, "aa");
  const Checkpoint checkpoint(std::move(files));
  const Checkpoint copy = checkpoint;
  CHECK(copy.name() == "memory");
  CHECK(copy.text("config.json") == "{}");
  CHECK_FALSE(copy.text("tokenizer.json").has_value());
  CHECK_THROWS_WITH(copy.required_text("tokenizer.json"), "there is no 'memory/tokenizer.json'");

  REQUIRE(copy.tensors().size() == 2);
  CHECK(copy.tensors()[0].name == "b");  // in the order that the kind gives
  CHECK(copy.tensors().data() == checkpoint.tensors().data());
  CHECK(copy.find("a") == &copy.tensors()[1]);
  CHECK(copy.find("c") == nullptr);
  CHECK(copy.total_bytes() == 10);
}

TEST_CASE("tensors are read once, when one is needed, by whichever thread comes first",
          "[checkpoint]") {
  int num_reads = 0;
  const Checkpoint checkpoint(Reluctant{&num_reads});
  CHECK_FALSE(checkpoint.text("config.json").has_value());
  CHECK(num_reads == 0);
  CHECK_THROWS_WITH(checkpoint.tensors(), "not yet");
  std::atomic<int> num_found = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&] { num_found += checkpoint.find("scalar") != nullptr; });
  }
  CHECK(num_found == 4);
  CHECK(num_reads == 2);
}

TEST_CASE("a checkpoint with a tensor that cannot be is refused by name", "[checkpoint]") {
  CHECK(of_size(FileDType::f32, {2, 3}, 24).find("t") != nullptr);
  CHECK(of_size(FileDType::f32, {0, 3}, 0).find("t") != nullptr);
  CHECK(of_size(FileDType::f4, {4}, 2).find("t") != nullptr);
  CHECK_THROWS_WITH(of_size(FileDType::f32, {2, 3}, 23).tensors(),
                    "'memory': the tensor 't', F32 [2, 3], has 23 bytes");
  CHECK_THROWS_AS(of_size(FileDType::f32, {2, 3}, 25).tensors(), LoadError);
  CHECK_THROWS_AS(of_size(FileDType::f4, {3}, 1).tensors(), LoadError);
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  CHECK_THROWS_AS(of_size(FileDType::u8, {kMost, kMost}, 1).tensors(), LoadError);

  MemoryCheckpoint twice;
  twice.add("t", FileDType::u8, {1}, "x");
  twice.add("t", FileDType::u8, {1}, "y");
  CHECK_THROWS_WITH(Checkpoint(std::move(twice)).find("t"), Contains("the tensor 't' twice"));
}
