/// libFuzzer target: any bytes are either a GGUF file, whose tensors lie inside it and apart, or a
/// LoadError; so is each text that is made of it, which is JSON, and so are its tensors, whose
/// blocks can be dequantised. Build with clang++ -fsanitize=fuzzer,address,undefined.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/with/gguf/gguf_checkpoint.hpp"
#include "nanovllm/with/gguf/gguf_file.hpp"

namespace {

void read_texts(const nanovllm::Checkpoint& checkpoint) {
  for (const char* file :
       {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}) {
    std::optional<std::string> text;
    try {
      text = checkpoint.text(file);
    } catch (const nanovllm::LoadError&) {
    }
    if (!text) continue;
    try {
      static_cast<void>(nanovllm::parse_json(*text));
    } catch (const nanovllm::LoadError&) {
      std::abort();  // what we write is JSON
    }
  }
}

void read_tensors(const nanovllm::Checkpoint& checkpoint) {
  for (const nanovllm::CheckpointTensor& tensor : checkpoint.tensors()) {
    if (tensor.blocks == nullptr) continue;
    const std::size_t count = tensor.data.size() / tensor.blocks->bytes;
    std::vector<float> values(count * tensor.blocks->elements);
    tensor.blocks->dequantise(tensor.data.data(), count, values.data());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    nanovllm::GgufFile file = nanovllm::GgufFile::parse(bytes);
    std::uint64_t total = 0;
    for (const nanovllm::GgufTensor& tensor : file.tensors()) {
      const auto part = file.data(tensor);
      total += part.size();
      if (part.data() < bytes.data() || part.data() + part.size() > bytes.data() + size)
        std::abort();
      if (file.find(tensor.name) != &tensor) std::abort();
    }
    if (total > size) std::abort();  // the tensors do not overlap
    const nanovllm::Checkpoint checkpoint{nanovllm::GgufCheckpoint(std::move(file))};
    read_texts(checkpoint);
    read_tensors(checkpoint);
  } catch (const nanovllm::LoadError&) {
  }
  return 0;
}
