// varlen_attention on CUDA against float64, against the kernel of the CUDA cores, and its laws.

#include "nanovllm/cuda/architectures.cuh"
#include "nanovllm/cuda/attention/varlen/varlen_attention.cuh"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "cuda/gpu_test.cuh"

namespace nanovllm::test {
namespace {

struct Chunk {
  int q_len, prefix;
};

struct Shape {
  int heads, kv_heads, head_dim, block_size;
  std::vector<Chunk> chunks;
};

/// A step in device memory. Keys and values of all positions are random and kept on the host; what
/// the cache holds beyond them, table entries that must not be read, and `out` are poison.
template <class T>
struct Step {
  explicit Step(Shape shape_in, std::uint64_t seed = 1)
      : shape(std::move(shape_in)),
        q_starts(shape.chunks.size() + 1),
        kv_lens(shape.chunks.size()),
        k_host(shape.chunks.size()),
        v_host(shape.chunks.size()) {
    const int d = shape.head_dim, kv_heads = shape.kv_heads, bs = shape.block_size;
    std::vector<int> blocks_of;
    for (std::size_t s = 0; s < shape.chunks.size(); ++s) {
      const Chunk c = shape.chunks[s];
      q_starts.host[s] = n;
      n += c.q_len;
      kv_lens.host[s] = c.prefix + c.q_len;
      blocks_of.push_back(ceil_div(c.prefix + c.q_len, bs));
      table_width = std::max(table_width, blocks_of.back() + 1);
      num_blocks += blocks_of.back();
    }
    q_starts.host.back() = n;
    width = (shape.heads + 2 * kv_heads) * d;
    qkv = GpuArray<T>::random(static_cast<std::size_t>(n) * width, seed);
    pool = GpuArray<T>(static_cast<std::size_t>(num_blocks) * 2 * kv_heads * bs * d);
    tables = GpuArray<BlockId>(shape.chunks.size() * table_width);
    std::fill(tables.host.begin(), tables.host.end(), 0x3fffffff);
    int given = 0;
    for (std::size_t s = 0; s < shape.chunks.size(); ++s) {
      // Every other block of the pool, then the rest: neighbours in the sequence are not in memory.
      for (int b = 0; b < blocks_of[s]; ++b, ++given) {
        const int half = (num_blocks + 1) / 2;
        tables.host[s * table_width + b] = given < half ? 2 * given : 2 * (given - half) + 1;
      }
      fill_keys(s, seed);
    }
    pool.upload();
    tables.upload();
    q_starts.upload();
    kv_lens.upload();
  }

  void fill_keys(std::size_t s, std::uint64_t seed) {
    const int d = shape.head_dim, kv_heads = shape.kv_heads, len = kv_lens.host[s];
    const auto random = [&](std::uint64_t stream) {
      std::vector<T> out(static_cast<std::size_t>(len) * kv_heads * d);
      for (std::size_t i = 0; i < out.size(); i += 4) {
        const auto words = philox4x32(
            seed + 1000 * (s + 1),
            {static_cast<std::uint32_t>(i / 4), 0, 0, static_cast<std::uint32_t>(stream)});
        for (std::size_t j = 0; j < 4; ++j) {  // head_dim is a multiple of 4
          out[i + j] = T(static_cast<float>(4 * to_unit_interval(words[j]) - 2));
        }
      }
      return out;
    };
    k_host[s] = random(1);
    v_host[s] = random(2);
    for (int p = 0; p < len; ++p) {
      for (int h = 0; h < kv_heads; ++h) {
        const std::size_t from = (static_cast<std::size_t>(p) * kv_heads + h) * d;
        const auto block =
            static_cast<std::size_t>(tables.host[s * table_width + p / shape.block_size]);
        const std::size_t tile = static_cast<std::size_t>(shape.block_size) * d;
        const std::size_t slot = static_cast<std::size_t>(p % shape.block_size) * d;
        std::copy_n(&k_host[s][from], d, &pool.host[(block * 2 * kv_heads + h) * tile + slot]);
        std::copy_n(&v_host[s][from], d,
                    &pool.host[(block * 2 * kv_heads + kv_heads + h) * tile + slot]);
        const int row = p - shape.chunks[s].prefix;
        if (row < 0) continue;
        T* const to = &qkv.host[static_cast<std::size_t>(q_starts.host[s] + row) * width];
        std::copy_n(&k_host[s][from], d, to + (shape.heads + h) * d);
        std::copy_n(&v_host[s][from], d, to + (shape.heads + kv_heads + h) * d);
      }
    }
    if (s + 1 == shape.chunks.size()) qkv.upload();
  }

  [[nodiscard]] VarlenAttentionArgs<T> args(GpuArray<T>& out) {
    const std::int64_t d = shape.head_dim, num_seqs = static_cast<std::int64_t>(kv_lens.size());
    const auto slice = [&](int first_head, int heads) {
      return TensorView<const T, 3>(qkv.data() + first_head * d, {n, heads, d}, {width, d, 1});
    };
    VarlenAttentionArgs<T> a;
    a.q = slice(0, shape.heads);
    a.k = slice(shape.heads, shape.kv_heads);
    a.v = slice(shape.heads + shape.kv_heads, shape.kv_heads);
    a.kv = {pool.data(), num_blocks, shape.block_size, shape.kv_heads, d};
    a.query_starts = {q_starts.data(), {num_seqs + 1}};
    a.kv_lens = {kv_lens.data(), {num_seqs}};
    a.block_tables = {tables.data(), {num_seqs, table_width}};
    a.has_prefix =
        std::any_of(shape.chunks.begin(), shape.chunks.end(), [](Chunk c) { return c.prefix > 0; });
    a.scale = 1.f / std::sqrt(static_cast<float>(d));
    a.out = {out.data(), {n, shape.heads, d}};
    return a;
  }

  Shape shape;
  std::int64_t n = 0, width = 0;
  int table_width = 1, num_blocks = 0;
  GpuArray<std::int32_t> q_starts, kv_lens;
  std::vector<std::vector<T>> k_host, v_host;  ///< [kv_len][kv_heads][head_dim]
  GpuArray<T> qkv{0}, pool{0};
  GpuArray<BlockId> tables{0};
};

template <class T>
using Op = std::function<void(const VarlenAttentionArgs<T>&, cuda::VarlenWorkspace&,
                              const cuda::Context&)>;

template <class T>
const Op<T> kDispatch = [](const auto& args, auto& workspace, const auto& context) {
  cuda::varlen_attention<cuda::DeviceArchitectures>(args, workspace, context);
};

/// The kernel that the dispatcher takes on older devices, on whichever this is.
template <class T>
const Op<T> kMma = [](const auto& args, auto& workspace, const auto& context) {
  if constexpr (cuda::MmaElement<T>) {
    cuda::varlen_attention_mma(args, workspace.schedule(), context);
  }
};

/// Plans, runs, and returns `out` on the host; guards are checked.
template <class T>
std::vector<T> run(Step<T>& step, const Op<T>& op = kDispatch<T>, int source = -1) {
  Gpu gpu;
  GpuArray<T> out(static_cast<std::size_t>(step.n * step.shape.heads * step.shape.head_dim));
  cuda::VarlenWorkspace workspace(static_cast<std::int64_t>(step.shape.chunks.size()), step.n,
                                  gpu.context);
  VarlenAttentionArgs<T> args = step.args(out);
  if (source >= 0) args.has_prefix = source == 1;
  cuda::plan_varlen(args.query_starts, args.kv_lens, step.n, workspace, gpu.context);
  op(args, workspace, gpu.context);
  gpu.sync();
  out.download();
  CHECK(out.guards_intact());
  return out.host;
}

/// Checks one output row of one head against float64. The bound, with u the roundoff of T and ε
/// that of float: u |o| for the last rounding, (u + 2δ + 2⁻²¹) Σ p|v| for the rounding of the
/// weights, the error δ = 4ε √d scale max Σ |q||k| of a score and that of exp2.
template <class T>
void check_row(const Step<T>& step, const std::vector<T>& out, std::size_t s, int row, int head) {
  const Shape& shape = step.shape;
  const int d = shape.head_dim, kv_head = head / (shape.heads / shape.kv_heads);
  const int visible = shape.chunks[s].prefix + row + 1;
  const std::int64_t q_row = step.q_starts.host[s] + row;
  const T* const q = &step.qkv.host[static_cast<std::size_t>(q_row * step.width + head * d)];
  const auto at = [&](int p) {
    return (static_cast<std::size_t>(p) * shape.kv_heads + kv_head) * d;
  };
  const double scale = 1.f / std::sqrt(static_cast<float>(d));
  std::vector<double> p(static_cast<std::size_t>(visible));
  double max = -INFINITY, max_abs = 0, sum = 0;
  for (int j = 0; j < visible; ++j) {
    double dot = 0, abs = 0;
    for (int i = 0; i < d; ++i) {
      const double x = double(float(q[i])) * float(step.k_host[s][at(j) + i]);
      dot += x;
      abs += std::fabs(x);
    }
    p[j] = dot * scale;
    max = std::max(max, p[j]);
    max_abs = std::max(max_abs, abs * scale);
  }
  for (double& x : p) sum += x = std::exp(x - max);
  const double u = kUnit<T>, delta = 4 * 0x1p-24 * std::sqrt(double(d)) * max_abs;
  const T* const got = &out[static_cast<std::size_t>((q_row * shape.heads + head) * d)];
  std::vector<double> sums(static_cast<std::size_t>(d)), abs_sums(static_cast<std::size_t>(d));
  for (int j = 0; j < visible; ++j) {
    for (int i = 0; i < d; ++i) {
      const double v = float(step.v_host[s][at(j) + i]);
      sums[i] += p[j] * v;
      abs_sums[i] += p[j] * std::fabs(v);
    }
  }
  for (int i = 0; i < d; ++i) {
    const double want = sums[i] / sum, abs = abs_sums[i] / sum;
    const double bound = 1.5 * (u * std::fabs(want) + (u + 2 * delta + 0x1p-21) * abs);
    const double error = std::fabs(float(got[i]) - want);
    if (error <= bound) continue;  // NaN is not
    FAIL("sequence " << s << " (q_len " << shape.chunks[s].q_len << ", prefix "
                     << shape.chunks[s].prefix << ") row " << row << " head " << head << " column "
                     << i << ": " << float(got[i]) << " instead of " << want << ", bound "
                     << bound);
  }
}

/// Checks rows at the edges of tiles and some between, one or two heads each.
template <class T>
void check_against_float64(const Step<T>& step, const std::vector<T>& out) {
  for (std::size_t s = 0; s < step.shape.chunks.size(); ++s) {
    const int q_len = step.shape.chunks[s].q_len;
    const int stride = q_len <= 130 ? 7 : 211;
    for (int row = 0; row < q_len; ++row) {
      const int in_tile = row % 64;
      const bool edge = in_tile == 0 || in_tile == 63 || row == q_len - 1;
      if (!edge && row % stride != 3) continue;
      check_row(step, out, s, row, (row + 1) % step.shape.heads);
      if (edge) check_row(step, out, s, row, step.shape.heads - 1);
    }
  }
}

/// Every element against the kernel of the CUDA cores, which sums in another order: twice what each
/// may be off, |v| ≤ 2.
template <class T>
void check_against_simt(Step<T>& step, const std::vector<T>& out) {
  const std::vector<T> want = run<T>(step, [](const auto& args, auto&, const auto& context) {
    cuda::simt_varlen_attention(args, context);
  });
  std::size_t wrong = 0;
  double worst = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double error = std::fabs(double(float(out[i])) - float(want[i]));
    if (!(error <= 2 * 1.5 * kUnit<T> * (std::fabs(float(want[i])) + 2))) ++wrong;
    worst = std::max(worst, error);
  }
  INFO("largest difference " << worst);
  CHECK(wrong == 0);
}

template <class T>
bool equal_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

const std::vector<int> kLengths = {1, 2, 63, 64, 65, 127, 128, 129, 1000};
const std::vector<int> kPrefixes = {0, 1, 15, 16, 17, 255, 4096};

/// All lengths without prefix, and an empty chunk.
std::vector<Chunk> whole_prompts() {
  std::vector<Chunk> out;
  for (const int q_len : kLengths) out.push_back({q_len, 0});
  out.insert(out.begin() + 3, {0, 0});
  return out;
}

/// All lengths with every prefix; the long ones together once only.
std::vector<Chunk> chunks_with_prefix() {
  std::vector<Chunk> out;
  for (const int q_len : kLengths) {
    for (const int prefix : kPrefixes) {
      if (q_len < 128 || prefix < 4096 || q_len == 129) out.push_back({q_len, prefix});
    }
  }
  return out;
}

/// What the dispatcher takes, and the tensor cores' kernel for older devices.
template <class T>
void check_shape_everywhere(const Shape& shape) {
  Step<T> step(shape);
  for (const bool mma : {false, true}) {
    if (mma && (!cuda::MmaElement<T> || shape.head_dim % 8 != 0)) continue;
    INFO("heads " << shape.heads << "/" << shape.kv_heads << ", head_dim " << shape.head_dim
                  << ", block_size " << shape.block_size << (mma ? ", mma" : ""));
    const std::vector<T> out = run(step, mma ? kMma<T> : kDispatch<T>);
    check_against_float64(step, out);
    check_against_simt(step, out);
  }
}

}  // namespace

TEST_CASE("varlen_attention of whole prompts, from this step's keys and values") {
  if (!has_gpu()) return;
  for (const int group : {1, 2, 4, 5, 8}) {
    check_shape_everywhere<bf16>({2 * group, 2, 128, 64, whole_prompts()});
  }
  check_shape_everywhere<half>({4, 2, 128, 64, whole_prompts()});
  check_shape_everywhere<bf16>({4, 2, 64, 64, whole_prompts()});
}

TEST_CASE("varlen_attention of chunks with a prefix, from the paged cache") {
  if (!has_gpu()) return;
  for (const int block_size : {8, 16, 32, 64, 128, 256, 384}) {
    check_shape_everywhere<bf16>({2, 1, 128, block_size, chunks_with_prefix()});
  }
  for (const int group : {1, 4, 5, 8}) {
    check_shape_everywhere<bf16>({2 * group, 2, 128, 64, {{1000, 300}, {129, 4096}, {5, 77}}});
  }
  check_shape_everywhere<half>({4, 2, 128, 16, chunks_with_prefix()});
  check_shape_everywhere<half>({4, 2, 64, 256, chunks_with_prefix()});
}

TEST_CASE("varlen_attention of shapes that take the slower ways") {
  if (!has_gpu()) return;
  const std::vector<Chunk> chunks = {{1, 0}, {65, 17}, {130, 1}, {64, 300}};
  check_shape_everywhere<float>({4, 2, 128, 16, chunks});
  check_shape_everywhere<bf16>({4, 2, 128, 1, chunks});
  check_shape_everywhere<bf16>({4, 2, 128, 48, chunks});
  for (const int head_dim : {8, 40, 80, 96, 192, 256}) {
    check_shape_everywhere<bf16>({6, 2, head_dim, 16, chunks});
  }
  check_shape_everywhere<half>({3, 1, 20, 5, chunks});
}

TEST_CASE("varlen_attention: a row's bits depend on its query and keys alone") {
  if (!has_gpu()) return;
  const Shape shape{4, 2, 128, 64, {{1000, 0}, {300, 0}, {129, 0}}};
  Step<bf16> step(shape);
  const std::vector<bf16> contiguous = run(step, kDispatch<bf16>, 0);
  CHECK(equal_bits(contiguous, run(step, kDispatch<bf16>, 1)));
  for (int i = 0; i < 50; ++i) REQUIRE(equal_bits(contiguous, run(step, kDispatch<bf16>, i % 2)));
  const std::vector<bf16> mma = run(step, kMma<bf16>);
  for (int i = 0; i < 20; ++i) REQUIRE(equal_bits(mma, run(step, kMma<bf16>)));

  // The first sequence in two chunks, alone: the cache keeps all, the queries are cut.
  for (const int cut : {1, 64, 100, 128, 700, 999}) {
    Gpu gpu;
    const auto row = static_cast<std::size_t>(shape.heads * shape.head_dim);
    GpuArray<bf16> out(1000 * row);
    cuda::VarlenWorkspace workspace(1, 1000, gpu.context);
    GpuArray<bf16> unused(static_cast<std::size_t>(step.n) * row);
    for (const auto& [begin, end] : {std::pair{0, cut}, std::pair{cut, 1000}}) {
      GpuArray<std::int32_t> starts(std::vector<std::int32_t>{0, end - begin});
      GpuArray<std::int32_t> lens(std::vector<std::int32_t>{end});
      VarlenAttentionArgs<bf16> args = step.args(unused);
      args.q = args.q.slice(begin, end);
      args.k = args.k.slice(begin, end);
      args.v = args.v.slice(begin, end);
      args.out = {out.data() + begin * row, {end - begin, shape.heads, shape.head_dim}};
      args.query_starts = {starts.data(), {2}};
      args.kv_lens = {lens.data(), {1}};
      args.block_tables = args.block_tables.slice(0, 1);
      args.has_prefix = true;
      cuda::plan_varlen(args.query_starts, args.kv_lens, end - begin, workspace, gpu.context);
      cuda::varlen_attention<cuda::DeviceArchitectures>(args, workspace, gpu.context);
      gpu.sync();
    }
    out.download();
    CHECK(equal_bits(out.host, {contiguous.begin(), contiguous.begin() + 1000 * row}));
  }
}

TEST_CASE("varlen_attention: each sequence in company has the bits that it has alone") {
  if (!has_gpu()) return;
  const auto check_equal = [](const auto& shape, auto element) {
    using T = decltype(element);
    CAPTURE(shape.head_dim, shape.block_size);
    Step<T> step(shape);
    const std::vector<T> together = run(step);
    const auto row = static_cast<std::size_t>(shape.heads * shape.head_dim);
    for (std::size_t s = 0; s < shape.chunks.size(); ++s) {
      Gpu gpu;
      const std::int64_t begin = step.q_starts.host[s], end = step.q_starts.host[s + 1];
      GpuArray<T> all(static_cast<std::size_t>(step.n) * row);
      GpuArray<std::int32_t> starts(
          std::vector<std::int32_t>{0, static_cast<std::int32_t>(end - begin)});
      cuda::VarlenWorkspace workspace(1, end - begin, gpu.context);
      VarlenAttentionArgs<T> args = step.args(all);
      args.q = args.q.slice(begin, end);
      args.k = args.k.slice(begin, end);
      args.v = args.v.slice(begin, end);
      args.out = args.out.slice(begin, end);
      args.query_starts = {starts.data(), {2}};
      const auto at = static_cast<std::int64_t>(s);
      args.kv_lens = args.kv_lens.slice(at, at + 1);
      args.block_tables = args.block_tables.slice(at, at + 1);
      args.has_prefix = shape.chunks[s].prefix > 0;
      cuda::plan_varlen(args.query_starts, args.kv_lens, end - begin, workspace, gpu.context);
      cuda::varlen_attention<cuda::DeviceArchitectures>(args, workspace, gpu.context);
      gpu.sync();
      all.download();
      INFO("sequence " << s);
      CHECK(std::memcmp(&all.host[static_cast<std::size_t>(begin) * row],
                        &together[static_cast<std::size_t>(begin) * row],
                        static_cast<std::size_t>(end - begin) * row * sizeof(T)) == 0);
      // The formula, too: equal bits could both be wrong.
      const int rows = shape.chunks[s].q_len;
      for (int r = 0; r < rows; r += 1 + rows / 7) check_row(step, together, s, r, 0);
    }
  };
  const std::vector<Chunk> chunks{{700, 0},    {1, 128},   {256, 128}, {300, 127}, {129, 129},
                                  {513, 1000}, {64, 4096}, {2, 1},     {1000, 384}};
  for (const int block_size : {16, 64, 256}) {
    check_equal(Shape{8, 4, 128, block_size, chunks}, bf16{});
    check_equal(Shape{4, 4, 64, block_size, chunks}, half{});
  }
}

TEST_CASE("varlen_attention: whole prompts beside continued ones do not read the cache") {
  if (!has_gpu()) return;
  Gpu gpu;
  if (!gpu.is_hopper()) return;
  // Where each sequence's keys are read shows when the other place holds something else.
  const Shape shape{4, 2, 128, 64, {{700, 0}, {300, 1000}, {129, 0}, {513, 100}, {1, 0}}};
  Step<bf16> step(shape);
  const std::vector<bf16> expected = run(step);
  for (std::size_t s = 0; s < shape.chunks.size(); ++s) {
    const auto [q_len, prefix] = shape.chunks[s];
    const int new_from = cuda::varlen_new_from(prefix, q_len);
    const int width = 2 * shape.kv_heads * shape.block_size * shape.head_dim;
    for (int p = 0; p < prefix + q_len; ++p) {
      // Tiles of 128 keys that begin after `new_from`; the rest of their first block is the cache's.
      if (new_from == cuda::kVarlenNoNewKeys || p < align_up(new_from, 128)) continue;
      const auto block = static_cast<std::size_t>(
          step.tables.host[s * static_cast<std::size_t>(step.table_width) + p / shape.block_size]);
      for (int h = 0; h < 2 * shape.kv_heads; ++h) {
        std::fill_n(
            &step.pool.host[block * static_cast<std::size_t>(width) +
                            static_cast<std::size_t>((h * shape.block_size + p % shape.block_size) *
                                                     shape.head_dim)],
            shape.head_dim, bf16(std::nanf("")));
      }
    }
  }
  step.pool.upload();
  CHECK(equal_bits(run(step), expected));
}

TEST_CASE("varlen_attention of many items a block, longest first") {
  if (!has_gpu()) return;
  std::vector<Chunk> chunks;
  for (int i = 0; i < 60; ++i) chunks.push_back({1 + i * 37 % 400, i % 3 * (i * 53 % 1500)});
  check_shape_everywhere<bf16>({8, 4, 128, 16, chunks});
}

TEST_CASE("varlen_attention of small shapes, short enough to run under a sanitizer") {
  if (!has_gpu()) return;
  check_shape_everywhere<bf16>({2, 1, 128, 16, {{70, 100}, {1, 0}, {129, 30}}});
  check_shape_everywhere<bf16>({2, 1, 128, 64, {{70, 0}, {1, 0}, {300, 0}}});
  check_shape_everywhere<half>({2, 2, 64, 128, {{5, 130}, {64, 3}}});
}

TEST_CASE("varlen_attention of nothing, and of operands that do not fit") {
  if (!has_gpu()) return;
  Step<bf16> empty({4, 2, 128, 16, {{0, 0}}});
  CHECK(run(empty).empty());
  Step<bf16> step({4, 2, 128, 16, {{10, 0}}});
  Gpu gpu;
  GpuArray<bf16> out(10 * 4 * 128);
  cuda::VarlenWorkspace workspace(1, 10, gpu.context);
  VarlenAttentionArgs<bf16> args = step.args(out);
  CHECK_THROWS_AS(cuda::plan_varlen(args.query_starts, args.kv_lens, 200, workspace, gpu.context),
                  ShapeError);
  args.kv.num_kv_heads = 3;
  CHECK_THROWS_AS(cuda::varlen_attention<cuda::DeviceArchitectures>(args, workspace, gpu.context),
                  ShapeError);
}

TEST_CASE("varlen_attention with heads known to the compiler changes no bit") {
  if (!has_gpu()) return;
  const auto check_heads = [&]<int kHeadDim, int kGroup>() {
    Step<bf16> step({4, 2, kHeadDim ? kHeadDim : 64, 16, {{130, 20}, {1, 0}, {64, 100}}});
    const std::vector<bf16> expected = run(step);
    const Op<bf16> fixed = [](const auto& any, auto& workspace, const auto& context) {
      using Args = VarlenAttentionArgs<bf16, bf16, HeadShape<kHeadDim, kGroup>>;
      Args args{any.q,
                any.k,
                any.v,
                any.kv,
                any.query_starts,
                any.kv_lens,
                any.block_tables,
                any.has_prefix,
                any.scale,
                any.out};
      cuda::varlen_attention<cuda::DeviceArchitectures>(args, workspace, context);
      args.kv.num_kv_heads = 1;
      args.k.extents[1] = args.v.extents[1] = 1;
      if (kGroup > 0)
        CHECK_THROWS_AS(cuda::varlen_attention<cuda::DeviceArchitectures>(args, workspace, context),
                        ShapeError);
    };
    CHECK(equal_bits(run(step, fixed), expected));
  };
  check_heads.operator()<128, 2>();
  check_heads.operator()<64, 0>();
  check_heads.operator()<0, 2>();
  check_heads.operator()<96, 2>();
}

TEST_CASE("varlen_attention describes a tensor to the copy engine once, not once a layer") {
  if (!has_gpu()) return;
  Gpu gpu;
  if (!gpu.is_hopper()) return;
  Step<bf16> step({4, 2, 128, 64, {{130, 20}, {64, 100}}});
  GpuArray<bf16> out(static_cast<std::size_t>(step.n) * 4 * 128);
  cuda::VarlenWorkspace workspace(2, step.n, gpu.context);
  const VarlenAttentionArgs<bf16> args = step.args(out);
  cuda::plan_varlen(args.query_starts, args.kv_lens, step.n, workspace, gpu.context);
  for (int layer = 0; layer < 3; ++layer)
    cuda::varlen_attention<cuda::DeviceArchitectures>(args, workspace, gpu.context);
  gpu.sync();
  CHECK(workspace.tensor_maps().num_encoded() == 4);  // q, the cache, new keys and values
}

}  // namespace nanovllm::test
