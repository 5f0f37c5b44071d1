#include "nanovllm/sampling/sampling_json.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace nanovllm {
namespace {

SamplingParams read(const std::string& text) {
  return parse_sampling_params(parse_json(text, "the test"));
}

std::string refusal(const std::string& text) {
  try {
    (void)read(text);
  } catch (const RequestError& error) {
    return error.what();
  }
  return {};
}

/// A value for each type of member: in JSON, and read.
struct Sample {
  SamplingParams& expected;

  Json operator()(bool SamplingParams::*member) const {
    return expected.*member = !(expected.*member);
  }
  Json operator()(EarlyStopping SamplingParams::*member) const {
    expected.*member = EarlyStopping::never;
    return "never";
  }
  Json operator()(std::optional<std::uint64_t> SamplingParams::*member) const {
    expected.*member = 18446744073709551615u;
    return *(expected.*member);
  }
  Json operator()(std::vector<TokenId> SamplingParams::*member) const {
    expected.*member = {5, 12};
    return Json::array({5, 12});
  }
  Json operator()(std::vector<TokenBias> SamplingParams::*member) const {
    expected.*member = {{12, -100.f}, {7, .5f}};
    return Json::object({{"12", -100}, {"7", .5}});
  }
  Json operator()(std::vector<std::string> SamplingParams::*member) const {
    expected.*member = {"a", "\u00e9"};
    return Json::array({"a", "\u00e9"});
  }
  template <class T>
  Json operator()(T SamplingParams::*member) const {  // a number that every range has
    expected.*member = 1;
    return 1;
  }
};

TEST_CASE("every field is read by its name, and by no other") {
  for (const SamplingField& field : kSamplingFields) {
    INFO(field.name);
    SamplingParams expected, params;
    const Json value = std::visit(Sample{expected}, field.member);
    read_sampling_field(field, value, "here", params);
    for (const SamplingField& other : kSamplingFields) {
      const bool equal =
          std::visit([&](auto member) { return params.*member == expected.*member; }, other.member);
      CHECK(equal);
    }
  }
}

TEST_CASE("values have the forms of OpenAI's API and of transformers") {
  CHECK(read(R"({"stop":"\u00e9"})").stop == std::vector<std::string>{"\u00e9"});
  CHECK(read(R"({"stop":[]})").stop.empty());
  CHECK(read(R"({"top_k":5.0})").top_k == 5);
  CHECK(read(R"({"seed":-1})").seed == 18446744073709551615u);
  CHECK(read(R"({"beam_width":4,"early_stopping":true})").early_stopping == EarlyStopping::yes);
  CHECK(read(R"({"beam_width":4,"early_stopping":false})").early_stopping == EarlyStopping::no);
  const SamplingParams nulls =
      read(R"({"temperature":null,"seed":null,"max_tokens":null,"logprobs":null})");
  CHECK_FALSE(nulls.temperature);
  CHECK_FALSE(nulls.seed);
  CHECK_FALSE(nulls.logprobs);
  CHECK(nulls.max_tokens == SamplingParams{}.max_tokens);
}

TEST_CASE("a wrong value is refused by its name, with what was expected and what came") {
  const std::map<std::string, std::string> table = {
      {R"([])", "sampling must be an object, got "},
      {R"({"temperature":"1"})", "temperature must be a number in [0, 1000000], got \"1\""},
      {R"({"temperature":1e39})", "temperature must be a number in [0, 1000000], got "},
      {R"({"top_k":"x"})", "top_k must be an integer in [-1, 2147483647], got \"x\""},
      {R"({"top_k":2147483648})", "top_k must be an integer in [-1, 2147483647], got 2147483648"},
      {R"({"top_p":-0.1})", "top_p must be a number in [0, 1], got -0.1"},
      {R"({"seed":18446744073709551616})", "seed must be an integer of 64 bits, got "},
      {R"({"seed":"1"})", "seed must be an integer of 64 bits, got \"1\""},
      {R"({"max_tokens":true})", "max_tokens must be an integer in [1, 2147483647], got true"},
      {R"({"ignore_eos":1})", "ignore_eos must be true or false, got 1"},
      {R"({"stop":[1]})", "stop[0] must be a string, got 1"},
      {R"({"stop":["a",""]})", "stop[1] must not be empty"},
      {R"({"stop":{"a":"b"}})", "stop must be a string or a list of strings, got "},
      {R"({"stop_token_ids":[1,-1]})",
       "stop_token_ids[1] must be a token id, an integer from 0 on"},
      {R"({"logit_bias":{"a":1}})", "logit_bias must be an object whose keys are token ids, got "},
      {R"({"logit_bias":{"1":101}})", "logit_bias must be a number in [-100, 100], got 101"},
      {R"({"early_stopping":"maybe"})", "early_stopping must be true, false or \"never\", got "},
      {R"({"min_tokens":5,"max_tokens":4})", "min_tokens must be at most max_tokens = 4, got 5"},
      {R"({"temprature":1})", "sampling has no field \"temprature\"; its fields are temperature, "},
  };
  for (const auto& [text, expected] : table) {
    INFO(text);
    CHECK_THAT(refusal(text), Catch::Matchers::StartsWith(expected));
  }
}

TEST_CASE("an error says where the value lies") {
  SamplingParams params;
  const SamplingField& stop = *find_sampling_field("stop");
  try {
    read_sampling_field(stop, Json::array({"a", 1}), "requests[3].stop", params);
    FAIL("nothing was refused");
  } catch (const FieldError& error) {
    CHECK(error.field == "requests[3].stop[1]");
  }
}

}  // namespace
}  // namespace nanovllm
