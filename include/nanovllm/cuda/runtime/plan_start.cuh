#pragma once
/// Lets decode attention begin before its own wait.

#include <utility>

#include "nanovllm/cuda/runtime/launch.cuh"

namespace nanovllm::cuda {

/// Whether what decode attention reads was written by kernels that have ended before any kernel
/// after them starts: the plan of attention, and all keys but the newest. The ops of a step share
/// one and tell it what they enqueue.
///
/// A kernel starts once all blocks of the one before it have started at least. So if a norm after
/// the plan lets the next kernel start only after its own wait (`NextStart::after_wait`), no kernel
/// after that norm starts before the plan is there.
class PlanStart {
 public:
  /// A plan was enqueued. With `has_new_keys` the step's decodes see keys that it stores just
  /// before, beside their own: none may be read early.
  void planned(bool has_new_keys) {
    is_visible_ = false;
    has_new_keys_ = has_new_keys;
  }
  /// Blocks were copied, which decodes may read: not early, until a norm has waited.
  void copied() { is_visible_ = false; }

  /// For a norm that is to be enqueued: the first one after the plan makes it visible, the others
  /// need not hold up the kernel after them.
  [[nodiscard]] NextStart behind_norm() {
    return std::exchange(is_visible_, true) ? NextStart::at_once : NextStart::after_wait;
  }
  /// A kernel was enqueued that lets the next one start after its own wait.
  void waited() { is_visible_ = true; }

  [[nodiscard]] bool is_visible() const { return is_visible_; }
  /// Whether decode attention may read before its own wait.
  [[nodiscard]] bool lets_decodes_start_early() const { return is_visible_ && !has_new_keys_; }

 private:
  bool is_visible_ = false;
  bool has_new_keys_ = false;
};

}  // namespace nanovllm::cuda
