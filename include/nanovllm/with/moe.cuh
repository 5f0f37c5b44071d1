#pragma once
/// Mixtures of experts on GPUs, of which backend.run() knows where this is included; with
/// with/eight_bits.cuh and moe/cuda/fp8_ops.cuh also those of weights in 8-bit floats.

#include "nanovllm/with/moe/cuda/ops.cuh"
