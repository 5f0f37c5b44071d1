#pragma once
/// Tensor-parallel ranks in several processes, by MPI: the policy slot `Ranks = ProcessRanks` and
/// the group for `EngineConfig::processes`. Needs <mpi.h>, as the target nanovllm::mpi has it.

#include "nanovllm/with/mpi.hpp"
