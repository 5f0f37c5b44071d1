#pragma once
/// The disk tier of an engine whose policy has no pool in host memory: none.

#include <cstdint>
#include <span>

#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/request/request.hpp"

namespace nanovllm {

/// Stands for DiskLoads where its block manager has no pool in host memory (HasHostPool). There is
/// never an object of it; its members do nothing.
struct NoDiskLoads {
  [[nodiscard]] static bool begin(Request&, std::uint64_t) noexcept { return false; }
  template <class Add>
  static void poll(std::uint64_t, std::uint64_t, const Add&) {}
  static void release_admitted() noexcept {}
  static void forget(const Request&) noexcept {}
  [[nodiscard]] static bool is_loading() { return false; }
  [[nodiscard]] static std::int64_t num_waiting() { return 0; }
  static void wait() {}
  static void hold(std::span<const BlockCopy>, std::uint64_t) noexcept {}
  static void save(std::span<const BlockCopy>, std::uint64_t) noexcept {}
  static void save_parents() noexcept {}
  static void cancel(std::span<const BlockCopy>, std::uint64_t) noexcept {}
  template <class Add>
  static void reset(const Add&) {}
  static void finish() noexcept {}
  static void fill(EngineStats&) {}
  static void check_invariants() {}
};

}  // namespace nanovllm
