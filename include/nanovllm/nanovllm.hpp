#pragma once
/// The whole library but for CUDA: one face a module. What a face names is the public interface;
/// docs/versioning.md says what that promises. In a translation unit of nvcc, engine.hpp brings
/// cuda.cuh as well.

#include "nanovllm/chat.hpp"
#include "nanovllm/core.hpp"
#include "nanovllm/cpu.hpp"
#include "nanovllm/cuda_policy.hpp"
#include "nanovllm/engine.hpp"
#include "nanovllm/full_policy.hpp"
#include "nanovllm/fwd.hpp"
#include "nanovllm/grammar.hpp"
#include "nanovllm/io.hpp"
#include "nanovllm/kv.hpp"
#include "nanovllm/model.hpp"
#include "nanovllm/ops.hpp"
#include "nanovllm/parallel.hpp"
#include "nanovllm/policy.hpp"
#include "nanovllm/sampling.hpp"
#include "nanovllm/sched.hpp"
#include "nanovllm/serve.hpp"
#include "nanovllm/text.hpp"
#include "nanovllm/version.hpp"
#include "nanovllm/with/any/all_models.hpp"
#include "nanovllm/with/any/make_engine.hpp"
