#pragma once

#define NANOVLLM_TEST_EXPORTED extern "C" __attribute__((visibility("default")))

/// Greedy tokens for a fixed prompt with the checkpoint in `model`, into `tokens`. Each library has
/// its own copy.
__attribute__((visibility("hidden"))) void generate(const char* model, int count, int* tokens);

NANOVLLM_TEST_EXPORTED void left_generate(const char* model, int count, int* tokens);
NANOVLLM_TEST_EXPORTED void right_generate(const char* model, int count, int* tokens);
