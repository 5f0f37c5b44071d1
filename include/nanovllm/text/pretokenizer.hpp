#pragma once
/// Splits text into the pieces that byte-pair encoding may not merge across, with the regular
/// expression that tokenizer.json states, through PCRE2's just-in-time compiler.

#ifndef PCRE2_CODE_UNIT_WIDTH
#define PCRE2_CODE_UNIT_WIDTH 8
#endif
#include <pcre2.h>
#include <cstddef>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/utf8.hpp"
#include "nanovllm/text/regex_syntax.hpp"

namespace nanovllm {

namespace detail {

struct Pcre2Free {
  void operator()(pcre2_code_8* p) const { pcre2_code_free_8(p); }
  void operator()(pcre2_match_data_8* p) const { pcre2_match_data_free_8(p); }
  void operator()(pcre2_match_context_8* p) const { pcre2_match_context_free_8(p); }
  void operator()(pcre2_compile_context_8* p) const { pcre2_compile_context_free_8(p); }
  void operator()(pcre2_jit_stack_8* p) const { pcre2_jit_stack_free_8(p); }
};

template <class T>
using Pcre2Ptr = std::unique_ptr<T, Pcre2Free>;

[[nodiscard]] inline std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR8, 256> text{};
  pcre2_get_error_message_8(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

/// Major version of the Unicode tables inside PCRE2.
[[nodiscard]] inline int pcre2_unicode_version() {
  std::array<char, 64> text{};
  pcre2_config_8(PCRE2_CONFIG_UNICODE_VERSION, text.data());
  return std::atoi(text.data());
}

}  // namespace detail

/// What one thread needs to match any number of patterns.
class RegexScratch {
 public:
  RegexScratch()
      : match_(pcre2_match_data_create_8(1, nullptr)),
        context_(pcre2_match_context_create_8(nullptr)),
        stack_(pcre2_jit_stack_create_8(32 << 10, 4 << 20, nullptr)) {
    check<Error>(match_ != nullptr && context_ != nullptr, "PCRE2 is out of memory");
    // Without a separate stack (no JIT on this machine) PCRE2 works as well.
    if (stack_) pcre2_jit_stack_assign_8(context_.get(), nullptr, stack_.get());
  }

 private:
  friend class SplitPattern;

  /// Going back through a long run takes a step for each character, so the default of ten million
  /// steps a match, which stops patterns that take exponential time, grows with the text.
  void limit_steps(std::size_t text_size) {
    const std::size_t limit = 10'000'000 + 4 * text_size;
    pcre2_set_match_limit_8(context_.get(),
                            static_cast<std::uint32_t>(std::min<std::size_t>(limit, UINT32_MAX)));
  }

  detail::Pcre2Ptr<pcre2_match_data_8> match_;
  detail::Pcre2Ptr<pcre2_match_context_8> context_;
  detail::Pcre2Ptr<pcre2_jit_stack_8> stack_;
};

/// One `Split` step of a pre-tokeniser with behaviour "Isolated": every match is a piece, and so is
/// every stretch between matches. Immutable and thread-safe; each thread brings a RegexScratch.
class SplitPattern {
 public:
  /// Compiles a regular expression in Oniguruma's dialect, see `to_pcre2()`. Throws LoadError when
  /// the pattern is not valid or not supported.
  [[nodiscard]] static SplitPattern regex(std::string_view pattern) {
    return SplitPattern(to_pcre2(pattern, detail::pcre2_unicode_version() >= 16), pattern,
                        PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE);
  }

  /// A pattern that matches `text` itself.
  [[nodiscard]] static SplitPattern literal(std::string_view text) {
    return SplitPattern(std::string(text), text, PCRE2_UTF | PCRE2_LITERAL);
  }

  /// Calls `piece(std::string_view)` for each piece from left to right; together they are `text`,
  /// which must be valid UTF-8. Throws RequestError when the pattern exceeds PCRE2's match limit.
  template <class Piece>
  void split(std::string_view text, RegexScratch& scratch, Piece&& piece) const {
    scratch.limit_steps(text.size());
    std::size_t done = 0;    // pieces up to here are out
    std::size_t search = 0;  // the next match begins here or later
    constexpr auto kNone = static_cast<std::size_t>(-1);
    for (std::size_t last_end = kNone; search <= text.size();) {
      std::size_t begin, end;
      if (!find(text, search, scratch, begin, end)) break;
      if (begin == end && begin == last_end) {  // an empty match right after a match: step over
        search += begin < text.size() ? utf8::decode(text, begin).size : 1;
        continue;
      }
      if (done < begin) piece(text.substr(done, begin - done));
      if (begin < end) piece(text.substr(begin, end - begin));
      done = search = last_end = end;
    }
    if (done < text.size()) piece(text.substr(done));
  }

 private:
  SplitPattern(const std::string& translated, std::string_view original, std::uint32_t options) {
    detail::Pcre2Ptr<pcre2_compile_context_8> context(pcre2_compile_context_create_8(nullptr));
    check<Error>(context != nullptr, "PCRE2 is out of memory");
    pcre2_set_newline_8(context.get(), PCRE2_NEWLINE_LF);
    int error = 0;
    std::size_t offset = 0;
    code_.reset(pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(translated.data()), translated.size(),
                                options, &error, &offset, context.get()));
    if (code_ == nullptr) {
      throw LoadError(
          concat("the pre-tokenizer's pattern '", original,
                 "' is not a valid regular expression: ", detail::pcre2_message(error)));
    }
    jit_ = pcre2_jit_compile_8(code_.get(), PCRE2_JIT_COMPLETE) == 0;
  }

  bool find(std::string_view text, std::size_t from, RegexScratch& scratch, std::size_t& begin,
            std::size_t& end) const {
    const auto match = jit_ ? pcre2_jit_match_8 : pcre2_match_8;
    const int result =
        match(code_.get(), reinterpret_cast<PCRE2_SPTR8>(text.data()), text.size(), from,
              PCRE2_NO_UTF_CHECK, scratch.match_.get(), scratch.context_.get());
    if (result == PCRE2_ERROR_NOMATCH) return false;
    if (result < 0) {  // not check(): the message costs more than a match
      throw RequestError(concat("the pre-tokenizer's pattern gave up on a text of ", text.size(),
                                " bytes: ", detail::pcre2_message(result)));
    }
    const std::size_t* bounds = pcre2_get_ovector_pointer_8(scratch.match_.get());
    begin = bounds[0];
    end = bounds[1];
    return true;
  }

  detail::Pcre2Ptr<pcre2_code_8> code_;
  bool jit_ = false;
};

}  // namespace nanovllm
