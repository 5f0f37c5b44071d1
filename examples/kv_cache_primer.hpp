#pragma once
/// The program of docs/kv_cache_primer.md, whatever the backend: GPT-2 writes the same text with and
/// without its KV cache, and this says what the cache saves and what it costs.

#include <nanovllm/cpu.hpp>
#include <nanovllm/engine.hpp>
#include <nanovllm/policy.hpp>
#include <nanovllm/text/tokenizer.hpp>
#include <nanovllm/with/gpt2/gpt2.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "plain_command_line.hpp"

namespace nanovllm::examples {

namespace nvllm = nanovllm;

/// Multiplications of one forward pass over the tokens at positions [first, last), whose
/// predecessors' keys and values are there; logits are computed for the last of them alone.
struct Multiplications {
  std::int64_t dense = 0;      ///< the weight matrices of all layers: the same for every token
  std::int64_t attention = 0;  ///< q · k and p · v, with every token up to itself
  std::int64_t logits = 0;

  Multiplications(const nvllm::Gpt2Config& c, std::int64_t first, std::int64_t last) {
    const std::int64_t tokens = last - first;
    const std::int64_t pairs = (last * (last + 1) - first * (first + 1)) / 2;
    dense = tokens * c.num_layers * c.hidden_size * (4 * c.hidden_size + 2 * c.intermediate_size);
    attention = pairs * c.num_layers * 2 * c.hidden_size;
    logits = c.hidden_size * c.vocab_size;
  }
  [[nodiscard]] std::int64_t sum() const { return dense + attention + logits; }
};

/// Bytes that the keys and values of one token take: a vector of the model's width each, in every
/// layer.
[[nodiscard]] inline std::int64_t kv_bytes_per_token(const nvllm::Gpt2Config& config,
                                                     std::int64_t element_bytes) {
  return 2 * config.num_layers * config.hidden_size * element_bytes;
}

/// What one way of generating gave.
struct PrimerRun {
  std::vector<nvllm::TokenId> tokens;
  std::vector<double> seconds;       ///< of each token
  std::int64_t multiplications = 0;  ///< by formula
  std::int64_t kv_blocks = 0;        ///< of the pool, in use after the last of these tokens
};

/// How tokens are drawn. A draw depends on the seed and on the token's position alone, so both ways
/// draw the same.
[[nodiscard]] inline nvllm::SamplingParams primer_params(int count) {
  return {.temperature = 0.8f, .top_k = 40, .seed = 3, .max_tokens = count, .ignore_eos = true};
}

/// One request: the prompt is computed once, then one token a step. It asks for a token more than is
/// looked at, so that it still has its blocks when the last one comes.
template <class Engine>
PrimerRun run_with_cache(Engine& engine, const std::vector<nvllm::TokenId>& prompt, int count) {
  PrimerRun out;
  auto before = std::chrono::steady_clock::now();
  std::string error;
  const auto on_token = [&](const nvllm::TokenEvent& event) {
    if (event.output != nullptr) error = event.output->error;
    if (event.token == nullptr || std::ssize(out.tokens) == count) return;
    const nvllm::EngineStats stats = engine.stats();
    out.kv_blocks = stats.num_kv_blocks - stats.num_free_kv_blocks;
    const auto now = std::chrono::steady_clock::now();
    out.seconds.push_back(std::chrono::duration<double>(now - before).count());
    before = now;
    out.tokens.push_back(*event.token);
  };
  engine.submit(prompt, primer_params(count + 1), on_token);
  while (engine.step()) {
  }
  nvllm::check<nvllm::RequestError>(std::ssize(out.tokens) == count, "with the cache: expected ",
                                    count, " tokens, got ", out.tokens.size(), " ", error);
  auto last = static_cast<std::int64_t>(prompt.size());
  std::int64_t first = 0;
  for (int i = 0; i < count; ++i, first = last++)
    out.multiplications += Multiplications(engine.model_config(), first, last).sum();
  return out;
}

/// A request for every token: each computes all tokens before it again.
template <class Engine>
PrimerRun run_without_cache(Engine& engine, const std::vector<nvllm::TokenId>& prompt, int count) {
  PrimerRun out;
  std::vector<nvllm::TokenId> tokens = prompt;
  for (int i = 0; i < count; ++i) {
    const auto before = std::chrono::steady_clock::now();
    const nvllm::Output output = engine.generate(tokens, primer_params(1));
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - before;
    nvllm::check<nvllm::RequestError>(output.error.empty(), output.error);
    out.seconds.push_back(time.count());
    out.multiplications +=
        Multiplications(engine.model_config(), 0, static_cast<std::int64_t>(tokens.size())).sum();
    out.tokens.push_back(output.token_ids.front());
    tokens.push_back(output.token_ids.front());
  }
  return out;
}

/// One of several runs that gave the same tokens, with the median of their times for each token:
/// what other programs take of a machine for a while is not part of it.
[[nodiscard]] inline PrimerRun median_of(const std::vector<PrimerRun>& runs) {
  PrimerRun out = runs.front();
  std::vector<double> times(runs.size());
  for (std::size_t i = 0; i < out.seconds.size(); ++i) {
    std::transform(runs.begin(), runs.end(), times.begin(),
                   [&](const PrimerRun& run) { return run.seconds[i]; });
    const auto middle = times.begin() + std::ssize(times) / 2;
    std::nth_element(times.begin(), middle, times.end());
    out.seconds[i] = *middle;
  }
  return out;
}

/// Time per token over the length of the sequence, of both runs, as an SVG that is readable on white
/// and on black.
[[nodiscard]] inline std::string draw_times(const PrimerRun& with, const PrimerRun& without,
                                            std::size_t num_prompt) {
  constexpr double kLeft = 70, kTop = 30, kWidth = 560, kHeight = 260;
  constexpr const char* kText = "#768390";
  // The first token with the cache computes the prompt, and is left out.
  double most = 0;
  for (std::size_t i = 1; i < without.seconds.size(); ++i)
    most = std::max({most, with.seconds[i], without.seconds[i]});
  double unit = 1e-5;  // 1, 2 or 5 times a power of ten, for at most six lines
  for (int i = 0; most / unit > 6; ++i) unit *= i % 3 == 1 ? 2.5 : 2;
  const double top = unit * std::ceil(most / unit);
  const auto count = static_cast<double>(without.seconds.size() - 1);
  const auto x = [&](std::size_t i) {
    return kLeft + kWidth * static_cast<double>(i - 1) / std::max(1., count - 1);
  };
  const auto y = [&](double seconds) { return kTop + kHeight * (1 - seconds / top); };
  const auto digits = [](double value) {
    char out[32];
    std::snprintf(out, sizeof out, "%.1f", value);
    return std::string(out);
  };
  const auto text = [&](double at_x, double at_y, const char* anchor, const std::string& words,
                        const char* colour) {
    return nvllm::concat("<text x=\"", digits(at_x), "\" y=\"", digits(at_y), "\" text-anchor=\"",
                         anchor, "\" fill=\"", colour, "\">", words, "</text>\n");
  };

  std::string out = nvllm::concat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 660 350\" width=\"660\" "
      "height=\"350\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\" "
      "role=\"img\">\n<title>Time per token with and without the KV cache</title>\n");
  for (int i = 0; unit * i <= top * 1.001; ++i) {
    const double at = y(unit * i);
    out += nvllm::concat("<path d=\"M", digits(kLeft), " ", digits(at), " h", digits(kWidth),
                         "\" stroke=\"", kText, "\" stroke-width=\"0.4\"/>\n");
    char label[32];
    std::snprintf(label, sizeof label, "%g ms", unit * i * 1e3);
    out += text(kLeft - 8, at + 4, "end", label, kText);
  }
  for (int i = 0; i <= 4; ++i) {
    const auto index = 1 + static_cast<std::size_t>((count - 1) * i / 4);
    out += text(x(index), kTop + kHeight + 20, "middle", std::to_string(num_prompt + index), kText);
  }
  out +=
      text(kLeft + kWidth / 2, kTop + kHeight + 42, "middle", "tokens before the new one", kText);
  const auto line = [&](const PrimerRun& run, const char* colour, const char* name, double at) {
    std::string points;
    for (std::size_t i = 1; i < run.seconds.size(); ++i)
      points +=
          nvllm::concat(points.empty() ? "M" : " L", digits(x(i)), " ", digits(y(run.seconds[i])));
    out += nvllm::concat("<path d=\"", points, "\" fill=\"none\" stroke=\"", colour,
                         "\" stroke-width=\"1.5\"/>\n");
    out += text(kLeft + 12, at, "start", name, colour);
  };
  line(without, "#d4772c", "without the cache", kTop + 14);
  line(with, "#3b82d6", "with the cache", kTop + 32);
  return out + "</svg>\n";
}

struct PrimerOptions {
  std::string model = "examples/models/tiny_gpt2";
  std::string prompt = "Once upon a time there was";
  std::string svg = "kv_cache_primer.svg";
  bool random = false;
  int num_tokens = 0;  ///< 0: what the model's positions leave, or 48 of the large one
  int num_runs = 5;    ///< of both ways, in turns; a time is their median
};

inline constexpr const char* kPrimerUsage =
    "usage: kv_cache_primer [--model DIR [--prompt TEXT] | --random] [options]\n"
    "GPT-2 writes the same text with and without its KV cache; what that costs.\n"
    "  --random     GPT-2's own shape with noise for weights\n"
    "  --tokens N   tokens to write, 2 or more\n"
    "  --runs N     runs of both ways, in turns, 1 to 99; a time is their median. 5\n"
    "  --svg FILE   where the time per token is drawn: kv_cache_primer.svg\n"
    "  --version    prints the library's version\n";

/// Throws ConfigError for a number out of range.
[[nodiscard]] inline PrimerOptions primer_options(const PlainCommandLine& line) {
  const auto number = [](const std::string& name, const std::string& text, long least, long most) {
    char* end = nullptr;
    const long value = std::strtol(text.c_str(), &end, 10);
    nvllm::check<nvllm::ConfigError>(
        !text.empty() && *end == '\0' && value >= least && value <= most, name,
        " must be an integer from ", least, " to ", most, ", got '", text, "'");
    return static_cast<int>(value);
  };
  PrimerOptions out;
  for (const auto& [name, value] : line.options) {
    if (name == "--random") out.random = true;
    if (name == "--model") out.model = value;
    if (name == "--prompt") out.prompt = value;
    if (name == "--svg") out.svg = value;
    if (name == "--tokens") out.num_tokens = number(name, value, 2, 1'000'000);
    if (name == "--runs") out.num_runs = number(name, value, 1, 99);
  }
  return out;
}

/// The runs of one engine, and what they say. Returns whether their tokens are equal.
/// @param block_size  tokens a block of the KV pool, which has been given `pool_bytes`.
template <class Engine>
bool teach(Engine& engine, const PrimerOptions& options, std::int64_t element_bytes,
           std::int64_t block_size, std::int64_t pool_bytes) {
  const nvllm::Gpt2Config& config = engine.model_config();
  std::vector<nvllm::TokenId> prompt;
  if (options.random) {
    for (nvllm::TokenId i = 0; i < 16; ++i) prompt.push_back(1000 + 997 * i % 40'000);
  } else {
    prompt = engine.tokenizer().encode(options.prompt);
  }
  const auto num_prompt = static_cast<std::int64_t>(prompt.size());
  const auto room = static_cast<int>(engine.max_total_tokens() - num_prompt) - 1;
  const int wanted = options.num_tokens > 0 ? options.num_tokens : options.random ? 48 : room;
  const int count = std::min(wanted, room);
  nvllm::check<nvllm::RequestError>(count >= 2, "the prompt leaves no room for three tokens");
  std::ofstream svg(options.svg);
  nvllm::check<nvllm::LoadError>(svg.good(), "cannot write '", options.svg, "'");
  if (count < options.num_tokens)
    std::printf("%d tokens do not fit, %d do\n", options.num_tokens, count);

  static_cast<void>(run_without_cache(engine, prompt, 1));  // what happens once happens here
  std::vector<PrimerRun> all_with, all_without;
  bool equal = true;
  for (int i = 0; i < options.num_runs; ++i) {
    all_with.push_back(run_with_cache(engine, prompt, count));
    all_without.push_back(run_without_cache(engine, prompt, count));
    equal = equal && all_with.back().tokens == all_with.front().tokens &&
            all_without.back().tokens == all_with.front().tokens;
  }
  const PrimerRun with = median_of(all_with), without = median_of(all_without);
  if (!options.random) {
    std::printf("%s%s\n\n", options.prompt.c_str(), engine.tokenizer().decode(with.tokens).c_str());
  }
  std::printf(
      "%lld prompt tokens, %d generated; the tokens of both ways are %s; times are medians of %d\n",
      static_cast<long long>(num_prompt), count, equal ? "equal" : "NOT EQUAL", options.num_runs);

  const auto seconds = [](const PrimerRun& run) {
    double sum = 0;
    for (const double time : run.seconds) sum += time;
    return sum;
  };
  const auto giga = [](std::int64_t n) { return static_cast<double>(n) * 1e-9; };
  std::printf("\n                 multiplications      time    last token\n");
  for (const auto& [name, run] : {std::pair{"without cache", &without}, {"with cache", &with}}) {
    std::printf("%-13s %14.3f · 10⁹ %8.3f s %10.3f ms\n", name, giga(run->multiplications),
                seconds(*run), run->seconds.back() * 1e3);
  }
  std::printf("saved: %.1f %% of the multiplications, %.1f times the speed\n",
              100. * (1 - giga(with.multiplications) / giga(without.multiplications)),
              seconds(without) / seconds(with));
  const Multiplications again(config, 0, num_prompt + count - 1),
      once(config, num_prompt + count - 2, num_prompt + count - 1);
  std::printf(
      "the last token, without and with: dense layers %.4f and %.4f, attention %.4f and "
      "%.4f, logits %.4f and %.4f · 10⁹\n",
      giga(again.dense), giga(once.dense), giga(again.attention), giga(once.attention),
      giga(again.logits), giga(once.logits));

  // The last token that is generated is not computed any more: it has no keys and values.
  const std::int64_t per_token = kv_bytes_per_token(config, element_bytes);
  const std::int64_t stored = num_prompt + count - 1,
                     blocks = (stored + block_size - 1) / block_size;
  const nvllm::EngineStats stats = engine.stats();
  std::printf(
      "\nmemory of the cache, by formula: 2 · %lld layers · %lld · %lld bytes = %lld bytes a "
      "token\n  %lld tokens are %lld blocks of %lld, %.2f MiB\n",
      static_cast<long long>(config.num_layers), static_cast<long long>(config.hidden_size),
      static_cast<long long>(element_bytes), static_cast<long long>(per_token),
      static_cast<long long>(stored), static_cast<long long>(blocks),
      static_cast<long long>(block_size),
      static_cast<double>(blocks * block_size * per_token) / (1 << 20));
  std::printf(
      "  the engine has made %lld blocks out of %lld bytes (by formula %lld), and %lld of them "
      "were in use\n",
      static_cast<long long>(stats.num_kv_blocks), static_cast<long long>(pool_bytes),
      static_cast<long long>(pool_bytes / (block_size * per_token)),
      static_cast<long long>(with.kv_blocks));

  svg << draw_times(with, without, prompt.size());
  svg.close();
  nvllm::check<nvllm::LoadError>(svg.good(), "writing '", options.svg, "' failed");
  std::printf("\ntime per token: %s\n", options.svg.c_str());
  return equal;
}

/// The program. `Policy` computes in float32: both ways then choose the same tokens, although they
/// add in another order.
template <class Policy>
int primer_main(int argc, char** argv) try {
  const PlainCommandLine line =
      read_command_line(argc, argv,
                        {.text = kPrimerUsage,
                         .flags = {"--random"},
                         .settings = {"--model", "--prompt", "--tokens", "--runs", "--svg"}});
  if (line.status) return *line.status;
  const PrimerOptions options = primer_options(line);
  constexpr std::int64_t kPoolBytes = 256 << 20, kElementBytes = sizeof(float);
  // Prefix caching would find the tokens of the request before: a KV cache by another name.
  nvllm::EngineConfig config{
      .max_num_seqs = 1, .kv_size = nvllm::KvSize::bytes(kPoolBytes), .prefix_caching = false};
  bool equal = false;
  if (options.random) {
    using Model = nvllm::Gpt2<nvllm::shapes::gpt2>;
    nvllm::Engine<Model, Policy> engine(nvllm::config_of<nvllm::shapes::gpt2>(), {.seed = 1},
                                        config);
    equal = teach(engine, options, kElementBytes, Policy::kv.block_size, kPoolBytes);
  } else {
    config.model = options.model;
    nvllm::Engine<nvllm::Gpt2<nvllm::shapes::gpt2_any>, Policy> engine(config);
    equal = teach(engine, options, kElementBytes, Policy::kv.block_size, kPoolBytes);
  }
  return equal ? 0 : 1;
} catch (const nvllm::Error& error) {
  std::fprintf(stderr, "kv_cache_primer: %s\n", error.what());
  return 1;
}

}  // namespace nanovllm::examples
