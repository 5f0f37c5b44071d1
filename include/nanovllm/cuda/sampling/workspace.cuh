#pragma once
/// Device memory that `sample` works in, and how a row is laid out there.

#include <cstddef>
#include <cstdint>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/sampling/tuning.hpp"
#include "nanovllm/ops/sampler.hpp"

namespace nanovllm::cuda {

/// A token in the race of exponential_race.cuh.
struct Candidate {
  float arrival;
  float logit;
  TokenId id;
  std::uint32_t bits;  ///< the random word of the token
};

/// What one block found in its slice of a row. `first`, `winner` and `largest` are those after
/// the bans, the `original` ones those before.
struct SlicePart {
  float largest;           ///< -inf without any logit above -inf
  TokenId first;           ///< the lowest id with the largest logit
  Candidate winner;        ///< of the Gumbel-max rule in the slice; rows without filters
  float original_largest;  ///< rows with log-probabilities only, as is the next
  double original_sum;     ///< Σ e^(logit - original_largest); number of +inf if that is +inf
  double mass;             ///< Σ e^((logit - largest) / temperature) in float32, top_p alone
};

/// The workspace as kernels see it. Row r of a [rows, pitch] array begins at r · pitch.
struct SamplerScratch {
  SlicePart* parts = nullptr;       ///< [rows, part_pitch]
  std::uint32_t* maxima = nullptr;  ///< [rows, tile_pitch], keys of the tiles' largest logits
  std::uint32_t* original_maxima = nullptr;  ///< the same before bans, where they differ
  std::uint32_t* ban_bits = nullptr;         ///< [rows, word_pitch], written for rows with bans
  uint2* arrivals = nullptr;                 ///< [rows, part_pitch], plain rows: see plain.cuh
  unsigned* tickets = nullptr;               ///< [rows], blocks that are done; 0 between calls
  std::int64_t part_pitch = 0;
  std::int64_t tile_pitch = 0;
  std::int64_t word_pitch = 0;
};

/// Owner of the scratch memory of `sample`: 37 KiB a row for 151,936 tokens. Calls that share one
/// must not overlap: one workspace per stream. Nothing in it outlives a call but tickets, which
/// are 0 again when its kernels are done; so it needs no reset after a call that was refused.
class SamplerWorkspace {
 public:
  /// Room for `max_rows` rows of up to `max_vocab` logits on the current device, for calls on
  /// `context.stream`, or on another one that waits for what is enqueued there.
  SamplerWorkspace(std::int64_t max_rows, std::int64_t max_vocab, const Context& context)
      : max_rows_(max_rows), max_vocab_(max_vocab) {
    check<ConfigError>(max_rows >= 0 && max_vocab > 0 && max_vocab <= kMaxVocab,
                       "SamplerWorkspace: need rows >= 0 and a vocabulary in [1, ", kMaxVocab,
                       "], got ", max_rows, " and ", max_vocab);
    const std::int64_t padded = align_up(max_vocab, kPadding);
    scratch_.part_pitch = padded / kShortSlice;
    scratch_.tile_pitch = padded / kLogitTile;
    scratch_.word_pitch = padded / 32;
    const auto size = [&](std::int64_t pitch) {
      return static_cast<std::size_t>(max_rows * pitch);
    };
    parts_ = DeviceBuffer<SlicePart>(size(scratch_.part_pitch));
    words_ = DeviceBuffer<std::uint32_t>(size(2 * scratch_.tile_pitch + scratch_.word_pitch));
    arrivals_ = DeviceBuffer<uint2>(size(scratch_.part_pitch));
    tickets_ = DeviceBuffer<unsigned>(static_cast<std::size_t>(max_rows));
    if (max_rows > 0)
      check_cuda(cudaMemsetAsync(tickets_.data(), 0, tickets_.size_bytes(), context.stream),
                 "cudaMemsetAsync");
    scratch_.arrivals = arrivals_.data();
    scratch_.tickets = tickets_.data();
    scratch_.parts = parts_.data();
    scratch_.maxima = words_.data();
    scratch_.original_maxima = scratch_.maxima + size(scratch_.tile_pitch);
    scratch_.ban_bits = scratch_.original_maxima + size(scratch_.tile_pitch);
  }

  [[nodiscard]] std::int64_t max_rows() const { return max_rows_; }
  [[nodiscard]] std::int64_t max_vocab() const { return max_vocab_; }
  [[nodiscard]] std::size_t size_bytes() const {
    return parts_.size_bytes() + words_.size_bytes() + arrivals_.size_bytes() +
           tickets_.size_bytes();
  }
  [[nodiscard]] const SamplerScratch& scratch() const { return scratch_; }

  static constexpr std::int64_t kShortSlice =
      sample_slice(kShortSliceGroups);  ///< logits of the shortest slice
  static constexpr std::int64_t kPadding =
      sample_slice(kLongSliceGroups);  ///< logits of the longest
  static constexpr std::int64_t kMaxVocab = kMaxSampledVocab;

 private:
  std::int64_t max_rows_;
  std::int64_t max_vocab_;
  DeviceBuffer<SlicePart> parts_;
  DeviceBuffer<std::uint32_t> words_;
  DeviceBuffer<uint2> arrivals_;
  DeviceBuffer<unsigned> tickets_;
  SamplerScratch scratch_;
};

}  // namespace nanovllm::cuda
