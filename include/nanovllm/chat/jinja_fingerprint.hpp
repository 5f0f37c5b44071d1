#pragma once
/// A hash of what a Jinja template means rather than of how it is laid out.

#include <cstdint>
#include <string_view>

#include "nanovllm/core/prebuilt.hpp"

namespace nanovllm {

/// Equal for two templates that differ only in comments, indentation, line ends, quotes, the
/// spelling of literals, and `x.name` against `x['name']` (the same unless `name` is a method of
/// x). Templates of other meaning have other fingerprints, but for a chance of 2^-64, as long as
/// one of them has no raw block. The value is stable and may be stored.
[[nodiscard]] std::uint64_t jinja_fingerprint(std::string_view jinja);

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/chat/jinja_fingerprint.inc"
#endif
