#pragma once
/// What the tests of the CPU ops share: instruction sets to run on, random and poisoned operands,
/// unit roundoffs and bitwise comparison.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cpu/context.hpp"

namespace op_testing {

/// Every instruction set this machine can run.
inline std::vector<nanovllm::cpu::Isa> isas() {
  using nanovllm::cpu::Isa;
  std::vector<Isa> out;
  for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx}) {
    if (isa <= nanovllm::cpu::best_isa()) out.push_back(isa);
  }
  return out;
}

/// The largest relative error of one rounding to T.
template <class T>
inline constexpr double kUnit = std::is_same_v<T, float>            ? 0x1p-24
                                : std::is_same_v<T, nanovllm::half> ? 0x1p-11
                                                                    : 0x1p-8;

/// Rounding of one float32 operation.
inline constexpr double kEps = 0x1p-24;

template <class T>
std::vector<T> random_values(std::size_t size, std::uint32_t seed, float deviation = 1.f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.f, deviation);
  std::vector<T> out(size);
  for (T& x : out) x = T(normal(random));
  return out;
}

template <class T>
T nan() {
  return T(std::numeric_limits<float>::quiet_NaN());
}

template <class T>
std::vector<T> poisoned(std::size_t size) {
  return std::vector<T>(size, nan<T>());
}

/// Equal as memory, so that NaNs may be equal and zeros of different sign are not.
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// The largest |x - expected| / bound; above 1 is a failure and NaN counts as infinite.
class Worst {
 public:
  void add(double x, double expected, double bound) {
    const double error = std::abs(x - expected);
    const double ratio = error == 0 ? 0. : error / bound;
    if (!(ratio <= worst_))
      worst_ = std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio;
  }
  [[nodiscard]] double ratio() const { return worst_; }

 private:
  double worst_ = 0;
};

}  // namespace op_testing
