// Dense layers by 4-bit integers, few rows and more of them, plain and gated, against float64 and
// against their parts; and that a row does not depend on the others.

#include "nanovllm/with/eight_bits/cuda/int4_few_rows.cuh"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "nanovllm/cuda/compiled_ops.cuh"
#include "nanovllm/cuda/op_state.cuh"
#include "nanovllm/with/eight_bits/cuda/int4_ops.cuh"
#include "with/eight_bits/cuda/int4_problem.cuh"

namespace nanovllm::test {
namespace {

struct Problem {
  std::int64_t n, k;
  StoredInt4 stored;
  cuda::Int4GroupMatrix matrix;
  GpuMatrix<bf16> x;

  Problem(const Gpu& gpu, std::int64_t rows, std::int64_t n_in, std::int64_t k_in, bool has_offsets,
          Placement placement = {})
      : n(n_in),
        k(k_in),
        stored(n, k, has_offsets, static_cast<std::uint64_t>(n + k)),
        matrix(n, k),
        x(GpuMatrix<bf16>::random(rows, k, 21, placement)) {
    REQUIRE(matrix.set_rows(0, stored.view(), gpu.context));
    // Groups of very different sizes, one of zeros, and one element far above the others.
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < k; ++j) {
        if (j / 128 % 3 == 1) x(i, j) = bf16(static_cast<float>(x.value(i, j)) * 0x1p-20f);
        if (j / 128 % 5 == 4) x(i, j) = bf16(0.f);
      }
      x(i, k / 2) = bf16(40.f);
    }
    x.upload();
  }

  [[nodiscard]] MatrixView<const bf16> x_rows(std::int64_t end, std::int64_t begin = 0) {
    const auto rows = x.view().slice(begin, end);
    return {rows.data, rows.extents, rows.strides};
  }

  /// The largest error of rows [0, m), in units of what they may have.
  [[nodiscard]] double worst(GpuMatrix<bf16>& y, const GpuMatrix<bf16>* before, std::int64_t m,
                             bool in_bf16) {
    y.download();
    Worst out;
    for (std::int64_t i = 0; i < m; i += i < 2 || i + 8 >= m ? 1 : 7) {
      for (std::int64_t row = 0; row < n; row += row < 8 ? 1 : n < 300 ? 13 : 997) {
        double sum = 0, size = 0, planes = 0;
        for (std::int64_t g = 0; g < k; g += 128) {
          double largest = 0, weights = 0;
          for (std::int64_t j = g; j < std::min(g + 128, k); ++j) {
            const double w = stored.value(row, j), product = w * x.value(i, j);
            sum += product, size += std::abs(product);
            largest = std::max(largest, std::abs(x.value(i, j)));
            weights += std::abs(w) + std::abs(stored.group(row, j).offset);
          }
          planes += largest * weights;
        }
        const double old = before == nullptr ? 0. : before->value(i, row);
        // W in bf16 is off by 2^-9 of each product; planes by 2^-16 of the group's largest.
        const double bound = (std::abs(sum + old) + (in_bf16 ? std::abs(sum) : 0)) * 0x1p-8 +
                             size * (in_bf16 ? 0x1p-8 : 0x1p-18) + planes * 0x1p-16 + 1e-30;
        out.add(y.value(i, row), sum + old, bound);
      }
    }
    return out.ratio();
  }
};

void run(cuda::OpState& state, Problem& problem, std::int64_t first, std::int64_t end,
         GpuMatrix<bf16>& y, bool accumulate) {
  cuda::run_op(LinearArgs<bf16, cuda::Int4GroupMatrix, bf16>{.x = problem.x_rows(end, first),
                                                             .weight = &problem.matrix,
                                                             .y = y.view().slice(first, end),
                                                             .accumulate = accumulate},
               state);
}

}  // namespace

TEST_CASE("rows by 4-bit integers equal float64", "[int4]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  cuda::OpState state{.context = gpu.context};
  struct Case {
    std::int64_t n, k;
    bool has_offsets;
  };
  for (const Case& c : {Case{64, 1024, false}, Case{64, 1024, true}, Case{200, 1032, false},
                        Case{77, 200, true}, Case{16, 8, false}, Case{9000, 2560, false},
                        Case{4096, 12288, true}, Case{48, 77, false}, Case{128, 30016, false}}) {
    Problem problem(gpu, 100, c.n, c.k, c.has_offsets);
    for (const std::int64_t m : {1, 3, 4, 5, 8, 9, 13, 16, 17, 32, 33, 70, 96, 97, 100}) {
      if (c.n * c.k > 10'000'000 && m > 5 && m != 9 && m != 33) continue;
      for (const bool accumulate : {false, true}) {
        CAPTURE(c.n, c.k, c.has_offsets, m, accumulate);
        GpuMatrix<bf16> y = GpuMatrix<bf16>::random(100, c.n, 5, {8, 0});
        GpuMatrix<bf16> before = GpuMatrix<bf16>::random(100, c.n, 5, {8, 0});
        poison_shared_memory(gpu.context);
        run(state, problem, 0, m, y, accumulate);
        gpu.sync();
        const bool in_bf16 = m > cuda::kMostInt4FewRows || c.k % 8 != 0 || !gpu.is_hopper();
        CHECK(problem.worst(y, accumulate ? &before : nullptr, m, in_bf16) <= 1);
        CHECK(y.surroundings_intact());
        CHECK(y.same_rows(before, m, 100 - m, m));
      }
    }
  }
}

TEST_CASE("a row by 4-bit integers has the same bits alone and among up to 96", "[int4]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  cuda::OpState state{.context = gpu.context};
  for (const auto& [n, k] :
       {std::pair{77, 1160}, {4500, 4096}, {2048, 6144}, {64, 20480}, {130, 264}}) {
    CAPTURE(n, k);
    Problem problem(gpu, 96, n, k, n % 2 == 0);
    GpuMatrix<bf16> together(96, n), part(96, n);
    run(state, problem, 0, 96, together, false);
    for (int again = 0; again < 3; ++again) {
      for (const auto& [begin, end] : {std::pair{0, 1},
                                       {5, 6},
                                       {3, 11},
                                       {2, 13},
                                       {15, 31},
                                       {20, 47},
                                       {33, 95},
                                       {87, 95},
                                       {87, 96},
                                       {95, 96}}) {
        poison_shared_memory(gpu.context);
        run(state, problem, begin, end, part, false);
        gpu.sync();
        together.download(), part.download();
        CAPTURE(begin, end);
        CHECK(part.same_rows(together, begin, end - begin, begin));
      }
    }
  }
}

TEST_CASE("a gated layer by 4-bit integers has the bits of its parts", "[int4][racecheck]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  cuda::OpState state{.context = gpu.context};
  for (const auto& [width, k] : {std::pair{64, 512}, {192, 1160}, {6144, 4096}, {96, 256}}) {
    Problem problem(gpu, 100, 2 * width, k, width % 128 != 0);
    GpuMatrix<bf16> norm = GpuMatrix<bf16>::random(1, k, 3, {}, .25, 2);
    GpuMatrix<bf16> normed(100, k), gate_up(100, 2 * width), out(100, width), expected(100, width);
    for (const std::int64_t m : {1, 8, 9, 16, 31, 32, 33, 96, 100}) {
      for (const bool has_norm : {false, true}) {
        CAPTURE(width, k, m, has_norm);
        GatedLinearArgs<bf16, cuda::Int4GroupMatrix, bf16> args{
            .x = problem.x_rows(m),
            .weight = &problem.matrix,
            .out = out.view().slice(0, m),
            .normed = normed.view().slice(0, m),
            .gate_up = gate_up.view().slice(0, m)};
        if (has_norm) args.norm = {{norm.row(0).data, {k}}, 1e-6f};
        poison_shared_memory(gpu.context);
        cuda::run_op(args, state);
        args.out = expected.view().slice(0, m);
        compose(args, [&](const auto& part) { cuda::run_op(part, state); });
        gpu.sync();
        out.download(), expected.download();
        CHECK(out.same_rows(expected, 0, m, 0));
      }
    }
  }
}

TEST_CASE("a row that is not finite is alone in that", "[int4]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  cuda::OpState state{.context = gpu.context};
  const std::int64_t rows = GENERATE(8, 24);
  Problem problem(gpu, rows, 96, 1024, true);
  GpuMatrix<bf16> clean(rows, 96), out(rows, 96);
  run(state, problem, 0, rows, clean, false);
  problem.x(2, 700) = bf16(std::numeric_limits<float>::quiet_NaN());
  problem.x(5, 3) = bf16(-std::numeric_limits<float>::infinity());
  problem.x.upload();
  run(state, problem, 0, rows, out, false);
  gpu.sync();
  clean.download(), out.download();
  for (std::int64_t i = 0; i < rows; ++i) {
    CAPTURE(i);
    if (i != 2 && i != 5) {
      CHECK(out.same_rows(clean, i, 1, i));
    } else {
      for (std::int64_t j = 0; j < 96; ++j) CHECK_FALSE(std::isfinite(out.value(i, j)));
    }
  }
}

}  // namespace nanovllm::test
