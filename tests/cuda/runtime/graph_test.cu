// `Graph::set_first`: the kernel that it finds, whatever stands beside it, and replays with other
// arguments for it.

#include "nanovllm/cuda/runtime/graph.cuh"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "cuda/spend_time.cuh"
#include "nanovllm/cuda/elementwise/step_boundary.cuh"

namespace nanovllm::test {
namespace {

/// Takes a millisecond and then writes `value`.
__global__ void write_late_kernel(int* to, int value) {
  cuda::grid_dependency_wait();
  spend_time(1'000'000);
  *to = value;
}

/// out[i] = inputs[i] + *late, by blocks of one thread.
__global__ void add_kernel(const int* inputs, const int* late, int* out) {
  cuda::grid_dependency_wait();
  out[blockIdx.x] = inputs[blockIdx.x] + *late;
}

constexpr std::int64_t kSize = 1000;
constexpr int kPadding = -7;

/// What a recording has beside its first kernel, on a stream that comes in and is joined again.
enum class Beside { nothing, event_wait, memset, kernel };

/// A recording as that of a step: `unpack_step`, and after it and what is beside it a sum of what
/// both left.
struct Recording {
  Gpu gpu, side, elsewhere;
  cuda::Event outside, forked, joined;
  GpuArray<int> late{1}, unpacked{kSize}, out{kSize};
  std::vector<GpuArray<int>> inputs;

  Recording() {
    for (const int size : {1, 600, 37, 1000}) {
      GpuArray<int> values(static_cast<std::size_t>(size));
      for (int i = 0; i < size; ++i)
        values.host[static_cast<std::size_t>(i)] = 10'000 * size + 3 * i;
      values.upload();
      inputs.push_back(std::move(values));
    }
    write_late(0);  // loads the kernels, as the next two do
    run(Beside::nothing, true);
    gpu.sync();
  }

  /// Inputs 0, which are those of the recording, are one array; others are two and take a larger grid.
  [[nodiscard]] UnpackStepArgs args(std::size_t i) {
    UnpackStepArgs out;
    const auto size = static_cast<std::int64_t>(inputs[i].size());
    const std::int64_t room = i == 0 ? kSize : kSize / 2, head = std::min(size, room);
    out.add_column(VectorView<const int>(inputs[i].data(), {head}),
                   VectorView<int>(unpacked.data(), {room}), kPadding);
    if (room < kSize) {
      out.add_column(VectorView<const int>(inputs[i].data() + head, {size - head}),
                     VectorView<int>(unpacked.data() + room, {kSize - room}), kPadding);
    }
    return out;
  }

  /// What the recorded event stands after.
  void write_late(int value) {
    cuda::launch(write_late_kernel, {.grid = 1, .block = 1}, elsewhere.context, late.data(), value);
    outside.record(elsewhere.stream.get());
  }

  /// `kernel_first` says in which order the kernel and what is beside it are recorded.
  void run(Beside beside, bool kernel_first) {
    cudaStream_t const stream = gpu.stream.get(), other = side.stream.get();
    if (beside != Beside::nothing) forked.record(stream);  // ahead of all
    if (kernel_first) cuda::unpack_step(args(0), gpu.context);
    if (beside != Beside::nothing) {
      forked.hold(other);
      run_beside(beside);
      joined.record(other);
    }
    if (!kernel_first) cuda::unpack_step(args(0), gpu.context);
    if (beside != Beside::nothing) joined.hold(stream);
    cuda::launch(add_kernel, {.grid = dim3(kSize), .block = 1, .overlap = false}, gpu.context,
                 unpacked.data(), late.data(), out.data());
  }

  void run_beside(Beside beside) {
    cudaStream_t const other = side.stream.get();
    switch (beside) {
      case Beside::nothing: return;
      case Beside::event_wait:
        return cuda::check_cuda(cudaStreamWaitEvent(other, outside.get(), cudaEventWaitExternal),
                                "cudaStreamWaitEvent");
      case Beside::memset:
        return cuda::check_cuda(cudaMemsetAsync(late.data(), 0, sizeof(int), other),
                                "cudaMemsetAsync");
      case Beside::kernel:
        return cuda::launch(write_late_kernel, {.grid = 1, .block = 1, .overlap = false},
                            side.context, late.data(), 5);
    }
  }

  [[nodiscard]] cuda::Graph capture(Beside beside, bool kernel_first) {
    return cuda::Graph::capture(gpu.stream.get(), [&] { run(beside, kernel_first); });
  }

  /// Things of the recording that come after nothing.
  [[nodiscard]] std::size_t count_roots(Beside beside, bool kernel_first) {
    cudaGraph_t graph = nullptr;
    std::size_t count = 0;
    cuda::check_cuda(cudaStreamBeginCapture(gpu.stream.get(), cudaStreamCaptureModeThreadLocal),
                     "cudaStreamBeginCapture");
    run(beside, kernel_first);
    cuda::check_cuda(cudaStreamEndCapture(gpu.stream.get(), &graph), "cudaStreamEndCapture");
    cuda::check_cuda(cudaGraphGetRootNodes(graph, nullptr, &count), "cudaGraphGetRootNodes");
    cuda::check_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
    return count;
  }

  /// Elements that are not those of a replay with inputs i, where `late` held `value`.
  int num_wrong(std::size_t i, int value) {
    gpu.sync();
    out.download();
    int wrong = out.guards_intact() && unpacked.guards_intact() ? 0 : 1;
    for (std::size_t j = 0; j < out.size(); ++j) {
      const int input = j < inputs[i].size() ? inputs[i].host[j] : kPadding;
      wrong += out.host[j] == input + value ? 0 : 1;
    }
    return wrong;
  }
};

}  // namespace

TEST_CASE("set_first finds the one kernel that a recording begins with") {
  if (!has_gpu()) return;
  Recording recording;
  for (const Beside beside : {Beside::nothing, Beside::event_wait, Beside::memset}) {
    for (const bool kernel_first : {true, false}) {
      CAPTURE(static_cast<int>(beside), kernel_first);
      REQUIRE(recording.count_roots(beside, kernel_first) == (beside == Beside::nothing ? 1 : 2));
      cuda::Graph recorded = recording.capture(beside, kernel_first);
      REQUIRE(recorded.begins_with_kernel());
      cuda::Graph graph;
      CHECK_FALSE(graph.begins_with_kernel());
      graph = cuda::Graph(std::move(recorded));
      REQUIRE(graph.begins_with_kernel());
      int late = 0;
      for (const std::size_t i : {1, 2, 0, 3, 2}) {
        CAPTURE(i);
        if (beside != Beside::memset) recording.write_late(++late);
        if (beside == Beside::nothing) recording.elsewhere.sync();
        const UnpackStepArgs args = recording.args(i);
        graph.set_first(cuda::unpack_grid(args), args);
        graph.launch(recording.gpu.stream.get());
        CHECK(recording.num_wrong(i, late) == 0);
      }
    }
  }
}

TEST_CASE("a recording whose first kernel is not one says so, and is replayed as it was recorded") {
  if (!has_gpu()) return;
  Recording recording;
  for (const bool kernel_first : {true, false}) {
    CAPTURE(kernel_first);
    const cuda::Graph graph = recording.capture(Beside::kernel, kernel_first);
    CHECK_FALSE(graph.begins_with_kernel());
    const UnpackStepArgs args = recording.args(1);
    CHECK_THROWS_AS(graph.set_first(cuda::unpack_grid(args), args), CudaError);
    graph.launch(recording.gpu.stream.get());
    CHECK(recording.num_wrong(0, 5) == 0);
  }
  const cuda::Graph none = cuda::Graph::capture(recording.gpu.stream.get(), [&] {
    poison(recording.out.data(), kSize, recording.gpu.context);
    cuda::unpack_step(recording.args(0), recording.gpu.context);
  });
  CHECK_FALSE(none.begins_with_kernel());
}

}  // namespace nanovllm::test
