#pragma once
/// GPT-2, and the ops that it has and Qwen3 has not.

#include "nanovllm/with/gpt2/config.hpp"
#include "nanovllm/with/gpt2/gpt2.hpp"
#include "nanovllm/with/gpt2/ops.hpp"
#include "nanovllm/with/gpt2/shapes.hpp"
