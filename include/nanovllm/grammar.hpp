#pragma once
/// Constraints on what is generated: regular expressions, JSON Schema, EBNF grammars.

#include "nanovllm/api/grammar/bytes/grammar_vocabulary.hpp"
#include "nanovllm/api/grammar/bytes/mask_cache.hpp"
#include "nanovllm/api/grammar/ebnf/grammar_source.hpp"
#include "nanovllm/api/grammar/json/json_schema_compiler.hpp"
#include "nanovllm/api/grammar/regex/regex_source.hpp"
#include "nanovllm/api/grammar/source/cpu_budget_source.hpp"
#include "nanovllm/api/grammar/source/either_source.hpp"
#include "nanovllm/api/grammar/source/marker_source.hpp"
