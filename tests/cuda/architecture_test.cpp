// A device gets the kernels of the first architecture of the list that it is and that the program has
// code for. The list here has one that the library does not know.

#include "nanovllm/cuda/architecture.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include "catch.hpp"
#include "nanovllm/cuda/hopper/hopper.hpp"

using namespace nanovllm::cuda;

namespace {

/// An architecture as a folder beside hopper/ would have it: one dense kernel, and numbers for those
/// that run everywhere.
struct Toy : OtherDevices {
  static constexpr const char* kName = "Toy";
  static constexpr const char* kCode = "77a";
  static constexpr DenseTuning kDense{.few_rows = 3, .small_weights = 100};

  static constexpr bool is(const DeviceFeatures& device) { return device.compute_capability == 77; }
  static constexpr bool has_code(const DeviceFeatures& device) { return device.native_code == 77; }
  static std::vector<int> dense_forms(ProductKind kind, std::int64_t m, std::int64_t,
                                      std::int64_t) {
    return kind == ProductKind::plain && m > 8 ? std::vector<int>{5} : std::vector<int>{};
  }
  static bool dense(std::int64_t& y, int form, std::int64_t x) {
    if (form != 5) return false;
    y = 2 * x;
    return true;
  }
};

using List = Architectures<Toy, HopperTables, OtherDevices>;

constexpr DeviceFeatures device(int capability, int native_code) {
  return {.compute_capability = capability, .native_code = native_code};
}

template <class L = List>
std::string name(const DeviceFeatures& of) {
  return L::choose(of, [](auto native) { return std::string(native.kName); });
}

}  // namespace

TEST_CASE("A device gets the architecture that it is, if the program has its code") {
  CHECK(name(device(77, 77)) == "Toy");
  CHECK(name(device(90, 90)) == "Hopper");
  CHECK(name(device(77, 0)) == "other devices");
  CHECK(name(device(90, 0)) == "other devices");
  CHECK(name(device(80, 0)) == "other devices");
  CHECK(name(device(100, 0)) == "other devices");
  // A list without it does not know it.
  CHECK(name<Architectures<HopperTables, OtherDevices>>(device(77, 77)) == "other devices");
}

TEST_CASE("A program without an architecture's code can say which one it lacks") {
  CHECK(List::missing_code(device(77, 77)) == nullptr);
  CHECK(List::missing_code(device(90, 90)) == nullptr);
  CHECK(List::missing_code(device(80, 0)) == nullptr);
  CHECK(std::string(List::missing_code(device(77, 0))) == "77a");
  CHECK(std::string(List::missing_code(device(90, 0))) == "90a");
}

TEST_CASE("An architecture has forms, numbers and kernels of its own, and is without the rest") {
  const auto forms = [](int capability, int code, ProductKind kind, std::int64_t m) {
    return List::choose(device(capability, code),
                        [&](auto native) { return native.dense_forms(kind, m, 6144, 1024); });
  };
  CHECK(forms(77, 77, ProductKind::plain, 9) == std::vector<int>{5});
  CHECK(forms(77, 77, ProductKind::gated, 9).empty());
  CHECK(forms(90, 90, ProductKind::plain, 9) ==
        HopperTables::dense_forms(ProductKind::plain, 9, 6144, 1024));
  CHECK_FALSE(forms(90, 90, ProductKind::plain, 9).empty());
  CHECK(forms(80, 0, ProductKind::plain, 9).empty());

  const auto tuning = [](const DeviceFeatures& of) {
    return List::choose(of, [](auto native) { return native.kDense; });
  };
  CHECK(tuning(device(77, 77)).few_rows == 3);
  CHECK(tuning(device(77, 77)).small_weights == 100);
  CHECK(tuning(device(90, 90)).few_rows == 8);
  CHECK(tuning(device(80, 0)).small_weights == kSmallWeights);

  std::int64_t y = 0;
  const auto run = [&](const DeviceFeatures& of, int form) {
    return List::choose(of, [&](auto native) { return native.dense(y, form, std::int64_t{21}); });
  };
  CHECK_FALSE(run(device(77, 77), 4));
  CHECK_FALSE(run(device(80, 0), 5));
  CHECK(y == 0);
  CHECK(run(device(77, 77), 5));
  CHECK(y == 42);

  const auto keeps_order = [](const DeviceFeatures& of) {
    return List::choose(of, [](auto native) { return native.kKeepsOrder; });
  };
  CHECK(keeps_order(device(90, 90)));
  CHECK_FALSE(keeps_order(device(77, 77)));
  CHECK_FALSE(List::choose(device(77, 77), [](auto native) { return native.varlen_attention(); }));
  CHECK_FALSE(
      List::choose(device(77, 77), [](auto native) { return native.suits_heads(1, 8, 8); }));
}
