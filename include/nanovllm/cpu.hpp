#pragma once
/// The CPU backend.

#include "nanovllm/cpu/backend.hpp"
#include "nanovllm/cpu/isa.hpp"
#include "nanovllm/cpu/kernels/kernels.hpp"
#include "nanovllm/with/eight_bits/cpu/fp8_matrix.hpp"
#include "nanovllm/with/eight_bits/cpu/linear.hpp"
