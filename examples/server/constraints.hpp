#pragma once
/// What `serve` holds answers to a form with.

#include <nanovllm/api/serve/constraint/output_constraint.hpp>
#include <nanovllm/engine/any_engine.hpp>

#include <cstddef>
#include <memory>

namespace nanovllm::examples {

/// Null for a checkpoint without a tokeniser.
/// @param max_bytes       for compiled constraints that are kept for later requests.
/// @param allow_grammars  whether requests may contain grammars.
[[nodiscard]] std::shared_ptr<serve::ConstraintCompiler> make_constraint_compiler(
    const AnyEngine& engine, std::size_t max_bytes, bool allow_grammars);

}  // namespace nanovllm::examples
