#pragma once
/// Constraints on what is generated: regular expressions, JSON Schema, EBNF grammars.

#include "nanovllm/grammar/bytes/grammar_vocabulary.hpp"
#include "nanovllm/grammar/bytes/mask_cache.hpp"
#include "nanovllm/grammar/ebnf/grammar_source.hpp"
#include "nanovllm/grammar/json/json_schema_compiler.hpp"
#include "nanovllm/grammar/regex/regex_source.hpp"
#include "nanovllm/grammar/source/cpu_budget_source.hpp"
#include "nanovllm/grammar/source/either_source.hpp"
#include "nanovllm/grammar/source/marker_source.hpp"
