#pragma once
/// Weights of 8 and 4 bits and KV caches of 8 bits: formats, checkpoints that have them, the CPU's
/// matrices, and `save_quantized`, which writes such a checkpoint.

#include "nanovllm/with/eight_bits/checkpoint/packed_integers.hpp"
#include "nanovllm/with/eight_bits/checkpoint/quantization_config.hpp"
#include "nanovllm/with/eight_bits/checkpoint/safetensors_writer.hpp"
#include "nanovllm/with/eight_bits/checkpoint/save_quantized.hpp"
#include "nanovllm/with/eight_bits/cpu/fp8_matrix.hpp"
#include "nanovllm/with/eight_bits/cpu/linear.hpp"
#include "nanovllm/with/eight_bits/fp8_kv.hpp"
#include "nanovllm/with/eight_bits/int8_kv.hpp"
#include "nanovllm/with/eight_bits/static_fp8_kv.hpp"
#include "nanovllm/with/eight_bits/weights.hpp"
