#pragma once
/// Drafters that know the answers, or nothing, and a policy with all of them.

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/philox.hpp"
#include "nanovllm/policy.hpp"
#include "nanovllm/with/speculation.hpp"

namespace nanovllm::test {

/// Whole sequences, prompt and output, that engines without drafts have given.
inline std::map<std::vector<TokenId>, int>& known_texts() {
  static std::map<std::vector<TokenId>, int> texts;
  return texts;
}

inline void know(std::vector<TokenId> prompt, const std::vector<TokenId>& answer) {
  prompt.insert(prompt.end(), answer.begin(), answer.end());
  ++known_texts()[std::move(prompt)];
}

/// What follows `tokens` in a text that is known; empty if there is none.
inline std::vector<TokenId> known_rest(std::span<const TokenId> tokens, std::int32_t count) {
  const std::vector<TokenId> begin(tokens.begin(), tokens.end());
  const auto found = known_texts().upper_bound(begin);
  if (found == known_texts().end()) return {};
  const std::vector<TokenId>& text = found->first;
  if (text.size() < begin.size() || !std::equal(begin.begin(), begin.end(), text.begin()))
    return {};
  const auto first = text.begin() + std::ssize(begin);
  return {first, first + std::min<std::ptrdiff_t>(count, text.end() - first)};
}

/// Right where a text is known; of several with one beginning, for one of them.
struct RightDrafter : Drafter {
  static constexpr std::string_view kMethod = "right";
  explicit RightDrafter(const DraftSetup&) {}
  void propose(std::span<const DraftRequest> requests, std::span<Draft> drafts) override {
    for (std::size_t i = 0; i < requests.size(); ++i)
      drafts[i].tokens = known_rest(requests[i].tokens, requests[i].max_tokens);
  }
};

/// Never what is known to come; some of its tokens do not exist.
struct WrongDrafter : Drafter {
  static constexpr std::string_view kMethod = "wrong";
  explicit WrongDrafter(const DraftSetup& setup) : vocab_size(setup.vocab_size) {}
  void propose(std::span<const DraftRequest> requests, std::span<Draft> drafts) override {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      for (const TokenId token : known_rest(requests[i].tokens, requests[i].max_tokens))
        drafts[i].tokens.push_back(static_cast<TokenId>((token + 1) % vocab_size));
      if (requests[i].tokens.size() % 7 == 0) drafts[i].tokens.push_back(-1);
    }
  }
  std::int64_t vocab_size;
};

/// Right, wrong, longer than asked for, empty, without end and throwing, as a hash of the tokens says.
struct RandomDrafter : Drafter {
  static constexpr std::string_view kMethod = "random";
  explicit RandomDrafter(const DraftSetup& setup) : vocab_size(setup.vocab_size) {}
  void propose(std::span<const DraftRequest> requests, std::span<Draft> drafts) override {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const auto size = static_cast<std::uint32_t>(requests[i].tokens.size());
      const auto words = philox4x32(requests[i].sequence, {size, ++num_calls, 0, 0});
      if (words[0] % 64 == 0) throw std::runtime_error("the drafter throws");
      const std::int32_t count = requests[i].max_tokens + static_cast<std::int32_t>(words[1] % 3);
      drafts[i].tokens = known_rest(requests[i].tokens, count);
      if (words[2] % 8 == 0) drafts[i].tokens.clear();
      for (std::size_t j = 0; j < drafts[i].tokens.size(); ++j) {
        const auto more = philox4x32(words[3], {static_cast<std::uint32_t>(j), 1, 0, 0});
        if (more[0] % 4 == 0)
          drafts[i].tokens[j] =
              static_cast<TokenId>(more[1] % static_cast<std::uint64_t>(vocab_size));
        if (more[2] % 64 == 0) drafts[i].tokens[j] = static_cast<TokenId>(vocab_size);
      }
    }
  }
  std::int64_t vocab_size;
  std::uint32_t num_calls = 0;
};

/// Ten times as many as are asked for.
struct LongDrafter : Drafter {
  static constexpr std::string_view kMethod = "long";
  explicit LongDrafter(const DraftSetup&) {}
  void propose(std::span<const DraftRequest> requests, std::span<Draft> drafts) override {
    for (std::size_t i = 0; i < requests.size(); ++i)
      drafts[i].tokens = known_rest(requests[i].tokens, 10 * requests[i].max_tokens);
  }
};

struct EmptyDrafter : Drafter {
  static constexpr std::string_view kMethod = "empty";
  explicit EmptyDrafter(const DraftSetup&) {}
  void propose(std::span<const DraftRequest>, std::span<Draft>) override {}
};

/// Drafts for some, and then throws.
struct ThrowingDrafter : RightDrafter {
  static constexpr std::string_view kMethod = "throwing";
  using RightDrafter::RightDrafter;
  void propose(std::span<const DraftRequest> requests, std::span<Draft> drafts) override {
    RightDrafter::propose(requests, drafts);
    throw std::runtime_error("the drafter throws");
  }
};

using AllDrafters = DraftedBy<RightDrafter, WrongDrafter, RandomDrafter, LongDrafter, EmptyDrafter,
                              ThrowingDrafter, NgramDrafter>;

inline constexpr const char* kAllMethods[] = {"right", "wrong",    "random", "long",
                                              "empty", "throwing", "ngram"};

/// `Base` with all drafters of the tests.
template <class Base>
struct Drafted : Base {
  using Guesses = AllDrafters;
};

}  // namespace nanovllm::test
