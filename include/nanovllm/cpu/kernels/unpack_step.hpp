#pragma once
/// `unpack_step` on the CPU. Contract: ops/unpack_step.hpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "nanovllm/core/error.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/ops/unpack_step.hpp"

namespace nanovllm::cpu {

namespace detail {

inline void unpack_column(const UnpackedArray& array) {
  const auto bytes = static_cast<std::size_t>(array.element_words) * 4;
  auto* to = static_cast<std::byte*>(array.to);
  const auto count = static_cast<std::size_t>(array.from_size);
  if (count > 0 && array.from != array.to) std::memcpy(to, array.from, count * bytes);
  for (std::int64_t i = array.from_size; i < array.to_size; ++i)
    std::memcpy(to + static_cast<std::size_t>(i) * bytes, array.padding.data(), bytes);
}

inline void unpack_tokens(const UnpackedArray& array, VectorView<const TokenId> previous) {
  const auto* from = static_cast<const TokenSource*>(array.from);
  auto* to = static_cast<TokenId*>(array.to);
  for (std::int64_t i = 0; i < array.from_size; ++i) {
    const TokenSource source = from[i];
    if (source.is_known()) {
      to[i] = source.token();
      continue;
    }
    check(source.sample() < previous.extent(0), "unpack_step: token ", i, " is what sample ",
          source.sample(), " of the step before draws, but that has ", previous.extent(0),
          " samples");
    to[i] = previous.data[source.sample()];
  }
  TokenId padding = 0;
  std::memcpy(&padding, array.padding.data(), sizeof(padding));
  std::fill(to + array.from_size, to + array.to_size, padding);
}

inline void unpack_table(const UnpackedArray& array) {
  const auto* from = static_cast<const std::uint32_t*>(array.from);
  auto* to = static_cast<std::uint32_t*>(array.to);
  for (std::int64_t i = 0; i < array.from_size; ++i)
    std::copy(from + array.starts[i], from + array.starts[i + 1], to + i * array.row_stride);
}

}  // namespace detail

/// Also throws Error for a sample that the step before does not have.
inline void unpack_step(const UnpackStepArgs& args) {
  for (int i = 0; i < args.num_arrays; ++i) {
    const UnpackedArray& array = args.arrays[static_cast<std::size_t>(i)];
    switch (array.kind) {
      case UnpackedArray::Kind::column: detail::unpack_column(array); break;
      case UnpackedArray::Kind::tokens: detail::unpack_tokens(array, args.previous); break;
      case UnpackedArray::Kind::table: detail::unpack_table(array); break;
    }
  }
}

inline void run_op(const UnpackStepArgs& args, Context&) { unpack_step(args); }

}  // namespace nanovllm::cpu
