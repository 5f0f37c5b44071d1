#pragma once
/// The only macro that differs between compilers: it adds names for nvcc and changes no meaning.

#if defined(__CUDACC__)
/// Marks a function as callable from host and device code.
#define NANOVLLM_HD __host__ __device__
#else
#define NANOVLLM_HD
#endif
