#pragma once
// A user's program of three files, each with an engine.

#include <cstddef>
#include <string>

namespace consumer {

inline constexpr const char* kPrompt = "Once upon a time";

// What a model writes after kPrompt: 12 tokens, the likeliest.
std::string text_of_own_policy(const std::string& model);
std::string text_of_own_shape(const std::string& model);
std::string text_of_own_model(const std::string& model);

// Elements of what the model makes of a text.
std::size_t size_of_embedding(const std::string& model);

}  // namespace consumer
