#pragma once
/// The CPU backend, and what computes steps. A program that links a library includes this for a
/// model, or a policy's Element, Backend, Ranks and the like, that the library does not have.

#include "nanovllm/cpu/backend.hpp"
#include "nanovllm/cpu/isa.hpp"
#include "nanovllm/engine/runner_maker.hpp"
