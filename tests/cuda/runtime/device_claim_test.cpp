// At most one owner a device.

#include "nanovllm/cuda/runtime/device_claim.hpp"

#include <optional>
#include <utility>

#include "catch.hpp"

using nanovllm::cuda::DeviceClaim;

TEST_CASE("A device is claimed once at a time", "[device_claim]") {
  std::optional<DeviceClaim> first(std::in_place, 0);
  CHECK(*first);
  CHECK_FALSE(DeviceClaim(0));
  CHECK(DeviceClaim(1));  // and given back
  const DeviceClaim other(1);
  CHECK(other);
  first.reset();
  CHECK(DeviceClaim(0));
}

TEST_CASE("A claim moves with its owner", "[device_claim]") {
  DeviceClaim none, owner(3);
  CHECK_FALSE(none);
  none = std::move(owner);
  CHECK(none);
  CHECK_FALSE(owner);
  {
    const DeviceClaim next(std::move(none));
    CHECK(next);
    CHECK_FALSE(DeviceClaim(3));
  }
  CHECK(DeviceClaim(3));
}
