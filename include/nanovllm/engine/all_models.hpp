#pragma once
/// The registry: the models that programs which take any checkpoint are built for. A new family is
/// one line here.

#include "nanovllm/model/gpt2/gpt2.hpp"
#include "nanovllm/model/gpt2/shapes.hpp"
#include "nanovllm/model/qwen3/qwen3.hpp"
#include "nanovllm/model/qwen3/shapes.hpp"
#include "nanovllm/model/registry.hpp"

namespace nanovllm {

/// Every family, with all sizes from config.json.
using AllModels = ModelsOf<shapes::qwen3_any,  //
                           shapes::gpt2_any>;

/// The same behind the published sizes of Qwen3 as separate code, of which attention is faster.
using PublishedModels =
    JoinedModels<ModelsOf<shapes::fairytale, shapes::qwen3_0_6b, shapes::qwen3_1_7b,
                          shapes::qwen3_4b, shapes::qwen3_8b, shapes::qwen3_14b, shapes::qwen3_32b>,
                 AllModels>;

}  // namespace nanovllm
