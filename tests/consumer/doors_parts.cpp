// The includes that doors.cpp is told of.
#include <nanovllm/chat.hpp>
#include <nanovllm/with/beams.hpp>
#include <nanovllm/with/eight_bits.hpp>
#include <nanovllm/with/gguf.hpp>
#include <nanovllm/with/pooling.hpp>
