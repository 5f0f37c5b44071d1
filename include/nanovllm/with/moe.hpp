#pragma once
/// Qwen3's mixtures of experts. On GPUs with/moe.cuh has their kernels.

#include "nanovllm/with/moe/expert_load.hpp"
#include "nanovllm/with/moe/expert_parallel.hpp"
#include "nanovllm/with/moe/experts.hpp"
#include "nanovllm/with/moe/ops.hpp"
#include "nanovllm/with/moe/qwen3_moe/config.hpp"
#include "nanovllm/with/moe/qwen3_moe/qwen3_moe.hpp"
#include "nanovllm/with/moe/qwen3_moe/shapes.hpp"
