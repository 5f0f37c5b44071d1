// The includes that doors.cpp is told of.
#include <nanovllm/chat.hpp>
#include <nanovllm/with/eight_bits/checkpoint/packed_integers.hpp>
#include <nanovllm/with/gguf/gguf_checkpoint.hpp>
#include <nanovllm/with/pooling/pooled_calls.hpp>
