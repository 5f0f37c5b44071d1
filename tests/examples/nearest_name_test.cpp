// The option that a program takes a wrong one for.

#include "../../examples/nearest_name.hpp"

#include <string>
#include <vector>

#include "catch.hpp"

using namespace nanovllm::examples;

TEST_CASE("The distance counts letters added, removed, replaced and swapped") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("port", "port") == 0);
  CHECK(edit_distance("modle", "model") == 1);
  CHECK(edit_distance("prt", "port") == 1);
  CHECK(edit_distance("poort", "port") == 1);
  CHECK(edit_distance("part", "port") == 1);
  CHECK(edit_distance("kitten", "sitting") == 3);
  const std::vector<std::string> names{"", "a", "ab", "ba", "abc", "--model", "--port", "ptor"};
  for (const std::string& x : names) {
    for (const std::string& y : names) {
      CHECK(edit_distance(x, y) == edit_distance(y, x));
      CHECK((edit_distance(x, y) == 0) == (x == y));
    }
  }
}

TEST_CASE("The nearest name is found if it is near") {
  const std::vector<std::string> names{"--model", "--port", "--max-model-len", "--max-queue"};
  CHECK(nearest_name("--modle", names) == "--model");
  CHECK(nearest_name("--prot", names) == "--port");
  CHECK(nearest_name("--max-model-length", names) == "--max-model-len");
  CHECK(nearest_name("--maxqueue", names) == "--max-queue");
  CHECK_FALSE(nearest_name("--gpu-memory-utilization", names).has_value());
  CHECK_FALSE(nearest_name("", names).has_value());
  CHECK_FALSE(nearest_name("--model", {}).has_value());
  CHECK(did_you_mean("--prot", names) == "; did you mean --port?");
  CHECK(did_you_mean("--gpu-memory-utilization", names).empty());
}

TEST_CASE("A value that is none of a list is told what the list has") {
  CHECK(expected_one_of({"int8", "int4"}, "itn8") ==
        "expected int8 or int4, got 'itn8'; did you mean int8?");
  CHECK(expected_one_of({"a", "b", "none"}, "nine") ==
        "expected a, b or none, got 'nine'; did you mean none?");
  CHECK(expected_one_of({"only"}, "") == "expected only, got ''");
  CHECK(expected_one_of({"cpu", "cuda"}, "gpu") == "expected cpu or cuda, got 'gpu'");
}
