#pragma once
/// What ties a runner to those of the other processes of its group.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/parallel/process_group.hpp"

namespace nanovllm {

/// Tells the others of the error that is being handled, which this process cannot go on from.
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
#include "nanovllm/engine/runner_link.inc"
#endif
