/// Times the ops that change logits and remember tokens at Qwen3's vocabulary, against the memory
/// that they must touch: whole sectors of 32 bytes where accesses are scattered.
/// Usage: logit_edits_bench [JSON path]

#include <cstdint>
#include <vector>

#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/sampling/logit_edits.cuh"
#include "nanovllm/cuda/sampling/logprobs.cuh"
#include "nanovllm/cuda/sampling/token_marks.cuh"
#include "timing.cuh"

namespace nanovllm::bench {
namespace {

constexpr std::int64_t kVocab = 151936;
constexpr std::int64_t kRows = 1024;      // of logits and of slots that calls go through
constexpr std::int64_t kDistinct = 1000;  // tokens of a sequence
constexpr double kCopyRate = 4.26e12;     // bytes per second

template <class T>
cuda::DeviceBuffer<T> to_device(const std::vector<T>& values) {
  cuda::DeviceBuffer<T> out(values.size());
  cuda::check_cuda(cudaMemcpy(out.data(), values.data(), out.size_bytes(), cudaMemcpyHostToDevice),
                   "cudaMemcpy");
  return out;
}

template <class T>
VectorView<T> view(cuda::DeviceBuffer<T>& buffer) {
  return {buffer.data(), {static_cast<std::int64_t>(buffer.size())}};
}

/// The logits, copies of them, and sequences with kDistinct tokens each, all far apart.
struct Memory {
  cuda::DeviceBuffer<float> logits{kRows * kVocab}, originals{kRows * kVocab};
  cuda::DeviceBuffer<std::uint32_t> words{kRows * kVocab};
  cuda::DeviceBuffer<TokenId> seen{kRows * 2 * kDistinct};
  cuda::DeviceBuffer<std::int32_t> num_seen{kRows};
  std::vector<std::vector<TokenId>> lists;

  Memory() {
    cuda::check_cuda(cudaMemset(logits.data(), 0, logits.size_bytes()), "cudaMemset");
    cuda::check_cuda(cudaMemset(words.data(), 0, words.size_bytes()), "cudaMemset");
    cuda::check_cuda(cudaMemset(num_seen.data(), 0, num_seen.size_bytes()), "cudaMemset");
    for (std::int64_t slot = 0; slot < kRows; ++slot) {
      lists.emplace_back();
      for (std::int64_t i = 0; i < kDistinct; ++i) {
        const auto word = philox4x32(
            7, {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(slot), 0, 0})[0];
        lists.back().push_back(static_cast<TokenId>(i * 151 + word % 151));
      }
    }
  }

  [[nodiscard]] TokenMarks marks() {
    return {{words.data(), {kRows, kVocab}}, {seen.data(), {kRows, 2 * kDistinct}}, view(num_seen)};
  }
};

/// Fills slots first … first + n - 1, as often as it is run.
struct Marking {
  cuda::DeviceBuffer<MarkHead> heads;
  cuda::DeviceBuffer<std::int32_t> starts;
  cuda::DeviceBuffer<TokenId> values;

  Marking(const Memory& memory, std::int64_t first, std::int64_t n) {
    std::vector<MarkHead> host_heads;
    std::vector<std::int32_t> host_starts{0};
    std::vector<TokenId> host_values;
    for (std::int64_t i = first; i < first + n; ++i) {
      const auto& list = memory.lists[static_cast<std::size_t>(i)];
      host_heads.push_back({static_cast<std::int32_t>(i), kDistinct / 2});
      host_values.insert(host_values.end(), list.begin(), list.end());
      host_starts.push_back(static_cast<std::int32_t>(host_values.size()));
    }
    heads = to_device(host_heads), starts = to_device(host_starts), values = to_device(host_values);
  }

  void run(Memory& memory, const cuda::Context& context) {
    cuda::mark_tokens({memory.marks(), view(heads), {view(starts), view(values)}}, context);
  }
};

void add(Report& report, const char* op, std::int64_t rows, const char* what,
         const bench::Timing& timing, double bytes) {
  char name[112];
  std::snprintf(name, sizeof name, "%s %3d %-24s floor %5.1f us: %3.0f %%", op,
                static_cast<int>(rows), what, bytes / kCopyRate * 1e6,
                100 * bytes / kCopyRate * 1e6 / timing.median_us);
  report.add(name, timing, bytes, 0);
}

struct EditCase {
  const char* name;
  bool has_penalties;
  int allowed_of_1000;  ///< tokens that a mask leaves; 1000: no mask
  bool keeps_originals = false;
  int num_biases = 0;
};

void measure_edits(const EditCase& which, std::int64_t rows, Memory& memory,
                   const cuda::Context& context, Report& report) {
  const int sets = static_cast<int>(kRows / rows);
  const bool has_mask = which.allowed_of_1000 < 1000;
  std::vector<EditRow> edits;
  for (std::int64_t i = 0; i < kRows; ++i) {
    edits.push_back({.repetition = which.has_penalties ? 1.1f : 1.f,
                     .frequency = which.has_penalties ? .1f : 0.f,
                     .presence = which.has_penalties ? .1f : 0.f,
                     .marks = static_cast<std::int32_t>(i),
                     .mask = has_mask ? static_cast<std::int32_t>(i % rows) : -1});
  }
  std::vector<std::uint32_t> masks(
      static_cast<std::size_t>(has_mask ? rows * mask_words(kVocab) : 0));
  double mask_bytes = 0;
  for (std::size_t i = 0; i < masks.size(); ++i) {
    for (std::uint32_t j = 0; j < 32; ++j) {
      const auto word = philox4x32(9, {static_cast<std::uint32_t>(i), j, 0, 0})[0];
      const bool allowed = static_cast<int>(word % 1000) < which.allowed_of_1000;
      masks[i] |= allowed ? 1u << j : 0u;
    }
    for (int j = 0; j < 32; j += 8) {  // a sector's; one that is copied is read anyway
      const std::uint32_t allowed = masks[i] >> j & 255;
      const bool reads = allowed != 0 && !which.keeps_originals;
      mask_bytes += allowed == 255 ? 0 : reads ? 64 : 32;
    }
  }
  std::vector<TokenBias> biases;
  std::vector<std::int32_t> starts{0};
  for (std::int64_t r = 0; r < rows; ++r) {
    for (int i = 0; i < which.num_biases; ++i) biases.push_back({i * 500 + 3, 1.f});
    starts.push_back(static_cast<std::int32_t>(biases.size()));
  }
  auto device_edits = to_device(edits);
  auto device_masks = to_device(masks);
  auto device_biases = to_device(biases);
  auto device_starts = to_device(starts);
  const auto run = [&](int i) {
    const std::int64_t first = i % sets * rows;
    EditLogitsArgs args;
    args.logits = {memory.logits.data() + first * kVocab, {rows, kVocab}};
    if (which.keeps_originals) args.originals = {memory.originals.data(), {rows, kVocab}};
    args.batch.rows = {device_edits.data() + first, {rows}};
    args.batch.biases = {view(device_starts), view(device_biases)};
    args.batch.masks = view(device_masks);
    args.marks = memory.marks();
    cuda::edit_logits(args, context);
  };
  const double n = static_cast<double>(rows);
  double bytes = n * which.num_biases * 72;
  if (which.has_penalties) bytes += n * kDistinct * 100;
  if (has_mask) bytes += n * kVocab / 8 + mask_bytes;
  if (which.keeps_originals) bytes += 8 * n * kVocab;
  add(report, "edit_logits", rows, which.name, bench::time_in_graph(context, run, 16, 10), bytes);
}

void measure_others(std::int64_t rows, Memory& memory, const cuda::Context& context,
                    Report& report) {
  const int sets = static_cast<int>(kRows / rows);
  const double n = static_cast<double>(rows);
  std::vector<Marking> markings;
  for (int i = 0; i < sets; ++i) markings.emplace_back(memory, i * rows, rows);
  add(report, "mark_tokens", rows, "1000 tokens for 1000",
      bench::time_in_graph(
          context,
          [&](int i) { markings[static_cast<std::size_t>(i % sets)].run(memory, context); }, 16,
          10),
      n * kDistinct * (36 + 72));

  std::vector<EditRow> slots;
  for (std::int32_t i = 0; i < kRows; ++i) slots.push_back({.marks = i});
  auto device_slots = to_device(slots);
  auto tokens = to_device(std::vector<TokenId>(static_cast<std::size_t>(rows), 77));
  const auto draw = [&](int i) {
    cuda::mark_drawn(
        {memory.marks(), {device_slots.data() + i % sets * rows, {rows}}, view(tokens)}, context);
  };
  add(report, "mark_drawn", rows, "", bench::time_in_graph(context, draw, 16, 10), n * 100);

  cuda::SamplerWorkspace workspace(rows, kVocab, context);
  auto starts = to_device(std::vector<std::int32_t>(static_cast<std::size_t>(rows + 1)));
  cuda::DeviceBuffer<float> logprobs(static_cast<std::size_t>(rows));
  const auto find_logprobs = [&](int i) {
    TokenLogprobsArgs args;
    args.logits =
        MatrixView<const float>(memory.logits.data() + i % sets * rows * kVocab, {rows, kVocab});
    args.tokens = view(tokens);
    args.logprobs = view(logprobs);
    args.chosen.starts = view(starts);
    cuda::token_logprobs(args, workspace, context);
  };
  add(report, "token_logprobs", rows, "", bench::time_in_graph(context, find_logprobs, 16, 10),
      4 * n * kVocab);
}

}  // namespace
}  // namespace nanovllm::bench

int main(int argc, char** argv) {
  using namespace nanovllm::bench;
  nanovllm::cuda::Stream stream;
  const nanovllm::cuda::Context context = nanovllm::cuda::Context::on(stream.get());
  Report report;
  Memory memory;
  Marking(memory, 0, kRows).run(memory, context);
  stream.synchronize();
  const std::vector<EditCase> cases{
      {"nothing asked", false, 1000},
      {"penalties", true, 1000},
      {"penalties, 300 biases", true, 1000, false, 300},
      {"mask, 1 in 1000 allowed", false, 1},
      {"mask, half allowed", false, 500},
      {"mask, 999 in 1000", false, 999},
      {"both, 1 in 1000 allowed", true, 1},
      {"both, half allowed", true, 500},
      {"originals", false, 1000, true},
      {"both and originals", true, 500, true},
  };
  for (std::int64_t rows : {64, 256}) {
    for (const EditCase& which : cases) measure_edits(which, rows, memory, context, report);
    measure_others(rows, memory, context, report);
  }
  if (argc > 1) report.write(argv[1]);
}
