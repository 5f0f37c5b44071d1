// Draws the pictures of docs/how_it_works/README.md; how_it_works.hpp says of what. It needs no model.
// Usage: how_it_works [FOLDER]
#include "how_it_works.hpp"

#include <cstdio>
#include <fstream>
#include <string>
#include <utility>

#include "plain_command_line.hpp"

namespace nvllm = nanovllm;
namespace ex = nanovllm::examples;

int main(int argc, char** argv) try {
  const ex::PlainCommandLine line = ex::read_command_line(
      argc, argv,
      {.text = "usage: how_it_works [FOLDER]\n"
               "Draws block tables, the plans of steps and a radix tree into FOLDER.\n",
       .most = 1});
  if (line.status) return *line.status;
  const std::string folder = line.argument(0, ".");
  for (const auto& [name, draw] : {std::pair{"block_table", &ex::draw_block_tables},
                                   {"step_plan", &ex::draw_step_plans},
                                   {"radix_tree", &ex::draw_radix_tree}}) {
    const std::string path = nvllm::concat(folder, "/how_it_works_", name, ".svg");
    std::ofstream file(path);
    file << draw();
    file.close();
    nvllm::check<nvllm::LoadError>(file.good(), "cannot write '", path, "'");
    std::printf("%s\n", path.c_str());
  }
} catch (const nvllm::Error& error) {
  std::fprintf(stderr, "how_it_works: %s\n", error.what());
  return 1;
}
