// Speculative decoding with a drafter of one's own: it knows a document, and guesses that an answer
// which has words of the document goes on as the document does. Steps check its guesses, several
// tokens at once; the answer is the one that comes without it.
//
// Here the document is what the model has written before, so that all guesses are right.
#include <nanovllm/cpu.hpp>
#include <nanovllm/engine.hpp>
#include <nanovllm/io/checkpoint.hpp>
#include <nanovllm/policy.hpp>
#include <nanovllm/text/tokenizer.hpp>
#include <nanovllm/with/speculation.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plain_command_line.hpp"

namespace nvllm = nanovllm;

/// Drafts what follows the last three tokens in the document `SpeculativeConfig::model`.
class DocumentDrafter final : public nvllm::Drafter {
 public:
  static constexpr std::string_view kMethod = "document";
  static constexpr std::ptrdiff_t kMatch = 3;

  explicit DocumentDrafter(const nvllm::DraftSetup& setup) {
    std::ifstream file(setup.options.model);
    nvllm::check<nvllm::ConfigError>(file.is_open(), "document: cannot read '",
                                     setup.options.model.string(), "'");
    const std::string text(std::istreambuf_iterator<char>(file), {});
    document_ = nvllm::Tokenizer::from_checkpoint(nvllm::checkpoint_of(setup.engine)).encode(text);
  }

  void propose(std::span<const nvllm::DraftRequest> requests,
               std::span<nvllm::Draft> drafts) override {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const std::span<const nvllm::TokenId> tokens = requests[i].tokens;
      if (std::ssize(tokens) < kMatch) continue;
      const auto found =
          std::search(document_.begin(), document_.end(), tokens.end() - kMatch, tokens.end());
      if (found == document_.end()) continue;
      const auto next = found + kMatch;
      const auto count = std::min<std::ptrdiff_t>(document_.end() - next, requests[i].max_tokens);
      drafts[i].tokens.assign(next, next + count);
    }
  }

 private:
  std::vector<nvllm::TokenId> document_;
};

struct DraftingPolicy : nvllm::DefaultPolicy {
  using Guesses = nvllm::DraftedBy<DocumentDrafter>;
};

int main(int argc, char** argv) try {
  const auto line = nvllm::examples::read_command_line(
      argc, argv,
      {.text = "usage: document_drafter [MODEL_DIR]\n"
               "Generates a text twice, the second time with a drafter that knows it.\n",
       .most = 1});
  if (line.status) return *line.status;
  const std::string model = line.argument(0, "examples/models/fairytale");
  const std::string prompt = "Once upon a time";
  const nvllm::SamplingParams params{.temperature = 0.8f, .seed = 1, .max_tokens = 120};
  using Model = nvllm::Qwen3<nvllm::shapes::fairytale>;

  nvllm::Engine<Model> plain({.model = model});
  const nvllm::Output expected = plain.generate(prompt, params);  // runs warm, then is timed:
  const double plain_seconds = plain.generate(prompt, params).timings.finished;
  const auto document = std::filesystem::temp_directory_path() / "nanovllm_document.txt";
  std::ofstream(document) << prompt << expected.text;

  nvllm::SpeculativeConfig options{
      .model = document, .num_speculative_tokens = 7, .adaptive = false};
  nvllm::Engine<Model, DraftingPolicy> drafting({.model = model, .extras = {options}});
  std::filesystem::remove(document);
  const nvllm::Output output = drafting.generate(prompt, params);
  std::printf("%s%s\n\n", prompt.c_str(), output.text.c_str());
  const auto drafts = drafting.stats().of<nvllm::SpeculationStats>();
  std::printf("%zu tokens in %lld steps: %lld of %lld drafted ones were drawn\n",
              output.token_ids.size(), static_cast<long long>(drafting.stats().num_steps),
              static_cast<long long>(drafts.num_accepted),
              static_cast<long long>(drafts.num_drafted));
  std::printf("%.1f ms, without drafts %.1f ms\n",
              1e3 * drafting.generate(prompt, params).timings.finished, 1e3 * plain_seconds);
  return output.token_ids == expected.token_ids ? 0 : 1;
} catch (const nvllm::Error& error) {
  std::fprintf(stderr, "document_drafter: %s\n", error.what());
  return 1;
}
