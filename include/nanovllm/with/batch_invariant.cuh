#pragma once
/// The batch-invariant mode on GPUs: the same bits for a request whatever it is batched with.

#include "nanovllm/with/batch_invariant/batch_invariant_backend.cuh"
