// What a program with an engine cannot do without: the yardstick for its rebuild.
#include <nanovllm/engine.hpp>
