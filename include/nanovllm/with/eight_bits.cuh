#pragma once
/// Products of weights in 8-bit floats on GPUs, of which backend.run() knows where this is
/// included.

#include "nanovllm/with/eight_bits/cuda/ops.cuh"
