#pragma once
/// Catch2 2.13 and 3.x under one include. Where both are found, 2.13, which is a single header.

#if __has_include(<catch2/catch.hpp>)
#include <catch2/catch.hpp>
using Catch::Detail::Approx;
#else
#include <string>
#include <utility>

#include <catch2/catch_all.hpp>
using Catch::Approx;

namespace Catch::Matchers {

// In 3.x `Contains` looks for an element of a range; of a text we mean a part, as in 2.13.
inline auto Contains(const char* text) { return ContainsSubstring(text); }
inline auto Contains(std::string&& text) { return ContainsSubstring(std::move(text)); }
inline auto Contains(const std::string& text) { return ContainsSubstring(text); }
inline auto Contains(std::string& text) { return ContainsSubstring(text); }

}  // namespace Catch::Matchers
#endif
