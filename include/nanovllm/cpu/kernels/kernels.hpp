#pragma once
/// The CPU's ops that every engine has: what backend.hpp includes. A wing includes its own.

#include "nanovllm/cpu/kernels/apply_functor.hpp"
#include "nanovllm/cpu/kernels/attention.hpp"
#include "nanovllm/cpu/kernels/copy_blocks.hpp"
#include "nanovllm/cpu/kernels/embedding.hpp"
#include "nanovllm/cpu/kernels/gather_rows.hpp"
#include "nanovllm/cpu/kernels/kv_store.hpp"
#include "nanovllm/cpu/kernels/logit_edits.hpp"
#include "nanovllm/cpu/kernels/qk_norm_rope_store.hpp"
#include "nanovllm/cpu/kernels/rms_norm.hpp"
#include "nanovllm/cpu/kernels/rope.hpp"
#include "nanovllm/cpu/kernels/sampler.hpp"
#include "nanovllm/cpu/kernels/silu_mul.hpp"
#include "nanovllm/cpu/kernels/unpack_step.hpp"
#include "nanovllm/with/shards/cpu/shard_draw.hpp"
