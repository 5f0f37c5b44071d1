/// Times what lies between the graphs of two decode steps: boundary_bench [JSON].
///
/// A step as the engine has it is a copy of the packed inputs to the device, the kernel that unpacks
/// them, a graph, a copy of the tokens back, and an event; two of them may be under way. The graph
/// here is a chain of kernels that are busy for 2 us each, and one that writes the tokens. Each row
/// is a way to bring inputs in and tokens out:
///
/// - inputs: `copy`, on the stream; `second`, on a stream of its own, an event ahead; `mapped`, the
///   unpacking kernel reads the host's memory.
/// - unpack: `launched` ahead of the graph; `captured` in it, one graph for each of the two slots;
///   `updated`, captured with its arguments set anew for every launch.
/// - tokens: `copy`; `mapped`, the last kernel writes to the host's memory.
///
/// `step` is the time from step to step beyond that of the graph's kernels, `alone` from the call
/// to the tokens for one step at a time, likewise, and `host` what the calls of a step take.

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cuda_ops/timing.cuh"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/token_source.hpp"
#include "nanovllm/cuda/elementwise/step_boundary.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/runtime/stream.cuh"
#include "nanovllm/ops/sampler.hpp"
#include "nanovllm/ops/unpack_step.hpp"

namespace nanovllm {
namespace {

constexpr int kSteps = 300;   ///< of a run
constexpr int kRuns = 15;     ///< of a row
constexpr int kKernels = 40;  ///< of a graph
constexpr int kCycles = 3'600;
constexpr std::int64_t kColumns = 8;  ///< blocks of a sequence

__global__ void busy_kernel() {
  cuda::grid_dependency_launch();
  cuda::grid_dependency_wait();
  const std::int64_t begin = clock64();
  while (clock64() - begin < kCycles) {
  }
}

/// tokens[i] = positions[i] + 1.
__global__ void finish_kernel(const std::int32_t* positions, TokenId* tokens, int num_rows) {
  cuda::grid_dependency_wait();
  const auto i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < num_rows) tokens[i] = __ldcg(positions + i) + 1;
}

enum class Inputs { copy, second, mapped };
enum class Unpack { launched, captured, updated };
enum class Tokens { copy, mapped };

struct Way {
  const char* name;
  Inputs inputs;
  Unpack unpack;
  Tokens tokens;
};

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Steps of `rows` rows, done one way.
class Steps {
 public:
  Steps(const cuda::Context& context, const Way& way, std::int64_t rows)
      : context_(context),
        way_(way),
        rows_(rows),
        unpacked_(static_cast<std::size_t>(arena_bytes())),
        tokens_(static_cast<std::size_t>(rows)) {
    for (Slot& slot : slots_) {
      slot.inputs = cuda::PinnedBuffer<std::byte>(static_cast<std::size_t>(arena_bytes()));
      slot.arena = cuda::DeviceBuffer<std::byte>(static_cast<std::size_t>(arena_bytes()));
      slot.tokens = cuda::PinnedBuffer<TokenId>(static_cast<std::size_t>(rows));
      std::memset(slot.inputs.data(), 0, slot.inputs.size());
      capture(slot);
    }
  }
  ~Steps() {
    for (Slot& slot : slots_) cudaGraphExecDestroy(slot.exec), cudaGraphDestroy(slot.graph);
  }
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;

  [[nodiscard]] std::int64_t arena_bytes() const {
    return rows_ *
               static_cast<std::int64_t>(4 + 4 + 8 + 4 + 4 + sizeof(SamplingRow) + 4 * kColumns) +
           256;
  }

  /// Enqueues step `index`.
  void launch(int index) {
    Slot& slot = slots_[static_cast<std::size_t>(index % 2)];
    slot.expected = 1 + index;
    auto* const positions = reinterpret_cast<std::int32_t*>(slot.inputs.data());
    for (std::int64_t i = 0; i < rows_; ++i) positions[i] = index;
    const cudaStream_t stream = context_.stream;
    const std::size_t bytes = slot.inputs.size();
    if (way_.inputs == Inputs::copy) {
      cuda::check_cuda(cudaMemcpyAsync(slot.arena.data(), slot.inputs.data(), bytes,
                                       cudaMemcpyHostToDevice, stream),
                       "cudaMemcpyAsync");
    } else if (way_.inputs == Inputs::second) {
      cuda::check_cuda(cudaMemcpyAsync(slot.arena.data(), slot.inputs.data(), bytes,
                                       cudaMemcpyHostToDevice, uploads_.get()),
                       "cudaMemcpyAsync");
      slot.uploaded.record(uploads_.get());
      cuda::check_cuda(cudaStreamWaitEvent(stream, slot.uploaded.get(), 0), "cudaStreamWaitEvent");
    }
    if (way_.unpack == Unpack::launched) cuda::unpack_step(unpack_of(slot), context_);
    if (way_.unpack == Unpack::updated) update(slot);
    cuda::check_cuda(cudaGraphLaunch(slot.exec, stream), "cudaGraphLaunch");
    if (way_.tokens == Tokens::copy) {
      cuda::check_cuda(cudaMemcpyAsync(slot.tokens.data(), tokens_.data(), tokens_.size_bytes(),
                                       cudaMemcpyDeviceToHost, stream),
                       "cudaMemcpyAsync");
    }
    slot.done.record(stream);
  }

  /// Waits for step `index`. Throws Error when its tokens are others'.
  void wait(int index) {
    Slot& slot = slots_[static_cast<std::size_t>(index % 2)];
    slot.done.synchronize();
    for (std::int64_t i = 0; i < rows_; ++i) {
      check(slot.tokens.data()[i] == slot.expected, "boundary_bench: ", way_.name, ": token ", i,
            " of step ", index, " is ", slot.tokens.data()[i], ", not ", slot.expected);
    }
  }

  /// Enqueues the graph and nothing else.
  void replay() { cuda::check_cuda(cudaGraphLaunch(slots_[0].exec, context_.stream), "replay"); }

 private:
  struct Slot {
    cuda::PinnedBuffer<std::byte> inputs;
    cuda::DeviceBuffer<std::byte> arena;
    cuda::PinnedBuffer<TokenId> tokens;
    cuda::Event uploaded, done;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    cudaGraphNode_t unpack = nullptr;
    std::int32_t expected = 0;
  };

  /// The arrays of a decode step, more or less.
  [[nodiscard]] UnpackStepArgs unpack_of(Slot& slot) {
    UnpackStepArgs args{.previous = {tokens_.data(), {rows_}}};
    const std::byte* from = way_.inputs == Inputs::mapped ? slot.inputs.data() : slot.arena.data();
    std::byte* to = unpacked_.data();
    const auto add = [&]<class T>(const T& padding) {
      args.add_column(VectorView<const T>(reinterpret_cast<const T*>(from), {rows_}),
                      VectorView<T>(reinterpret_cast<T*>(to), {rows_}), padding);
      from += rows_ * static_cast<std::int64_t>(sizeof(T));
      to += rows_ * static_cast<std::int64_t>(sizeof(T));
    };
    add(std::int32_t{0});  // positions
    add(TokenId{0});
    add(std::int64_t{-1});
    add(std::int32_t{0});
    add(std::int32_t{0});
    for (std::int64_t column = 0; column < kColumns; ++column) add(std::int32_t{0});
    add(SamplingRow{});
    return args;
  }

  void capture(Slot& slot) {
    const cudaStream_t stream = context_.stream;
    cuda::unpack_step(unpack_of(slot), context_);  // loads it
    cuda::check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    cuda::check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                     "BeginCapture");
    if (way_.unpack != Unpack::launched) cuda::unpack_step(unpack_of(slot), context_);
    for (int i = 0; i < kKernels; ++i)
      cuda::launch(busy_kernel, {.grid = 132, .block = 128}, context_);
    cuda::launch(finish_kernel, {.grid = static_cast<unsigned>((rows_ + 127) / 128), .block = 128},
                 context_, reinterpret_cast<const std::int32_t*>(unpacked_.data()),
                 way_.tokens == Tokens::mapped ? slot.tokens.data() : tokens_.data(),
                 static_cast<int>(rows_));
    cuda::check_cuda(cudaStreamEndCapture(stream, &slot.graph), "cudaStreamEndCapture");
    cuda::check_cuda(cudaGraphInstantiate(&slot.exec, slot.graph, 0), "cudaGraphInstantiate");
    std::size_t one = 1;
    cuda::check_cuda(cudaGraphGetRootNodes(slot.graph, &slot.unpack, &one),
                     "cudaGraphGetRootNodes");
    cuda::check_cuda(cudaGraphUpload(slot.exec, stream), "cudaGraphUpload");
  }

  void update(Slot& slot) {
    UnpackStepArgs args = unpack_of(slot);
    cudaKernelNodeParams params{};
    cuda::check_cuda(cudaGraphKernelNodeGetParams(slot.unpack, &params), "GetParams");
    void* arguments[] = {&args};
    params.kernelParams = arguments;
    cuda::check_cuda(cudaGraphExecKernelNodeSetParams(slot.exec, slot.unpack, &params),
                     "SetParams");
  }

  const cuda::Context& context_;
  Way way_;
  std::int64_t rows_;
  cuda::Stream uploads_;
  std::array<Slot, 2> slots_;
  cuda::DeviceBuffer<std::byte> unpacked_;
  cuda::DeviceBuffer<TokenId> tokens_;
};

bench::Timing timing_of(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front(), times.back()};
}

/// Microseconds of the graph's kernels, from the difference between graphs launched back to back
/// and one alone is not to be had: the chain is timed by itself, in a graph of many.
double kernels_us(const cuda::Context& context) {
  const auto run = [&](int) { cuda::launch(busy_kernel, {.grid = 132, .block = 128}, context); };
  return kKernels * bench::time_in_graph(context, run, 40 * kKernels).median_us;
}

void measure(const cuda::Context& context, const Way& way, std::int64_t rows, double kernels,
             bench::Report& report) {
  Steps steps(context, way, rows);
  std::vector<double> step_times, alone_times, host_times;
  for (int run = -1; run < kRuns; ++run) {
    double host = 0;
    const double begin = seconds();
    for (int i = 0; i < kSteps; ++i) {
      if (i >= 2) steps.wait(i - 2);
      const double before = seconds();
      steps.launch(i);
      host += seconds() - before;
    }
    steps.wait(kSteps - 2);
    steps.wait(kSteps - 1);
    const double end = seconds();
    double alone = 0;
    for (int i = 0; i < 100; ++i) {
      const double before = seconds();
      steps.launch(i);
      steps.wait(i);
      alone += seconds() - before;
    }
    if (run < 0) continue;
    step_times.push_back(1e6 * (end - begin) / kSteps - kernels);
    alone_times.push_back(1e6 * alone / 100 - kernels);
    host_times.push_back(1e6 * host / kSteps);
  }
  report.add(concat("step, ", rows, " rows, ", way.name), timing_of(step_times), 0, 0);
  report.add(concat("alone, ", rows, " rows, ", way.name), timing_of(alone_times), 0, 0);
  report.add(concat("host, ", rows, " rows, ", way.name), timing_of(host_times), 0, 0);
}

void measure_replays(const cuda::Context& context, double kernels, bench::Report& report) {
  Steps steps(context, {"", Inputs::copy, Unpack::launched, Tokens::copy}, 1);
  std::vector<double> times;
  for (int run = -1; run < kRuns; ++run) {
    const double begin = seconds();
    for (int i = 0; i < kSteps; ++i) steps.replay();
    cuda::check_cuda(cudaStreamSynchronize(context.stream), "cudaStreamSynchronize");
    if (run >= 0) times.push_back(1e6 * (seconds() - begin) / kSteps - kernels);
  }
  report.add("step, graphs alone", timing_of(times), 0, 0);
}

int run(const char* json) {
  constexpr Way kWays[] = {
      {"copy, launched, copy", Inputs::copy, Unpack::launched, Tokens::copy},
      {"copy, launched, mapped", Inputs::copy, Unpack::launched, Tokens::mapped},
      {"second, launched, copy", Inputs::second, Unpack::launched, Tokens::copy},
      {"second, launched, mapped", Inputs::second, Unpack::launched, Tokens::mapped},
      {"mapped, launched, copy", Inputs::mapped, Unpack::launched, Tokens::copy},
      {"mapped, launched, mapped", Inputs::mapped, Unpack::launched, Tokens::mapped},
      {"copy, captured, copy", Inputs::copy, Unpack::captured, Tokens::copy},
      {"second, captured, mapped", Inputs::second, Unpack::captured, Tokens::mapped},
      {"second, updated, mapped", Inputs::second, Unpack::updated, Tokens::mapped},
      {"mapped, captured, copy", Inputs::mapped, Unpack::captured, Tokens::copy},
      {"mapped, captured, mapped", Inputs::mapped, Unpack::captured, Tokens::mapped},
      {"mapped, updated, mapped", Inputs::mapped, Unpack::updated, Tokens::mapped},
  };
  const cuda::Stream stream;
  const auto context = cuda::Context::on(stream.get());
  bench::Report report;
  const double kernels = kernels_us(context);
  std::printf("%d kernels take %.2f us\n", kKernels, kernels);
  measure_replays(context, kernels, report);
  for (const std::int64_t rows : {1, 256}) {
    for (const Way& way : kWays) measure(context, way, rows, kernels, report);
  }
  if (json != nullptr) report.write(json);
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace nanovllm

int main(int argc, char** argv) { return nanovllm::run(argc > 1 ? argv[1] : nullptr); }
