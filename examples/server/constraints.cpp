#include "constraints.hpp"

#include <nanovllm/api/grammar/bytes/grammar_vocabulary.hpp>
#include <nanovllm/api/serve/constraint/cached_constraint_compiler.hpp>
#include <nanovllm/api/serve/constraint/constraint_compiler.hpp>
#include <nanovllm/engine/request/frontend.hpp>

namespace nanovllm::examples {

std::shared_ptr<serve::ConstraintCompiler> make_constraint_compiler(const AnyEngine& engine,
                                                                    std::size_t max_bytes,
                                                                    bool allow_grammars) {
  const TextSide& text = engine.text();
  if (!text.tokenizer) return nullptr;
  const auto vocabulary =
      std::make_shared<GrammarVocabulary>(*text.tokenizer, engine.eos_token_ids());
  return std::make_shared<serve::CachedConstraintCompiler>(
      std::make_shared<serve::OutputConstraintCompiler>(
          vocabulary, serve::ConstraintLimits{.allow_grammars = allow_grammars}),
      max_bytes);
}

}  // namespace nanovllm::examples
