// A backend that lives here alone: it wraps another, counts its ops and forwards them by `run`.

#include <atomic>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/ops/backend_check.hpp"
#include "nanovllm/ops/projections.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

template <class Args>
inline constexpr bool kIsLinear = false;
template <class T, class Matrix, class Out>
inline constexpr bool kIsLinear<LinearArgs<T, Matrix, Out>> = true;

template <class Inner>
class CountingBackend {
 public:
  template <class T>
  using Buffer = typename Inner::template Buffer<T>;
  template <class T>
  using Matrix = typename Inner::template Matrix<T>;
  template <class T>
  struct Staging : Inner::template Staging<T> {
    explicit Staging(CountingBackend& backend) : Inner::template Staging<T>(backend.inner_) {}
  };

  static constexpr bool kAsynchronous = Inner::kAsynchronous;
  static constexpr bool kSharedMemory = Inner::kSharedMemory;
  static constexpr bool kAccumulatesResidual = Inner::kAccumulatesResidual;
  static constexpr double kKvShare = Inner::kKvShare;
  static constexpr int kLoadThreads = Inner::kLoadThreads;
  static constexpr int kDefaultBatchedTokens = Inner::kDefaultBatchedTokens;

  explicit CountingBackend(const BackendConfig& config) : inner_(config) {}

  [[nodiscard]] auto activate() const { return inner_.activate(); }
  void reserve(const ReserveArgs& args) { inner_.reserve(args); }
  template <class T>
  void upload(const T* from, T* to, std::size_t count) {
    inner_.upload(from, to, count);
  }
  template <class T>
  void download(const T* from, T* to, std::size_t count) {
    inner_.download(from, to, count);
  }
  template <class AnyMatrix, class T>
  void set_rows(AnyMatrix& matrix, std::int64_t first_row, MatrixView<const T> rows) {
    inner_.set_rows(matrix, first_row, rows);
  }
  [[nodiscard]] std::size_t available_memory() const { return inner_.available_memory(); }
  [[nodiscard]] std::string describe() const { return "counting " + inner_.describe(); }

  template <class Args>
  requires RunsOp<Inner, Args>
  void run(const Args& args) {
    ++num_ops;
    if constexpr (kIsLinear<Args>) ++num_products;
    inner_.run(args);
  }

  inline static std::atomic<std::int64_t> num_ops{0}, num_products{0};

 private:
  Inner inner_;
};

using Counting = CountingBackend<CpuBackend>;

// Exact: what the wrapped backend lacks, the wrapper lacks.
struct NoOpArgs {};
static_assert(RunsOp<Counting, SampleArgs> && !RunsOp<Counting, NoOpArgs>);
static_assert(!RunsOp<CpuBackend, NoOpArgs>);
static_assert(!RunsOp<CpuBackend, RmsNormArgs<int>> && RunsOp<CpuBackend, RmsNormArgs<float>>);
static_assert(BackendLike<Counting, float> && BackendLike<Counting, bf16, float, half>);
static_assert(!AsyncBackendLike<Counting> &&
              !TunableBackend<Counting, Projections<float, Counting::Matrix<float>, float>>);
static_assert(check_backend<Counting, Elements<bf16>>());

/// A backend that lost one op: nothing of it but that is missing.
struct NoSilu : Counting {
  using Counting::Counting;
  using Counting::run;
  template <class T>
  void run(const SiluMulArgs<T>&) = delete;
};
static_assert(MemoryLike<NoSilu, float> && DenseOpsLike<NoSilu, float>);
static_assert(!RunsOp<NoSilu, SiluMulArgs<float>> && !OpsLike<NoSilu, float> &&
              !BackendLike<NoSilu, float>);

/// bfloat16 weights as they are in the file, all else in float32, on the wrapped backend.
struct MixedPolicy : Float32Policy {
  using Backend = Counting;
  using Weight = bf16;
};
static_assert(std::is_same_v<ElementsOf<MixedPolicy>, Elements<bf16, float, float>>);
static_assert(std::is_same_v<ElementsOf<DefaultPolicy>, Elements<bf16, bf16, bf16>>);

template <class Policy>
std::vector<Output> run_engine() {
  Engine<Qwen3<shapes::fairytale>, Policy> engine(
      {.model = model_directory("fairytale"), .num_threads = 2, .max_model_len = 128});
  std::vector<Prompt> prompts;
  for (std::uint64_t i = 0; i < 4; ++i) prompts.push_back(random_prompt(i, 3 + 17 * i, 4096));
  return engine.generate(
      prompts,
      {.temperature = 0.8f, .seed = 7, .max_tokens = 12, .ignore_eos = true, .logprobs = 2});
}

}  // namespace

TEST_CASE(
    "an engine runs on a backend that wraps another, with bfloat16 weights and float32 all "
    "else, and gives what float32 gives",
    "[ops][engine]") {
  // The checkpoint is of bfloat16, so that float32 weights have the same values.
  const std::vector<Output> mixed = run_engine<MixedPolicy>();
  const std::vector<Output> plain = run_engine<Float32Policy>();
  REQUIRE(mixed.size() == plain.size());
  for (std::size_t i = 0; i < mixed.size(); ++i) {
    REQUIRE(mixed[i].finish_reason == FinishReason::length);
    const Trace a = trace_of(mixed[i]), b = trace_of(plain[i]);
    CHECK(a.tokens == b.tokens);
    CHECK(a.logprobs == b.logprobs);  // bit by bit
  }
  CHECK(Counting::num_products > 0);
  CHECK(Counting::num_products % (6 * 4 + 1) == 0);  // of a step: 6 layers and lm_head
  CHECK(Counting::num_ops > 2 * Counting::num_products);
}

TEST_CASE("describe names each element where they differ", "[ops][engine]") {
  CHECK(describe<MixedPolicy>().rfind("Weight         bfloat16\nActivation     float32\n"
                                      "KvElement      float32\nBackend",
                                      0) == 0);
  CHECK(describe<Float32Policy>().rfind("Element        float32\nBackend", 0) == 0);
}
