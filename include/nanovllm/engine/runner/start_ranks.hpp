#pragma once
/// The start of a runner: backends, room for the weights, networks and their weights.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "nanovllm/engine/runner/one_rank.hpp"
#include "nanovllm/engine/runner/weight_memory.hpp"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/model/model.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/version.hpp"

namespace nanovllm {

/// Says what takes time at start-up; a backend whose ops are done at once has nothing to prepare.
template <class Backend>
void begin_stage(const RunnerConfig& config, const char* stage) {
  if (Backend::kAsynchronous && config.on_stage) config.on_stage(stage);
}

/// What must be the same in all processes of a group.
template <class Model, class Group>
[[nodiscard]] std::vector<SharedSetting> shared_settings(const typename Model::Config& model,
                                                         const RunnerConfig& config) {
  using Elements = typename Group::Elements;
  constexpr std::int64_t kVersion =
      NANOVLLM_VERSION_MAJOR * 1'000'000 + NANOVLLM_VERSION_MINOR * 1'000 + NANOVLLM_VERSION_PATCH;
  std::vector<SharedSetting> out = {
      {"the version of nanovllm", kVersion},
      {"bits of a weight", kWeightBits<typename Elements::Weight>},
      {"bytes of an activation", sizeof(typename Elements::Activation)},
      {"bytes of a KV element", sizeof(KvStored<typename Group::KvElement>)},
      {"bytes of a KV scale", kKvScaleBytes<typename Group::KvElement>},
      {"block_size", config.block_size},
      {"max_num_batched_tokens", config.limits.max_num_batched_tokens},
      {"max_model_len", config.limits.max_model_len},
      {"max_num_seqs", config.limits.max_num_seqs}};
  for (const auto& [name, value] : config.extras.shared()) out.push_back({name, value});
  for (const auto& [name, value] : model_settings(model)) out.push_back({name, value});
  return out;
}

/// Makes the ranks of `group`, each on its own thread, and calls `fill(weights, backend, rank)` for
/// each. Throws ConfigError, before any weights are allocated, where they would not fit.
template <class Group, class Peers, class Config, class Fill>
void make_ranks(Group& group, Peers& peers, const Config& model, const RunnerConfig& config,
                const Fill& fill) {
  using Backend = typename Group::Backend;
  const int ranks_on_host = peers.ranks_on_host(config);
  std::vector<std::unique_ptr<Backend>> backends(static_cast<std::size_t>(group.size()));
  const auto backend_of = [&](int r) -> std::unique_ptr<Backend>& {
    return backends[static_cast<std::size_t>(r)];
  };
  group.run([&](int r) {
    const int device = config.first_device + peers.local_rank() + r;
    backend_of(r) = std::make_unique<Backend>(
        BackendConfig{.num_threads = config.threads_of_a_rank(ranks_on_host), .device = device});
  });
  for (const auto& backend : backends) {  // while no rank of this host has its weights
    check_weight_memory(model, kWeightBits<typename Group::Elements::Weight>, config.num_ranks,
                        Backend::kSharedMemory ? ranks_on_host : 1, backend->available_memory());
    check_step_memory(model, config.limits, sizeof(typename Group::Elements::Activation),
                      Backend::kSharedMemory ? ranks_on_host : 1, backend->available_memory());
  }
  // A rank that joins a group of devices waits for all the others: they must be there.
  peers.wait_for_all();
  group.run([&](int r) {
    const auto active = backend_of(r)->activate();
    auto& rank = group.make(r, model, std::move(backend_of(r)));
    fill(rank.network.weights(), *rank.backend, rank.comm.rank());
    if (r == 0) begin_stage<Backend>(config, "choosing kernels");
    if constexpr (requires { rank.backend->tune(rank.network.projections()); })
      rank.backend->tune(rank.network.projections());
  });
  // Nor may one wait in its first step for another that still reads its weights.
  peers.wait_for_all();
}

/// Bytes that any rank's KV pool may count on, the least of all ranks of `group`: each computes the
/// largest step there can be, on a pool of one block of `shape`.
template <class Group>
[[nodiscard]] std::size_t measure_memory(Group& group, const KvShape& shape) {
  std::vector<std::size_t> bytes(static_cast<std::size_t>(group.size()));
  std::atomic<std::size_t> next = 0;
  group.on_all([&](auto& rank) {
    typename Group::Pool scratch(shape, 1);
    const std::size_t reserve = rank.executor->profile_run(scratch);
    const std::size_t free = rank.backend->available_memory();
    bytes[next++] = free - std::min(free, reserve);
  });
  return *std::min_element(bytes.begin(), bytes.end());
}

}  // namespace nanovllm
