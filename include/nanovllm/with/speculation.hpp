#pragma once
/// Speculative decoding.

#include "nanovllm/with/speculation/eagle3/chains.hpp"
#include "nanovllm/with/speculation/eagle3/config.hpp"
#include "nanovllm/with/speculation/eagle3/head.hpp"
#include "nanovllm/with/speculation/eagle3/ops.hpp"
#include "nanovllm/with/speculation/eagle3/weights.hpp"
