#pragma once
/// The library's version, the single place that states it: CMake reads it from here.

#define NANOVLLM_VERSION_MAJOR 0
#define NANOVLLM_VERSION_MINOR 3
#define NANOVLLM_VERSION_PATCH 0
