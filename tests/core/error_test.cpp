#include "nanovllm/core/error.hpp"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "memory_checkpoint.hpp"
#include "nanovllm/io/checkpoint.hpp"

namespace nanovllm {
namespace {

using namespace std::string_literals;

/// The message of an error as a C string has it.
template <class Thrown, class... Parts>
std::string message(const Parts&... parts) {
  try {
    check<Thrown>(false, parts...);
  } catch (const Thrown& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST_CASE("a NUL within a message is seen, and nothing after it is lost") {
  CHECK(message<Error>("the name '", "a\0b"s, "' is taken") == "the name 'a\\x00b' is taken");
  CHECK(message<RequestError>('\0', " and ", '\0', "1") == "\\x00 and \\x001");
  CHECK(message<UnsupportedModelError>("nothing of it") == "nothing of it");
  CHECK(FieldError("a\0b"s, "field").what() == "a\\x00b"s);
  CHECK(ContextLengthError("a\0b"s, 2, 1).what() == "a\\x00b"s);
  CHECK(without_nuls("\0\0"s) == "\\x00\\x00");
}

TEST_CASE("a NUL within a warning is seen") {
  const Checkpoint checkpoint{nanovllm_test::MemoryCheckpoint()};
  checkpoint.warn("the tensor 'a\0b' is ignored"s);
  CHECK(checkpoint.warnings() == std::vector{"the tensor 'a\\x00b' is ignored"s});
}

}  // namespace
}  // namespace nanovllm
