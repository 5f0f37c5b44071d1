#pragma once
/// The parameters of one rank of a network: where each tensor of the checkpoint goes, and how all
/// are filled, from a checkpoint or with noise.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/family.hpp"
#include "nanovllm/model/stored_matrix.hpp"
#include "nanovllm/model/weights.hpp"
#include "nanovllm/ops/weight_format.hpp"

namespace nanovllm {

/// Where in a checkpoint modules of a family are, and what a rank keeps of them.
struct ModulePlace {
  RankSizes sizes;
  std::string prefix{};     ///< ahead of their names
  std::size_t layer = 0;    ///< the number in their names
  std::int64_t item = 0;    ///< the second one
  bool transposed = false;  ///< projections are [in, out] there

  [[nodiscard]] std::string name_of(const FamilyModule& module, const char* tensor) const {
    return concat(prefix, with_number(with_number(module.name, layer), item), tensor);
  }
};

/// Parameters of element `T` in the memory of a backend, which they and the list refer to.
template <Element T, class Backend>
class ParameterList {
  using Vector = typename Backend::template Buffer<T>;
  using Staging = typename Backend::template Staging<T>;

 public:
  explicit ParameterList(Backend& backend) : backend_(&backend) {}

  /// A tensor of `shape`, of which this rank keeps `shard` as rows [first_row, …) of `matrix`, a
  /// MatrixOf. Throws ConfigError where `first_row` is no multiple of its `kRowGroup`.
  template <class Matrix>
  void add_matrix(std::string name, std::vector<std::int64_t> shape, Shard shard, Matrix& matrix,
                  std::int64_t first_row = 0) {
    check_first_row<Matrix>(name, first_row);
    Parameter<T> parameter{
        .name = std::move(name),
        .shape = std::move(shape),
        .sink = [&matrix, backend = backend_, first_row](
                    std::int64_t row,
                    MatrixView<const T> rows) { backend->set_rows(matrix, first_row + row, rows); },
        .shard = shard,
        .row_group = kRowGroupOf<Matrix>};
    if constexpr (requires { typename Matrix::StoredRows; }) {
      parameter.stored_sink = [&matrix, backend = backend_, first_row](std::int64_t row,
                                                                       const AnyStoredRows& rows) {
        const auto* const kept = rows.get<typename Matrix::StoredRows>();
        return kept != nullptr && backend->set_rows(matrix, first_row + row, *kept);
      };
    }
    add(std::move(parameter));
  }

  /// The rows of the tensor that was added last go to the same rows of `matrix` as well.
  template <class Matrix>
  void also_to(Matrix& matrix) {
    Parameter<T>& last = parameters_.back();
    last.sink = [&matrix, backend = backend_, first = std::move(last.sink)](
                    std::int64_t row, MatrixView<const T> rows) {
      first(row, rows);
      backend->set_rows(matrix, row, rows);
    };
    last.row_group = std::lcm(last.row_group, kRowGroupOf<Matrix>);
    last.stored_sink = {};
  }

  /// A tensor that the file has transposed, [in, out], as `Conv1D` has its weights: the columns
  /// that `shard` keeps become rows [first_row, …) of `matrix`. While it is read, the kept part is
  /// in host memory once.
  template <class Matrix>
  void add_transposed(std::string name, std::vector<std::int64_t> shape, Shard shard,
                      Matrix& matrix, std::int64_t first_row = 0) {
    check_first_row<Matrix>(name, first_row);
    const std::int64_t in = shard.dim == 0 ? shard.end - shard.begin : shape[0];
    add({.name = std::move(name),
         .shape = std::move(shape),
         .sink =
             [&matrix, backend = backend_, first_row, in, kept = std::vector<T>()](
                 std::int64_t row, MatrixView<const T> rows) mutable {
               const std::int64_t out = rows.extent(1);
               kept.resize(static_cast<std::size_t>(out * in));
               transpose(rows, kept.data() + row, in);
               if (row + rows.extent(0) < in) return;
               backend->set_rows(matrix, first_row, MatrixView<const T>(kept.data(), {out, in}));
               kept = {};
             },
         .shard = shard,
         .transposed = true});
  }

  /// A rank-1 tensor, kept whole.
  void add_vector(std::string name, Vector& vector) {
    add_part(std::move(name), static_cast<std::int64_t>(vector.size()), {}, vector, 0, T(1.f));
  }

  /// A rank-1 tensor of `size` elements that is added to something, of which this rank keeps
  /// `shard` as elements [first, …) of `vector`.
  void add_bias(std::string name, std::int64_t size, Shard shard, Vector& vector,
                std::int64_t first = 0) {
    add_part(std::move(name), size, shard, vector, first, T(0.f));
  }

  /// A matrix of a family's table, or part `part` of it: what this rank keeps as rows
  /// [first_row, …) of `matrix`. Returns the row after them.
  template <class Matrix>
  std::int64_t add_matrix(const ModulePlace& at, const FamilyModule& module, Matrix& matrix,
                          std::int64_t first_row = 0, std::int64_t part = 0) {
    const std::int64_t rows = module.parts * module.rows(at.sizes.all);
    const std::int64_t columns = module.columns(at.sizes.all);
    Shard shard = shard_of(module, at.sizes, part);
    if (at.transposed && module.is_projection()) {
      if (shard.dim) shard.dim = 1 - *shard.dim;
      add_transposed(at.name_of(module, ".weight"), {columns, rows}, shard, matrix, first_row);
    } else {
      add_matrix(at.name_of(module, ".weight"), {rows, columns}, shard, matrix, first_row);
    }
    return first_row + module.rows(at.sizes.own);
  }

  /// Its bias, likewise. It is whole where it follows a sum over ranks.
  std::int64_t add_bias(const ModulePlace& at, const FamilyModule& module, Vector& vector,
                        std::int64_t first = 0, std::int64_t part = 0) {
    const bool divided = module.role == ModuleRole::by_rows;
    add_bias(at.name_of(module, ".bias"), module.parts * module.rows(at.sizes.all),
             divided ? shard_of(module, at.sizes, part) : Shard{}, vector, first);
    return first + module.rows(at.sizes.own);
  }

  /// A norm of the table.
  void add_vector(const ModulePlace& at, const FamilyModule& module, Vector& vector) {
    add_vector(at.name_of(module, ".weight"), vector);
  }

  /// Streams the parameters in; tensors of the names `ignored` may be there and are not read.
  /// Throws one LoadError that names missing, surplus and misshapen tensors (`check_parameters`).
  void load(const Checkpoint& checkpoint, std::span<const std::string> ignored = {},
            std::function<void(std::uint64_t, std::uint64_t)> progress = {}) const {
    load_parameters<T>(
        checkpoint, parameters_,
        {.ignored = ignored, .progress = std::move(progress), .num_threads = Backend::kLoadThreads},
        [&] { return Staging(*backend_); });
  }

  /// Fills all matrices with reproducible noise of standard deviation `scale`, all biases with 0,
  /// and all other vectors with 1. For benchmarks: ranks draw their own values for what they share,
  /// so the model depends on the number of ranks. What a rank has whole depends on the seed alone.
  void randomize(std::uint64_t seed, int rank, float scale = 0.02f) const {
    std::atomic<std::size_t> next = 0;
    detail::on_threads(Backend::kLoadThreads, [&] {
      Staging staging(*backend_);
      for (std::size_t i = next++; i < parameters_.size(); i = next++) {
        const int of_rank = parameters_[i].shard.dim ? rank : 0;
        const std::uint64_t key = seed + i + 1 + (static_cast<std::uint64_t>(of_rank) << 32);
        randomize(parameters_[i], fills_[i], key, scale, staging);
      }
    });
  }

 private:
  static Shard shard_of(const FamilyModule& module, const RankSizes& sizes, std::int64_t part) {
    if (module.role == ModuleRole::table) return {};
    const int dim = module.role == ModuleRole::by_columns ? 1 : 0;
    const Extent extent = dim == 1 ? module.columns : module.rows;
    const bool is_vocabulary = module.role == ModuleRole::vocabulary;
    const std::int64_t all = extent(sizes.all);
    const std::int64_t own = is_vocabulary ? sizes.vocab_rows : extent(sizes.own);
    const std::int64_t begin = std::min(all, sizes.rank * own), end = std::min(all, begin + own);
    if (module.parts == 1 && end - begin == all) return {};
    return {dim, part * all + begin, part * all + end};
  }

  template <class Matrix>
  static void check_first_row(const std::string& name, std::int64_t first_row) {
    if constexpr (requires { requires Matrix::kAnyFirstRow; }) return;
    const std::int64_t group = kRowGroupOf<Matrix>;
    check<ConfigError>(first_row % group == 0, "'", name, "' begins at row ", first_row,
                       " of its matrix, whose format needs a multiple of ", group);
  }

  /// `fill` is what a vector is filled with.
  void add(Parameter<T> parameter, T fill = T(1.f)) {
    parameters_.push_back(std::move(parameter));
    fills_.push_back(fill);
  }

  void add_part(std::string name, std::int64_t size, Shard shard, Vector& vector,
                std::int64_t first, T fill) {
    add({.name = std::move(name),
         .shape = {size},
         .sink =
             [&vector, backend = backend_, first](std::int64_t, MatrixView<const T> row) {
               backend->upload(row.data, vector.data() + first,
                               static_cast<std::size_t>(row.size()));
             },
         .shard = shard},
        fill);
  }

  /// to[column · stride + row] = from[row, column], in squares that a cache holds.
  static void transpose(MatrixView<const T> from, T* to, std::int64_t stride) {
    constexpr std::int64_t kSquare = 32;
    const std::int64_t rows = from.extent(0), columns = from.extent(1);
    for (std::int64_t row = 0; row < rows; row += kSquare) {
      for (std::int64_t column = 0; column < columns; column += kSquare) {
        for (std::int64_t j = column; j < std::min(columns, column + kSquare); ++j) {
          for (std::int64_t i = row; i < std::min(rows, row + kSquare); ++i)
            to[j * stride + i] = *from.at(i, j);
        }
      }
    }
  }

  /// Fills one matrix with noise, or one vector with `fill`.
  static void randomize(const Parameter<T>& parameter, T fill, std::uint64_t key, float scale,
                        Staging& staging) {
    const std::int64_t panel_rows = align_up(std::int64_t{256}, parameter.row_group);
    const bool vector = parameter.shape.size() == 1;
    const detail::Region region = detail::region_of(parameter.shape, parameter.shard);
    const std::int64_t rows = region.rows(), columns = region.columns();
    if (columns == 0) return;
    for (std::int64_t first = 0; first < rows; first += panel_rows) {
      const std::int64_t count = std::min(panel_rows, rows - first);
      const std::span<T> panel(staging.acquire(static_cast<std::size_t>(count * columns)),
                               static_cast<std::size_t>(count * columns));
      if (vector) {
        std::fill(panel.begin(), panel.end(), fill);
      } else {
        fill_noise(panel, key, static_cast<std::uint64_t>(first * columns), scale);
      }
      parameter.sink(first, {panel.data(), {count, columns}});
      staging.release();
    }
  }

  /// Uniform noise: its statistics are what a benchmark needs, and it is quick to make.
  static void fill_noise(std::span<T> out, std::uint64_t key, std::uint64_t offset, float scale) {
    const float width = scale * std::sqrt(12.f);
    for (std::size_t i = 0; i < out.size(); ++i) {
      std::uint64_t x =
          (offset + i + 1) * 0x9E3779B97F4A7C15u ^ key * 0xD1342543DE82EF95u;  // splitmix64
      x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
      x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
      out[i] = T((static_cast<float>(x >> 40) * 0x1p-24f - 0.5f) * width);
    }
  }

  Backend* backend_;
  std::vector<Parameter<T>> parameters_;
  std::vector<T> fills_;  // of vectors that are randomised, one a parameter
};

}  // namespace nanovllm
