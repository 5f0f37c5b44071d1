#pragma once
/// Sums through the memory of peers, for a host compiler. with/peers.cuh has the communicator.

#include "nanovllm/with/peers/options.hpp"
#include "nanovllm/with/peers/sums_in_halves.hpp"
