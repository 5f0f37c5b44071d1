#pragma once
/// Checkpoints and their files: JSON and safetensors.

#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/io/checkpoint_like.hpp"
#include "nanovllm/io/file_dtype.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/io/json_fields.hpp"
#include "nanovllm/io/safetensors.hpp"
#include "nanovllm/io/safetensors_checkpoint.hpp"
