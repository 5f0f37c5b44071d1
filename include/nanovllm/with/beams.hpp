#pragma once
/// Beam search: `SamplingParams::beam_width`, which a header-only program can use if one of its
/// files includes this.

#include "nanovllm/with/beams/beam_group.hpp"
#include "nanovllm/with/beams/beam_search.hpp"
