// Every header, and an engine with all of its members.
#include "all_headers.inc"

template class nanovllm::Engine<nanovllm::Qwen3<nanovllm::shapes::fairytale>,
                                nanovllm::DefaultPolicy>;
