#pragma once
/// Templates for tests, of tests/fixtures/chat.

#include <string>

#include "nanovllm/chat/chat_template.hpp"

namespace nanovllm_test {

/// ChatML with thoughts, tools and a switch for thinking, in the manner of Qwen3's models.
inline nanovllm::ChatTemplate hybrid_template() {
  return nanovllm::ChatTemplate::from_argument("tests/fixtures/chat/hybrid.jinja");
}

/// Content is a list of parts, and an answer begins with a thought.
inline nanovllm::ChatTemplate parts_template() {
  return nanovllm::ChatTemplate::from_argument("tests/fixtures/chat/parts.jinja");
}

}  // namespace nanovllm_test
