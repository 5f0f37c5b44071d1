#pragma once
/// Checkpoints and their files: JSON, safetensors and GGUF.

#include "nanovllm/io/block_format.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/io/checkpoint_like.hpp"
#include "nanovllm/io/file_dtype.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/io/json_fields.hpp"
#include "nanovllm/io/safetensors.hpp"
#include "nanovllm/io/safetensors_checkpoint.hpp"
#include "nanovllm/with/eight_bits/checkpoint/safetensors_writer.hpp"
#include "nanovllm/with/gguf/gguf_blocks.hpp"
#include "nanovllm/with/gguf/gguf_checkpoint.hpp"
#include "nanovllm/with/gguf/gguf_file.hpp"
