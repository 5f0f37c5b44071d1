// The same with a shape that no library has compiled.
#define OWN_SHAPE
#include "own_policy.cpp"
