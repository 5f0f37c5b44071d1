#pragma once
/// The kernels of speculative decoding.

#include "nanovllm/with/speculation/eagle3/cuda/ops.cuh"
