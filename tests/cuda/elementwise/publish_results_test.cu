#include "nanovllm/cuda/elementwise/step_boundary.cuh"

#include <numeric>

#include "cuda/gpu_test.cuh"
#include "nanovllm/cuda/runtime/graph.cuh"

namespace nanovllm::test {

namespace {

constexpr std::int64_t kRows = 200, kTop = 20;

/// What a step has drawn, on the device, and page-locked memory that is full of -1.
struct Results {
  GpuArray<TokenId> tokens{kRows}, top_tokens{kRows * kTop};
  GpuArray<float> logprobs = GpuArray<float>::random(kRows, 1);
  GpuArray<float> top_logprobs = GpuArray<float>::random(kRows * kTop, 2);
  GpuArray<ResultsPlace> place{1};
  cuda::PinnedBuffer<TokenId> host_tokens{kRows}, host_top_tokens{kRows * kTop};
  cuda::PinnedBuffer<float> host_logprobs{kRows}, host_top_logprobs{kRows * kTop};

  Results() {
    std::iota(tokens.host.begin(), tokens.host.end(), 7);
    std::iota(top_tokens.host.begin(), top_tokens.host.end(), 1000);
    tokens.upload();
    top_tokens.upload();
    std::fill_n(host_tokens.data(), kRows, -1);
    std::fill_n(host_top_tokens.data(), kRows * kTop, -1);
    std::fill_n(host_logprobs.data(), kRows, -1.f);
    std::fill_n(host_top_logprobs.data(), kRows * kTop, -1.f);
  }
  void set_place(const ResultsPlace& to) {
    place.host[0] = to;
    place.upload();
  }
  PublishResultsArgs args() {
    return {.place = place.data(),
            .tokens = {tokens.data(), {kRows}},
            .logprobs = {logprobs.data(), {kRows}},
            .top_tokens = {top_tokens.data(), {kRows, kTop}},
            .top_logprobs = {top_logprobs.data(), {kRows, kTop}}};
  }
};

/// Whether `host` begins with the first `count` of `drawn`, and has -1 after them.
template <class T>
bool holds(const cuda::PinnedBuffer<T>& host, const GpuArray<T>& drawn, std::int64_t count) {
  for (std::size_t i = 0; i < host.size(); ++i) {
    const T expected = i < static_cast<std::size_t>(count) ? drawn.host[i] : T(-1);
    if (host.data()[i] != expected) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("publish_results writes what is wanted, where the place says when its turn comes",
          "[publish_results]") {
  if (!has_gpu()) return;
  Gpu gpu;
  Results r;
  r.set_place({});  // nothing is wanted
  cuda::publish_results(r.args(), gpu.context);
  const auto graph =
      cuda::Graph::capture(gpu.stream.get(), [&] { cuda::publish_results(r.args(), gpu.context); });
  gpu.sync();
  CHECK(holds(r.host_tokens, r.tokens, 0));

  r.set_place({.tokens = r.host_tokens.data(), .num_rows = 3});
  graph.launch(gpu.stream.get());
  gpu.sync();
  CHECK(holds(r.host_tokens, r.tokens, 3));
  CHECK(holds(r.host_logprobs, r.logprobs, 0));

  r.set_place({.tokens = r.host_tokens.data(),
               .logprobs = r.host_logprobs.data(),
               .top_tokens = r.host_top_tokens.data(),
               .top_logprobs = r.host_top_logprobs.data(),
               .num_rows = 199});
  graph.launch(gpu.stream.get());
  gpu.sync();
  CHECK(holds(r.host_tokens, r.tokens, 199));
  CHECK(holds(r.host_logprobs, r.logprobs, 199));
  CHECK(holds(r.host_top_tokens, r.top_tokens, 199 * kTop));
  CHECK(holds(r.host_top_logprobs, r.top_logprobs, 199 * kTop));
}

TEST_CASE("publish_results refuses operands that do not fit together", "[publish_results]") {
  if (!has_gpu()) return;
  Gpu gpu;
  Results r;
  PublishResultsArgs args = r.args();
  args.logprobs.extents[0] = 3;
  CHECK_THROWS_AS(cuda::publish_results(args, gpu.context), ShapeError);
  args = r.args();
  args.place = nullptr;
  CHECK_THROWS_AS(cuda::publish_results(args, gpu.context), ShapeError);
}

}  // namespace nanovllm::test
