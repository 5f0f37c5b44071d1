#pragma once
/// What tensor-parallel ranks say to each other, and `Single`, the group of one.

#include <concepts>
#include <cstdint>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"

namespace nanovllm {

/// A rank's end of a group. `make(n)` returns the ends of a new group of n ranks, to be handed to n
/// threads; every rank then makes the same calls in the same order.
///
/// - `all_reduce(x)`: x becomes the element-wise sum over all ranks, in ascending rank order in
///   float32, rounded once; all ranks get the same bits.
/// - `all_gather_columns(part, whole)`: `part` [n, w] of every rank side by side, in rank order, in
///   `whole` [n, size · w] of every rank.
/// - `abort()`: a rank that cannot go on releases the others: their pending and later calls throw.
template <class C>
concept CommunicatorLike = requires(C& comm, const C& ccomm, MatrixView<float> x,
                                    MatrixView<const float> part, int num_ranks) {
  { C::make(num_ranks) } -> std::same_as<std::vector<C>>;
  { ccomm.rank() } -> std::convertible_to<int>;
  { ccomm.size() } -> std::convertible_to<int>;
  comm.all_reduce(x);
  comm.all_gather_columns(part, x);
  comm.abort();
};

/// One rank: every call is a no-op.
class Single {
 public:
  /// Throws ConfigError unless `num_ranks` is 1.
  static std::vector<Single> make(int num_ranks) {
    check<ConfigError>(num_ranks == 1,
                       "the Single communicator has 1 rank, got tensor_parallel = ", num_ranks,
                       "; use a policy with another Communicator");
    return std::vector<Single>(1);
  }

  [[nodiscard]] int rank() const { return 0; }
  [[nodiscard]] int size() const { return 1; }
  template <class T>
  void all_reduce(MatrixView<T>) {}
  template <class T>
  void all_gather_columns(MatrixView<const T>, MatrixView<T>) {}
  void abort() {}
};

static_assert(CommunicatorLike<Single>);

}  // namespace nanovllm
