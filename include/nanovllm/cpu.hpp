#pragma once
/// The CPU backend.

#include "nanovllm/cpu/backend.hpp"
#include "nanovllm/cpu/isa.hpp"
