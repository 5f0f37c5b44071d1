// Whole decode layers of Qwen3-0.6B and 8B, 28 and 4 of them, in a graph: project_qkv, attention, o,
// the gated layer and down, through the backend's ops, as they are chosen one by one and then by
// timing layers.
// Arguments: JSON file (or -), rows ... @ contexts ... (1 2 4 8 16 @ 128 512 2048 if there are none).

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "cuda_ops/timing.cuh"
#include "nanovllm/cuda/backend.cuh"

namespace nanovllm::bench {
namespace {

using Matrix = cuda::DeviceMatrix<bf16>;

struct Shape {
  const char* name;
  std::int64_t hidden, width, heads, kv_heads;
  int layers;
  [[nodiscard]] std::int64_t q() const { return heads * kHeadDim; }
  [[nodiscard]] std::int64_t qkv() const { return (heads + 2 * kv_heads) * kHeadDim; }
  static constexpr std::int64_t kHeadDim = 128, kPage = 64;
};

struct Backend : CudaBackend {
  using CudaBackend::CudaBackend;
  /// After a step's first layer it is.
  void show_plan() { state_.plan_start.waited(); }
};

template <class T>
cuda::DeviceBuffer<T> on_device(const std::vector<T>& from) {
  cuda::DeviceBuffer<T> out(from.size());
  cuda::check_cuda(cudaMemcpy(out.data(), from.data(), out.size_bytes(), cudaMemcpyHostToDevice),
                   "cudaMemcpy");
  return out;
}

/// Sequences of equal length, each with pages of its own in random order.
struct Sequences {
  std::int64_t count, pages;  ///< pages of one
  cuda::DeviceBuffer<std::int32_t> lens, positions;
  cuda::DeviceBuffer<Slot> slots;
  cuda::DeviceBuffer<BlockId> tables;

  Sequences(std::int64_t n, std::int64_t context)
      : count(n), pages(ceil_div(context, Shape::kPage)) {
    std::vector<BlockId> all(static_cast<std::size_t>(n * pages));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<BlockId>(i);
    std::shuffle(all.begin(), all.end(), std::mt19937(5));
    std::vector<std::int32_t> of(static_cast<std::size_t>(n), static_cast<std::int32_t>(context)),
        last(static_cast<std::size_t>(n), static_cast<std::int32_t>(context - 1));
    std::vector<Slot> to;
    for (std::int64_t s = 0; s < n; ++s) {
      const auto page = static_cast<std::size_t>(s * pages + (context - 1) / Shape::kPage);
      to.push_back(Slot{all[page]} * Shape::kPage + (context - 1) % Shape::kPage);
    }
    lens = on_device(of), positions = on_device(last), slots = on_device(to);
    tables = on_device(all);
  }
};

template <class Heads>
struct Bench {
  static constexpr std::int64_t d = Shape::kHeadDim;
  const Shape& shape;
  Report& report;
  std::int64_t most_rows;
  bool by_layers = false;
  Backend backend{BackendConfig{}};
  const cuda::Context& context = backend.context();
  std::vector<Matrix> qkv, o, gate_up, down;
  cuda::DeviceBuffer<bf16> norm, x, normed, heads, both, act, out, cache;
  cuda::DeviceBuffer<float> cos_sin;

  static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

  Bench(const Shape& s, std::int64_t rows, std::int64_t most_keys, Report& report_in)
      : shape(s),
        report(report_in),
        most_rows(rows),
        norm(size(s.hidden)),
        x(size(rows * s.hidden)),
        normed(size(rows * s.hidden)),
        heads(size(rows * s.qkv())),
        both(size(rows * 2 * s.width)),
        act(size(rows * s.width)),
        out(size(rows * s.q())),
        cache(size(s.layers * rows * ceil_div(most_keys, Shape::kPage) * Shape::kPage * 2 *
                   s.kv_heads * d)),
        cos_sin(size(most_keys * d)) {
    for (int i = 0; i < s.layers; ++i) {
      qkv.emplace_back(s.qkv(), s.hidden), o.emplace_back(s.hidden, s.q());
      gate_up.emplace_back(2 * s.width, s.hidden), down.emplace_back(s.hidden, s.width);
      for (Matrix* matrix : {&qkv.back(), &o.back(), &gate_up.back(), &down.back()})
        cuda::detail::fill_noise(matrix->data(), matrix->rows() * matrix->cols(), context);
    }
    for (auto* buffer : {&norm, &x, &cache})
      cuda::detail::fill_noise(buffer->data(), std::int64_t(buffer->size()), context);
    cuda::detail::fill_noise(cos_sin.data(), std::int64_t(cos_sin.size()), context);
    backend.reserve({.limits = {.max_num_batched_tokens = rows,
                                .max_num_seqs = rows,
                                .max_model_len = most_keys,
                                .shares_prefixes = false},
                     .vocab_size = 1,
                     .num_heads = s.heads,
                     .num_kv_heads = s.kv_heads,
                     .head_dim = d});
    tune(false);
  }

  static MatrixView<const bf16> constant(const MatrixView<bf16>& view) {
    return {view.data, view.extents, view.strides};
  }

  /// Chooses op by op, or by timing whole layers too.
  void tune(bool whole_layers) {
    const auto all = [](const std::vector<Matrix>& from) {
      std::vector<const Matrix*> pointers;
      for (const Matrix& matrix : from) pointers.push_back(&matrix);
      return pointers;
    };
    using Role = ProjectionRole;
    const InputNorm<bf16> ahead{{norm.data(), {shape.hidden}}, 1e-6f}, none{};
    const Projections<bf16, Matrix, bf16, Heads> network{
        .list = {{Role::qkv, all(qkv), ahead, false, most_rows},
                 // Of another role layers are not known as such.
                 {whole_layers ? Role::output : Role::plain, all(o), none, true, most_rows},
                 {Role::gate_up, all(gate_up), ahead, false, most_rows},
                 {Role::down, all(down), none, true, most_rows}},
        .kv_heads = {shape.kv_heads, d},
        .max_seqs = most_rows};
    backend.tune(network);
    by_layers = whole_layers;
  }

  void run(std::int64_t m, std::int64_t keys) {
    const Sequences seqs(m, keys);
    const MatrixView<bf16> xs(x.data(), {m, shape.hidden}), ns(normed.data(), {m, shape.hidden});
    const MatrixView<bf16> hs(heads.data(), {m, shape.qkv()}), os(out.data(), {m, shape.q()});
    const MatrixView<bf16> bs(both.data(), {m, 2 * shape.width}), as(act.data(), {m, shape.width});
    const InputNorm<bf16> ahead{{norm.data(), {shape.hidden}}, 1e-6f};
    const VectorView<const std::int32_t> lens(seqs.lens.data(), {m});
    const auto qkv_args = [&](int i) {
      const auto at = static_cast<std::size_t>(i);
      const std::int64_t blocks = m * seqs.pages;
      return ProjectQkvArgs<bf16, Matrix>{
          .x = constant(xs),
          .norm = ahead,
          .weight = &qkv[at],
          .heads = {.q_norm = {norm.data(), {d}},
                    .k_norm = {norm.data() + d, {d}},
                    .positions = {seqs.positions.data(), {m}},
                    .cos_sin = {cos_sin.data(), {std::int64_t(cos_sin.size()) / d, d}},
                    .slots = {seqs.slots.data(), {m}}},
          .kv = {cache.data() + i * blocks * Shape::kPage * 2 * shape.kv_heads * d, blocks,
                 Shape::kPage, shape.kv_heads, d},
          .qkv = hs,
          .normed = ns};
    };
    const auto layer = [&](int i) {
      const auto at = static_cast<std::size_t>(i);
      const auto args = qkv_args(i);
      backend.run(args);
      backend.run(DecodeAttentionArgs<bf16, bf16, Heads>{
          .q = split_qkv(hs, shape.heads, shape.kv_heads, d).q,
          .kv = args.kv,
          .kv_lens = lens,
          .block_tables = {seqs.tables.data(), {m, seqs.pages}},
          .scale = 1.f / std::sqrt(static_cast<float>(d)),
          .out = {out.data(), {m, shape.heads, d}}});
      backend.run(LinearArgs<bf16, Matrix>{
          .x = constant(os), .weight = &o[at], .y = xs, .accumulate = true});
      backend.run(GatedLinearArgs<bf16, Matrix>{.x = constant(xs),
                                                .norm = ahead,
                                                .weight = &gate_up[at],
                                                .out = as,
                                                .normed = ns,
                                                .gate_up = bs});
      backend.run(LinearArgs<bf16, Matrix>{
          .x = constant(as), .weight = &down[at], .y = xs, .accumulate = true});
    };
    const double bytes = 2. * double(qkv[0].size_bytes() / 2 + o[0].size_bytes() / 2 +
                                     gate_up[0].size_bytes() / 2 + down[0].size_bytes() / 2) +
                         4. * double(m * keys * shape.kv_heads * d);
    const std::string suffix =
        std::string(" ") + shape.name + " M=" + std::to_string(m) + " @ " + std::to_string(keys);
    backend.run(PlanAttentionArgs{.num_decodes = m,
                                  .num_tokens = m,
                                  .query_starts = {},
                                  .kv_lens = lens,
                                  .num_heads = shape.heads,
                                  .num_kv_heads = shape.kv_heads,
                                  .head_dim = d});
    backend.show_plan();
    report.add("layer, " + std::string(by_layers ? "by layers" : "op by op") + suffix,
               time_in_graph(context, layer, shape.layers, 20), bytes, 0);
  }
};

constexpr Shape kSmall{"0.6B", 1024, 3072, 16, 8, 28}, kLarge{"8B", 4096, 12288, 32, 8, 4};

}  // namespace
}  // namespace nanovllm::bench

int main(int argc, char** argv) {
  using namespace nanovllm::bench;
  std::vector<std::int64_t> rows, contexts;
  bool behind = false;
  for (int i = 2; i < argc; ++i) {
    if (std::string(argv[i]) == "@")
      behind = true;
    else
      (behind ? contexts : rows).push_back(std::atoi(argv[i]));
  }
  if (rows.empty()) rows = {1, 2, 4, 8, 16};
  if (contexts.empty()) contexts = {128, 512, 2048};
  const std::int64_t most_rows = *std::max_element(rows.begin(), rows.end());
  const std::int64_t most_keys = *std::max_element(contexts.begin(), contexts.end());
  Report report;
  const auto run = [&](const auto& self, auto& bench) -> void {
    for (const std::int64_t m : rows) {
      for (const std::int64_t keys : contexts) bench.run(m, keys);
    }
    if (bench.by_layers) return;
    bench.tune(true);
    self(self, bench);
  };
  {
    Bench<nanovllm::HeadShape<128, 2>> bench(kSmall, most_rows, most_keys, report);
    run(run, bench);
  }
  {
    Bench<nanovllm::HeadShape<128, 4>> bench(kLarge, most_rows, most_keys, report);
    run(run, bench);
  }
  if (argc > 1 && std::string(argv[1]) != "-") report.write(argv[1]);
}
