#pragma once
/// Sums over ranks through the memory of peers: `Communicator = PeerMemory` in a policy.

#include "nanovllm/with/peers/peer_memory.cuh"
