#pragma once
/// Files of a checkpoint: JSON and safetensors.

#include "nanovllm/io/json.hpp"
#include "nanovllm/io/json_fields.hpp"
#include "nanovllm/io/safetensors.hpp"
