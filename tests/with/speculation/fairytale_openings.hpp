#pragma once
/// Openings of tales that the drafters of examples/models/fairytale were not trained on; HELD_OUT of
/// examples/models/drafting.py.

#include <string>
#include <vector>

namespace nanovllm::test {

inline std::vector<std::string> held_out_openings() {
  return {"Once upon a time there was a king who had",
          "There was once a poor widow who",
          "In a town lived a clockmaker",
          "Once there was a cat named Tom",
          "Long ago there lived a young dragon",
          "The old wolf was hungry, and",
          "A little girl came to a river",
          "In the middle of the wood stood a mill",
          "Far away, by the sea, a lonely giant",
          "Two sisters went out to gather wood",
          "The merchant had lost",
          "A brave hedgehog set out into the world",
          "Once there were a fox and a raven",
          "The queen looked into the mirror",
          "It was winter, and the shepherd boy",
          "A robber and his dog"};
}

}  // namespace nanovllm::test
