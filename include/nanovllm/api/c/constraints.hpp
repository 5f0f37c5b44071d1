#pragma once
/// The form that a request of C asks for its text, and what compiles it for an engine.

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "nanovllm/api/c/conversions.hpp"
#include "nanovllm/api/grammar/bytes/grammar_vocabulary.hpp"
#include "nanovllm/api/serve/constraint/cached_constraint_compiler.hpp"
#include "nanovllm/api/serve/constraint/constraint_compiler.hpp"
#include "nanovllm/api/serve/constraint/output_constraint.hpp"
#include "nanovllm/c/nanovllm.h"
#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/engine/request/frontend.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"

namespace nanovllm::c_api {

namespace detail {

[[nodiscard]] inline serve::JsonSpace read_json_space(std::int32_t value) {
  switch (value) {
    case NVLLM_JSON_SPACE_TIDY: return serve::JsonSpace::tidy;
    case NVLLM_JSON_SPACE_NONE: return serve::JsonSpace::none;
    case NVLLM_JSON_SPACE_ANY: return serve::JsonSpace::any;
    default: throw InvalidError(concat("json_space must be 0, 1 or 2, got ", value));
  }
}

}  // namespace detail

/// The form that `given` states, of Kind::none if it states none. Throws InvalidError for more than
/// one, and for settings of a form without a form.
[[nodiscard]] inline serve::OutputConstraint read_constraint(const nvllm_sampling_params* given) {
  using Kind = serve::OutputConstraint::Kind;
  serve::OutputConstraint out;
  if (given == nullptr) return out;
  const nvllm_sampling_params c = read_struct(given);
  check_reserved(c.reserved_2, "nvllm_sampling_params", "reserved_2");
  const auto state = [&](bool is_set, Kind kind, const char* text) {
    if (!is_set) return;
    check<InvalidError>(out.kind == Kind::none, "a text has one form: only one of json_schema, ",
                        "json_object, regex, choice and grammar may be set");
    out.kind = kind;
    if (text != nullptr) out.text = text;
  };
  state(c.json_schema != nullptr, Kind::json_schema, c.json_schema);
  state(c.regex != nullptr, Kind::regex, c.regex);
  state(c.grammar != nullptr, Kind::grammar, c.grammar);
  out.choices = read_list<std::string>(c.choice, c.num_choice, "choice");
  state(!out.choices.empty(), Kind::choice, nullptr);
  state(read_flag(c.json_object, "json_object"), Kind::json_object, nullptr);
  out.json_space = detail::read_json_space(c.json_space);
  out.after_reasoning = read_flag(c.after_reasoning, "after_reasoning");
  check<InvalidError>(out.kind != Kind::none || (c.json_space == 0 && !out.after_reasoning),
                      "json_space and after_reasoning go with a form of the text");
  return out;
}

/// Compiles the forms that requests of one engine ask for, each once. Thread-safe.
class Constraints {
 public:
  /// Null if `params` state no form. Throws RequestError for a form that cannot be compiled, with
  /// the place in it, and if the checkpoint has no tokenizer.json.
  [[nodiscard]] std::shared_ptr<const TokenMaskSource> compile(
      const AnyEngine& engine, const nvllm_sampling_params* params) {
    const serve::OutputConstraint constraint = read_constraint(params);
    if (constraint.kind == serve::OutputConstraint::Kind::none) return nullptr;
    return compiler_of(engine).compile(constraint);
  }

 private:
  serve::ConstraintCompiler& compiler_of(const AnyEngine& engine) {
    const TextSide& text = engine.text();
    check<RequestError>(text.tokenizer.has_value(),
                        "a form of the text needs a tokenizer.json, which the checkpoint lacks");
    const std::lock_guard lock(mutex_);
    if (compiler_ == nullptr) {
      // The program writes its grammars itself, so they are trusted.
      compiler_ = std::make_unique<serve::CachedConstraintCompiler>(
          std::make_shared<serve::OutputConstraintCompiler>(
              std::make_shared<GrammarVocabulary>(*text.tokenizer, engine.eos_token_ids()),
              serve::ConstraintLimits{.allow_grammars = true}));
    }
    return *compiler_;
  }

  std::mutex mutex_;
  std::unique_ptr<serve::ConstraintCompiler> compiler_;
};

}  // namespace nanovllm::c_api
