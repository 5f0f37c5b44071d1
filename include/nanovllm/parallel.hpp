#pragma once
/// Ranks of a tensor-parallel engine: threads and communicators. mpi.hpp has processes.

#include "nanovllm/parallel/communicator.hpp"
#include "nanovllm/parallel/thread_group.hpp"
