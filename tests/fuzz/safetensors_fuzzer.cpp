/// libFuzzer target: any bytes are either a valid safetensors file, all of whose tensors lie inside
/// it, or a SafetensorsError. Build with clang++ -fsanitize=fuzzer,address,undefined.

#include <cstdint>
#include <cstdlib>

#include "nanovllm/io/safetensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    const auto file = nanovllm::SafetensorsFile::parse(bytes);
    std::uint64_t total = 0;
    for (const nanovllm::TensorInfo& tensor : file.tensors()) {
      const auto part = file.data(tensor);
      total += part.size();
      if (part.data() < bytes.data() || part.data() + part.size() > bytes.data() + size)
        std::abort();
      if (file.find(tensor.name) != &tensor) std::abort();
    }
    if (total > size) std::abort();  // the tensors do not overlap
  } catch (const nanovllm::SafetensorsError&) {
  }
  return 0;
}
