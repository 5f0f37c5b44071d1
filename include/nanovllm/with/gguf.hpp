#pragma once
/// GGUF files, llama.cpp's, as checkpoints.

#include "nanovllm/with/gguf/gguf_blocks.hpp"
#include "nanovllm/with/gguf/gguf_checkpoint.hpp"
#include "nanovllm/with/gguf/gguf_file.hpp"
