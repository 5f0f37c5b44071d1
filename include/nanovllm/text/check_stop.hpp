#pragma once
/// How long work on a text is given up.

#include <stop_token>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

/// Throws Cancelled if a stop was requested. Takes a nanosecond: what takes long calls it for each
/// piece of its work.
inline void check_stop(const std::stop_token& stop) {
  if (stop.stop_requested()) [[unlikely]]
    throw Cancelled("the work was stopped: its caller has given it up");
}

}  // namespace nanovllm
