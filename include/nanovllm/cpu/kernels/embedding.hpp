#pragma once
/// Token embedding on the CPU.

#include <algorithm>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/cpu/linear/packed_matrix.hpp"
#include "nanovllm/ops/embedding.hpp"

namespace nanovllm::cpu {

namespace detail {

/// `embedding` with any table that has `copy_row`. One thread takes a few tokens at a time.
template <Element T, class Table>
void embed(const EmbeddingArgs<T, Table>& args, const Context& context) {
  validate(args);
  const Table& table = *args.table;
  const auto copy = [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = std::int64_t{*args.tokens.at(i)} - args.first_token;
      if (row >= 0 && row < table.rows()) {
        table.copy_row(row, args.out.at(i));
      } else {
        std::fill_n(args.out.at(i), table.cols(), T(0.0f));
      }
    }
  };
  constexpr std::int64_t kGrain = 4;
  const std::int64_t count = args.tokens.extent(0);
  if (context.pool == nullptr) return copy(0, count, 0);
  context.pool->parallel_for(count, kGrain, copy);
}

}  // namespace detail

/// Contract: ops/embedding.hpp.
template <Element T, Element W>
void embedding(const EmbeddingArgs<T, PackedMatrix<W>>& args, const Context& context) {
  detail::embed(args, context);
}

template <Element T, Element W>
void run_op(const EmbeddingArgs<T, PackedMatrix<W>>& args, Context& context) {
  embedding(args, context);
}

NANOVLLM_COMPILED_TEMPLATE(void embedding(const EmbeddingArgs<float, PackedMatrix<float>>&,
                                          const Context&))
NANOVLLM_COMPILED_TEMPLATE(void embedding(const EmbeddingArgs<bf16, PackedMatrix<bf16>>&,
                                          const Context&))

}  // namespace nanovllm::cpu
