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
#include "nanovllm/grammar/bytes/grammar_vocabulary.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"
#include "nanovllm/serve/constraint/output_constraint.hpp"

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

#include <exception>
#include <future>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/grammar/regex/regex_source.hpp"
#include "nanovllm/grammar/source/either_source.hpp"
#include "nanovllm/grammar/source/marker_source.hpp"
#include "nanovllm/grammar/source/text_choices.hpp"

namespace nanovllm::serve {

namespace detail {

NANOVLLM_INLINE std::string_view name_of(OutputConstraint::Kind kind) {
  using Kind = OutputConstraint::Kind;
  switch (kind) {
    case Kind::none: return "no constraint";
    case Kind::json_object: return "a JSON object";
    case Kind::json_schema: return "JSON by a schema";
    case Kind::regex: return "a regular expression";
    case Kind::choice: return "a choice";
    case Kind::grammar: return "a grammar";
    case Kind::tool_calls: return "calls of tools that must come";
    case Kind::free_tool_calls: return "strict calls of tools";
  }
  return "an unknown constraint";
}

NANOVLLM_INLINE void check_limits(const OutputConstraint& constraint,
                                  const ConstraintLimits& limits) {
  const auto check_bytes = [](std::string_view what, std::size_t size, std::size_t max) {
    check<RequestError>(size <= max, what, " has ", size, " bytes, more than the ", max,
                        " that are taken");
  };
  check_bytes(name_of(constraint.kind), constraint.text.size(), limits.max_text_bytes);
  if (!constraint.tools.is_null())
    check_bytes("the list of tools", constraint.tools.dump().size(), limits.max_text_bytes);
  check<RequestError>(constraint.choices.size() <= limits.max_choices, "a choice has ",
                      constraint.choices.size(), " texts, more than the ", limits.max_choices,
                      " that are taken");
  std::size_t choice_bytes = 0;
  for (const std::string& choice : constraint.choices) choice_bytes += choice.size();
  check_bytes("a choice", choice_bytes, limits.max_choice_bytes);
}

/// Equal for equal constraints and for no others.
NANOVLLM_INLINE std::string key_of(const OutputConstraint& constraint) {
  std::string key;
  const auto add = [&](std::string_view part) {
    key += std::to_string(part.size());
    key += ':';
    key += part;
  };
  key += static_cast<char>('0' + static_cast<int>(constraint.kind));
  key += constraint.parallel_tool_calls ? 'p' : '1';
  key += static_cast<char>('0' + static_cast<int>(constraint.tool_call_format));
  key += constraint.or_tool_calls ? 'o' : '-';
  key += constraint.after_reasoning ? 'r' : '-';
  add(constraint.text);
  for (const std::string& choice : constraint.choices) add(choice);
  key += ';';
  key += constraint.tools.dump();
  return key;
}

}  // namespace detail

NANOVLLM_INLINE RegexConstraintCompiler::RegexConstraintCompiler(
    std::shared_ptr<const GrammarVocabulary> vocabulary, ConstraintLimits limits)
    : vocabulary_(std::move(vocabulary)), limits_(limits) {}

NANOVLLM_INLINE CompiledConstraint
RegexConstraintCompiler::compile_sized(const OutputConstraint& constraint) {
  check<RequestError>(constraint.kind != OutputConstraint::Kind::none,
                      "there is no constraint to compile");
  detail::check_limits(constraint, limits_);
  CompiledConstraint form = compile_form(constraint);
  if (constraint.or_tool_calls) {
    const CompiledConstraint calls =
        compile_form({.kind = OutputConstraint::Kind::tool_calls,
                      .tools = constraint.tools,
                      .parallel_tool_calls = constraint.parallel_tool_calls,
                      .tool_call_format = constraint.tool_call_format});
    form = {std::make_shared<const EitherSource>(form.source, calls.source),
            form.size_bytes + calls.size_bytes};
  }
  if (!constraint.after_reasoning) return form;
  auto source = after_reasoning(vocabulary_, std::move(form.source));
  const std::size_t size = form.size_bytes + source->size_bytes();
  return {std::move(source), size};
}

NANOVLLM_INLINE CompiledConstraint
RegexConstraintCompiler::compile_form(const OutputConstraint& constraint) {
  using Kind = OutputConstraint::Kind;
  std::string pattern = constraint.text;
  if (constraint.kind == Kind::choice) {
    pattern = text_choices_pattern(constraint.choices);
  } else if (constraint.kind != Kind::regex) {
    throw RequestError(
        concat(detail::name_of(constraint.kind),
               " needs a server that was built with XGrammar (the CMake target "
               "nanovllm::xgrammar); this one takes a regular expression or a choice"));
  }
  auto source = std::make_shared<const RegexSource>(vocabulary_, pattern, limits_.max_mask_bytes);
  const std::size_t size = source->max_size_bytes();
  return {std::move(source), size};
}

struct CachedConstraintCompiler::Entry {
  std::promise<CompiledConstraint> promise;
  std::shared_future<CompiledConstraint> result{promise.get_future()};
  bool is_finished = false;
  std::size_t size_bytes = 0;
  std::list<std::string>::iterator place{};  // in recent_, when finished
};

NANOVLLM_INLINE CachedConstraintCompiler::CachedConstraintCompiler(
    std::shared_ptr<SizedConstraintCompiler> inner, std::size_t max_bytes)
    : inner_(std::move(inner)), max_bytes_(max_bytes) {}

NANOVLLM_INLINE std::shared_ptr<const TokenMaskSource> CachedConstraintCompiler::compile(
    const OutputConstraint& constraint) {
  if (constraint.kind == OutputConstraint::Kind::none) return nullptr;
  const std::string key = detail::key_of(constraint);
  std::shared_ptr<Entry> entry;
  bool is_first = false;
  {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Entry>& known = entries_[key];
    if (!known) {
      known = std::make_shared<Entry>();
      is_first = true;
      ++num_compiled_;
    } else if (known->is_finished) {
      recent_.splice(recent_.begin(), recent_, known->place);
    }
    entry = known;
  }
  if (!is_first) return entry->result.get().source;
  try {
    const CompiledConstraint compiled = inner_->compile_sized(constraint);
    remember(key, compiled);
    entry->promise.set_value(compiled);
    return compiled.source;
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      entries_.erase(key);
    }
    entry->promise.set_exception(std::current_exception());
    throw;
  }
}

NANOVLLM_INLINE void CachedConstraintCompiler::remember(const std::string& key,
                                                        const CompiledConstraint& compiled) {
  std::vector<std::shared_ptr<Entry>> forgotten;  // freed behind the lock
  const std::lock_guard lock(mutex_);
  if (compiled.size_bytes > max_bytes_) {
    forgotten.push_back(std::move(entries_.at(key)));
    entries_.erase(key);
    return;
  }
  recent_.push_front(key);
  Entry& entry = *entries_.at(key);
  entry.place = recent_.begin();
  entry.is_finished = true;
  num_bytes_ += compiled.size_bytes;
  entry.size_bytes = compiled.size_bytes;
  while (num_bytes_ > max_bytes_) {
    const auto oldest = entries_.find(recent_.back());
    num_bytes_ -= oldest->second->size_bytes;
    forgotten.push_back(std::move(oldest->second));
    entries_.erase(oldest);
    recent_.pop_back();
  }
}

NANOVLLM_INLINE std::size_t CachedConstraintCompiler::size_bytes() const {
  const std::lock_guard lock(mutex_);
  return num_bytes_;
}

NANOVLLM_INLINE std::size_t CachedConstraintCompiler::num_compiled() const {
  const std::lock_guard lock(mutex_);
  return num_compiled_;
}

}  // namespace nanovllm::serve

#endif  // NANOVLLM_BODIES
