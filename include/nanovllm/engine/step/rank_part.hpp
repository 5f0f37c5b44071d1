#pragma once
/// What a policy adds to each rank, beside its network.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "nanovllm/ops/backend.hpp"

namespace nanovllm {

struct RunnerConfig;
class StepInputs;

/// The part of one rank. It is made on the rank's thread when the network has its weights, may keep
/// references to the network and to its backend, and goes before them. Calls come on that thread,
/// with the rank's device being the current one; `StepRunner::on_parts` makes those of its user.
class RankPart {
 public:
  RankPart() = default;
  RankPart(const RankPart&) = delete;
  RankPart& operator=(const RankPart&) = delete;
  virtual ~RankPart() = default;

  /// Takes what memory it will take at first use, but for `set_num_blocks`.
  virtual void profile_run() {}
  /// Bytes that it will take for each block of the rank's pool.
  [[nodiscard]] virtual std::int64_t block_bytes() const { return 0; }
  /// The rank's pool has `num_blocks` blocks. Comes once, before graphs are recorded.
  virtual void set_num_blocks(std::int32_t /*num_blocks*/) {}
  /// A step is about to be launched, another may be under way. `inputs` are valid during the call.
  virtual void begin_step(const StepInputs& /*inputs*/) {}
};

/// `RankParts` of a policy's `Guesses`, which may have such a type: what makes a part for each
/// rank. This one makes none.
///
/// - `make(rank, model, config, backend)`: the part of `rank`, a Rank of a network of `model`; null
///   for none, but then on all ranks. `backend` is what the rank's backend was made from. Throws
///   ConfigError or LoadError.
struct NoRankParts {
  template <class Rank>
  [[nodiscard]] static std::unique_ptr<RankPart> make(Rank&, const typename Rank::Config&,
                                                      const RunnerConfig&, const BackendConfig&) {
    return nullptr;
  }
};

namespace detail {

/// Of a policy without guesses, or of guesses without parts.
template <class Owner>
struct OwnRankParts {
  using type = NoRankParts;
};
template <class Owner>
requires requires { typename Owner::RankParts; }
struct OwnRankParts<Owner> {
  using type = typename Owner::RankParts;
};
template <class Policy>
requires requires { typename Policy::Guesses; }
struct OwnRankParts<Policy> {
  static_assert(
      requires { sizeof(typename Policy::Guesses); }, "the policy's Guesses is only declared here");
  using type = typename OwnRankParts<typename Policy::Guesses>::type;
};

}  // namespace detail

/// What makes the parts of a policy's ranks, or of those of a RunnerPolicy.
template <class Policy>
using RankPartsOf = typename detail::OwnRankParts<Policy>::type;

/// Whether ranks of `Policy` may have parts.
template <class Policy>
inline constexpr bool kHasRankParts = !std::is_same_v<RankPartsOf<Policy>, NoRankParts>;

}  // namespace nanovllm
