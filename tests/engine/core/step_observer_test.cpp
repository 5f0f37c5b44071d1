#include "nanovllm/engine/core/step_observer.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "catch.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/request/request.hpp"

using namespace nanovllm;

namespace {

/// Writes down what it is told.
class Scribe : public StepObserver {
 public:
  Scribe(std::string name, bool delays, std::string& log)
      : name_(std::move(name)), delays_(delays), log_(log) {}

  bool holds_back(Request&, std::uint64_t newest) override {
    log_ += name_ + "?" + std::to_string(newest) + " ";
    return delays_;
  }
  bool is_waiting() const override { return delays_; }
  void commit(const StepPlan& plan, std::uint64_t number) noexcept override {
    log_ += name_ + std::to_string(plan.num_tokens) + "@" + std::to_string(number) + " ";
  }
  void fill(EngineStats& stats) const override { ++stats.num_waiting; }

 private:
  std::string name_;
  bool delays_;
  std::string& log_;
};

}  // namespace

TEST_CASE("Observers are told one after the other", "[step_observer]") {
  std::string log;
  StepObservers observers;
  CHECK_FALSE(observers.ask(&StepObserver::is_waiting));
  for (const char* name : {"a", "b", "c"})
    observers.add(std::make_unique<Scribe>(name, name[0] == 'b', log));
  StepPlan plan;
  plan.num_tokens = 7;
  observers.tell(&StepObserver::commit, plan, std::uint64_t{2});
  CHECK(log == "a7@2 b7@2 c7@2 ");
  EngineStats stats;
  observers.tell(&StepObserver::fill, stats);
  CHECK(stats.num_waiting == 3);
  CHECK(observers.ask(&StepObserver::is_waiting));
}

TEST_CASE("Who delays a request is the last to be asked", "[step_observer]") {
  std::string log;
  StepObservers observers;
  for (const char* name : {"a", "b", "c"})
    observers.add(std::make_unique<Scribe>(name, name[0] == 'b', log));
  Request request(1, SequenceTerms{.params = {}}, std::vector<TokenId>{1, 2}, nullptr, {});
  CHECK(observers.ask(&StepObserver::holds_back, request, std::uint64_t{5}));
  CHECK(log == "a?5 b?5 ");
}
