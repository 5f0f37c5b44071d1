#pragma once
/// The CPU's ops, all of them: what backend.hpp includes. A new op is a line here.

#include "nanovllm/cpu/kernels/add_bias.hpp"
#include "nanovllm/cpu/kernels/attention.hpp"
#include "nanovllm/cpu/kernels/bias_gelu.hpp"
#include "nanovllm/cpu/kernels/copy_blocks.hpp"
#include "nanovllm/cpu/kernels/embedding.hpp"
#include "nanovllm/cpu/kernels/gather_rows.hpp"
#include "nanovllm/cpu/kernels/kv_store.hpp"
#include "nanovllm/cpu/kernels/layer_norm.hpp"
#include "nanovllm/cpu/kernels/logit_edits.hpp"
#include "nanovllm/cpu/kernels/qk_norm_rope_store.hpp"
#include "nanovllm/cpu/kernels/rms_norm.hpp"
#include "nanovllm/cpu/kernels/rope.hpp"
#include "nanovllm/cpu/kernels/sampler.hpp"
#include "nanovllm/cpu/kernels/silu_mul.hpp"
#include "nanovllm/cpu/kernels/swap_blocks.hpp"
#include "nanovllm/cpu/kernels/unpack_step.hpp"
