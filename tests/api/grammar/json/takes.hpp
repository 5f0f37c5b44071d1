#pragma once
/// What a constraint takes and refuses, for the tests of grammars.

#include <string>
#include <string_view>

#include "api/grammar/vocabularies.hpp"
#include "nanovllm/api/grammar/json/json_schema_compiler.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"

namespace nanovllm_test {

/// Whether the bytes of `text` can be read by a constraint of byte_vocabulary(), one token each,
/// and the text may end there. `as_begin`: whether they can be read at all.
inline bool takes(const nanovllm::TokenMaskSource& source, std::string_view text,
                  bool as_begin = false) {
  const auto matcher = source.matcher();
  for (const char c : text)
    if (!matcher->accept(2 + static_cast<unsigned char>(c))) return false;
  return as_begin || matcher->accept(0);
}

/// Why a schema is refused, or "nothing refused".
inline std::string schema_error(const std::string& schema, const nanovllm::JsonStyle& style = {}) {
  try {
    static_cast<void>(nanovllm::JsonSchemaCompiler(byte_vocabulary()).json_schema(schema, style));
  } catch (const nanovllm::RequestError& error) {
    return error.what();
  }
  return "nothing refused";
}

}  // namespace nanovllm_test
