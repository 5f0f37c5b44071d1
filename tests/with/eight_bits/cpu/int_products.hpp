#pragma once
/// Products with matrices of integers, for the tests of their kernels.

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/cpu/thread_pool.hpp"
#include "nanovllm/with/eight_bits/cpu/linear.hpp"

namespace nanovllm::test {

inline std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

inline std::uint32_t random_word(std::uint64_t seed, std::size_t i) {
  return philox4x32(seed, {static_cast<std::uint32_t>(i), 0, 0, 0})[0];
}

/// Codes of all values, and scales of both signs; with offsets if `is_shifted`.
template <int kBits>
cpu::IntMatrix<kBits> random_matrix(std::int64_t rows, std::int64_t cols, bool is_shifted) {
  cpu::IntMatrix<kBits> out(rows, cols);
  const auto random = [cols](std::int64_t i, std::int64_t j) {
    return random_word(7, size(i * cols + j));
  };
  IntRows stored{.rows = rows, .columns = cols, .bits = kBits, .group_columns = 32};
  stored.has_offsets = is_shifted;
  stored.read = [=](std::int64_t i, std::int8_t* codes) {
    for (std::int64_t j = 0; j < cols; ++j)
      codes[j] = static_cast<std::int8_t>(static_cast<int>(random(i, j) >> (32 - kBits)) -
                                          (1 << (kBits - 1)));
  };
  stored.group = [=](std::int64_t i, std::int64_t j) {
    const float scale = 0.01f * static_cast<float>(random(i, j) % 200) - 0.995f;
    return IntRows::Group{scale, is_shifted ? 0.3f * static_cast<float>(i % 7) : 0.f};
  };
  REQUIRE(out.set_rows(0, stored));
  return out;
}

/// Rows of x as `linear` rounds them, and one more; some groups with the largest codes there are.
inline std::vector<cpu::ActivationGroup> random_activations(std::int64_t n, std::int64_t groups) {
  std::vector<cpu::ActivationGroup> out(size((n + 1) * groups));
  for (std::size_t g = 0; g < size(n * groups); ++g) {
    cpu::ActivationGroup& group = out[g];
    group.sum = 0;
    for (std::size_t c = 0; c < 32; ++c) {
      const int code = static_cast<int>(random_word(9, 32 * g + c) % 255) - 127;
      group.codes[c] = static_cast<std::int8_t>(g % 5 == 3 ? 127 : g % 5 == 4 ? -127 : code);
      group.sum += group.codes[c];
    }
    group.scale = static_cast<float>(random_word(11, g) % 1000) * 0x1p-8f;
  }
  std::memset(static_cast<void*>(out.data() + n * groups), 0,
              size(groups) * sizeof(cpu::ActivationGroup));
  return out;
}

/// Rows of x and a matrix, and what they give by the portable kernel.
template <int kBits>
class Product {
 public:
  Product(std::int64_t n, const cpu::IntMatrix<kBits>& weight, bool accumulate)
      : n_(n),
        weight_(weight),
        accumulate_(accumulate),
        x_(random_activations(n, weight.num_groups())) {
    expected_ = run(
        [](const auto&... args) { cpu::detail::multiply_rows<cpu::detail::PortableInt>(args...); });
  }

  template <class Multiply>
  void check_bits(const char* name, const Multiply& multiply) const {
    CAPTURE(name, kBits, n_, weight_.rows(), weight_.cols(), weight_.shifts(0) != nullptr,
            accumulate_);
    const std::vector<float> y = run(multiply);
    REQUIRE(std::memcmp(y.data(), expected_.data(), y.size() * sizeof(float)) == 0);
  }

 private:
  template <class Multiply>
  std::vector<float> run(const Multiply& multiply) const {
    static cpu::ThreadPool pool(2);
    const std::int64_t rows = weight_.rows(), stride = rows + 3;
    std::vector<float> y(size(n_ * stride), 0.5f);
    multiply(x_.data(), weight_, MatrixView<float>(y.data(), {n_, rows}, {stride, 1}), accumulate_,
             cpu::Context{.pool = &pool});
    return y;
  }

  std::int64_t n_;
  const cpu::IntMatrix<kBits>& weight_;
  bool accumulate_;
  std::vector<cpu::ActivationGroup> x_;
  std::vector<float> expected_;
};

/// Calls `check(product)` for matrices of many shapes, in 8 and in 4 bits, with and without shifts,
/// and these numbers of rows.
template <class Check>
void for_each_product(const std::vector<std::int64_t>& numbers_of_rows, const Check& check) {
  for (const auto& [rows, cols] : {std::pair{1, 1}, {33, 96}, {70, 130}, {32, 512}}) {
    for (const bool is_shifted : {false, true}) {
      const cpu::IntMatrix<8> bytes = random_matrix<8>(rows, cols, is_shifted);
      const cpu::IntMatrix<4> nibbles = random_matrix<4>(rows, cols, is_shifted);
      for (const std::int64_t n : numbers_of_rows) {
        for (const bool accumulate : {false, true}) {
          check(Product(n, bytes, accumulate));
          check(Product(n, nibbles, accumulate));
        }
      }
    }
  }
}

}  // namespace nanovllm::test
