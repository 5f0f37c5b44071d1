#pragma once
/// Requests whose prompts begin alike, made from a seed.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "../engine_bench/python_random.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/math.hpp"

namespace prefix_bench {

namespace nv = nanovllm;
using engine_bench::PythonRandom;
using Tokens = std::vector<nv::TokenId>;

/// A prompt is what comes before, and `text`. Before it comes the parent's prompt and the parent's
/// answer, or else one of the workload's prefixes, or nothing.
struct Request {
  std::optional<std::size_t> parent{};  ///< an earlier request; this one waits for its answer
  std::optional<std::size_t> prefix{};
  Tokens text{};
  std::int32_t max_tokens = 0;  ///< of the answer, which has exactly as many
};

struct Workload {
  std::vector<Tokens> prefixes{};
  std::vector<Request> requests{};  ///< in the order of their submission; parents first
};

/// The prompt of request `i`. `prompts` and `answers` are those of the requests before it.
[[nodiscard]] inline Tokens prompt_of(const Workload& workload, std::size_t i,
                                      const std::vector<Tokens>& prompts,
                                      const std::vector<Tokens>& answers) {
  const Request& request = workload.requests[i];
  Tokens prompt;
  const auto append = [&](const Tokens& tokens) {
    prompt.insert(prompt.end(), tokens.begin(), tokens.end());
  };
  if (request.parent) {
    append(prompts[*request.parent]);
    append(answers[*request.parent]);
  } else if (request.prefix) {
    append(workload.prefixes[*request.prefix]);
  }
  append(request.text);
  return prompt;
}

/// Tokens of every request's prompt.
[[nodiscard]] inline std::vector<std::int64_t> prompt_lengths(const Workload& workload) {
  std::vector<std::int64_t> lengths;
  for (const Request& request : workload.requests) {
    std::int64_t before = 0;
    if (request.parent) {
      before = lengths[*request.parent] + workload.requests[*request.parent].max_tokens;
    } else if (request.prefix) {
      before = static_cast<std::int64_t>(workload.prefixes[*request.prefix].size());
    }
    lengths.push_back(before + static_cast<std::int64_t>(request.text.size()));
  }
  return lengths;
}

/// Tokens of the longest sequence, prompt and answer.
[[nodiscard]] inline std::int64_t longest_sequence(const Workload& workload) {
  const std::vector<std::int64_t> lengths = prompt_lengths(workload);
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i)
    longest = std::max(longest, lengths[i] + workload.requests[i].max_tokens);
  return longest;
}

/// Blocks that hold every prefix, text and answer once, with one more a request for the block that
/// it fills from its middle on: a cache that finds everything and has as many gives up little.
[[nodiscard]] inline std::int64_t needed_blocks(const Workload& workload, std::int64_t block_size) {
  std::int64_t blocks = 0;
  for (const Tokens& prefix : workload.prefixes)
    blocks += nv::ceil_div(static_cast<std::int64_t>(prefix.size()), block_size);
  for (const Request& request : workload.requests) {
    const auto size = static_cast<std::int64_t>(request.text.size()) + request.max_tokens;
    blocks += nv::ceil_div(size, block_size) + 1;
  }
  return blocks;
}

/// Blocks of a pool that has a `share` of those, and at least what the longest sequence takes.
[[nodiscard]] inline std::int64_t pool_blocks(const Workload& workload, double share,
                                              std::int64_t block_size) {
  const auto needed = static_cast<double>(needed_blocks(workload, block_size));
  return std::max(static_cast<std::int64_t>(share * needed + 0.5),
                  nv::ceil_div(longest_sequence(workload) + 1, block_size) + 1);
}

/// Blocks that `num_samples` answers to every request take beside those of the first.
[[nodiscard]] inline std::int64_t sample_blocks(const Workload& workload, std::int32_t num_samples,
                                                std::int64_t block_size) {
  std::int64_t blocks = 0;
  for (const Request& request : workload.requests)
    blocks += nv::ceil_div(std::int64_t{request.max_tokens}, block_size) + 2;
  return blocks * (num_samples - 1);
}

/// How many tokens a text has: any number in [min, max].
struct Length {
  std::int64_t min = 0, max = 0;
};

/// Many questions about few texts: system prompts, or documents.
struct SharedSpec {
  std::int64_t num_requests = 48, num_prefixes = 4, prefix_tokens = 200;
  Length own{8, 32};
};

/// Conversations, and what is said in each turn: by a tool in a share of the turns after the
/// first, else by a user. All begin with one system prompt.
struct ChatSpec {
  std::int64_t num_chats = 4, num_turns = 20, system_tokens = 64;
  double tool_share = 0.5;
  Length user{4, 16}, tool{8, 32};
};

/// Trees of thought: a root, and below every node but those of the last level as many more.
struct TreeSpec {
  std::int64_t num_trees = 1, root_tokens = 128, num_children = 3, num_levels = 3;
  Length thought{8, 24};
};

/// Prompts that have nothing in common.
struct UniqueSpec {
  std::int64_t num_requests = 16;
  Length prompt{64, 256};
};

/// Random tokens of a vocabulary.
class TextSource {
 public:
  TextSource(std::uint64_t seed, std::int64_t vocab_size)
      : random_(seed), vocab_size_(vocab_size) {}

  [[nodiscard]] Tokens text(Length length) {
    Tokens tokens(static_cast<std::size_t>(random_.randint(length.min, length.max)));
    for (nv::TokenId& token : tokens)
      token = static_cast<nv::TokenId>(random_.randint(0, vocab_size_ - 1));
    return tokens;
  }
  [[nodiscard]] Tokens text(std::int64_t length) { return text(Length{length, length}); }

  /// True with probability `share`.
  [[nodiscard]] bool chance(double share) {
    return static_cast<double>(random_.randint(0, 999'999)) < 1e6 * share;
  }

  /// Brings `values` into a random order. Source: Fisher and Yates.
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i > 1; --i) {
      const auto j = static_cast<std::size_t>(random_.randint(0, static_cast<std::int64_t>(i) - 1));
      std::swap(values[i - 1], values[j]);
    }
  }

 private:
  PythonRandom random_;
  std::int64_t vocab_size_;
};

/// Every prefix has as many requests as the others, or one more; their order is random.
[[nodiscard]] inline Workload make_shared(const SharedSpec& spec, std::int32_t answer_tokens,
                                          TextSource source) {
  nv::check<nv::ConfigError>(spec.num_prefixes >= 1, "the workload needs a prefix at least");
  Workload out;
  for (std::int64_t i = 0; i < spec.num_prefixes; ++i)
    out.prefixes.push_back(source.text(spec.prefix_tokens));
  std::vector<std::size_t> order;
  for (std::int64_t i = 0; i < spec.num_requests; ++i)
    order.push_back(static_cast<std::size_t>(i % spec.num_prefixes));
  source.shuffle(order);
  for (const std::size_t prefix : order)
    out.requests.push_back(
        {.prefix = prefix, .text = source.text(spec.own), .max_tokens = answer_tokens});
  return out;
}

/// All first turns, then all second ones: conversations take turns as their users do.
[[nodiscard]] inline Workload make_chats(const ChatSpec& spec, std::int32_t answer_tokens,
                                         TextSource source) {
  Workload out{.prefixes = {source.text(spec.system_tokens)}};
  const auto num_chats = static_cast<std::size_t>(spec.num_chats);
  for (std::int64_t turn = 0; turn < spec.num_turns; ++turn) {
    for (std::size_t chat = 0; chat < num_chats; ++chat) {
      Request request{.max_tokens = answer_tokens};
      if (turn == 0) {
        request.prefix = 0;
      } else {
        request.parent = out.requests.size() - num_chats;
      }
      const bool is_tool = turn > 0 && source.chance(spec.tool_share);
      request.text = source.text(is_tool ? spec.tool : spec.user);
      out.requests.push_back(std::move(request));
    }
  }
  return out;
}

/// Level by level, over all trees. The root is level 0.
[[nodiscard]] inline Workload make_trees(const TreeSpec& spec, std::int32_t answer_tokens,
                                         TextSource source) {
  Workload out;
  for (std::int64_t i = 0; i < spec.num_trees; ++i)
    out.requests.push_back({.text = source.text(spec.root_tokens), .max_tokens = answer_tokens});
  std::size_t begin = 0;
  for (std::int64_t level = 1; level <= spec.num_levels; ++level) {
    const std::size_t end = out.requests.size();
    for (std::size_t parent = begin; parent < end; ++parent) {
      for (std::int64_t i = 0; i < spec.num_children; ++i)
        out.requests.push_back(
            {.parent = parent, .text = source.text(spec.thought), .max_tokens = answer_tokens});
    }
    begin = end;
  }
  return out;
}

[[nodiscard]] inline Workload make_unique(const UniqueSpec& spec, std::int32_t answer_tokens,
                                          TextSource source) {
  Workload out;
  for (std::int64_t i = 0; i < spec.num_requests; ++i)
    out.requests.push_back({.text = source.text(spec.prompt), .max_tokens = answer_tokens});
  return out;
}

}  // namespace prefix_bench
