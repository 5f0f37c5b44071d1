#pragma once
/// The registry: the models that programs which take any checkpoint are built for, and the formats
/// of their files, of the wings that are there. A new family is a few lines here.

#include "nanovllm/model/qwen3/qwen3.hpp"
#include "nanovllm/model/qwen3/shapes.hpp"
#include "nanovllm/with/any/registry.hpp"
#if __has_include("nanovllm/with/beams.hpp")
#include "nanovllm/with/beams/beam_group.hpp"
#endif
#if __has_include("nanovllm/with/eight_bits.hpp")
#include "nanovllm/with/eight_bits/checkpoint/packed_integers.hpp"
#endif
#if __has_include("nanovllm/with/gguf.hpp")
#include "nanovllm/with/gguf/gguf_checkpoint.hpp"
#endif
#if __has_include("nanovllm/with/gpt2.hpp")
#include "nanovllm/with/gpt2/gpt2.hpp"
#include "nanovllm/with/gpt2/shapes.hpp"
#endif
#if __has_include("nanovllm/with/moe.hpp")
#include "nanovllm/with/moe/qwen3_moe/qwen3_moe.hpp"
#include "nanovllm/with/moe/qwen3_moe/shapes.hpp"
#endif
#if __has_include("nanovllm/with/pooling.hpp")
#include "nanovllm/with/pooling/pooled_calls.hpp"
#endif

namespace nanovllm {

/// All families, with all sizes from config.json. `make_engine` leaves out those that a policy's
/// backend cannot run.
using AllModels = JoinedModels<Models<Qwen3<shapes::qwen3_any>>,
#if __has_include("nanovllm/with/gpt2.hpp")
                               Models<Gpt2<shapes::gpt2_any>>,
#endif
#if __has_include("nanovllm/with/moe.hpp")
                               Models<Qwen3Moe<shapes::qwen3_moe_any>>,
#endif
                               Models<>>;

/// The same after the published sizes of Qwen3. Where a backend has kernels for them, as CUDA's
/// has, they are separate engines, of which attention is faster.
using PublishedModels =
    JoinedModels<Models<Qwen3<shapes::fairytale>, Qwen3<shapes::qwen3_0_6b>,
                        Qwen3<shapes::qwen3_1_7b>, Qwen3<shapes::qwen3_4b>, Qwen3<shapes::qwen3_8b>,
                        Qwen3<shapes::qwen3_14b>, Qwen3<shapes::qwen3_32b>>,
                 AllModels>;

}  // namespace nanovllm
