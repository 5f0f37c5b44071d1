#include "nanovllm/io/safetensors_checkpoint.hpp"

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "safetensors_writer.hpp"

namespace nv = nanovllm;
using nanovllm_test::SafetensorsWriter;
using nanovllm_test::TempDirectory;

namespace {

/// The message of the LoadError that reading the tensors of `directory` raises; empty if they can
/// be read.
std::string open_error(const std::filesystem::path& directory) {
  const nv::Checkpoint checkpoint(directory);
  try {
    static_cast<void>(checkpoint.tensors());
    return {};
  } catch (const nv::LoadError& error) {
    return error.what();
  }
}

bool mentions(const std::string& text, std::string_view part) {
  return text.find(part) != text.npos;
}

}  // namespace

TEST_CASE("A checkpoint is one file or an index of shards", "[checkpoint]") {
  TempDirectory directory;
  CHECK(mentions(open_error(directory.path()), "model.safetensors"));
  directory.write("model.safetensors", SafetensorsWriter().add("a", "U8", {2}, "hi").bytes());
  {
    const nv::Checkpoint single = directory.path();
    CHECK(single.name() == directory.path());
    CHECK(single.tensors().size() == 1);
    CHECK(single.total_bytes() == 2);
  }
  std::filesystem::remove(directory.path() / "model.safetensors");
  directory.write("s-2.safetensors",
                  SafetensorsWriter().add("b", "U8", {3}, "bbb").add("c", "U8", {1}, "c").bytes());
  directory.write("s-1.safetensors",
                  SafetensorsWriter().add("a", "U8", {1}, "A").add("c", "U8", {1}, "X").bytes());
  directory.write("model.safetensors.index.json",
                  R"({"weight_map":{"a":"s-1.safetensors","b":"s-2.safetensors",
                                    "c":"s-2.safetensors"}})");
  const nv::Checkpoint checkpoint(directory.path());
  REQUIRE(checkpoint.tensors().size() == 3);
  CHECK(checkpoint.tensors()[0].name == "a");
  CHECK(checkpoint.tensors()[2].name == "c");
  CHECK(checkpoint.total_bytes() == 5);
  CHECK(static_cast<char>(checkpoint.find("c")->data[0]) == 'c');  // not the copy in shard 1
  CHECK(checkpoint.find("d") == nullptr);
  for (const nv::CheckpointTensor& tensor : checkpoint.tensors()) CHECK(tensor.mapping != nullptr);

  // The bytes are where they were when the object has moved.
  nv::SafetensorsCheckpoint files(directory.path());
  const std::vector<nv::CheckpointTensor> tensors = files.read_tensors();
  const nv::SafetensorsCheckpoint moved = std::move(files);
  CHECK(static_cast<char>(tensors[0].data[0]) == 'A');
  tensors[0].mapping->prefetch(tensors[0].data);
  tensors[0].mapping->release(tensors[0].data);
  CHECK(static_cast<char>(tensors[0].data[0]) == 'A');
}

TEST_CASE("model.safetensors counts, and not an index that was left beside it", "[checkpoint]") {
  TempDirectory directory;
  const auto shard = [](const char* name, const char* data) {
    return SafetensorsWriter().add(name, "U8", {1}, data).bytes();
  };
  const auto first = [](const nv::Checkpoint& checkpoint) {
    return static_cast<char>(checkpoint.find("a")->data[0]);
  };
  directory.write("model.safetensors", shard("a", "N"));
  const char* const index = "model.safetensors.index.json";
  // Its shards are gone, or there with older weights, or it is broken.
  for (const char* text : {R"({"weight_map": {"a": "gone.safetensors"}})",
                           R"({"weight_map": {"a": "old.safetensors"}})", "{", "[]"}) {
    directory.write("old.safetensors", shard("a", "O"));
    directory.write(index, text);
    const nv::Checkpoint checkpoint(directory.path());
    CAPTURE(text);
    CHECK(checkpoint.warnings().empty());  // nothing was read
    CHECK(first(checkpoint) == 'N');
    REQUIRE(checkpoint.warnings().size() == 1);
    CHECK(mentions(checkpoint.warnings()[0], "model.safetensors.index.json' is ignored"));
  }
  // One that lists it is its own.
  directory.write("b.safetensors", shard("b", "B"));
  directory.write(index, R"({"weight_map": {"a": "model.safetensors", "b": "b.safetensors"}})");
  const nv::Checkpoint both(directory.path());
  CHECK(first(both) == 'N');
  CHECK(both.find("b") != nullptr);
  CHECK(both.warnings().empty());
}

TEST_CASE("Warnings of a checkpoint are kept once, in their order", "[checkpoint]") {
  const nv::Checkpoint checkpoint("nowhere");
  const nv::Checkpoint copy = checkpoint;
  copy.warn("b");
  checkpoint.warn("a");
  copy.warn("b");
  CHECK(checkpoint.warnings() == std::vector<std::string>{"b", "a"});
}

TEST_CASE("The texts of a checkpoint are its files", "[checkpoint]") {
  TempDirectory directory;
  const nv::Checkpoint checkpoint = directory.path();
  CHECK_FALSE(checkpoint.text("config.json").has_value());
  CHECK_THROWS_WITH(checkpoint.required_text("config.json"),
                    "there is no '" + (directory.path() / "config.json").string() + "'");
  CHECK_THROWS_AS(checkpoint.required_text("config.json"), nv::LoadError);
  directory.write("config.json", "{}");
  CHECK(checkpoint.text("config.json") == "{}");
  CHECK(checkpoint.required_text("config.json") == "{}");
  CHECK_FALSE(nv::Checkpoint("/nowhere").text("config.json").has_value());
}

TEST_CASE("An index that does not fit its shards is refused by name", "[checkpoint]") {
  TempDirectory directory;
  const auto with_index = [&](const std::string& text) {
    directory.write("model.safetensors.index.json", text);
    return open_error(directory.path());
  };
  directory.write("one", SafetensorsWriter().add("a", "U8", {1}, "A").bytes());
  directory.write("two", SafetensorsWriter().add("a", "U8", {1}, "A").bytes());
  CHECK(with_index(R"({"weight_map":{"a":"one"}})").empty());
  for (const char* name :
       {"../one", "/etc/passwd", "sub/one", "..", ".", "", "a\\\\b", "one\\u0000"}) {
    CAPTURE(name);
    CHECK(mentions(with_index(nv::concat(R"({"weight_map":{"a":")", name, R"("}})")),
                   "must be a file name without a path"));
  }
  for (const char* text : {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{"a":1}})",
                           R"({"weight_map":{"a":)"}) {
    CHECK(mentions(with_index(text), "model.safetensors.index.json"));
  }
  const std::string missing = with_index(R"({"weight_map":{"a":"one","b":"none","c":"gone"}})");
  CHECK((mentions(missing, "'none'") && mentions(missing, "'gone'")));
  const std::string lacking = with_index(R"({"weight_map":{"a":"one","b":"one","c":"two"}})");
  CHECK((mentions(lacking, "'b' in 'one'") && mentions(lacking, "'c' in 'two'")));
  // Tensors beyond the index belong to the checkpoint, unless it is unclear which one is meant.
  CHECK(mentions(with_index(R"({"weight_map":{"b":"one","c":"two"}})"), "'a' is in two shards"));
  CHECK(with_index(R"({"weight_map":{}})").empty());
}

TEST_CASE("defect 7: an index that nests deeply is refused", "[checkpoint]") {
  const TempDirectory directory;
  directory.write("model.safetensors.index.json",
                  nv::concat("{\"weight_map\": {}, \"x\": ", std::string(1000000, '['),
                             std::string(1000000, ']'), "}"));
  CHECK(mentions(open_error(directory.path()), "nested more than 256 levels deep"));
}
