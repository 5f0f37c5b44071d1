#pragma once
/// What ties a runner to those of the other processes of its group.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/parallel/process_group.hpp"

namespace nanovllm {

/// Tells the others of the error that is being handled, which this process cannot recover from.
void tell_failure(ProcessGroup& processes);

/// A share in a process group, or in none. As long as it lives, a failure of any process of the
/// group calls `release` here. When rank 0's goes, the others are told that it was the end; another
/// that goes before is a failure.
class RunnerLink {
 public:
  /// A number that must be the same in all processes.
  struct Setting {
    const char* name;
    std::int64_t value;
  };

  RunnerLink(std::shared_ptr<ProcessGroup> processes, std::function<void()> release);

  ~RunnerLink();

  RunnerLink(const RunnerLink&) = delete;
  RunnerLink& operator=(const RunnerLink&) = delete;

  [[nodiscard]] explicit operator bool() const { return processes_ != nullptr; }
  [[nodiscard]] ProcessGroup* operator->() const { return processes_.get(); }

  /// Rank 0 has told us that it was the end.
  void end() { ended_ = true; }

  /// All ranks call this. Throws ConfigError on those whose settings are not rank 0's; the others
  /// hear of it later.
  void compare(const std::vector<Setting>& settings);

 private:
  std::shared_ptr<ProcessGroup> processes_;
  bool ended_ = false;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <cstddef>
#include <exception>
#include <span>
#include <utility>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

NANOVLLM_INLINE void tell_failure(ProcessGroup& processes) {
  try {
    throw;
  } catch (const std::exception& error) {
    processes.fail(error.what());
  } catch (...) {
    processes.fail("cannot go on");
  }
}

NANOVLLM_INLINE RunnerLink::RunnerLink(std::shared_ptr<ProcessGroup> processes,
                                       std::function<void()> release)
    : processes_(std::move(processes)) {
  if (processes_) processes_->on_failure(std::move(release));
}

NANOVLLM_INLINE RunnerLink::~RunnerLink() {
  if (!processes_) return;
  processes_->on_failure({});  // before the others go
  if (processes_->rank() != 0) {
    if (!ended_) processes_->fail("its engine has gone before that of rank 0");
    return;
  }
  try {
    processes_->broadcast(ProcessGroup::Tag::end, {});
  } catch (const Error&) {
    // They have heard of it.
  }
}

NANOVLLM_INLINE void RunnerLink::compare(const std::vector<Setting>& settings) {
  std::vector<std::int64_t> expected;
  for (const Setting& setting : settings) expected.push_back(setting.value);
  processes_->share(std::as_writable_bytes(std::span(expected)));
  try {
    for (std::size_t i = 0; i < settings.size(); ++i) {
      check<ConfigError>(settings[i].value == expected[i],
                         "the processes do not agree: ", settings[i].name, " is ",
                         settings[i].value, " on rank ", processes_->rank(), " and ", expected[i],
                         " on rank 0");
    }
  } catch (...) {
    tell_failure(*processes_);
    throw;
  }
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
