#include "library_engine.hpp"

void right_generate(const char* model, int count, int* tokens) { generate(model, count, tokens); }
