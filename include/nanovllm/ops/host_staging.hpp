#pragma once
/// Memory in which weights are prepared on their way into a matrix.

#include <cstddef>
#include <vector>

namespace nanovllm {

/// Ordinary memory of one loading thread, which grows as needed. What `acquire` gives may be read
/// until the `release` after it; its copies are done by then.
template <class T>
class HostStaging {
 public:
  T* acquire(std::size_t count) {
    if (memory_.size() < count) memory_.resize(count);
    return memory_.data();
  }
  void release() {}

 private:
  std::vector<T> memory_;
};

}  // namespace nanovllm
