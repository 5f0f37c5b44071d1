#include "nanovllm/cuda/runtime/state_parts.hpp"

#include "catch.hpp"

namespace {

struct Counted {
  inline static int num_made = 0, num_gone = 0;
  int value = 0;
  Counted() { ++num_made; }
  ~Counted() { ++num_gone; }
};
struct Other {
  int value = 7;
};
struct Waiting {
  mutable int num_waits = 0;
  void synchronize() const { ++num_waits; }
};

}  // namespace

TEST_CASE("a state has one part of each type, made when it is asked for") {
  {
    nanovllm::cuda::StateParts parts;
    CHECK(Counted::num_made == 0);
    parts.of<Counted>().value = 3;
    CHECK(parts.of<Other>().value == 7);
    CHECK(parts.of<Counted>().value == 3);
    CHECK(Counted::num_made == 1);
    CHECK(Counted::num_gone == 0);
  }
  CHECK(Counted::num_gone == 1);
}

TEST_CASE("a state waits for those of its parts that can be waited for") {
  nanovllm::cuda::StateParts parts;
  parts.synchronize();
  CHECK(parts.of<Other>().value == 7);
  CHECK(parts.of<Waiting>().num_waits == 0);
  parts.synchronize();
  parts.synchronize();
  CHECK(parts.of<Waiting>().num_waits == 2);
}
