// A watermark: texts that a detector knows again.
//
// For every token the one before it, with a secret key, divides the vocabulary in two halves. The
// green half gets a little more probability, by a functor that is compiled into the sampler's
// chain. A text then has more green tokens than the half that chance gives, and who has the key can
// count them. After Kirchenbauer et al., "A Watermark for Large Language Models", 2023.
#include <nanovllm/cpu.hpp>
#include <nanovllm/engine.hpp>
#include <nanovllm/policy.hpp>
#include <nanovllm/text/tokenizer.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "plain_command_line.hpp"

namespace nvllm = nanovllm;

/// Adds SamplingParams::functor_argument to the logits of green tokens.
struct Watermark {
  static constexpr std::uint64_t kKey = 0x5eed'0f'7a1e5;

  NANOVLLM_HD static bool is_green(nvllm::TokenId previous, nvllm::TokenId token) {
    std::uint64_t x =
        kKey ^ (static_cast<std::uint64_t>(previous) << 32 | static_cast<std::uint32_t>(token));
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;  // the finalizer of SplitMix64
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (x >> 63) != 0;
  }
  NANOVLLM_HD float operator()(float logit, nvllm::TokenId token,
                               const nvllm::FunctorContext& context) const {
    return is_green(context.previous, token) ? logit + context.argument : logit;
  }
};

struct WatermarkPolicy : nvllm::DefaultPolicy {
  using LogitsFunctor = Watermark;
};

/// Standard deviations by which the green tokens are more than half.
double z_score(nvllm::TokenId last_of_prompt, const std::vector<nvllm::TokenId>& tokens) {
  double green = 0;
  nvllm::TokenId previous = last_of_prompt;
  for (const nvllm::TokenId token : tokens) {
    green += Watermark::is_green(previous, token) ? 1 : 0;
    previous = token;
  }
  const auto n = static_cast<double>(tokens.size());
  return (green - n / 2) / std::sqrt(n / 4);
}

int main(int argc, char** argv) try {
  const auto line = nvllm::examples::read_command_line(
      argc, argv,
      {.text = "usage: watermark [MODEL_DIR]\n"
               "Marks texts by a function in the sampler, and finds the marks again.\n",
       .most = 1});
  if (line.status) return *line.status;
  const std::string model = line.argument(0, "examples/models/fairytale");
  nvllm::Engine<nvllm::Qwen3<nvllm::shapes::fairytale>, WatermarkPolicy> engine(
      {.model = model, .seed = 3});
  const std::vector<nvllm::TokenId> prompt = engine.tokenizer().encode("Once upon a time");
  int num_right = 0;
  constexpr int kTexts = 8;
  for (const float strength : {0.f, 3.f}) {
    std::vector<nvllm::SamplingParams> params(kTexts, {.temperature = 1.f, .max_tokens = 120});
    for (int i = 0; i < kTexts; ++i) {
      params[static_cast<std::size_t>(i)].functor_argument = strength;
      params[static_cast<std::size_t>(i)].seed = static_cast<std::uint64_t>(i);
    }
    const std::vector<std::vector<nvllm::TokenId>> prompts(kTexts, prompt);
    for (const nvllm::Output& output : engine.generate(prompts, params)) {
      const double z = z_score(prompt.back(), output.token_ids);
      const bool is_marked = z > 4;
      num_right += is_marked == (strength > 0) ? 1 : 0;
      std::printf("%s  z = %5.1f  %s\n", strength > 0 ? "marked" : "plain ", z,
                  output.text.substr(0, 60).c_str());
    }
  }
  std::printf("%d of %d texts were told apart\n", num_right, 2 * kTexts);
  return num_right >= 2 * kTexts - 1 ? 0 : 1;
} catch (const nvllm::Error& error) {
  std::fprintf(stderr, "watermark: %s\n", error.what());
  return 1;
}
