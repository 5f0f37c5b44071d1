#pragma once
/// What a block of tokens is called on disk.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include <xxhash.h>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/kv/prefix/cache_salt.hpp"

namespace nanovllm {

/// The name of a prefix that is a whole number of blocks long: 128 bits of XXH3, chained over what
/// the keys and values depend on besides the tokens, and over the tokens block by block. The same
/// in every process, so that what one has computed another can find. It is no cryptographic hash:
/// who finds a block by it compares the block's tokens, its salt and its parent's name, too.
struct DiskName {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  // Written out: what nvcc makes of defaulted ones in the host's part of a program has no body.
  friend constexpr bool operator==(const DiskName& a, const DiskName& b) {
    return a.high == b.high && a.low == b.low;
  }
  friend constexpr std::strong_ordering operator<=>(const DiskName& a, const DiskName& b) {
    const std::strong_ordering order = a.high <=> b.high;
    return order != 0 ? order : a.low <=> b.low;
  }

  /// Of the empty prefix. @param identity  all that must be equal for keys and values to be.
  [[nodiscard]] static DiskName root(std::string_view identity) {
    return of(XXH3_128bits(identity.data(), identity.size()));
  }

  /// This one, of an empty prefix, for `salt`.
  [[nodiscard]] DiskName with(const CacheSalt& salt) const {
    if (!salt) return *this;
    const DiskName own = of(XXH3_128bits(salt.bytes().data(), CacheSalt::kNumBytes));
    const std::uint64_t both[4] = {low, high, own.low, own.high};  // in another order than `next`
    return of(XXH3_128bits(both, sizeof both));
  }

  /// Of the prefix that ends with the block `tokens`, after this one.
  [[nodiscard]] DiskName next(std::span<const TokenId> tokens) const {
    const DiskName own = of(XXH3_128bits(tokens.data(), tokens.size_bytes()));
    const std::uint64_t both[4] = {high, low, own.high, own.low};
    return of(XXH3_128bits(both, sizeof both));
  }

  /// 32 hexadecimal digits.
  [[nodiscard]] std::string hex() const {
    std::string out(32, '0');
    for (std::size_t i = 0; i < 16; ++i) {
      out[15 - i] = "0123456789abcdef"[high >> (4 * i) & 15];
      out[31 - i] = "0123456789abcdef"[low >> (4 * i) & 15];
    }
    return out;
  }

 private:
  [[nodiscard]] static DiskName of(const XXH128_hash_t& hash) {
    return {.high = hash.high64, .low = hash.low64};
  }
};

/// A block on disk: its own name, that of the prefix before it, and the salt of both.
struct DiskKey {
  DiskName name{};
  DiskName parent{};
  CacheSalt salt{};
};

}  // namespace nanovllm

template <>
struct std::hash<nanovllm::DiskName> {
  std::size_t operator()(const nanovllm::DiskName& name) const noexcept {
    return static_cast<std::size_t>(name.low);
  }
};
