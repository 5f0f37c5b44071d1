// The ops of a mixture of experts on the CUDA backend.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "nanovllm/cpu/backend.hpp"
#include "nanovllm/cuda/backend.cuh"
#include "nanovllm/with/batch_invariant/batch_invariant_backend.cuh"
#include "nanovllm/with/eight_bits/cpu/fp8_matrix.hpp"
#include "nanovllm/with/moe/cpu/ops.hpp"
#include "nanovllm/with/moe/cuda/fp8_ops.cuh"
#include "nanovllm/with/moe/cuda/hopper/experts.cuh"
#include "nanovllm/with/moe/cuda/ops.cuh"
#include "with/moe/expert_cases.hpp"

using namespace nanovllm;
namespace ops = nanovllm::test::ops;

TEST_CASE("route_experts is the formula of its contract on the GPU", "[ops][moe]") {
  if (!test::has_gpu()) return;
  CudaBackend backend{BackendConfig{}};
  ops::route_experts_cases(backend);
  ops::route_experts_case(backend, 33, 200, 8, true, 6);
  ops::route_experts_case(backend, 7, 600, 10, false, 6);  // rows that are not held
  ops::route_ties_case(backend);
  ops::route_counts_cases(backend);
  ops::route_shape_cases(backend);
}

TEST_CASE("a plan has each pair of the experts that are here in one tile", "[moe]") {
  if (!test::has_gpu()) return;
  const nanovllm::cuda::Stream stream;
  const nanovllm::cuda::Context context = nanovllm::cuda::Context::on(stream.get());
  struct Case {
    std::int64_t n, k;
    int experts, tile_rows;
    nanovllm::cuda::LocalExperts local;
  };
  // One block, a cluster, and on both sides of where it begins; experts without pairs, one with all
  // of them; more experts than threads.
  for (const Case& c : {Case{1, 8, 128, 8, {0, 128}}, Case{7, 3, 20, 16, {4, 9}},
                        Case{255, 8, 128, 64, {0, 128}}, Case{256, 8, 128, 64, {0, 128}},
                        Case{2048, 1, 1, 128, {0, 1}}, Case{3000, 2, 5000, 8, {17, 2500}},
                        Case{8192, 8, 128, 128, {64, 64}}, Case{1001, 7, 3, 128, {0, 2}}}) {
    CAPTURE(c.n, c.k, c.experts, c.local.first, c.local.count);
    const auto pairs = static_cast<std::size_t>(c.n * c.k);
    std::vector<std::int32_t> ids(pairs);
    for (std::size_t p = 0; p < pairs; ++p) {
      const auto mixed = static_cast<std::uint32_t>(p) * 2654435761u;
      ids[p] = static_cast<std::int32_t>((mixed >> 7) % static_cast<std::uint32_t>(c.experts));
    }
    nanovllm::cuda::DeviceBuffer<std::int32_t> on_device(pairs), order(pairs), num_tiles(1);
    nanovllm::cuda::DeviceBuffer<nanovllm::cuda::ExpertTile> tiles(pairs);
    cudaMemcpy(on_device.data(), ids.data(), pairs * sizeof(ids[0]), cudaMemcpyHostToDevice);
    nanovllm::cuda::plan_experts(MatrixView<const std::int32_t>(on_device.data(), {c.n, c.k}),
                                 c.local, c.tile_rows,
                                 {order.data(), tiles.data(), num_tiles.data()}, context);
    REQUIRE(cudaStreamSynchronize(stream.get()) == cudaSuccess);
    std::int32_t count = 0;
    cudaMemcpy(&count, num_tiles.data(), sizeof(count), cudaMemcpyDeviceToHost);
    REQUIRE((count >= 0 &&
             count <= nanovllm::cuda::max_expert_tiles(c.n * c.k, c.local.count, c.tile_rows)));
    std::vector<nanovllm::cuda::ExpertTile> list(static_cast<std::size_t>(count));
    std::vector<std::int32_t> sorted(pairs);
    cudaMemcpy(list.data(), tiles.data(), list.size() * sizeof(list[0]), cudaMemcpyDeviceToHost);
    cudaMemcpy(sorted.data(), order.data(), pairs * sizeof(ids[0]), cudaMemcpyDeviceToHost);
    std::vector<int> seen(pairs, 0);
    std::int32_t next = 0;
    std::size_t short_tiles = 0, here = 0;
    for (const nanovllm::cuda::ExpertTile& tile : list) {
      REQUIRE(tile.first == next);
      REQUIRE((tile.count > 0 && tile.count <= c.tile_rows));
      short_tiles += tile.count < c.tile_rows ? 1 : 0;
      for (std::int32_t i = 0; i < tile.count; ++i, ++next) {
        const auto pair = static_cast<std::size_t>(sorted[static_cast<std::size_t>(next)]);
        REQUIRE(pair < pairs);
        REQUIRE(ids[pair] == c.local.first + tile.expert);
        ++seen[pair];
      }
    }
    for (std::size_t p = 0; p < pairs; ++p) {
      REQUIRE(seen[p] == (c.local.contains(ids[p]) ? 1 : 0));
      here += static_cast<std::size_t>(seen[p]);
    }
    REQUIRE(here == static_cast<std::size_t>(next));
    REQUIRE(short_tiles <= static_cast<std::size_t>(c.local.count));
  }
}

TEMPLATE_TEST_CASE("expert_mlp is the formula of its contract on the GPU", "[ops][moe]", float,
                   bf16, nanovllm::half) {
  if (!test::has_gpu()) return;
  CudaBackend backend{BackendConfig{}};
  ops::expert_mlp_cases<TestType>(backend);
  ops::expert_mlp_shape_cases<TestType>(backend);
  // Tiles of each size, whole and not; more than one tile of an expert; extents that no block
  // divides.
  ops::expert_mlp_case<TestType>(backend, {8, 128, 64, 8, 4});
  ops::expert_mlp_case<TestType>(backend, {37, 136, 72, 5, 2});
  ops::expert_mlp_case<TestType>(backend, {100, 64, 40, 6, 2});
  ops::expert_mlp_case<TestType>(backend, {150, 72, 64, 3, 3});
  ops::expert_mlp_case<TestType>(backend, {90, 64, 64, 40, 2, true});
  // Some of the experts, in tiles of several sizes.
  ops::expert_mlp_case<TestType>(backend, {37, 136, 72, 5, 2, false, 2, 2});
  ops::expert_mlp_case<TestType>(backend, {150, 72, 64, 3, 3, false, 1, 2});
  ops::expert_mlp_case<TestType>(backend, {90, 64, 64, 40, 2, true, 0, 20});
  // More slots than are multiplied at a time, and than few tokens may have; more pairs than results
  // are kept of.
  ops::expert_mlp_case<TestType>(backend, {3, 64, 40, 20, 12});
  ops::expert_mlp_case<TestType>(backend, {2, 64, 32, 50, 40});
  ops::expert_mlp_case<TestType>(backend, {8200, 16, 8, 12, 8});
  // Enough rows for the kernels of an architecture: whole tiles and parts, extents that no block
  // divides, all to the same experts.
  ops::expert_mlp_case<TestType>(backend, {256, 128, 128, 2, 1});
  ops::expert_mlp_case<TestType>(backend, {150, 200, 136, 3, 2});
  ops::expert_mlp_case<TestType>(backend, {200, 72, 40, 4, 2});
  ops::expert_mlp_case<TestType>(backend, {300, 64, 264, 3, 1, true});
  ops::expert_mlp_case<TestType>(backend, {300, 128, 136, 4, 2, false, 1, 2});
  ops::expert_mlp_case<TestType>(backend, {300, 64, 264, 3, 1, true, 0, 2});
}

TEMPLATE_TEST_CASE("a row of expert_mlp depends on that row alone in batch-invariant mode",
                   "[ops][moe]", float, bf16) {
  if (!test::has_gpu() || !test::Gpu().is_hopper()) return;
  using T = TestType;
  BatchInvariantCudaBackend backend{BackendConfig{}};
  const ops::ExpertCase c{150, 200, 104, 9, 4};
  const ops::TestExperts<BatchInvariantCudaBackend, T> experts(backend, c.experts, c.in, c.width);
  auto x = ops::Array<BatchInvariantCudaBackend, T>::random(backend, c.n * c.in, 1);
  auto weights = ops::Array<BatchInvariantCudaBackend, float>::random(backend, c.n * c.k, 2);
  ops::Array<BatchInvariantCudaBackend, std::int32_t> ids(backend, ops::expert_ids(c));
  ops::Array<BatchInvariantCudaBackend, T> together(backend, c.n * c.in);
  const ExpertMlpArgs<T, BatchInvariantCudaBackend::Matrix<T>> all{.x = x.matrix(c.in),
                                                                   .ids = ids.matrix(c.k),
                                                                   .weights = weights.matrix(c.k),
                                                                   .experts = experts.list,
                                                                   .out = together.matrix(c.in)};
  backend.run(all);
  together.download();
  for (const std::int64_t step : {1, 3, 20, 64}) {
    ops::Array<BatchInvariantCudaBackend, T> apart(backend, c.n * c.in);
    for (std::int64_t i = 0; i < c.n; i += step) {
      const std::int64_t end = std::min(i + step, c.n);
      auto some = all;
      some.x = some.x.slice(i, end), some.ids = some.ids.slice(i, end);
      some.weights = some.weights.slice(i, end);
      some.out = apart.matrix(c.in).slice(i, end);
      backend.run(some);
    }
    apart.download();
    INFO("by " << step);
    CHECK(ops::same_bits(together.host, apart.host));
  }
}

TEST_CASE("expert_mlp can be captured once it has run", "[ops][moe]") {
  if (!test::has_gpu()) return;
  CudaBackend backend{BackendConfig{}};
  const ops::ExpertCase c{20, 64, 64, 8, 2};
  const ops::TestExperts<CudaBackend, bf16> experts(backend, c.experts, c.in, c.width);
  auto x = ops::Array<CudaBackend, bf16>::random(backend, c.n * c.in, 1);
  auto logits = ops::Array<CudaBackend, float>::random(backend, c.n * c.experts, 3);
  ops::Array<CudaBackend, float> weights(backend, c.n * c.k);
  ops::Array<CudaBackend, std::int32_t> ids(backend, c.n * c.k);
  ops::Array<CudaBackend, bf16> eager(backend, c.n * c.in), replayed(backend, c.n * c.in);
  const auto run = [&](ops::Array<CudaBackend, bf16>& out) {
    backend.run(RouteExpertsArgs{.logits = logits.matrix(c.experts),
                                 .ids = ids.matrix(c.k),
                                 .weights = weights.matrix(c.k),
                                 .normalise = true});
    backend.run(ExpertMlpArgs<bf16, CudaBackend::Matrix<bf16>>{.x = x.matrix(c.in),
                                                               .ids = ids.matrix(c.k),
                                                               .weights = weights.matrix(c.k),
                                                               .experts = experts.list,
                                                               .out = out.matrix(c.in)});
  };
  const ReserveExpertMlpArgs<bf16> sizes{
      {.max_rows = c.n, .experts_per_token = c.k, .in = c.in, .width = c.width}};
  backend.reserve(sizes);
  run(eager);
  const auto graph = backend.capture([&] { run(replayed); });
  // Other logits, as another step would have: the graph must route anew.
  for (const std::uint64_t seed : {3, 4, 5}) {
    logits.host = ops::Array<CudaBackend, float>::random(backend, c.n * c.experts, seed).host;
    logits.upload();
    run(eager);
    backend.replay(graph);
    eager.download(), replayed.download();
    CHECK(ops::same_bits(eager.host, replayed.host));
  }
}

namespace {

/// Experts of random elements of e4m3, with a scale for each row and 128 columns. `gate_up` and
/// `down` are elements times scales; the scales are bf16, so that nothing is rounded.
template <class B>
struct Fp8TestExperts {
  struct Elements {
    std::vector<float> host;
    std::int64_t cols;
    [[nodiscard]] double operator()(std::int64_t i, std::int64_t j) const {
      return host[static_cast<std::size_t>(i * cols + j)];
    }
  };
  std::vector<Elements> gate_up, down;
  std::vector<Expert<typename B::Fp8Matrix>> list;

  Fp8TestExperts(B& backend, const ops::ExpertCase& c)
      : list(make_experts<typename B::Fp8Matrix>(c.here > 0 ? c.here : c.experts, c.in, c.width)) {
    std::uint64_t seed = 300;
    for (std::int64_t e = 0; e < c.experts; ++e) {
      auto* const expert = c.has(e) ? &list[static_cast<std::size_t>(e - c.first)] : nullptr;
      gate_up.push_back(
          fill(backend, expert == nullptr ? nullptr : &expert->gate_up, 2 * c.width, c.in, seed++));
      down.push_back(
          fill(backend, expert == nullptr ? nullptr : &expert->down, c.in, c.width, seed++));
    }
  }

 private:
  static Elements fill(B& backend, typename B::Fp8Matrix* matrix, std::int64_t rows,
                       std::int64_t cols, std::uint64_t seed) {
    const std::int64_t groups = (cols + 127) / 128;
    const auto values = ops::Array<B, float>::random(backend, rows * cols, seed, -448, 448).host;
    std::vector<fp8_e4m3> bytes;
    for (std::size_t i = 0; i < values.size(); ++i)  // subnormals, and all else
      bytes.push_back(fp8_e4m3(std::ldexp(values[i], -static_cast<int>(i * 7 % 17))));
    const auto scales =
        ops::Array<B, bf16>::random(backend, rows * groups, seed, 0x1p-10, 0x1p-7).host;
    const auto scale = [&](std::int64_t i, std::int64_t j) {
      return static_cast<float>(scales[static_cast<std::size_t>(i * groups + j / 128)]);
    };
    Elements out{{}, cols};
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < cols; ++j) {
        out.host.push_back(static_cast<float>(bytes[static_cast<std::size_t>(i * cols + j)]) *
                           scale(i, j));
      }
    }
    if (matrix != nullptr) {
      REQUIRE(backend.set_rows(*matrix, 0,
                               Fp8Rows{.data = bytes.data(),
                                       .rows = rows,
                                       .columns = cols,
                                       .stride = cols,
                                       .group_columns = 128,
                                       .scale = scale}));
    }
    return out;
  }
};

}  // namespace

TEST_CASE("expert_mlp is the formula of its contract by 8-bit floats on the GPU", "[ops][moe]") {
  if (!test::has_gpu()) return;
  CudaBackend backend{BackendConfig{}};
  for (const ops::ExpertCase c :
       {ops::ExpertCase{16, 200, 264, 4, 2},
        // One token, whose columns are read at once and not; more slots than at a time; some of the
        // experts alone.
        ops::ExpertCase{1, 256, 128, 8, 4}, ops::ExpertCase{1, 136, 8, 3, 2},
        ops::ExpertCase{1, 2312, 904, 12, 10}, ops::ExpertCase{1, 264, 776, 9, 9},
        ops::ExpertCase{1, 264, 136, 6, 3, false, 2, 2},
        ops::ExpertCase{1, 64, 40, 6, 3, false, 5, 1}}) {
    INFO(c.n << " x " << c.in << " -> 2 x " << c.width << ", " << c.k << " of " << c.experts << ", "
             << c.here << " here, from " << c.first << " on");
    ops::expert_mlp_case_of<bf16>(backend, c, Fp8TestExperts<CudaBackend>(backend, c));
  }
}

namespace {

/// Rows that were rounded on the device.
struct RoundedRows {
  std::vector<fp8_e4m3> elements;
  std::vector<float> scales;
  std::int64_t stride, scale_stride;

  RoundedRows(CudaBackend& backend, const nanovllm::cuda::Fp8Activations& from, std::int64_t rows)
      : elements(static_cast<std::size_t>(rows * from.stride)),
        scales(static_cast<std::size_t>(from.stride / 128 * from.scale_stride)),
        stride(from.stride),
        scale_stride(from.scale_stride) {
    backend.download(from.data, elements.data(), elements.size());
    backend.download(from.scales, scales.data(), scales.size());
  }
  [[nodiscard]] double scale(std::int64_t i, std::int64_t j) const {
    return scales[static_cast<std::size_t>(j / 128 * scale_stride + i)];
  }
  [[nodiscard]] double operator()(std::int64_t i, std::int64_t j) const {
    return static_cast<float>(elements[static_cast<std::size_t>(i * stride + j)]) * scale(i, j);
  }
};

/// Row `row` of rounded x by row `of_weight` of W, and what it may be off: 32 products are added at
/// a time to what was added before, each cut off 2^-13 of the largest.
template <class Elements>
double rounded_product(const RoundedRows& x, std::int64_t row, const Elements& weight,
                       std::int64_t of_weight, std::int64_t k, double& slack) {
  double y = 0, largest = 0;
  slack = 0;
  for (std::int64_t j = 0; j < k; ++j) {
    if (j % 32 == 0) largest = 0;
    const double product = x(row, j) * weight(of_weight, j);
    y += product, largest = std::max(largest, std::abs(product));
    if (j % 32 == 31 || j + 1 == k) slack += largest * 0x1p-7;
  }
  return y;
}

/// Both products of rounded rows, each by the elements that it was given, and `expert_mlp` as the
/// sums of their results.
void rounded_experts_case(CudaBackend& backend, const ops::ExpertCase& c) {
  const Fp8TestExperts<CudaBackend> experts(backend, c);
  using Matrix = CudaBackend::Fp8Matrix;
  auto x = ops::Array<CudaBackend, bf16>::random(backend, c.n * c.in, 1);
  auto weights = ops::Array<CudaBackend, float>::random(backend, c.n * c.k, 2, 0.05, 1);
  ops::Array<CudaBackend, std::int32_t> ids(backend, ops::expert_ids(c));
  ops::Array<CudaBackend, bf16> y(backend, c.n * c.k * c.in), out(backend, c.n * c.in);
  const nanovllm::cuda::LocalExperts local{static_cast<std::int32_t>(c.first),
                                           static_cast<std::int32_t>(experts.list.size())};
  const std::int64_t pairs = c.n * c.k;
  nanovllm::cuda::ExpertWorkspace workspace;
  workspace.reserve({.max_rows = c.n, .experts_per_token = c.k, .in = c.in, .width = c.width}, 2);
  const auto rounded_x = workspace.rounded_x(c.n, c.in);
  const auto rounded_hidden = workspace.rounded_hidden(pairs, c.width);
  const std::span<const Expert<Matrix>> list(experts.list);
  const nanovllm::cuda::detail::ExpertProducts<bf16, fp8_e4m3> products{
      nanovllm::cuda::stacked_weights(list, &Expert<Matrix>::gate_up),
      nanovllm::cuda::stacked_weights(list, &Expert<Matrix>::down),
      x.matrix(c.in),
      ids.matrix(c.k),
      local,
      {workspace.hidden<bf16>(), {pairs, c.width}}};
  const nanovllm::cuda::Context& context = backend.context();
  const nanovllm::cuda::ExpertPlan plan = workspace.plan();
  nanovllm::cuda::quantise_rows(x.matrix(c.in), {}, rounded_x, context);
  const RoundedRows x_host(backend, rounded_x, c.n);
  const auto multiply = [&](auto tokens) {
    const std::int64_t tiles = nanovllm::cuda::max_expert_tiles(pairs, local.count, tokens);
    nanovllm::cuda::plan_experts(products.ids, local, tokens, plan, context);
    nanovllm::cuda::wide_expert_product<true, tokens>(
        nanovllm::cuda::RoundedExpertOperands{products.by_gate_up(plan), rounded_x, rounded_hidden},
        local.count, tiles, workspace.maps(), context);
    RoundedRows hidden(backend, rounded_hidden, pairs);
    nanovllm::cuda::wide_expert_product<false, tokens>(
        nanovllm::cuda::RoundedExpertOperands{products.by_down(y.matrix(c.in), plan),
                                              rounded_hidden},
        local.count, tiles, workspace.maps(), context);
    y.download();
    return hidden;
  };
  const auto clear = [&] {  // so that both begin with the same rows of experts that are elsewhere
    const std::vector<fp8_e4m3> zeros(static_cast<std::size_t>(pairs * rounded_hidden.stride));
    backend.upload(zeros.data(), rounded_hidden.data, zeros.size());
  };
  clear();
  const RoundedRows narrow =
      multiply(std::integral_constant<int, nanovllm::cuda::kNarrowExpertTokens>{});
  const std::vector<bf16> narrow_y = y.host;
  clear();
  const RoundedRows hidden =
      multiply(std::integral_constant<int, nanovllm::cuda::kWideExpertTokens>{});
  REQUIRE(ops::same_bits(narrow.elements, hidden.elements));
  for (std::int64_t p = 0; p < pairs; ++p) {
    if (!c.has(ids.host[static_cast<std::size_t>(p)])) continue;
    for (std::int64_t j = 0; j < c.width; j += 128)
      REQUIRE(narrow.scale(p, j) == hidden.scale(p, j));
  }
  REQUIRE(ops::same_bits(narrow_y, y.host));
  ops::Worst of_hidden, of_y;
  for (std::int64_t p = 0; p < pairs; p += c.step) {
    const auto e = static_cast<std::size_t>(ids.host[static_cast<std::size_t>(p)]);
    if (!c.has(static_cast<std::int64_t>(e))) continue;
    for (std::int64_t j = 0; j < c.width; ++j) {
      double off_gate = 0, off_up = 0;
      const double gate = rounded_product(x_host, p / c.k, experts.gate_up[e], j, c.in, off_gate);
      const double up =
          rounded_product(x_host, p / c.k, experts.gate_up[e], c.width + j, c.in, off_up);
      const double silu = gate / (1 + std::exp(-gate)), off_silu = 1.1 * off_gate + 1e-6;
      const double off = std::abs(up) * off_silu + std::abs(silu) * off_up + off_silu * off_up;
      // Half a step of e4m3: 2^-4 of an element, 2^-10 of the scale where it is small.
      of_hidden.add(hidden(p, j), silu * up,
                    1.07 * off + std::abs(silu * up) * 0x1.01p-4 + hidden.scale(p, j) * 0x1p-10);
    }
    for (std::int64_t j = c.width; j < hidden.stride; ++j)
      REQUIRE(hidden.elements[static_cast<std::size_t>(p * hidden.stride + j)].bits == 0);
    for (std::int64_t o = 0; o < c.in; ++o) {
      double off = 0;
      const double expected = rounded_product(hidden, p, experts.down[e], o, c.width, off);
      of_y.add(y[p * c.in + o], expected, off + 0x1.01p-9 * std::abs(expected) + 1e-30);
    }
  }
  REQUIRE(of_hidden.ratio() <= 1);
  REQUIRE(of_y.ratio() <= 1);
  const ExpertMlpArgs<bf16, Matrix> args{.x = x.matrix(c.in),
                                         .ids = ids.matrix(c.k),
                                         .weights = weights.matrix(c.k),
                                         .experts = experts.list,
                                         .out = out.matrix(c.in),
                                         .first_expert = c.first,
                                         .num_experts = c.experts};
  backend.run(args);
  out.download();
  std::vector<bf16> sums;
  for (std::int64_t i = 0; i < c.n * c.in; ++i) {
    float sum = 0;
    for (std::int64_t p = i / c.in * c.k; p < (i / c.in + 1) * c.k; ++p) {
      if (c.has(ids.host[static_cast<std::size_t>(p)]))
        sum = std::fma(weights.host[static_cast<std::size_t>(p)],
                       static_cast<float>(y[p * c.in + i % c.in]), sum);
    }
    sums.push_back(bf16(sum));
  }
  REQUIRE(ops::same_bits(out.host, sums));
  ops::expert_mlp_in_place_case<bf16>(backend, args, x, out);
}

}  // namespace

TEST_CASE("Hopper multiplies rounded rows of experts by 8-bit floats", "[ops][moe]") {
  if (!test::has_gpu() || !test::Gpu().is_hopper()) return;
  CudaBackend backend{BackendConfig{}};
  for (const ops::ExpertCase c :
       {// One panel of K and less, an odd number, an even one; whole tiles of 128 rows and parts;
        // extents that no block divides.
        ops::ExpertCase{256, 128, 128, 2, 1}, ops::ExpertCase{64, 64, 40, 1, 1},
        ops::ExpertCase{150, 200, 136, 3, 2}, ops::ExpertCase{200, 72, 40, 4, 2},
        ops::ExpertCase{150, 456, 328, 3, 2}, ops::ExpertCase{130, 776, 8, 1, 1},
        // All to the same experts; some of the experts alone.
        ops::ExpertCase{300, 64, 264, 3, 1, true},
        ops::ExpertCase{300, 128, 136, 4, 2, false, 1, 2},
        ops::ExpertCase{300, 64, 264, 3, 1, true, 0, 2},
        ops::ExpertCase{300, 64, 264, 3, 1, true, 1, 2},
        // More tiles than blocks, several times.
        ops::ExpertCase{12800, 520, 136, 8, 2, false, 0, 0, 101}}) {
    INFO(c.n << " x " << c.in << " -> 2 x " << c.width << ", " << c.k << " of " << c.experts << ", "
             << c.here << " here, from " << c.first << " on");
    rounded_experts_case(backend, c);
  }
}

TEST_CASE("expert_mlp multiplies by 8-bit floats on the GPU", "[ops][moe]") {
  if (!test::has_gpu()) return;
  CudaBackend backend{BackendConfig{}};
  CpuBackend cpu{BackendConfig{}};
  const bool is_hopper = test::Gpu().is_hopper();
  for (const ops::ExpertCase c :
       {ops::ExpertCase{1, 256, 128, 8, 4}, ops::ExpertCase{7, 256, 136, 5, 2},
        ops::ExpertCase{40, 200, 264, 4, 2}, ops::ExpertCase{150, 384, 128, 3, 3},
        ops::ExpertCase{90, 136, 72, 12, 1, true},
        // Columns of two ranks: ups and the last columns begin in the middle of a block.
        ops::ExpertCase{1, 320, 192, 4, 2}, ops::ExpertCase{16, 320, 192, 4, 2},
        ops::ExpertCase{150, 320, 192, 3, 3}, ops::ExpertCase{400, 904, 328, 4, 2}}) {
    INFO(c.n << " x " << c.in << " -> 2 x " << c.width << ", " << c.k << " of " << c.experts);
    auto on_gpu = make_experts<CudaBackend::Fp8Matrix>(c.experts, c.in, c.width);
    auto on_cpu = make_experts<CpuBackend::Fp8Matrix>(c.experts, c.in, c.width);
    std::uint64_t seed = 40;
    const auto fill = [&](CudaBackend::Fp8Matrix& gpu_matrix, CpuBackend::Fp8Matrix& cpu_matrix,
                          std::int64_t tensor_rows) {
      const std::int64_t rows = gpu_matrix.rows(), cols = gpu_matrix.cols();
      auto values = ops::Array<CudaBackend, bf16>::random(backend, rows * cols, seed++, -0.4, 0.4);
      for (std::int64_t i = 0; i < rows * cols; ++i) {  // so that blocks have different scales
        const auto power = static_cast<int>((i / cols / 64 + i % cols / 64) % 4);
        bf16& value = values.host[static_cast<std::size_t>(i)];
        value = bf16(std::ldexp(static_cast<float>(value), -power));
      }
      const MatrixView<const bf16> view(values.host.data(), {rows, cols});
      for (std::int64_t first = 0; first < rows; first += tensor_rows) {
        const auto tensor = view.slice(first, first + tensor_rows);
        backend.set_rows(gpu_matrix, first, tensor);
        cpu.set_rows(cpu_matrix, first, tensor);
      }
    };
    for (std::size_t e = 0; e < on_gpu.size(); ++e) {
      fill(on_gpu[e].gate_up, on_cpu[e].gate_up, c.width);  // gates, then ups
      fill(on_gpu[e].down, on_cpu[e].down, c.in);
    }
    auto x = ops::Array<CudaBackend, bf16>::random(backend, c.n * c.in, 1);
    auto weights = ops::Array<CudaBackend, float>::random(backend, c.n * c.k, 2, 0.05, 1);
    ops::Array<CudaBackend, std::int32_t> ids(backend, ops::expert_ids(c));
    ops::Array<CudaBackend, bf16> out(backend, c.n * c.in), alone(backend, c.n * c.in);
    const ExpertMlpArgs<bf16, CudaBackend::Fp8Matrix> args{.x = x.matrix(c.in),
                                                           .ids = ids.matrix(c.k),
                                                           .weights = weights.matrix(c.k),
                                                           .experts = on_gpu,
                                                           .out = out.matrix(c.in)};
    backend.run(args);
    out.download();
    // The CPU's experts in float32, so that it is far nearer to the exact result.
    ops::Array<CpuBackend, float> x_cpu(cpu, std::vector<float>(x.host.begin(), x.host.end()));
    ops::Array<CpuBackend, float> weights_cpu(cpu, weights.host);
    ops::Array<CpuBackend, std::int32_t> ids_cpu(cpu, ids.host);
    ops::Array<CpuBackend, float> expected(cpu, c.n * c.in);
    cpu.run(ExpertMlpArgs<float, CpuBackend::Fp8Matrix>{.x = x_cpu.matrix(c.in),
                                                        .ids = ids_cpu.matrix(c.k),
                                                        .weights = weights_cpu.matrix(c.k),
                                                        .experts = on_cpu,
                                                        .out = expected.matrix(c.in)});
    expected.download();
    double error = 0, size = 0;
    for (std::int64_t i = 0; i < c.n * c.in; ++i) {
      error += (out[i] - expected[i]) * (out[i] - expected[i]);
      size += expected[i] * expected[i];
    }
    // Three roundings to bfloat16, of h, y and the sum, each 2^-9 of an element at the most. On
    // Hopper rows from 17 on are rounded, and h: to e4m3, each 2^-4 at the most.
    const bool is_rounded = is_hopper && c.n > nanovllm::cuda::kMaxFp8FewRows;
    CHECK(std::sqrt(error / size) < (is_rounded ? 0.05 : 3 * 0x1p-9));
    // One row has another kernel. Rounded rows are the same in tiles of any size.
    if (c.n == 1) continue;
    const std::int64_t step = is_rounded ? nanovllm::cuda::kMaxFp8FewRows + 1 : 2;
    for (std::int64_t i = 0; i < c.n - step + 1; i += step) {
      const std::int64_t end = i + 2 * step > c.n ? c.n : i + step;
      auto some = args;
      some.x = some.x.slice(i, end), some.ids = some.ids.slice(i, end);
      some.weights = some.weights.slice(i, end), some.out = alone.matrix(c.in).slice(i, end);
      backend.run(some);
    }
    alone.download();
    CHECK(ops::same_bits(out.host, alone.host));
  }
}
