// Draws against formulas on the CPU backend.

#include "nanovllm/cpu/backend.hpp"
#include "ops/draw_cases.hpp"

static bool can_test() { return true; }

#define TESTED_BACKEND nanovllm::CpuBackend
#include "ops/draws_suite.inc"
