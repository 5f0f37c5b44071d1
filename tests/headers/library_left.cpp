#include "library_engine.hpp"

void left_generate(const char* model, int count, int* tokens) { generate(model, count, tokens); }
