#pragma once
/// The elementwise ops on CUDA that every engine has: what backend.cuh includes.

#include "nanovllm/cuda/elementwise/copy_blocks.cuh"
#include "nanovllm/cuda/elementwise/embedding.cuh"
#include "nanovllm/cuda/elementwise/gather_rows.cuh"
#include "nanovllm/cuda/elementwise/kv_store.cuh"
#include "nanovllm/cuda/elementwise/publish_results.cuh"
#include "nanovllm/cuda/elementwise/qk_norm_rope_store.cuh"
#include "nanovllm/cuda/elementwise/rms_norm.cuh"
#include "nanovllm/cuda/elementwise/rope.cuh"
#include "nanovllm/cuda/elementwise/silu_mul.cuh"
#include "nanovllm/cuda/elementwise/unpack_step.cuh"
