#pragma once
/// Where the weights of a runner come from.

#include <cstdint>
#include <functional>

#include "nanovllm/io/safetensors.hpp"

namespace nanovllm {

/// A checkpoint, or noise.
struct WeightSource {
  const Checkpoint* checkpoint = nullptr;  ///< null for noise; outlives the start-up
  std::uint64_t seed = 0;                  ///< of the noise
  /// Hears of rank 0's bytes: how many have been read, of how many.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress{};

  /// Gives the weights of one rank their values. Throws LoadError for what the checkpoint lacks.
  template <class Weights, class Backend>
  void fill(Weights& weights, Backend& backend, int rank) const {
    if (checkpoint == nullptr) {
      weights.randomize(seed, backend);
    } else {
      weights.load(*checkpoint, backend, rank == 0 ? progress : decltype(progress){});
    }
  }
};

}  // namespace nanovllm
