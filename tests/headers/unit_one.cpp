// With unit_two.cpp: every header in two translation units of one program. A function that is
// neither inline nor a template makes the linker refuse it.
#include "all_headers.inc"

std::string message_of_unit_two();

int main() { return nanovllm::concat("block ", 7, ' ', 0.5f) == message_of_unit_two() ? 0 : 1; }
