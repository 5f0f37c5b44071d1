#pragma once
/// Products of weights in 8-bit floats on GPUs, of which backend.run() knows where this is
/// included, and what attention reads KV caches of 8 bits by.

#include "nanovllm/with/eight_bits/cuda/kv_bytes.cuh"
#include "nanovllm/with/eight_bits/cuda/ops.cuh"
