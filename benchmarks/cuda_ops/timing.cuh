#pragma once
/// Times kernels: replays of a graph over rotating inputs, between events.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/stream.cuh"

namespace nanovllm::bench {

/// Median and spread of the time of one call, in microseconds.
struct Timing {
  double median_us = 0;
  double min_us = 0;
  double max_us = 0;
};

/// Captures `calls` calls of `run(i)`, i = 0 … calls - 1, in a graph, replays it `replays` times
/// after two warm-ups, and divides by `calls`. `run` picks its inputs by i, so that together they
/// exceed the L2 cache.
inline Timing time_in_graph(const cuda::Context& context, const std::function<void(int)>& run,
                            int calls = 20, int replays = 30) {
  run(0);  // loads the module and sets attributes outside the capture
  cuda::check_cuda(cudaStreamSynchronize(context.stream), "cudaStreamSynchronize");
  cudaGraph_t graph;
  cuda::check_cuda(cudaStreamBeginCapture(context.stream, cudaStreamCaptureModeThreadLocal),
                   "cudaStreamBeginCapture");
  for (int i = 0; i < calls; ++i) run(i);
  cuda::check_cuda(cudaStreamEndCapture(context.stream, &graph), "cudaStreamEndCapture");
  cudaGraphExec_t exec;
  cuda::check_cuda(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  cuda::Event begin(true), end(true);
  std::vector<double> times;
  for (int i = -2; i < replays; ++i) {
    begin.record(context.stream);
    cuda::check_cuda(cudaGraphLaunch(exec, context.stream), "cudaGraphLaunch");
    end.record(context.stream);
    end.synchronize();
    if (i >= 0) times.push_back(1e3 * end.milliseconds_since(begin) / calls);
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front(), times.back()};
}

/// Collects rows for people (stdout) and for machines (`write`).
class Report {
 public:
  /// One measurement: `bytes` moved and `flop` done by one call (0: not meant).
  void add(const std::string& name, const Timing& timing, double bytes, double flop) {
    const double tbs = bytes / timing.median_us * 1e-6, tflops = flop / timing.median_us * 1e-6;
    std::printf("%-56s %10.2f us  [%.2f, %.2f]", name.c_str(), timing.median_us, timing.min_us,
                timing.max_us);
    if (bytes > 0) std::printf("  %6.3f TB/s", tbs);
    if (flop > 0) std::printf("  %7.1f TFLOP/s", tflops);
    std::printf("\n");
    char row[512];
    std::snprintf(row, sizeof row,
                  "{\"name\": \"%s\", \"median_us\": %.3f, \"min_us\": %.3f, \"max_us\": %.3f, "
                  "\"bytes\": %.0f, \"tb_per_s\": %.4f, \"flop\": %.0f, \"tflop_per_s\": %.2f}",
                  name.c_str(), timing.median_us, timing.min_us, timing.max_us, bytes, tbs, flop,
                  tflops);
    rows_.push_back(row);
  }

  /// Writes all rows to `path` as JSON, with the device's name.
  void write(const char* path) const {
    std::FILE* file = std::fopen(path, "w");
    if (file == nullptr) return;
    cudaDeviceProp device{};
    cuda::check_cuda(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
    std::fprintf(file, "{\"device\": \"%s\", \"rows\": [\n", device.name);
    for (std::size_t i = 0; i < rows_.size(); ++i)
      std::fprintf(file, "  %s%s\n", rows_[i].c_str(), i + 1 < rows_.size() ? "," : "");
    std::fprintf(file, "]}\n");
    std::fclose(file);
  }

 private:
  std::vector<std::string> rows_;
};

}  // namespace nanovllm::bench
