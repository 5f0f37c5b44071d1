#pragma once
/// Text to tokens and back.

#include "nanovllm/text/detokenizer.hpp"
#include "nanovllm/text/tokenizer.hpp"
