// A communicator that sums over ranks with the residual and the norm after the sum takes the place
// of both in a model.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "nanovllm/cpu/backend.hpp"
#include "nanovllm/cpu/kernels/rowwise.hpp"
#include "nanovllm/engine.hpp"
#include "nanovllm/parallel/thread_group.hpp"
#include "nanovllm/with/peers/options.hpp"
#include "nanovllm/with/peers/sums_in_halves.hpp"
#include "parallel/ranks_rig.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

/// Threads that norm two sums of three themselves.
class NormingGroup {
 public:
  static constexpr bool kRankOrder = true;

  static std::vector<NormingGroup> make(int num_ranks) {
    std::vector<NormingGroup> out;
    for (ThreadGroup& end : ThreadGroup::make(num_ranks)) out.push_back(NormingGroup(end));
    return out;
  }

  [[nodiscard]] int rank() const { return group_.rank(); }
  [[nodiscard]] int size() const { return group_.size(); }
  template <class T>
  void all_reduce(MatrixView<T> x) {
    group_.all_reduce(x);
  }
  template <class T>
  void all_gather_columns(MatrixView<const T> part, MatrixView<T> whole) {
    group_.all_gather_columns(part, whole);
  }
  void abort() { group_.abort(); }

  template <class T>
  bool all_reduce_add_norm(MatrixView<T> x, MatrixView<T> residual, VectorView<const T> weight,
                           float eps, MatrixView<T> out) {
    if (size() == 1) return false;
    group_.all_reduce(x);
    if (++num_sums_ % 3 == 0) return false;
    norm(AddRmsNormArgs<T>{.x = x, .residual = residual, .weight = weight, .eps = eps, .out = out});
    ++num_normed;
    return true;
  }

  inline static std::atomic<int> num_normed = 0;

 protected:
  template <class T>
  void norm(const AddRmsNormArgs<T>& args) {
    backend_->run(args);
  }

 private:
  explicit NormingGroup(ThreadGroup group) : group_(std::move(group)) {}

  ThreadGroup group_;
  std::unique_ptr<CpuBackend> backend_ = std::make_unique<CpuBackend>(BackendConfig{});
  int num_sums_ = 0;
};

/// Threads that make the sums of many rows when they are finished.
class LateGroup : public NormingGroup {
 public:
  template <class Context>
  using Sums = SumsInHalves<Context>;

  explicit LateGroup(NormingGroup group) : NormingGroup(std::move(group)) {}

  static std::vector<LateGroup> make(int num_ranks) {
    std::vector<LateGroup> out;
    for (NormingGroup& end : NormingGroup::make(num_ranks)) out.emplace_back(std::move(end));
    return out;
  }

  [[nodiscard]] bool overlaps_sum(const MatrixView<float>& x) const {
    return size() > 1 && x.extent(0) > 150;
  }
  void begin_sum(MatrixView<float> x, std::int64_t max_rows) {
    check(x.extent(0) <= max_rows, "a sum has ", x.extent(0), " rows of at most ", max_rows);
    check(under_way_.size() < 2, "three sums are under way");
    under_way_.push_back(x);
  }
  void finish_sum_add_norm(MatrixView<float> x, MatrixView<float> residual,
                           VectorView<const float> weight, float eps, MatrixView<float> out) {
    check(!under_way_.empty() && under_way_.front().data == x.data &&
              under_way_.front().extents == x.extents,
          "this sum is not the oldest one");
    under_way_.pop_front();
    all_reduce(x);
    norm<float>({.x = x, .residual = residual, .weight = weight, .eps = eps, .out = out});
    ++num_late;
  }

  inline static std::atomic<int> num_late = 0;

 private:
  std::deque<MatrixView<float>> under_way_;
};

/// Takes options of peers, and keeps those that it was last made with.
struct OptionsGroup : NormingGroup {
  using Options = PeerOptions;
  explicit OptionsGroup(NormingGroup group) : NormingGroup(std::move(group)) {}
  static std::vector<OptionsGroup> make(int num_ranks, const PeerOptions& given = {}) {
    options = given;
    std::vector<OptionsGroup> out;
    for (NormingGroup& end : NormingGroup::make(num_ranks)) out.emplace_back(std::move(end));
    return out;
  }
  inline static PeerOptions options{};
};

struct OptionsPolicy : FullFloat32Policy {
  using Communicator = OptionsGroup;
};

struct LatePolicy : FullFloat32Policy {
  using Communicator = LateGroup;
};

template <class Base>
struct Norming : Base {
  using Communicator = NormingGroup;
};

template <class Policy>
std::vector<Trace> run(int num_ranks, int max_num_batched_tokens = 64) {
  EngineConfig config = ranks_config("fairytale", num_ranks);
  config.max_num_batched_tokens = max_num_batched_tokens;
  Engine<AnyModel, Policy> engine(config);
  return serve(engine);
}

}  // namespace

TEST_CASE("a communicator that norms its sums is what a sum and a norm are", "[ranks]") {
  for (const int num_ranks : {1, 2}) {
    NormingGroup::num_normed = 0;
    const auto got = run<Norming<FullFloat32Policy>>(num_ranks);
    const auto expected = run<FullFloat32Policy>(num_ranks);
    CHECK((NormingGroup::num_normed > 0) == (num_ranks > 1));
    REQUIRE(got.size() == expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      CHECK(got[i].tokens == expected[i].tokens);
      CHECK(got[i].logprobs == expected[i].logprobs);
    }
  }
}

TEST_CASE("sums of halves of a step beside other ops are those of the step", "[ranks]") {
  const int max_num_batched_tokens = GENERATE(300, 257);  // of 257, a half has to have 129
  for (const int num_ranks : {1, 2}) {
    LateGroup::num_late = 0;
    const auto got = run<LatePolicy>(num_ranks, max_num_batched_tokens);
    const auto expected = run<FullFloat32Policy>(num_ranks, max_num_batched_tokens);
    CHECK((LateGroup::num_late > 0) == (num_ranks > 1));
    REQUIRE(got.size() == expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      CHECK(got[i].tokens == expected[i].tokens);
      CHECK(got[i].logprobs == expected[i].logprobs);
    }
  }
}

TEST_CASE("a communicator that takes options of peers gets the engine's, after a reset too",
          "[ranks]") {
  EngineConfig config = ranks_config("fairytale", 2);
  config.extras.set(PeerOptions{.max_bytes = 0, .limit = 7});
  Engine<AnyModel, OptionsPolicy> engine(config);
  CHECK(OptionsGroup::options.max_bytes == 0);
  CHECK(OptionsGroup::options.limit == 7);
  OptionsGroup::options = {};
  engine.reset();
  CHECK(OptionsGroup::options.limit == 7);
  config.step_timeout = std::chrono::minutes(2);
  Engine<AnyModel, OptionsPolicy> limited(config);
  CHECK(OptionsGroup::options.limit == 120);
}
