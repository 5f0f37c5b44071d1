#pragma once
/// Descriptions of tensors for the copy engine that have been made before. To encode one costs the
/// host about as much as a launch, and a step asks for the same ones in every layer and every step.

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "nanovllm/cuda/ptx/tma.cuh"

namespace nanovllm::cuda {

/// A map depends on what describes the tensor and not on what is in it, so none goes stale: memory
/// that is freed and given out again at the same address has the same map. For one host thread at a
/// time; belongs to a workspace or an engine of one rank.
class TensorMaps {
 public:
  /// As `make_tensor_map`; valid until the next call.
  template <class T, int kRank>
  [[nodiscard]] const CUtensorMap& get(const T* data,
                                       const std::array<std::int64_t, kRank>& extents,
                                       const std::array<std::int64_t, kRank - 1>& strides,
                                       const std::array<int, kRank>& box) {
    static_assert(kRank <= kMaxRank);
    Key key{reinterpret_cast<std::uintptr_t>(data), std::uint64_t{kTmaType<T>} << 8 | kRank};
    std::size_t next = 2;
    for (const std::int64_t extent : extents) key[next++] = static_cast<std::uint64_t>(extent);
    for (const std::int64_t stride : strides) key[next++] = static_cast<std::uint64_t>(stride);
    for (const int extent : box) key[next++] = static_cast<std::uint64_t>(extent);
    const auto found = maps_.find(key);
    if (found != maps_.end()) return found->second;
    if (maps_.size() >= kCapacity) maps_.clear();
    ++num_encoded_;
    return maps_.emplace(key, make_tensor_map<T, kRank>(data, extents, strides, box)).first->second;
  }

  /// Calls of `get` that found nothing.
  [[nodiscard]] std::int64_t num_encoded() const { return num_encoded_; }

 private:
  static constexpr int kMaxRank = 5;
  /// Enough for the weights of a large model and what its steps of all sizes read: 0.5 MiB.
  static constexpr std::size_t kCapacity = 2048;
  using Key = std::array<std::uint64_t, 2 + kMaxRank + (kMaxRank - 1) + kMaxRank>;

  struct Hash {
    std::size_t operator()(const Key& key) const {
      std::uint64_t hash = 0;
      for (const std::uint64_t word : key) {
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
      }
      return static_cast<std::size_t>(hash);
    }
  };

  std::unordered_map<Key, CUtensorMap, Hash> maps_;
  std::int64_t num_encoded_ = 0;
};

}  // namespace nanovllm::cuda
