#pragma once
/// A checkpoint of any model: the registry, the list of all models, and `make_engine`, which makes
/// the engine of what config.json names.

#include "nanovllm/with/any/all_models.hpp"
#include "nanovllm/with/any/make_engine.hpp"
#include "nanovllm/with/any/registry.hpp"
