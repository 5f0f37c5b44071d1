// Searches text files by meaning, in one program: the model embeds their paragraphs and the query,
// and the nearest paragraphs are printed.
//
// A model for this is Qwen3-Embedding or, for tales, examples/models/fairytale_embedding; any other
// gives vectors, too, but they say less. examples/tales.txt has tales to search.
#include <nanovllm/core/utf8.hpp>
#include <nanovllm/engine.hpp>
#include <nanovllm/policy.hpp>
#include <nanovllm/with/any/all_models.hpp>
#include <nanovllm/with/any/make_engine.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "plain_command_line.hpp"

namespace nvllm = nanovllm;

namespace {

struct Paragraph {
  std::string file;
  int line = 0;  // of the file, from 1
  std::string text;
};

/// Appends the paragraphs of a file: lines between empty ones.
void read_paragraphs(const std::string& file, std::vector<Paragraph>& out) {
  std::ifstream in(file);
  if (!in) throw nvllm::Error(nvllm::concat("cannot read '", file, "'"));
  bool is_open = false;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) {
      is_open = false;
      continue;
    }
    if (!is_open) out.push_back({.file = file, .line = number, .text = {}});
    is_open = true;
    std::string& text = out.back().text;
    text += text.empty() ? line : " " + line;
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const auto line = nvllm::examples::read_command_line(
      argc, argv,
      {.text = "usage: search MODEL_DIR \"query\" FILE...\n"
               "Prints the five paragraphs of the files that are nearest to the query.\n",
       .least = 3,
       .most = SIZE_MAX});
  if (line.status) return *line.status;
  const auto engine = nvllm::make_engine<nvllm::AllModels>({.model = line.argument(0),
                                                            .on_load = nvllm::load_progress_line(),
                                                            .on_warning = nvllm::warning_lines()});
  std::vector<Paragraph> paragraphs;
  for (std::size_t i = 2; i < line.arguments.size(); ++i)
    read_paragraphs(line.arguments[i], paragraphs);

  std::vector<std::string> texts;
  for (const Paragraph& paragraph : paragraphs) texts.push_back(paragraph.text);
  // One token must fit behind an input. A longer paragraph is known by its end.
  const nvllm::EmbedOptions options{.max_prompt_tokens =
                                        static_cast<std::size_t>(engine->max_total_tokens() - 1)};
  const std::vector<std::vector<float>> vectors = nvllm::embed(*engine, texts, options);
  const std::vector<float> query =
      nvllm::embed(*engine,
                   nvllm::embedding_query("Given a question, find the passage that answers it",
                                          line.argument(1)),
                   options);

  // Vectors have length 1, so that their product is the cosine of the angle between them.
  std::vector<float> cosines;
  for (const std::vector<float>& vector : vectors)
    cosines.push_back(std::inner_product(vector.begin(), vector.end(), query.begin(), 0.f));
  std::vector<std::size_t> order(cosines.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return cosines[a] > cosines[b]; });
  for (std::size_t rank = 0; rank < std::min(order.size(), std::size_t{5}); ++rank) {
    const Paragraph& found = paragraphs[order[rank]];
    const std::string begin = found.text.substr(0, 100);
    const int size = static_cast<int>(nvllm::utf8::complete_prefix(begin));
    std::printf("%.3f  %s:%d  %.*s\n", static_cast<double>(cosines[order[rank]]),
                found.file.c_str(), found.line, size, begin.c_str());
  }
} catch (const nvllm::Error& error) {
  std::fprintf(stderr, "search: %s\n", error.what());
  return 1;
}
