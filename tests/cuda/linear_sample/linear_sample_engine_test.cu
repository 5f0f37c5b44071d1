// An engine whose plain steps draw without writing their logits.

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "engine/models.hpp"

namespace nanovllm::test {
namespace {

/// A backend that draws by `linear_sample`'s kernel for any number of rows, whatever takes longer; or
/// by the kernel that stores the same logits, and the sampler. Nothing else is chosen by time: engines
/// that choose differently may differ in a rounding, and then in a token.
template <bool kAtOnce>
class ForcedBackend : public CudaBackend {
 public:
  using CudaBackend::CudaBackend;
  using CudaBackend::run;

  template <class Out, class T>
  void tune_linear(std::span<const cuda::DeviceMatrix<T>* const>, bool, std::int64_t) {}
  template <class T>
  void tune_project_qkv(std::span<const cuda::DeviceMatrix<T>* const>, const InputNorm<T>&,
                        const KvHeads&, std::int64_t) {}
  template <class T>
  void tune_gated_linear(std::span<const cuda::DeviceMatrix<T>* const>, const InputNorm<T>&,
                         std::int64_t) {}
  template <class Heads, class T>
  void tune_layers(const DenseLayers<cuda::DeviceMatrix<T>, T>&, std::int64_t, std::int64_t) {}

  template <class T>
  void tune_linear_sample(const cuda::DeviceMatrix<T>& weight, std::int64_t max_rows) {
    if constexpr (std::is_same_v<T, bf16>) {
      if (!context().is_hopper()) return;
      for (const std::int64_t bucket : cuda::kRowBuckets) {
        if (bucket <= cuda::kMaxLinearSampleRows)
          state_.linear_sample.choose(MatrixView<const bf16>(nullptr, {bucket, weight.cols()}),
                                      weight, {.draws = true, .stores = true}, context());
        if (bucket >= max_rows) return;
      }
    }
  }

  template <Element T>
  void run(const LinearSampleArgs<T, cuda::DeviceMatrix<T>>& args) {
    ++num_draws;
    if (kAtOnce) return CudaBackend::run(args);
    compose(args, [&](const auto& part) { run(part); });
  }

  static inline std::int64_t num_draws = 0;
};

template <bool kAtOnce>
struct ForcedPolicy : CudaPolicy {
  using Backend = ForcedBackend<kAtOnce>;
};

constexpr std::size_t kRequests = 40;

std::vector<SamplingParams> plain_params() {
  std::vector<SamplingParams> out;
  for (std::size_t i = 0; i < kRequests; ++i) {
    SamplingParams params{
        .seed = i, .max_tokens = 20 + static_cast<std::int32_t>(i % 9), .ignore_eos = true};
    params.top_k = 0, params.top_p = 1.f, params.min_p = 0.f;  // not the checkpoint's
    params.temperature = i % 3 == 0 ? 0.f : i % 3 == 1 ? 1.f : 0.6f;
    out.push_back(params);
  }
  return out;
}

template <bool kAtOnce>
std::vector<std::vector<TokenId>> tokens_of_engine(bool overlap,
                                                   const std::vector<SamplingParams>& params) {
  EngineConfig config{
      .model = model_directory("fairytale"), .max_num_seqs = 36, .max_model_len = 256};
  config.overlap = overlap;
  std::vector<std::vector<TokenId>> prompts, out;
  for (std::size_t i = 0; i < params.size(); ++i)
    prompts.push_back(random_prompt(i, 1 + 17 * i % 90, 4000));
  const std::int64_t before = ForcedBackend<kAtOnce>::num_draws;
  Engine<AnyModel, ForcedPolicy<kAtOnce>> engine(config);
  for (const Output& output : engine.generate(prompts, params)) {
    REQUIRE(output.error == "");
    out.push_back(output.token_ids);
  }
  CHECK(ForcedBackend<kAtOnce>::num_draws > before);
  engine.check_invariants();
  return out;
}

}  // namespace

TEST_CASE("Steps that draw without logits have the tokens of those that write them",
          "[cuda][engine][linear_sample]") {
  if (!has_gpu()) return;
  const std::vector<SamplingParams> params = plain_params();
  for (const bool overlap : {false, true}) {  // with it other sequences share a step
    CAPTURE(overlap);
    const auto expected = tokens_of_engine<false>(overlap, params);
    for (int i = 0; i < 2; ++i) CHECK(tokens_of_engine<true>(overlap, params) == expected);
  }
}

TEST_CASE("A plain request has the same tokens beside one that wants log-probabilities",
          "[cuda][engine][linear_sample]") {
  if (!has_gpu()) return;
  std::vector<SamplingParams> params = plain_params();
  const auto expected = tokens_of_engine<true>(true, params);
  params[7].logprobs = 3;  // in its steps logits are written
  CHECK(tokens_of_engine<true>(true, params) == expected);
  params[8].top_p = 0.9f, params[8].temperature = 0.5f;
  const auto filtered = tokens_of_engine<true>(true, params);
  for (std::size_t i = 0; i < params.size(); ++i) {
    CAPTURE(i);
    if (i != 8) CHECK(filtered[i] == expected[i]);
  }
}

}  // namespace nanovllm::test
