#pragma once
/// Compilers of the constraints that requests state: one that needs no other library, and one that
/// remembers what another has compiled. serve/xgrammar_constraints.hpp has the one for JSON.

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/grammar/grammar_vocabulary.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"
#include "nanovllm/serve/output_constraint.hpp"

namespace nanovllm::serve {

/// What a constraint may have at the most. What is larger is refused before it costs anything.
struct ConstraintLimits {
  std::size_t max_text_bytes = std::size_t{256}
                               << 10;  ///< of a schema, pattern, grammar, all tools
  std::size_t max_choices = 1024;
  std::size_t max_choice_bytes = std::size_t{64} << 10;  ///< of all choices together
  /// Whether grammars are taken (Kind::grammar). One with many readings of a text can hold up a step
  /// for as long as it takes to read a token, so those who write them must be trusted.
  bool allow_grammars = false;
  /// Memory for the masks of one regular expression.
  std::size_t max_mask_bytes = std::size_t{4} << 20;
};

/// A source and what it needs.
struct CompiledConstraint {
  std::shared_ptr<const TokenMaskSource> source;
  std::size_t size_bytes = 0;  ///< of memory, about, when all its masks were asked for
};

/// A compiler that says how large its sources are.
class SizedConstraintCompiler : public ConstraintCompiler {
 public:
  /// As compile(). Not for Kind::none.
  [[nodiscard]] virtual CompiledConstraint compile_sized(const OutputConstraint& constraint) = 0;

  [[nodiscard]] std::shared_ptr<const TokenMaskSource> compile(
      const OutputConstraint& constraint) override {
    if (constraint.kind == OutputConstraint::Kind::none) return nullptr;
    return compile_sized(constraint).source;
  }
};

/// Compiles regular expressions and choices, with or without a thought before them. The other kinds
/// are a RequestError that says what they need.
class RegexConstraintCompiler : public SizedConstraintCompiler {
 public:
  explicit RegexConstraintCompiler(std::shared_ptr<const GrammarVocabulary> vocabulary,
                                   ConstraintLimits limits = {});

  /// Throws RequestError for what is beyond the limits, or what compile_form refuses.
  [[nodiscard]] CompiledConstraint compile_sized(const OutputConstraint& constraint) final;

 protected:
  /// The form without a thought before it. Within the limits.
  [[nodiscard]] virtual CompiledConstraint compile_form(const OutputConstraint& constraint);

  [[nodiscard]] const std::shared_ptr<const GrammarVocabulary>& vocabulary() const {
    return vocabulary_;
  }
  [[nodiscard]] const ConstraintLimits& limits() const { return limits_; }

 private:
  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  ConstraintLimits limits_;
};

/// Remembers the sources that another compiler has made, within `max_bytes` of memory: when there is
/// no room, those go that were not asked for of late. Equal constraints that several threads ask for
/// at once are compiled once, by one of them, and the others wait. A failure is thrown to all who
/// wait for it and is not remembered.
///
/// A source that a request still uses is not freed when it is forgotten.
class CachedConstraintCompiler final : public ConstraintCompiler {
 public:
  explicit CachedConstraintCompiler(std::shared_ptr<SizedConstraintCompiler> inner,
                                    std::size_t max_bytes = std::size_t{256} << 20);

  [[nodiscard]] std::shared_ptr<const TokenMaskSource> compile(
      const OutputConstraint& constraint) override;

  [[nodiscard]] std::size_t size_bytes() const;    ///< of the sources that are remembered
  [[nodiscard]] std::size_t num_compiled() const;  ///< compilations so far, failures among them

 private:
  struct Entry;

  void remember(const std::string& key, const CompiledConstraint& compiled);

  std::shared_ptr<SizedConstraintCompiler> inner_;
  std::size_t max_bytes_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<Entry>> entries_;
  std::list<std::string> recent_;  // the keys of finished entries, the latest first
  std::size_t num_bytes_ = 0;
  std::size_t num_compiled_ = 0;
};

}  // namespace nanovllm::serve

#if NANOVLLM_BODIES
#include "nanovllm/serve/constraint_compiler.inc"
#endif
