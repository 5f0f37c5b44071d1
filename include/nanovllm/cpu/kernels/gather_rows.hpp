#pragma once
/// `gather_rows` on the CPU. Contract: ops/gather_rows.hpp.

#include <algorithm>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/ops/gather_rows.hpp"

namespace nanovllm::cpu {

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
