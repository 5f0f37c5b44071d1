// Random traffic on tiny pools with all three tiers: sequences are swapped out, prefixes go down to
// the host's pool and to files and come back, requests are aborted and steps fail. Keys and values
// are pretended: a step that reads another sequence's fails the test, and at the end each file must
// hold what its tokens give.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "nanovllm/sched/scheduler.hpp"
#include "nanovllm/with/radix/radix_prefix_cache.hpp"
#include "nanovllm/with/tiers/disk/disk_loads.hpp"
#include "nanovllm/with/tiers/tiered_block_manager.hpp"
#include "sched/policies.hpp"
#include "sched/simulator.hpp"

using namespace nanovllm;
namespace fs = std::filesystem;

namespace {

constexpr unsigned kSeed = 20261125;
constexpr int kNumRuns = 40;  // each with pools of its own, and the files of those before it
constexpr int kNumSteps = 400;

const std::string kIdentity = "a model";

struct Folder {
  Folder() { fs::remove_all(path); }
  ~Folder() { fs::remove_all(path); }
  fs::path path = fs::temp_directory_path() / concat("nanovllm_disk_random_", ::getpid());
};

/// What happened, to be sure that everything did.
struct Coverage {
  std::int64_t aborted = 0, failed = 0, swapped_in = 0, disk_hits = 0, num_writes = 0;
  std::int64_t num_waits = 0;    ///< requests that waited for files
  std::int64_t num_reuses = 0;   ///< blocks of the host that both steps under way copy to
  std::int64_t num_checked = 0;  ///< files that were compared
  std::int64_t num_salted = 0;   ///< of them, those with a salt
  std::int64_t salted_disk_hits = 0;
};

/// The memory of a simulated device, as the disk tier sees it.
template <class Blocks>
class SimulatedRunner : public StepRunner, public PoolContents {
 public:
  explicit SimulatedRunner(simulator::Device<Blocks>& device) : device_(device) {}
  [[nodiscard]] KvShape kv_shape() const override { return {}; }
  [[nodiscard]] std::size_t available_memory() override { return 0; }
  void allocate_kv(std::int32_t, std::int32_t) override {}
  void launch(const StepInputs&) override {}
  StepResults wait() override { return {}; }
  [[nodiscard]] int num_under_way() const override { return 0; }
  [[nodiscard]] bool is_asynchronous() const override { return true; }
  [[nodiscard]] PoolContents& pool() override { return *this; }
  void read_blocks(std::span<const BlockId> blocks, std::span<std::byte> bytes) override {
    REQUIRE((blocks.size() == 1 && device_.num_under_way() == 0));
    std::ranges::copy(std::as_bytes(device_.block(blocks[0])), bytes.begin());
  }
  void write_blocks(std::span<const BlockId>, std::span<const std::byte>) override {}
  [[nodiscard]] std::vector<std::span<std::byte>> outside_block(BlockId block) override {
    return {std::as_writable_bytes(device_.host_block(block))};
  }
  void run_worker() override {}
  [[nodiscard]] Health health() const override { return {}; }
  void reset() override {}
  [[nodiscard]] int num_ranks() const override { return 1; }
  [[nodiscard]] std::string describe_backend() const override { return "simulated"; }
  [[nodiscard]] std::string executor_name() const override { return "none"; }

 private:
  simulator::Device<Blocks>& device_;
};

/// A prefix that a file may be of.
struct Prefix {
  std::vector<TokenId> tokens;
  CacheSalt salt;
};
using Prefixes = std::map<DiskName, Prefix>;

/// Scheduler, device and disk, put together as EngineCore does it.
template <class Blocks>
class Traffic {
 public:
  Traffic(unsigned seed, const Folder& folder, Prefixes& prefixes, Coverage& coverage)
      : random_(seed),
        choose_salts_(seed),
        num_blocks_(2 + below(20)),
        num_host_blocks_(1 + below(2 * num_blocks_)),
        scheduler_({.max_num_seqs = 1 + below(8), .max_num_batched_tokens = 8 + below(30)},
                   Simulated::make_blocks(num_blocks_, true, num_host_blocks_)),
        device_(num_blocks_, num_host_blocks_),
        runner_(device_),
        prefixes_(prefixes),
        coverage_(coverage) {
    const std::uint64_t max_bytes = below(2) == 0 ? 1 << 20 : 4000;
    auto disk = std::make_unique<DiskStore>(folder.path, max_bytes, kIdentity);
    disk_ = disk.get();
    loads_.emplace(std::move(disk), runner_, scheduler_.blocks(), 1);
  }

  void run() {
    for (int i = 0; i < kNumSteps; ++i) {
      while (live_.empty() || (live_.size() < 12 && below(3) == 0)) arrive();
      step();
    }
    while (!live_.empty() || !under_way_.empty()) step();
    CHECK(scheduler_.blocks().num_free() == num_blocks_);
    const auto is_written = [&] { return scheduler_.blocks().num_free_host() == num_host_blocks_; };
    for (int i = 0; i < 10'000 && !is_written(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      step();
    }
    REQUIRE(is_written());
    loads_->finish();
    coverage_.swapped_in += scheduler_.blocks().swap_stats().num_in;
    coverage_.disk_hits += scheduler_.blocks().tier_stats().num_disk_hit_tokens;
    coverage_.num_writes += disk_->stats().num_writes;
    CHECK(disk_->stats().num_failures == 0);
  }

 private:
  using Simulated = simulator::Engine<test::Fickle, Blocks, SwapPreemption>;
  struct Step {
    StepPlan plan;
    std::uint64_t number = 0;
  };
  struct Live {
    std::unique_ptr<Request> request;
    std::vector<TokenId> expected;
    [[nodiscard]] Sequence& sequence() const { return *request->sequences().front(); }
  };

  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

  /// A prompt that begins like one of four documents, and ends on its own.
  void arrive() {
    const int most = std::min(scheduler_.capacity_tokens() - 1, 40);
    const int length = 1 + below(most), shared = below(length + 1), document = below(4);
    std::vector<TokenId> tokens;
    for (int i = 0; i < length; ++i) tokens.push_back(i < shared ? document * 100 + i : below(3));
    SequenceTerms terms;
    terms.max_total_tokens = std::min(length + 1 + below(20), scheduler_.capacity_tokens());
    terms.vocab_size = 1000;
    Live live;
    const auto salt = choose_salts_() % 3 == 0 ? CacheSalt::of(choose_salts_() % 2 == 0 ? "a" : "b")
                                               : CacheSalt();
    live.expected = simulator::tokens_alone(tokens, terms.max_total_tokens, salt);
    live.request =
        std::make_unique<Request>(++num_requests_, terms, std::move(tokens), nullptr, nullptr);
    live.request->set_salt(salt);
    constexpr auto kBlock = static_cast<std::size_t>(Blocks::block_size());
    DiskName name = disk_->root().with(salt);
    for (std::size_t end = kBlock; end <= live.expected.size(); end += kBlock) {
      name = name.next(std::span(live.expected).subspan(end - kBlock, kBlock));
      prefixes_.try_emplace(name, Prefix{{live.expected.begin(),
                                          live.expected.begin() + static_cast<std::ptrdiff_t>(end)},
                                         salt});
    }
    const bool waits = loads_->begin(*live.request, newest());
    coverage_.num_waits += waits ? 1 : 0;
    if (!waits) scheduler_.add(live.sequence());
    live_.push_back(std::move(live));
  }

  [[nodiscard]] std::uint64_t newest() const {
    return under_way_.empty() ? 0 : under_way_.back().number;
  }

  void step() {
    loads_->poll(under_way_.empty() ? 0 : under_way_.front().number, newest(),
                 [&](Request& request) { scheduler_.add(*request.sequences().front()); });
    abort_some();
    while (under_way_.size() < 2 && begin()) abort_some();
    loads_->release_admitted();
    check_invariants();
    if (under_way_.empty()) {
      if (loads_->is_loading()) loads_->wait();
      if (live_.empty() || below(10) == 0) loads_->save_parents();
    } else if (below(30) == 0) {
      fail();
    } else {
      commit();
    }
    check_invariants();
    retire();
  }

  void abort_some() {
    if (live_.empty() || below(6) != 0) return;
    // Half of the time one that was swapped out, where there is one.
    const auto swapped = std::ranges::find_if(
        live_, [](const Live& each) { return each.sequence().kept.num_tokens > 0; });
    const bool takes_swapped = swapped != live_.end() && below(2) == 0;
    const Live& live = takes_swapped
                           ? *swapped
                           : live_[static_cast<std::size_t>(below(static_cast<int>(live_.size())))];
    Sequence& s = live.sequence();
    if (s.status == SequenceStatus::finished || (!takes_swapped && below(2) == 0)) return;
    ++coverage_.aborted;
    if (s.arrival != 0) {
      scheduler_.abort(s);
    } else {  // it waits for files, and the scheduler does not know it
      s.status = SequenceStatus::finished;
      s.finish_reason = FinishReason::abort;
    }
    loads_->forget(*live.request);
    check_invariants();
  }

  bool begin() {
    if (!scheduler_.has_work()) return false;
    Step step{.plan = scheduler_.schedule(), .number = num_launched_ + 1};
    if (step.plan.empty()) {
      REQUIRE(!under_way_.empty());
      return false;
    }
    ++num_launched_;
    const std::int64_t before = scheduler_.blocks().tier_stats().num_disk_hit_tokens;
    scheduler_.begin(step.plan);
    const auto is_salted = [](const PlannedSequence& p) { return bool{p.sequence->salt}; };
    if (std::ranges::all_of(step.plan.sequences, is_salted))
      coverage_.salted_disk_hits += scheduler_.blocks().tier_stats().num_disk_hit_tokens - before;
    loads_->hold(step.plan.copies_down, step.number);
    device_.launch(step.plan);
    if (!under_way_.empty()) count_reuses(under_way_.back().plan, step.plan);
    under_way_.push_back(std::move(step));
    check_invariants();
    return true;
  }

  void count_reuses(const StepPlan& older, const StepPlan& newer) {
    for (const BlockCopy& copy : newer.copies_down) {
      coverage_.num_reuses += std::ranges::count(older.copies_down, copy.to, &BlockCopy::to);
    }
  }

  void commit() {
    const Step& step = under_way_.front();
    const std::vector<simulator::Drawn> draws = device_.wait();
    std::vector<StepOutcome> outcomes = simulator::outcomes(step.plan);
    REQUIRE(outcomes.size() == draws.size());
    for (std::size_t i = 0; i < draws.size(); ++i) {
      outcomes[i].tokens = draws[i].tokens;
      outcomes[i].finish_reason = draws[i].reason;
    }
    scheduler_.commit(step.plan, outcomes);
    loads_->save(step.plan.copies_down, step.number);
    under_way_.pop_front();
  }

  /// The steps under way fail. The device has computed none, one or both of them.
  void fail() {
    ++coverage_.failed;
    for (std::size_t n = under_way_.size(); n > 0 && below(2) == 0; --n) (void)device_.wait();
    device_.drop();
    for (; !under_way_.empty(); under_way_.pop_back()) {
      const Step& step = under_way_.back();
      scheduler_.cancel(step.plan);
      loads_->cancel(step.plan.copies_down, step.number);
      check_invariants();
    }
  }

  /// Requests that have ended leave when no step under way has them.
  void retire() {
    for (const Live& live : live_) {
      if (live.sequence().status == SequenceStatus::finished) loads_->forget(*live.request);
    }
    if (!under_way_.empty()) return;
    std::erase_if(live_, [&](const Live& live) {
      const Sequence& s = live.sequence();
      if (s.status != SequenceStatus::finished) return false;
      REQUIRE(s.tokens.size() <= live.expected.size());
      REQUIRE(std::equal(s.tokens.begin(), s.tokens.end(), live.expected.begin()));
      if (s.finish_reason != FinishReason::abort) REQUIRE(s.tokens.size() == live.expected.size());
      return true;
    });
  }

  void check_invariants() const {
    scheduler_.check_invariants();
    loads_->check_invariants();
  }

  std::mt19937 random_, choose_salts_;
  std::int32_t num_blocks_, num_host_blocks_;
  Scheduler<test::Fickle, Blocks, SwapPreemption> scheduler_;
  simulator::Device<Blocks> device_;
  SimulatedRunner<Blocks> runner_;
  DiskStore* disk_ = nullptr;
  std::optional<DiskLoads<Blocks>> loads_;
  std::vector<Live> live_;
  std::deque<Step> under_way_;
  RequestId num_requests_ = 0;
  std::uint64_t num_launched_ = 0;
  Prefixes& prefixes_;
  Coverage& coverage_;
};

/// Every file holds the keys and values of its tokens after its prefix.
void check_files(const Folder& folder, const Prefixes& prefixes, Coverage& coverage) {
  for (const auto& entry : fs::directory_iterator(folder.path)) {
    SectionReader file(entry.path(), kDiskBlockFormat);
    const std::string text = entry.path().stem().string();
    const auto found = std::ranges::find_if(
        prefixes, [&](const auto& prefix) { return prefix.first.hex() == text; });
    REQUIRE(found != prefixes.end());
    const auto& [prefix, salt] = found->second;
    const std::string identity = salt ? kIdentity + "\nsalt " + salt.hex() : kIdentity;
    CHECK(file.read_text("the identity") == identity);
    coverage.num_salted += salt ? 1 : 0;
    static_cast<void>(file.read("the parent"));
    const std::span<const std::byte> tokens = file.read("the tokens");
    const std::size_t num_tokens = tokens.size() / sizeof(TokenId);
    const auto own = std::as_bytes(std::span(prefix).last(num_tokens));
    CHECK(std::ranges::equal(tokens, own));
    std::vector<std::uint64_t> expected{simulator::contents_before(salt)};
    for (const TokenId token : prefix)
      expected.push_back(simulator::contents(expected.back(), token));
    const auto values = std::as_bytes(std::span(expected).last(num_tokens));
    CHECK(std::ranges::equal(file.read("keys and values"), values));
    file.finish();
    ++coverage.num_checked;
  }
}

}  // namespace

TEMPLATE_TEST_CASE("random traffic with a disk tier: every file holds what its tokens give",
                   "[disk][random]", TieredBlockManager<1>, TieredBlockManager<2>,
                   TieredBlockManager<4>, (TieredBlockManager<4, RadixPrefixCache<4>>)) {
  const Folder folder;
  Prefixes prefixes;
  Coverage c;
  for (unsigned i = 0; i < kNumRuns; ++i) {
    CAPTURE(i);
    Traffic<TestType>(kSeed + i, folder, prefixes, c).run();
    check_files(folder, prefixes, c);
  }
  CAPTURE(c.aborted, c.failed, c.swapped_in, c.disk_hits, c.num_writes, c.num_waits, c.num_reuses,
          c.num_checked, c.num_salted, c.salted_disk_hits);
  CHECK((c.aborted > 50 && c.failed > 50 && c.swapped_in > 20));
  CHECK((c.disk_hits > 20 && c.num_writes > 50 && c.num_waits > 20));
  CHECK(c.num_reuses > 2);
  CHECK(c.num_checked > 100);
  CHECK((c.num_salted > 20 && c.salted_disk_hits > 2));
}
