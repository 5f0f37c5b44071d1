#pragma once
/// The CPU backend: always there, needs no GPU, and is the oracle of the CUDA kernels.

#include <algorithm>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/cpu/aligned_buffer.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/cpu/kernels/attention.hpp"
#include "nanovllm/cpu/kernels/embedding.hpp"
#include "nanovllm/cpu/kernels/kv_store.hpp"
#include "nanovllm/cpu/kernels/logit_edits.hpp"
#include "nanovllm/cpu/kernels/rowwise.hpp"
#include "nanovllm/cpu/kernels/sampler.hpp"
#include "nanovllm/cpu/kernels/unpack_step.hpp"
#include "nanovllm/cpu/linear/linear.hpp"
#include "nanovllm/cpu/linear/packed_matrix.hpp"
#include "nanovllm/cpu/system_memory.hpp"
#include "nanovllm/ops/backend.hpp"

namespace nanovllm {

namespace cpu {
class Fp8Matrix;
template <int kBits>
class IntMatrix;
}  // namespace cpu

/// Owns the threads of one rank and runs every op by its function in `cpu/`. Ops are finished when
/// the call returns.
class CpuBackend {
 public:
  template <class T>
  using Buffer = cpu::AlignedBuffer<T>;
  template <Element T>
  using Matrix = cpu::PackedMatrix<T>;
  using Fp8Matrix = cpu::Fp8Matrix;      ///< with/eight_bits/cpu/fp8_matrix.hpp
  using Int8Matrix = cpu::IntMatrix<8>;  ///< with/eight_bits/cpu/linear.hpp
  using Int4Matrix = cpu::IntMatrix<4>;  ///< the same

  template <class T>
  struct Staging : HostStaging<T> {
    explicit Staging(const CpuBackend&) {}
  };

  static constexpr bool kAsynchronous = false;
  static constexpr bool kSharedMemory = true;
  static constexpr bool kAccumulatesResidual = false;
  static constexpr bool kReadsHeadShape = false;
  static constexpr double kKvShare = 0.4;
  static constexpr int kLoadThreads = 1;  // more would hold more than one panel in memory

  /// The default for the most tokens of a step: enough for the dense layers
  /// to run at full rate, little enough that decodes between prompt chunks do not wait long.
  static constexpr int kDefaultBatchedTokens = 1024;

  /// @param isa  caps the instruction set, for tests. More than the machine has is ConfigError;
  ///             less than the program is compiled for counts as that (`cpu::kLeastIsa`).
  explicit CpuBackend(const BackendConfig& config, cpu::Isa isa = cpu::best_isa())
      : pool_(std::make_unique<cpu::ThreadPool>(config.num_threads)),
        context_{pool_.get(), std::max(isa, cpu::kLeastIsa)} {
    check<ConfigError>(cpu::has(isa), "this machine has no ", cpu::name(isa),
                       " instructions, at most ", cpu::name(cpu::best_isa()));
  }

  /// There is no device to choose.
  [[nodiscard]] auto activate() const {
    struct Nothing {
      ~Nothing() {}  // not trivial, so that no caller is warned of an unused variable
    };
    return Nothing{};
  }

  /// Scratch memory is the threads' own.
  void reserve(const ReserveArgs&) {}

  /// Copies `count` elements of host memory into a buffer.
  template <class T>
  void upload(const T* from, T* to, std::size_t count) {
    std::copy_n(from, count, to);
  }

  /// Copies `count` elements of a buffer out.
  template <class T>
  void download(const T* from, T* to, std::size_t count) {
    std::copy_n(from, count, to);
  }

  /// The same beside ops under way, from any thread: elements as they are by now.
  template <class T>
  void download_early(const T* from, T* to, std::size_t count) const {
    for (std::size_t i = 0; i < count; ++i)
      to[i] = std::atomic_ref(const_cast<T&>(from[i])).load(std::memory_order_relaxed);
  }

  /// Packs `rows` as rows [first_row, …) of `matrix`, a `Matrix` or one of a user's own; on the
  /// backend's threads where its `set_rows` takes a Context.
  template <class AnyMatrix, class T>
  requires requires(AnyMatrix& matrix, MatrixView<const T> rows) {
    matrix.set_rows(std::int64_t{}, rows);
  }
  void set_rows(AnyMatrix& matrix, std::int64_t first_row, MatrixView<const T> rows) {
    if constexpr (requires { matrix.set_rows(first_row, rows, context_); }) {
      matrix.set_rows(first_row, rows, context_);
    } else {
      matrix.set_rows(first_row, rows);
    }
  }

  /// The same with rows as a checkpoint has stored them; false where the matrix does not take them.
  template <class AnyMatrix>
  requires requires { typename AnyMatrix::StoredRows; }
  [[nodiscard]] bool set_rows(AnyMatrix& matrix, std::int64_t first_row,
                              const typename AnyMatrix::StoredRows& rows) {
    if constexpr (requires { matrix.set_rows(first_row, rows, context_); }) {
      return matrix.set_rows(first_row, rows, context_);
    } else {
      return matrix.set_rows(first_row, rows);
    }
  }

  /// Runs the op that `args` is for: `run_op(args, context)`, next to the op in `cpu/`, or next to
  /// the arguments where they are a user's own. Throws what the op throws.
  template <class Args>
  requires requires(const Args& args, cpu::Context& context) { run_op(args, context); }
  void run(const Args& args) { run_op(args, context_); }

  /// Bytes of memory that the system can still give.
  [[nodiscard]] std::size_t available_memory() const { return cpu::available_system_memory(); }

  /// "cpu, 2 threads, avx512_bf16".
  [[nodiscard]] std::string describe() const {
    return concat("cpu, ", pool_->num_threads(), " threads, ", cpu::name(context_.isa));
  }

 private:
  std::unique_ptr<cpu::ThreadPool> pool_;
  cpu::Context context_;
};

static_assert(BackendLike<CpuBackend, float>);
static_assert(BackendLike<CpuBackend, bf16>);

}  // namespace nanovllm
