#pragma once
/// Where the functions that are costly to compile get their bodies.
///
/// Their headers declare them and, at the end, include the bodies (`x.inc` beside `x.hpp`):
///
///   #if NANOVLLM_BODIES
///   #include "nanovllm/text/tokenizer.inc"
///   #endif
///
/// By default every translation unit gets the bodies, as inline functions. With NANOVLLM_PREBUILT
/// defined it gets declarations alone and links them from the target nanovllm::prebuilt, whose one
/// source file defines NANOVLLM_PREBUILT_SOURCE as well and so gets the bodies as ordinary
/// functions.

#if defined(NANOVLLM_PREBUILT)
#define NANOVLLM_INLINE
#else
#define NANOVLLM_INLINE inline
#endif

#if defined(NANOVLLM_PREBUILT) && !defined(NANOVLLM_PREBUILT_SOURCE)
#define NANOVLLM_BODIES 0
#else
#define NANOVLLM_BODIES 1
#endif
