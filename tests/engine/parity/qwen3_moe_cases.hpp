#pragma once
/// Checkpoints of Qwen3 mixtures of experts with what transformers makes of them
/// (tests/oracle/make_qwen3_moe_fixtures.py).

#include <string>

#include "catch.hpp"
#include "engine/parity/parity.hpp"
#include "engine/parity/qwen3_moe_checkpoint.hpp"
#include "nanovllm/model/qwen3_moe/qwen3_moe.hpp"

namespace nanovllm::test {

using AnyMoe = Qwen3Moe<shapes::qwen3_moe_any>;

struct MoeCase {
  MoeCase(const std::string& name, const std::string& dtype)
      : reference(name, dtype), files(reference.config(), reference.seed()) {}

  Reference reference;
  MoeFiles files;
};

inline std::string each_moe() {
  return GENERATE(as<std::string>{}, "moe_4_of_4", "moe_1_of_5", "moe_2_of_8_step", "moe_8_of_60",
                  "moe_3_of_16_first", "moe_6_of_24_mixed");
}

}  // namespace nanovllm::test
