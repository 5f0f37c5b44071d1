#include "nanovllm/sampling/sampling_params.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

namespace nanovllm {
namespace {

/// Converts to whatever a member is.
struct Anything {
  template <class T>
  operator T() const;
};

template <std::size_t... kI>
constexpr bool has_members(std::index_sequence<kI...>) {
  return requires { SamplingParams{(static_cast<void>(kI), Anything{})...}; };
}

template <std::size_t kCount = 1>
constexpr std::size_t num_members() {
  if constexpr (has_members(std::make_index_sequence<kCount + 1>{}))
    return num_members<kCount + 1>();
  else
    return kCount;
}

// Of the program's own types are token_masks, functor_argument and pooler.
static_assert(num_members() == std::size(kSamplingFields) + 3,
              "every member of SamplingParams must be in kSamplingFields");

std::string refusal(const SamplingParams& params) {
  try {
    validate(params);
  } catch (const RequestError& error) {
    return error.what();
  }
  return {};
}

/// What is wrong with `params` of which the member of `field` is `value`.
template <class T, class Value>
std::string refusal_with(T SamplingParams::*member, Value value) {
  SamplingParams params;
  params.*member = static_cast<Value>(value);
  if constexpr (std::is_same_v<T, std::optional<Value>>) params.*member = value;
  return refusal(params);
}

/// Numbers just outside the range of a field are refused by its name.
struct RangeChecker {
  const SamplingField& field;

  void operator()(bool SamplingParams::*) const {}
  void operator()(EarlyStopping SamplingParams::*) const {}
  void operator()(std::optional<std::uint64_t> SamplingParams::*) const {}
  void operator()(float SamplingParams::*member) const { check_floats(member); }
  void operator()(std::optional<float> SamplingParams::*member) const { check_floats(member); }
  void operator()(std::int32_t SamplingParams::*member) const { check_integers(member); }
  void operator()(std::optional<std::int32_t> SamplingParams::*member) const {
    check_integers(member);
  }
  void operator()(std::vector<TokenId> SamplingParams::*member) const { check_size(member); }
  void operator()(std::vector<TokenBias> SamplingParams::*member) const {
    check_size(member);
    SamplingParams params;
    params.*member = {{.token = 3, .bias = static_cast<float>(field.range.high) + 1}};
    expect_named(refusal(params));
  }
  void operator()(std::vector<std::string> SamplingParams::*member) const {
    check_size(member);
    SamplingParams params;
    params.*member = {""};
    expect_named(refusal(params));
    params.*member = {std::string(kMaxStopStringBytes + 1, 'x')};
    expect_named(refusal(params));
  }

 private:
  void expect_named(const std::string& message) const {
    CHECK_THAT(message, Catch::Matchers::StartsWith(std::string(field.name)));
  }
  template <class T>
  void check_floats(T SamplingParams::*member) const {
    const auto low = static_cast<float>(field.range.low),
               high = static_cast<float>(field.range.high);
    expect_named(refusal_with(member, std::nanf("")));
    expect_named(refusal_with(member, std::numeric_limits<float>::infinity()));
    if (low > -FLT_MAX) expect_named(refusal_with(member, std::nextafter(low, -FLT_MAX)));
    if (field.range.excludes_low) expect_named(refusal_with(member, low));
    if (high < FLT_MAX) expect_named(refusal_with(member, std::nextafter(high, FLT_MAX)));
  }
  template <class T>
  void check_integers(T SamplingParams::*member) const {
    if (field.range.low > kMinInt32)
      expect_named(refusal_with(member, static_cast<std::int32_t>(field.range.low) - 1));
    if (field.range.high < kMaxInt32)
      expect_named(refusal_with(member, static_cast<std::int32_t>(field.range.high) + 1));
  }
  template <class T>
  void check_size(std::vector<T> SamplingParams::*member) const {
    if (field.max_size == SIZE_MAX) return;
    SamplingParams params;
    (params.*member).resize(field.max_size + 1);
    expect_named(refusal(params));
  }
};

TEST_CASE("every field is refused by name outside its range") {
  std::set<std::string_view> names;
  for (const SamplingField& field : kSamplingFields) {
    INFO(field.name);
    CHECK(names.insert(field.name).second);
    CHECK(find_sampling_field(field.name) == &field);
    std::visit(RangeChecker{field}, field.member);
  }
  CHECK(find_sampling_field("temprature") == nullptr);
  CHECK_THAT(sampling_field_names(), Catch::Matchers::StartsWith("temperature, top_k, top_p, "));
}

TEST_CASE("messages name what was expected and what came") {
  CHECK(refusal({}).empty());
  CHECK_THAT(refusal({.temperature = -1}),
             Catch::Matchers::StartsWith("temperature must be in [0, 1000000], got -1"));
  CHECK(refusal({.top_k = -2}) == "top_k must be >= -1, got -2");
  CHECK_THAT(refusal({.top_p = -1}),
             Catch::Matchers::StartsWith("top_p must be in [0, 1], got -1"));
  CHECK_THAT(refusal({.repetition_penalty = 0}),
             Catch::Matchers::StartsWith("repetition_penalty must be > 0, got 0"));
  CHECK(refusal({.logit_bias = {{5, 1}, {7, 2}, {5, 3}}}) ==
        "logit_bias must have each token once, got token 5 twice");
  CHECK(refusal({.n = 0}) == "n must be in [1, 128], got 0");
  CHECK(refusal({.n = 3, .best_of = 2}) == "best_of must be at least n = 3, got 2");
  CHECK(refusal({.max_tokens = 4, .min_tokens = 5}) ==
        "min_tokens must be at most max_tokens = 4, got 5");
  CHECK_THAT(refusal({.functor_argument = INFINITY}),
             Catch::Matchers::StartsWith("functor_argument must be finite"));
  CHECK(refusal({.temperature = 0, .n = 2, .max_tokens = 1}).empty());
}

TEST_CASE("a beam search takes no settings of draws") {
  CHECK(refusal({.n = 3, .beam_width = 2}) == "beam_width must be at least n = 3, got 2");
  CHECK_THAT(refusal({.length_penalty = 2}), Catch::Matchers::Contains("need beam_width"));
  CHECK(refusal({.top_k = 5, .beam_width = 2}) == "beam_width cannot be combined with top_k");
  CHECK(refusal({.n = 2, .beam_width = 4, .early_stopping = EarlyStopping::never}).empty());
}

}  // namespace
}  // namespace nanovllm
