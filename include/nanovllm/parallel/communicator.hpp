#pragma once
/// What tensor-parallel ranks say to each other, and `Single`, the group of one.

#include <concepts>
#include <cstdint>
#include <span>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/parallel/row_exchange.hpp"

namespace nanovllm {

/// A rank's end of a group. `make(n)` returns the ends of a new group of n ranks, to be handed to n
/// threads; every rank then makes the same calls in the same order.
///
/// - `all_reduce(x)`: x becomes the element-wise sum over all ranks; all ranks get the same bits.
///   `kRankOrder` says how it is rounded.
/// - `all_gather_columns(part, whole)`: `part` [n, w] of every rank side by side, in rank order, in
///   `whole` [n, size · w] of every rank.
/// - `abort()`: a rank that cannot continue releases the others: their pending and later calls
///   throw. From any thread, any number of times; does not wait and does not throw.
/// - Moving one end into another replaces it: that is how an aborted group is replaced.
///
/// Optional: `attach(backend)` joins an end with its rank's device, called by all ranks at the same
/// time; `hold()` returns a lock that keeps `abort` from taking the end away for a moment, held
/// while the rank enqueues work that uses it; `join(processes)` makes this process's end of a group
/// with one rank a process; `make(n, options)` and `join(processes, options)` take `Options`, one
/// of EngineConfig::extras; `all_reduce_add_norm(x, residual, weight, eps, out)` makes x the sum
/// over all ranks and returns whether it has done what `add_rms_norm` does with it too, in fewer
/// kernels and with the same bits; `Sums<Context>` is a way of its own in which a ResidualStream
/// has sums.
/// `throw_if_late()` throws when a rank did not come in time to a call that was waiting for it, and
/// what was computed since is garbage. `kOnDevice` is true where rows are in a GPU's memory.
template <class C>
concept CommunicatorLike = std::movable<C> &&
    requires(C& comm, const C& ccomm, MatrixView<float> x, MatrixView<const float> part,
             int num_ranks) {
  { C::make(num_ranks) } -> std::same_as<std::vector<C>>;
  { ccomm.rank() } -> std::convertible_to<int>;
  { ccomm.size() } -> std::convertible_to<int>;
  comm.all_reduce(x);
  comm.all_gather_columns(part, x);
  comm.abort();
};

/// Whether engines make `C` with settings, its `Options`.
template <class C>
concept TakesOptions = requires(int num_ranks, const typename C::Options& options) {
  { C::make(num_ranks, options) } -> std::same_as<std::vector<C>>;
};

/// Whether `C` sums in ascending rank order in float32 and rounds once, which makes the sums of a
/// group of any size reproducible on every machine: it has `static constexpr bool kRankOrder =
/// true`. Without that an implementation may round partial sums on their way, in an order that
/// depends on the sizes.
template <CommunicatorLike C>
inline constexpr bool kRankOrder = [] {
  if constexpr (requires { C::kRankOrder; }) return static_cast<bool>(C::kRankOrder);
  return false;
}();

/// A group that can also move rows, which layers with a share of the experts or of the rows need.
///
/// - `all_gather(part, whole)`: the rows of `part` [n, w] of every rank, in rank order, in `whole`
///   [size · n, w] of every rank.
/// - `reduce_scatter(whole, part)`: `part` [n, w] of rank r is the r-th n rows of the sum over all
///   ranks of `whole` [size · n, w]; with `kRankOrder`, with the bits that `all_reduce` of `whole`
///   gives them.
/// - `all_to_all(from, send_rows, to, receive_rows)`: rank r gets `send_rows[r]` rows of `from`,
///   which has those for rank 0 first, and so on; `to` gets `receive_rows[r]` rows of rank r, in
///   rank order. Both lists have `size` entries, and `from` and `to` have one width.
///
/// There may be no rows. Operands must not overlap, except that `part` may be its own place in
/// `whole`. Sizes that do not fit, within a rank or between two, are a ShapeError on all ranks.
template <class C>
concept CollectivesLike = CommunicatorLike<C> &&
    requires(C& comm, MatrixView<const float> from, MatrixView<float> to,
             std::span<const int> rows) {
  comm.all_gather(from, to);
  comm.reduce_scatter(from, to);
  comm.all_to_all(from, rows, to, rows);
};

/// One rank: sums are what they are, and rows are copied on the host unless they are in place.
class Single {
 public:
  static constexpr bool kRankOrder = true;

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
  template <class T>
  void all_gather(MatrixView<const T> part, MatrixView<T> whole) {
    copy(detail::RowExchange::even("all_gather", 1, part, whole), part, whole);
  }
  template <class T>
  void reduce_scatter(MatrixView<const T> whole, MatrixView<T> part) {
    copy(detail::RowExchange::even("reduce_scatter", 1, part, whole), whole, part);
  }
  template <class T>
  void all_to_all(MatrixView<const T> from, std::span<const int> send_rows, MatrixView<T> to,
                  std::span<const int> receive_rows) {
    copy(detail::RowExchange::uneven(1, from, send_rows, to, receive_rows), from, to);
  }
  void abort() {}

 private:
  template <class T>
  static void copy(const detail::RowExchange& rows, MatrixView<const T> from, MatrixView<T> to) {
    detail::check_agreement({&rows, 1});
    detail::copy_rows(from, to);
  }
};

static_assert(CollectivesLike<Single> && kRankOrder<Single>);

namespace detail {

template <class Policy>
struct CommunicatorSlot {
  using type = typename Policy::Ranks::HostCommunicator;
};
template <class Policy>
requires requires { typename Policy::Communicator; }
struct CommunicatorSlot<Policy> {
  using type = typename Policy::Communicator;
};

}  // namespace detail

/// The policy's Communicator; where it has none, the one of its Ranks on the host.
template <class Policy>
using CommunicatorOf = typename detail::CommunicatorSlot<Policy>::type;

}  // namespace nanovllm
