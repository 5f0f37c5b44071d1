#pragma once
/// Statistics of tiers and sessions, where `stats.of<...>()` would need a `template`.

#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/with/sessions/options.hpp"
#include "nanovllm/with/tiers/options.hpp"

namespace nanovllm {

inline HostKvStats host_kv(const EngineStats& stats) { return stats.of<HostKvStats>(); }
inline DiskKvStats disk_kv(const EngineStats& stats) { return stats.of<DiskKvStats>(); }
inline SessionStats session_kv(const EngineStats& stats) { return stats.of<SessionStats>(); }

}  // namespace nanovllm
