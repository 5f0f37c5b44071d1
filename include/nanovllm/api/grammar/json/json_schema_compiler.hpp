#pragma once
/// Constraints by JSON Schema. docs/structured_output.md
///
///   nvllm::JsonSchemaCompiler compiler(vocabulary);
///   auto source = compiler.json_schema(R"({"type": "object", "properties": …})");

#include <memory>
#include <string_view>

#include "nanovllm/api/grammar/bytes/compile_budget.hpp"
#include "nanovllm/api/grammar/bytes/grammar_vocabulary.hpp"
#include "nanovllm/api/grammar/ebnf/grammar_source.hpp"
#include "nanovllm/api/grammar/json/json_schema_grammar.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm {

/// Makes constraints of schemas, which share the masks of their strings. Thread-safe.
class JsonSchemaCompiler {
 public:
  /// Looks at all tokens once: some 10 ms for 150,000 of them.
  explicit JsonSchemaCompiler(std::shared_ptr<const GrammarVocabulary> vocabulary);

  /// JSON that is valid by a schema, by the grammar that json_schema_grammar() makes of it. Throws
  /// RequestError as that does; a keyword that is not enforced is refused by name.
  [[nodiscard]] std::shared_ptr<const GrammarSource> json_schema(
      std::string_view schema, const JsonStyle& style = {},
      const CompileBudget& budget = CompileBudget()) const {
    const Json parsed = parse_json<RequestError>(schema, "the JSON Schema is refused: it");
    return grammar(json_schema_grammar(parsed, style, {}, budget), "the JSON Schema is refused",
                   budget);
  }

  /// Any JSON object or array. A single value, too: json_schema("true").
  [[nodiscard]] std::shared_ptr<const GrammarSource> json() const {
    return json_schema(R"({"type": ["object", "array"]})");
  }

  /// Texts of a grammar in the notation of api/grammar/ebnf/ebnf_parser.hpp.
  /// @param what begins the message of an error.
  /// @param budget of work, which a caller may also stop by: CompileCancelled.
  [[nodiscard]] std::shared_ptr<const GrammarSource> grammar(
      std::string_view ebnf, std::string_view what = "the grammar is refused",
      const CompileBudget& budget = CompileBudget()) const {
    try {
      return std::make_shared<const GrammarSource>(vocabulary_, strings_, ebnf, GrammarLimits{},
                                                   budget);
    } catch (const RequestError& error) {
      throw RequestError(concat(what, ": ", error.what()));
    }
  }

 private:
  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  std::shared_ptr<TerminalMasks> strings_;
};

}  // namespace nanovllm

#if NANOVLLM_GRAMMAR_BODIES

#include <utility>

#include "nanovllm/api/grammar/ebnf/grammar_terminal.hpp"
#include "nanovllm/api/grammar/ebnf/terminal_masks.hpp"

namespace nanovllm {

NANOVLLM_GRAMMAR_INLINE JsonSchemaCompiler::JsonSchemaCompiler(
    std::shared_ptr<const GrammarVocabulary> vocabulary)
    : vocabulary_(std::move(vocabulary)), strings_(std::make_shared<TerminalMasks>(vocabulary_)) {
  const GrammarTerminal string = GrammarTerminal::json_string();
  GrammarTerminal::State state;
  if (string.step(state, '"')) static_cast<void>(strings_->reach(-1, string, state));
}

}  // namespace nanovllm

#endif  // NANOVLLM_GRAMMAR_BODIES
