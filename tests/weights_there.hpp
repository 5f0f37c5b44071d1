#pragma once
/// Models of examples/models/ whose weights are not in the tree: examples/models/get.sh gets them.

#include <cstdio>
#include <filesystem>
#include <string>

namespace nanovllm::test {

/// Whether examples/models/NAME has weights; says 'skipped' if not.
inline bool weights_there(const std::string& name) {
  if (std::filesystem::exists("examples/models/" + name + "/model.safetensors")) return true;
  std::printf("skipped: no weights; bash examples/models/get.sh %s gets them\n", name.c_str());
  return false;
}

}  // namespace nanovllm::test
