#pragma once
/// A thread for each tensor-parallel rank.

#include "nanovllm/engine/runner/one_rank.hpp"
#include "nanovllm/parallel/rank_threads.hpp"
#include "nanovllm/parallel/thread_group.hpp"

namespace nanovllm {

/// Ranks on threads of this process, rank 0 on the caller's, or with `step_timeout` on one of its
/// own. See OneRank for what a policy's `Ranks` has.
struct ThreadRanks {
  using Threads = RankThreads;
  using Peers = NoPeers;
  using HostCommunicator = ThreadGroup;

  static void validate(const RunnerConfig& config) {
    OneRank::check_no_processes(config, "ThreadRanks");
  }
};

}  // namespace nanovllm
