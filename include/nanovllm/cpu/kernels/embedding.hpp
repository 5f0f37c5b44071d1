#pragma once
/// Rows of a table on the CPU: `embedding` and `gather_rows`. Contracts: ops/embedding.hpp.

#include <algorithm>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
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

/// Also throws ShapeError for a row outside x.
template <Element T>
void gather_rows(const GatherRowsArgs<T>& args, const Context& context) {
  validate(args);
  for (std::int64_t i = 0; i < args.rows.extent(0); ++i) {
    const std::int32_t row = args.rows.data[i];
    check<ShapeError>(row >= 0 && row < args.x.extent(0), "gather_rows: row ", i,
                      " must be in [0, ", args.x.extent(0), "), got ", row);
  }
  context.pool->parallel_for(
      args.rows.extent(0), kRowGrain, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t i = begin; i < end; ++i) {
          std::copy_n(args.x.at(args.rows.data[i]), args.x.extent(1), args.out.at(i));
        }
      });
}

template <Element T>
void run_op(const GatherRowsArgs<T>& args, Context& context) {
  gather_rows(args, context);
}

NANOVLLM_COMPILED_TEMPLATE(void gather_rows(const GatherRowsArgs<float>&, const Context&))
NANOVLLM_COMPILED_TEMPLATE(void gather_rows(const GatherRowsArgs<bf16>&, const Context&))

}  // namespace nanovllm::cpu
