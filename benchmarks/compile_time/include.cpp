// The include alone.
#include <nanovllm/engine.hpp>

int main() { return 0; }
