#pragma once
/// Ranks of a tensor-parallel engine: threads, processes, communicators.

#include "nanovllm/parallel/communicator.hpp"
#include "nanovllm/parallel/host_group.hpp"
#include "nanovllm/parallel/launch_environment.hpp"
#include "nanovllm/parallel/mesh.hpp"
#include "nanovllm/parallel/process_group.hpp"
