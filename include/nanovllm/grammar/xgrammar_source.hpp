#pragma once
/// Constraints by context-free grammars, through XGrammar (https://github.com/mlc-ai/xgrammar). Needs
/// the CMake target nanovllm::xgrammar, and so nanovllm.hpp does not include it.
/// docs/structured_output.md
///
///   nv::XGrammarCompiler compiler(vocabulary);
///   auto source = compiler.ebnf("root ::= \"(\" root \")\" | [a-z]+");

#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/grammar/bytes/grammar_vocabulary.hpp"
#include "nanovllm/grammar/json/json_schema_compiler.hpp"
#include "nanovllm/grammar/regex/regex_source.hpp"
#include "nanovllm/sampling/token_mask_source.hpp"

namespace nanovllm {

namespace detail {

/// What `call` returns. What XGrammar throws becomes a RequestError with its reason behind `what`.
template <class Call>
auto with_xgrammar(const char* what, Call&& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    throw RequestError(concat(what, ": ", error.what()));
  }
}

}  // namespace detail

/// A grammar that XGrammar has compiled. Made by XGrammarCompiler.
///
/// What it allows must also be allowed by a `form`, a coarser constraint of our own: XGrammar 0.2.8
/// takes some byte sequences for characters that are not UTF-8 (surrogates, in places overlong
/// forms).
class XGrammarSource final : public TokenMaskSource {
 public:
  /// @param form for the same vocabulary. Every text of the grammar that is to be allowed has it.
  XGrammarSource(xgrammar::CompiledGrammar grammar, std::shared_ptr<const TokenMaskSource> form)
      : grammar_(std::move(grammar)), form_(std::move(form)) {}

  [[nodiscard]] std::unique_ptr<TokenMatcher> matcher() const override {
    return std::make_unique<Matcher>(xgrammar::GrammarMatcher(grammar_), form_->matcher(),
                                     vocab_size());
  }
  [[nodiscard]] int vocab_size() const override { return form_->vocab_size(); }

  /// Bytes of memory, about.
  [[nodiscard]] std::size_t size_bytes() const { return grammar_.MemorySizeBytes(); }

 private:
  /// XGrammar's matcher keeps the way it came, so a clone costs as much as the text is long.
  class Matcher final : public TokenMatcher {
   public:
    Matcher(xgrammar::GrammarMatcher matcher, std::unique_ptr<TokenMatcher> form, int vocab_size)
        : matcher_(std::move(matcher)), form_(std::move(form)), vocab_size_(vocab_size) {}

    [[nodiscard]] std::unique_ptr<TokenMatcher> clone() const override {
      return std::make_unique<Matcher>(matcher_.Fork(), form_->clone(), vocab_size_);
    }

    [[nodiscard]] bool accept(TokenId token) override {
      if (matcher_.IsTerminated()) return form_->accept(token);  // a stop token
      std::unique_ptr<TokenMatcher> form = form_->clone();
      const bool fits =
          form->accept(token) && detail::with_xgrammar("the grammar could not go on",
                                                       [&] { return matcher_.AcceptToken(token); });
      if (fits) form_ = std::move(form);
      return fits;
    }

    void fill(std::span<std::uint32_t> bits) const override {
      if (matcher_.IsTerminated()) return form_->fill(bits);
      std::vector<std::uint32_t> has_form(num_mask_words(static_cast<std::size_t>(vocab_size_)), 0);
      form_->fill(has_form);
      auto shape = static_cast<std::int64_t>(has_form.size());
      DLTensor tensor{};
      tensor.data = bits.data();
      tensor.device = {kDLCPU, 0};
      tensor.ndim = 1;
      tensor.dtype = xgrammar::GetBitmaskDLType();
      tensor.shape = &shape;
      detail::with_xgrammar("the grammar has no mask",
                            [&] { return matcher_.FillNextTokenBitmask(&tensor); });
      for (std::size_t i = 0; i < has_form.size(); ++i) bits[i] &= has_form[i];
    }

    [[nodiscard]] bool is_finished() const override {
      if (matcher_.IsTerminated()) return true;
      if (!matcher_.IsCompleted()) return false;
      std::vector<std::uint32_t> allowed(num_mask_words(static_cast<std::size_t>(vocab_size_)), 0);
      fill(allowed);
      for (int stop : matcher_.GetStopTokenIds())
        allowed[static_cast<std::size_t>(stop) / 32] &= ~(std::uint32_t{1} << stop % 32);
      return std::all_of(allowed.begin(), allowed.end(), [](auto word) { return word == 0; });
    }

   private:
    mutable xgrammar::GrammarMatcher matcher_;  // a mask leaves its state as it was
    std::unique_ptr<TokenMatcher> form_;
    int vocab_size_;
  };

  xgrammar::CompiledGrammar grammar_;
  std::shared_ptr<const TokenMaskSource> form_;
};

/// Compiles grammars for one vocabulary. What they have in common, such as what a string may be, is
/// worked out once. Thread-safe. A large grammar, or one with large bounds, can take seconds.
///
/// Every member throws RequestError with the reason for what it does not take.
class XGrammarCompiler {
 public:
  /// @param max_threads     for one call.
  /// @param max_cache_bytes for what grammars have in common, and whole ones that are asked for
  ///                        again.
  explicit XGrammarCompiler(std::shared_ptr<const GrammarVocabulary> vocabulary,
                            int max_threads = 4,
                            std::int64_t max_cache_bytes = std::int64_t{256} << 20)
      : compiler_(tokenizer_info(*vocabulary), max_threads, true, max_cache_bytes),
        json_(vocabulary),
        utf8_(std::make_shared<const RegexSource>(std::move(vocabulary), "(.|\\n)*")) {}

  /// JSON that is valid by a schema, as a JsonSchemaCompiler has it: without XGrammar.
  [[nodiscard]] std::shared_ptr<const GrammarSource> json_schema(
      const std::string& schema, const JsonStyle& style = {}) const {
    return json_.json_schema(schema, style);
  }

  /// Any JSON object or array, likewise.
  [[nodiscard]] std::shared_ptr<const GrammarSource> json() const { return json_.json(); }

  /// A context-free grammar as XGrammar writes it, such as `root ::= "a" root "b" | ""`.
  [[nodiscard]] std::shared_ptr<const XGrammarSource> ebnf(const std::string& grammar,
                                                           const std::string& root = "root") const {
    return source("the grammar is refused", utf8_,
                  [&] { return compiler_.CompileGrammar(grammar, root); });
  }

  /// A regular expression in XGrammar's dialect. RegexSource is another way.
  [[nodiscard]] std::shared_ptr<const XGrammarSource> regex(const std::string& pattern) const {
    return source("the regular expression is refused", utf8_,
                  [&] { return compiler_.CompileRegex(pattern); });
  }

 private:
  [[nodiscard]] static xgrammar::TokenizerInfo tokenizer_info(const GrammarVocabulary& vocabulary) {
    std::vector<std::string> tokens;
    for (TokenId id = 0; id < vocabulary.vocab_size(); ++id)
      tokens.emplace_back(vocabulary.bytes(id));
    const auto stops = vocabulary.stop_token_ids();
    return {tokens, xgrammar::VocabType::RAW, vocabulary.vocab_size(),
            std::vector<std::int32_t>(stops.begin(), stops.end())};
  }

  template <class Compile>
  [[nodiscard]] static std::shared_ptr<const XGrammarSource> source(
      const char* what, const std::shared_ptr<const TokenMaskSource>& form, Compile&& compile) {
    return detail::with_xgrammar(
        what, [&] { return std::make_shared<const XGrammarSource>(compile(), form); });
  }

  mutable xgrammar::GrammarCompiler compiler_;  // thread-safe
  JsonSchemaCompiler json_;
  std::shared_ptr<const TokenMaskSource> utf8_;
};

}  // namespace nanovllm
