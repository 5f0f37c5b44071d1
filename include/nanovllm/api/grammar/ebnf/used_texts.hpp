#pragma once
/// Texts that must differ: the keys of an object, the items of an array with `uniqueItems`.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/api/grammar/bytes/byte_dfa.hpp"
#include "nanovllm/api/grammar/bytes/dfa_product.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm {

/// The texts that the open scopes have had so far. A scope is a rule marked $scope, identified by
/// the byte of the text at which it began. A copy shares the list.
class UsedTexts {
 public:
  /// O(1) amortised. Scopes that began after this one have ended and are removed.
  void add(std::int32_t scope, std::string text) {
    while (last_ && last_->scope > scope) last_ = last_->next;
    last_ = std::make_shared<Text>(scope, std::move(text), std::move(last_));
  }

  /// Calls `use` with each text of a scope.
  template <class Use>
  void for_each(std::int32_t scope, Use&& use) const {
    for (const Text* at = last_.get(); at && at->scope >= scope; at = at->next.get())
      if (at->scope == scope) use(std::string_view(at->text));
  }

  /// Whether both share one list.
  friend bool operator==(const UsedTexts&, const UsedTexts&) = default;

 private:
  struct Text {
    std::int32_t scope;
    std::string text;
    std::shared_ptr<Text> next;  // of the same scope, or of one that began before it

    Text(std::int32_t in, std::string of, std::shared_ptr<Text> before)
        : scope(in), text(std::move(of)), next(std::move(before)) {}
    Text(const Text&) = delete;
    Text& operator=(const Text&) = delete;
    ~Text() {  // without recursion: an object may have many keys
      while (next && next.use_count() == 1) next = std::shared_ptr<Text>(std::move(next->next));
    }
  };

  std::shared_ptr<Text> last_;
};

/// A place of a grammar whose text must differ from all that its scope has had.
struct UnusedText {
  std::vector<std::string> taken{};  ///< further texts that are not allowed; sorted
  /// [state of the automaton]: the number of its completions (DfaCompletions). Empty where every
  /// state that goes on has an unlimited number.
  std::vector<std::uint32_t> num_texts{};

  /// Calls `use` once with each text that is not allowed.
  template <class Use>
  void for_each_taken(const UsedTexts& used, std::int32_t scope, Use&& use) const {
    for (const std::string& text : taken) use(std::string_view(text));
    used.for_each(scope, [&](std::string_view text) {
      if (!std::binary_search(taken.begin(), taken.end(), text)) use(text);
    });
  }

  [[nodiscard]] bool allows(std::string_view text, const UsedTexts& used,
                            std::int32_t scope) const {
    bool is_taken = false;
    for_each_taken(used, scope, [&](std::string_view each) { is_taken |= each == text; });
    return !is_taken;
  }

  /// Whether an allowed text begins with `begin`, which leads to `state` of `dfa`.
  [[nodiscard]] bool can_end(const ByteDfa& dfa, ByteDfa::StateId state, std::string_view begin,
                             const UsedTexts& used, std::int32_t scope) const {
    const std::uint32_t count =
        num_texts.empty() ? DfaCompletions::kUnlimited : num_texts[static_cast<std::size_t>(state)];
    if (count == DfaCompletions::kUnlimited) return true;
    std::uint32_t num_taken = 0;
    for_each_taken(used, scope, [&](std::string_view each) {
      if (!each.starts_with(begin)) return;
      const ByteDfa::StateId end = dfa.next(state, each.substr(begin.size()));
      num_taken += end != ByteDfa::kDead && dfa.accepts(end);
    });
    return num_taken < count;
  }
};

/// For a text that `dfa` reads and that is none of `taken`. Throws RequestError if `dfa` accepts
/// the empty text, or has a transition back to its start.
[[nodiscard]] inline UnusedText make_unused(const ByteDfa& dfa, std::vector<std::string> taken) {
  UnusedText out{std::move(taken), completions(dfa).num_texts};
  std::sort(out.taken.begin(), out.taken.end());
  out.taken.erase(std::unique(out.taken.begin(), out.taken.end()), out.taken.end());
  check<RequestError>(!dfa.accepts(ByteDfa::kStart), "what must be unused may not be empty");
  bool has_limit = false;
  for (std::size_t i = 0; i < dfa.num_states(); ++i) {
    const auto state = static_cast<ByteDfa::StateId>(i);
    has_limit |= dfa.goes_on(state) && out.num_texts[i] != DfaCompletions::kUnlimited;
    for (int byte = 0; byte < 256; ++byte)
      check<RequestError>(dfa.next(state, static_cast<std::uint8_t>(byte)) != ByteDfa::kStart,
                          "what must be unused may not lead back to its begin");
  }
  if (!has_limit) out.num_texts.clear();
  return out;
}

}  // namespace nanovllm
