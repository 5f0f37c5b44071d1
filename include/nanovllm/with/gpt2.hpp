#pragma once
/// GPT-2, and the ops that it has and Qwen3 has not.

#include "nanovllm/with/gpt2/add_bias.hpp"
#include "nanovllm/with/gpt2/bias_gelu.hpp"
#include "nanovllm/with/gpt2/config.hpp"
#include "nanovllm/with/gpt2/gpt2.hpp"
#include "nanovllm/with/gpt2/layer_norm.hpp"
#include "nanovllm/with/gpt2/layers.hpp"
#include "nanovllm/with/gpt2/shapes.hpp"
