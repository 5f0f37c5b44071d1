#include "nanovllm/api/grammar/ebnf/ebnf_parser.hpp"

#include <string>

#include "api/grammar/vocabularies.hpp"
#include "catch.hpp"
#include "nanovllm/api/grammar/json/json_schema_compiler.hpp"
#include "nanovllm/core/error.hpp"

namespace nv = nanovllm;
using Catch::Matchers::Contains;
using Kind = nv::EbnfNode::Kind;

namespace {

/// Whether `text` is a text of the grammar.
bool takes(const std::string& ebnf, const std::string& text) {
  const nv::JsonSchemaCompiler compiler(nanovllm_test::byte_vocabulary());
  const auto matcher = compiler.grammar(ebnf)->matcher();
  for (char c : text)
    if (!matcher->accept(2 + static_cast<unsigned char>(c))) return false;
  return matcher->accept(0);
}

std::string refusal(const std::string& ebnf) {
  try {
    static_cast<void>(nv::parse_ebnf(ebnf));
  } catch (const nv::RequestError& error) {
    return error.what();
  }
  return "nothing refused";
}

}  // namespace

TEST_CASE("rules have names, and refer to each other by number") {
  const nv::EbnfGrammar grammar = nv::parse_ebnf("root ::= top-level | \"b\"\ntop-level ::= \"a\"");
  REQUIRE(grammar.rules.size() == 2);
  CHECK(grammar.root == 0);
  CHECK(grammar.names[0] == "root");
  CHECK(grammar.names[1] == "top-level");
  REQUIRE(grammar.rules[0].kind == Kind::choice);
  CHECK(grammar.rules[0].parts[0].kind == Kind::reference);
  CHECK(grammar.rules[0].parts[0].rule == 1);
  CHECK(grammar.rules[0].source == "top-level | \"b\"");
  CHECK(grammar.rules[1].kind == Kind::literal);
  CHECK(grammar.rules[1].text == "a");
}

TEST_CASE("rules go over several lines, with comments, blanks and tabs") {
  const std::string arithmetic =
      "# What llama.cpp's documentation begins with.\r\n"
      "root  ::= (expr \"=\" ws term \"\\n\")+\n"
      "expr  ::= term (\n"
      "    [-+*/] term  # an operator\n"
      "  )*\n"
      "\n"
      "term  ::= ident\n"
      "\t| num\n"
      "\t| \"(\" ws expr \")\" ws\n"
      "ident ::= [a-z] [a-z0-9_]* ws num-or-none\n"
      "num   ::= [0-9]+ ws\n"
      "num-or-none ::=\n"
      "ws    ::= [ \\t\\n]*   # blanks";
  CHECK(takes(arithmetic, "a+(2 -3)=5\n"));
  CHECK(takes(arithmetic, "x=1\ny_1 /2=\n 7\n"));
  CHECK_FALSE(takes(arithmetic, "a+=5\n"));
  CHECK_FALSE(takes(arithmetic, "a=5"));

  const std::string query =
      "root ::= select\n\nselect ::= \"SELECT \" column \" from \" table \" where \" condition\n"
      "column ::= \"col_1\" | \"col_2\"\n    table ::= \"table_1\"\n"
      "condition ::= column \" = \" number\n number ::= \"1\" | \"2\"\n";
  CHECK(takes(query, "SELECT col_1 from table_1 where col_2 = 1"));
  CHECK_FALSE(takes(query, "SELECT col_1 from table_2 where col_2 = 1"));
}

TEST_CASE("escapes and classes are those of GBNF") {
  CHECK(takes(R"(root ::= "\x41\u00e9\U0001F600\'\"\\\n")", "Aé😀'\"\\\n"));
  CHECK(takes(R"(root ::= [a-c-]+)", "a-c"));
  CHECK_FALSE(takes(R"(root ::= [a-c-]+)", "d"));
  CHECK(takes(R"(root ::= [-a]+ [\-\]\^\x30-9])", "-a]"));
  CHECK(takes(R"(root ::= "#" [#] # "no text")", "##"));
  CHECK_THAT(refusal(R"(root ::= "\q")"), Contains("an escape"));
  CHECK_THAT(refusal(R"(root ::= "\xZ0")"), Contains("a code point"));
  CHECK_THAT(refusal("root ::= \"a\" = \"b\""), Contains("the name of a rule"));
  CHECK_THAT(refusal("root ::= \"a\"\nroot ::= \"b\""), Contains("another rule"));
  CHECK_THAT(refusal("root ::= \"a\" )"), Contains("the end of the rule"));
  CHECK_THAT(refusal("# nothing"), Contains("no rule 'root'"));
  CHECK_THAT(refusal("?start: \"a\""), Contains("the name of a rule"));
}
