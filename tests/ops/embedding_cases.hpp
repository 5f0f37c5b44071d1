#pragma once
/// Cases of `embedding` and `gather_rows`: rows are copied exactly.

#include "ops/rig.hpp"

namespace nanovllm::test::ops {

template <class T, class B>
void embedding_cases(B& backend) {
  constexpr TokenId kFirst = 50;
  const std::int64_t rows = 19;
  for (std::int64_t width : {1, 17, 64, 1000}) {
    INFO("width " << width);
    Weight<B, T> table(backend, rows, width, 1);
    Array<B, TokenId> tokens(backend, std::vector<TokenId>{50, 68, 49, 69, 55, 55, 0, 60});
    Array<B, T> out(backend, 8 * width);
    backend.run(EmbeddingArgs<T, typename B::template Matrix<T>>{tokens.vector(), &table.matrix,
                                                                 kFirst, out.matrix(width)});
    out.download();
    bool right = true;
    for (std::int64_t i = 0; i < 8; ++i) {
      const std::int64_t row = tokens.host[static_cast<std::size_t>(i)] - kFirst;
      for (std::int64_t j = 0; j < width; ++j) {
        const double expected = row >= 0 && row < rows ? table(row, j) : 0.;
        right = right && out[i * width + j] == expected;
      }
    }
    REQUIRE(right);
  }
}

template <class T, class B>
void gather_rows_cases(B& backend) {
  for (std::int64_t width : {1, 17, 64, 1000}) {
    INFO("width " << width);
    auto x = Array<B, T>::random(backend, 9 * width, 2);
    Array<B, std::int32_t> rows(backend, std::vector<std::int32_t>{8, 0, 3, 3, 7});
    Array<B, T> out(backend, 5 * width);
    backend.run(GatherRowsArgs<T>{x.matrix(width), rows.vector(), out.matrix(width)});
    out.download();
    bool right = true;
    for (std::int64_t i = 0; i < 5 * width; ++i) {
      const std::int64_t row = rows.host[static_cast<std::size_t>(i / width)];
      right = right && out[i] == x[row * width + i % width];
    }
    REQUIRE(right);
  }
}

}  // namespace nanovllm::test::ops
