/// libFuzzer target: any text is refused as a schema or becomes a grammar, and that is refused or
/// becomes a network, within bounded time and memory. Build with clang++ -fsanitize=fuzzer,address,undefined.

#include <cstdint>
#include <cstdlib>
#include <string>

#include "nanovllm/api/grammar/ebnf/grammar_network.hpp"
#include "nanovllm/api/grammar/json/json_schema_grammar.hpp"
#include "nanovllm/core/error.hpp"

namespace nv = nanovllm;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  // Less than the defaults: a sanitizer makes all of it slow.
  const nv::JsonSchemaLimits limits{.max_rules = 2000, .max_grammar_bytes = 1 << 18};
  for (const bool strict : {true, false}) {
    try {
      const nv::Json schema = nv::parse_json(input, "the schema");
      const nv::CompileBudget budget(1 << 20);
      const std::string grammar =
          nv::json_schema_grammar(schema, {.strict = strict}, limits, budget);
      if (!grammar.starts_with("root ::= ")) std::abort();
      const nv::GrammarLimits small{.max_nodes = 20'000};
      static_cast<void>(nv::make_grammar_network(grammar, 16, small, budget));
    } catch (const nv::RequestError&) {
    }
  }
  return 0;
}
