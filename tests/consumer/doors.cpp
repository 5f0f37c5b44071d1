// A header-only program that includes nanovllm/engine.hpp alone: doors SOURCE_FOLDER FOLDER house|parts.
// With `house` it is told of each kind of file which include opens it. With `parts`, where another file
// has these includes (doors_parts.cpp) or a library is linked, it opens all.
#include <nanovllm/engine.hpp>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

namespace fs = std::filesystem;
namespace nvllm = nanovllm;

#if defined(OTHER_MODEL)  // only declared: the compiler says which include defines it
#include <nanovllm/with/gpt2/shapes.hpp>
using Engine = nvllm::Engine<nvllm::Gpt2<nvllm::shapes::gpt2_any>>;
#else
using Engine = nvllm::Engine<nvllm::Qwen3<nvllm::shapes::qwen3_any>>;
#endif

namespace {

int num_wrong = 0;

/// `run` must give `expected`, or with `house` fail with a text that has `header`.
void expect(bool has_parts, const char* what, const char* header, const std::string& expected,
            const std::function<std::string()>& run) {
  std::string got;
  try {
    got = run();
  } catch (const nvllm::Error& error) {
    got = error.what();
  }
  const bool is_right =
      has_parts ? got == expected
                : got.find("'#include <nanovllm/" + std::string(header) + ">'") != got.npos;
  std::printf("%s: %s%s\n", what, is_right ? "" : "WRONG: ", got.c_str());
  if (!is_right) ++num_wrong;
}

std::string num_tokens(const fs::path& model, std::optional<int> beam_width = {}) {
  Engine engine({.model = model, .max_num_seqs = 2, .max_model_len = 16});
  nvllm::SamplingParams params{.temperature = 0.f, .max_tokens = 4, .ignore_eos = true};
  params.beam_width = beam_width;
  const auto output = engine.generate(nvllm::Prompt(std::vector<nvllm::TokenId>{1, 2, 3}), params);
  return output.error.empty() ? std::to_string(output.token_ids.size()) : output.error;
}

/// A copy of a checkpoint, in which each text of `changes` becomes the next one.
fs::path changed(const fs::path& from, const fs::path& to,
                 const std::vector<std::vector<std::string>>& changes) {
  fs::create_directories(to);
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    const fs::path path = to / entry.path().filename();
    if (entry.path().extension() == ".safetensors") {
      if (!fs::exists(path)) fs::create_symlink(fs::absolute(entry.path()), path);
    } else if (entry.is_regular_file()) {
      std::ifstream in(entry.path());
      std::string text{std::istreambuf_iterator<char>(in), {}};
      for (const auto& change : changes) {
        const std::size_t at = text.find(change.at(0));
        if (at != text.npos) text.replace(at, change.at(0).size(), change.at(1));
      }
      std::ofstream(path) << text;
    }
  }
  return to;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const fs::path source = argv[1], folder = argv[2];
  const fs::path models = source / "examples/models", fixtures = source / "tests/fixtures";
  const bool has_parts = std::string(argv[3]) == "parts";

  for (const char* fp8 : {"fp8/block", "fp8/ct_block"})  // engine.hpp has these
    expect(true, fp8, "", "4", [&] { return num_tokens(fixtures / fp8); });
  expect(has_parts, "GGUF", "with/gguf.hpp", "4",
         [&] { return num_tokens(fixtures / "gguf/qwen3.gguf"); });
  for (const char* packed : {"packed/awq", "packed/ct"})
    expect(has_parts, packed, "with/eight_bits.hpp", "4",
           [&] { return num_tokens(fixtures / packed); });

  expect(has_parts, "beams", "with/beams.hpp", "4",
         [&] { return num_tokens(fixtures / "fp8/block", 2); });

  std::string warnings;
  Engine engine({.model = models / "fairytale",
                 .max_num_seqs = 2,
                 .on_warning = [&](const auto& warning) { warnings += warning; }});
  expect(has_parts, "chat", "chat.hpp", "4", [&] {
    const auto output = engine.generate(
        nvllm::Prompt(std::vector<nvllm::ChatMessage>{{"user", "Tell me a story."}}),
        {.temperature = 0.f, .max_tokens = 4, .ignore_eos = true});
    return output.error.empty() ? std::to_string(output.token_ids.size()) : output.error;
  });
  expect(true, "warnings", "", "", [&] { return warnings; });  // its files name an end token
  const auto ends = [](const Engine& of) {
    std::string out;
    for (const nvllm::TokenId id : of.eos_token_ids()) out += std::to_string(id) + " ";
    return out;
  };
  const std::string turn_end = std::to_string(engine.encode("<|im_end|>").at(0)) + " ";
  const fs::path no_end =
      changed(models / "fairytale", folder / "no_end",
              {{"\"eos_token_id\"", "\"no_token_id\""}, {"\"eos_token\"", "\"no_token\""}});
  expect(has_parts, "end tokens", "chat.hpp", turn_end, [&] {
    std::string told;
    Engine other({.model = no_end, .max_num_seqs = 2, .on_warning = [&](const auto& warning) {
                    told += std::string(warning) + "\n";
                  }});
    return told + ends(other);
  });
  // A template of one's own needs no interpreter.
  expect(true, "a template", "", "5 " + turn_end, [&] {
    const auto own = nvllm::ChatTemplate::custom([](const auto& messages, const auto&) {
      std::string text;
      for (const nvllm::ChatMessage& message : messages)
        text += message.role() + message.find("content")->string() + "<|im_end|>";
      return text;
    });
    Engine other({.model = no_end, .max_num_seqs = 2, .chat_template = own});
    const auto output =
        other.generate(nvllm::Prompt(std::vector<nvllm::ChatMessage>{{"user", "Tell me a story."}}),
                       {.temperature = 0.f, .max_tokens = 5, .ignore_eos = true});
    return std::to_string(output.token_ids.size()) + " " + ends(other);
  });

  const fs::path labels = changed(models / "fairytale", folder / "labels",
                                  {{"Qwen3ForCausalLM", "Qwen3ForSequenceClassification"}});
  expect(has_parts, "labels", "with/pooling.hpp",
         "'" + labels.string() + "' is of a classifier, but 'score.weight' is missing",
         [&] { return num_tokens(labels); });
  return num_wrong == 0 ? 0 : 1;
}
