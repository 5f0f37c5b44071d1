// See unit_one.cpp.
#include "all_headers.inc"

std::string message_of_unit_two();

std::string message_of_unit_two() { return nanovllm::concat("block ", 7, ' ', 0.5f); }
