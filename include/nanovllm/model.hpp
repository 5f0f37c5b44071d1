#pragma once
/// Networks in terms of ops: what a model is, its layers, Qwen3.

#include "nanovllm/model/forward_batch.hpp"
#include "nanovllm/model/generation_config.hpp"
#include "nanovllm/model/layers/attention.hpp"
#include "nanovllm/model/layers/context.hpp"
#include "nanovllm/model/layers/embedding.hpp"
#include "nanovllm/model/layers/mlp.hpp"
#include "nanovllm/model/layers/norm.hpp"
#include "nanovllm/model/layers/residual_stream.hpp"
#include "nanovllm/model/model.hpp"
#include "nanovllm/model/parameter_list.hpp"
#include "nanovllm/model/qwen3/config.hpp"
#include "nanovllm/model/qwen3/qwen3.hpp"
#include "nanovllm/model/qwen3/shapes.hpp"
#include "nanovllm/model/rope_scaling.hpp"
#include "nanovllm/model/shape.hpp"
#include "nanovllm/model/weights.hpp"
