#pragma once
/// Where functions that are costly to compile get their bodies.
///
/// Their headers declare them and have the bodies at the end:
///
///     #if NANOVLLM_BODIES
///     NANOVLLM_INLINE int parse(std::string_view text) { return 0; }
///     #endif
///
/// By default every translation unit gets the bodies, as inline functions. With NANOVLLM_SEPARATE
/// defined, as by the target nanovllm::nanovllm, it gets declarations alone and links a library
/// that was made from the same headers: there a source file that defines NANOVLLM_BODIES as 1 gets
/// the bodies as ordinary functions. nvcc's pass for the device gets declarations alone as well: no
/// body here runs there.

#if defined(NANOVLLM_SEPARATE)
#define NANOVLLM_INLINE
#else
#define NANOVLLM_INLINE inline
#endif

#if !defined(NANOVLLM_BODIES)
#if defined(__CUDA_ARCH__) || defined(NANOVLLM_SEPARATE)
#define NANOVLLM_BODIES 0
#else
#define NANOVLLM_BODIES 1
#endif
#endif

// The same for headers of api/grammar/ and api/serve/. nanovllm::nanovllm has no bodies of theirs,
// but nanovllm::grammar and nanovllm::serve have: a program that links neither compiles what it
// uses.
#if defined(NANOVLLM_LIBRARY) && !defined(NANOVLLM_GRAMMAR) && !defined(__CUDA_ARCH__)
#define NANOVLLM_GRAMMAR_INLINE inline
#define NANOVLLM_GRAMMAR_BODIES 1
#else
#define NANOVLLM_GRAMMAR_INLINE NANOVLLM_INLINE
#define NANOVLLM_GRAMMAR_BODIES NANOVLLM_BODIES
#endif
#if defined(NANOVLLM_LIBRARY) && !defined(NANOVLLM_SERVE) && !defined(__CUDA_ARCH__)
#define NANOVLLM_SERVE_INLINE inline
#define NANOVLLM_SERVE_BODIES 1
#else
#define NANOVLLM_SERVE_INLINE NANOVLLM_INLINE
#define NANOVLLM_SERVE_BODIES NANOVLLM_BODIES
#endif

/// At the end of a header: an instance of one of its templates that the library has compiled.
///
///   NANOVLLM_COMPILED_TEMPLATE(void rope(const RopeArgs<float>&, const Context&))
#if !defined(NANOVLLM_SEPARATE)
#define NANOVLLM_COMPILED_TEMPLATE(...)
#elif defined(NANOVLLM_COMPILE_TEMPLATES)  // in the one source file of these
#define NANOVLLM_COMPILED_TEMPLATE(...) template __VA_ARGS__;
#else
#define NANOVLLM_COMPILED_TEMPLATE(...) extern template __VA_ARGS__;
#endif
