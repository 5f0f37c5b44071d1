#pragma once
/// Names of replies and of tool calls.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "nanovllm/core/philox.hpp"
#include "nanovllm/core/random_seed.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::serve {

/// Makes names that differ from all others, those of other processes included. Thread-safe.
class ReplyIds {
 public:
  ReplyIds() : seed_(random_seed()) {}

  /// `prefix` and 24 hexadecimal digits.
  [[nodiscard]] std::string next(std::string_view prefix) {
    const std::uint64_t count = count_.fetch_add(1, std::memory_order_relaxed);
    const auto words = philox4x32(
        seed_, {static_cast<std::uint32_t>(count), static_cast<std::uint32_t>(count >> 32), 0, 3});
    std::string id(prefix);
    for (int i = 0; i < 3; ++i)
      nanovllm::detail::append_hex(id, words[static_cast<std::size_t>(i)], 8);
    return id;
  }

 private:
  const std::uint64_t seed_;
  std::atomic<std::uint64_t> count_{0};
};

}  // namespace nanovllm::serve
