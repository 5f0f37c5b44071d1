#pragma once
/// How much memory this process can still get: what the machine has, within the limits of the
/// control groups that the process is in.

#include <cstddef>
#include <string>

#include "nanovllm/core/prebuilt.hpp"

namespace nanovllm::cpu {

/// Bytes that can be had without swapping: the machine's, or what the control groups of this
/// process (version 1 or 2, the container's and all those around it that are seen) leave of their
/// limits, whichever is less. File pages that a group would give up count as left.
///
/// @param system  prefix of the paths that are read, for tests: "" is this machine.
[[nodiscard]] std::size_t available_system_memory(const std::string& system = "");

}  // namespace nanovllm::cpu

#if NANOVLLM_BODIES
#include "nanovllm/cpu/system_memory.inc"
#endif
