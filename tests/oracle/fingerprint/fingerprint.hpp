#pragma once
/// Everything the engine computes, as one line a case: what a change that promises 'every bit as
/// before' is compared by. Uses the public interface alone, so that the same source compiles
/// against older headers: `-I OLD/include` instead of `-I include`.
///
/// A front end calls `main_of` with the policies of its backend: float32, bfloat16, and one of
/// small blocks and the other scheduling policy.
///
///     fingerprint [PATTERN]     from the repository's root; cases whose name contains PATTERN
///
/// A line is `name requests=N tokens=HASH logprobs=HASH text=HASH`. What may change without a
/// change of results, as the number of preemptions, goes to standard error.

#include <nanovllm/engine.hpp>
#include <nanovllm/model/qwen3/qwen3.hpp>
#if __has_include(<nanovllm/chat.hpp>)  // conversations are compiled where it is included
#include <nanovllm/chat.hpp>
#endif

#include <bit>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fingerprint {

/// FNV-1a of 64 bits.
class Hash {
 public:
  void add(std::uint64_t word) {
    for (int i = 0; i < 8; ++i, word >>= 8) byte(static_cast<unsigned char>(word & 255));
  }
  void add(std::string_view text) {
    add(std::uint64_t{text.size()});
    for (const char c : text) byte(static_cast<unsigned char>(c));
  }
  [[nodiscard]] unsigned long long value() const { return value_; }

 private:
  void byte(unsigned char c) { value_ = (value_ ^ c) * 0x100000001b3u; }
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

/// What one engine is asked.
struct Requests {
  std::vector<nanovllm::Prompt> prompts;
  std::vector<nanovllm::SamplingParams> params;

  template <class Prompt>
  void add(Prompt&& prompt, nanovllm::SamplingParams sampling) {
    prompts.emplace_back(std::forward<Prompt>(prompt));
    params.push_back(std::move(sampling));
  }
};

/// The settings in which cases differ.
struct Case {
  std::string name;
  int rounds = 1;       ///< the same requests again, with a warm prefix cache
  int pool_tokens = 0;  ///< tokens that the KV pool holds; 0 for the default pool
  int max_num_seqs = 16;
  std::optional<int> max_num_batched_tokens{};
  int tensor_parallel = 1;
  bool prefix_caching = true;
  std::optional<bool> overlap{};
};

/// `length` tokens of [0, vocab), a function of `seed`.
inline std::vector<nanovllm::TokenId> random_tokens(std::uint64_t seed, std::int64_t length,
                                                    std::int64_t vocab) {
  std::vector<nanovllm::TokenId> out;
  std::uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (std::int64_t i = 0; i < length; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    out.push_back(
        static_cast<nanovllm::TokenId>((state >> 33) % static_cast<std::uint64_t>(vocab)));
  }
  return out;
}

/// Prompts of 1 to 61 tokens, some with a common beginning, and one of `longest`; greedy and
/// sampled with every filter, continued by about `max_tokens`.
inline Requests token_requests(std::int64_t vocab, std::int64_t longest, int max_tokens) {
  Requests out;
  const std::vector<nanovllm::TokenId> shared = random_tokens(1, 37, vocab);
  for (int i = 0; i < 12; ++i) {
    std::vector<nanovllm::TokenId> prompt;
    if (i % 3 == 2) prompt = shared;
    const auto own = random_tokens(static_cast<std::uint64_t>(100 + i), 1 + (i * 13) % 24, vocab);
    prompt.insert(prompt.end(), own.begin(), own.end());
    if (i == 4) prompt = random_tokens(4, longest, vocab);
    nanovllm::SamplingParams params{.temperature = i % 2 == 0 ? 0.f : 0.9f,
                                    .top_k = 0,
                                    .top_p = 1.f,
                                    .min_p = 0.f,
                                    .seed = static_cast<std::uint64_t>(1000 + i),
                                    .max_tokens = max_tokens + i % 5,
                                    .ignore_eos = true,
                                    .logprobs = 5};
    if (i % 8 == 1) params.top_k = 40;
    if (i % 8 == 3) params.top_p = 0.9f;
    if (i % 8 == 5) params.min_p = 0.05f;
    if (i == 8) params.logprobs = std::nullopt;
    if (i == 9) params.logprobs = 0;
    out.add(std::move(prompt), std::move(params));
  }
  return out;
}

/// Texts and conversations that end in every way there is.
inline Requests text_requests() {
  Requests out;
  const nanovllm::SamplingParams greedy{.temperature = 0.f, .max_tokens = 48, .logprobs = 5};
  const auto with = [&](auto change) {
    nanovllm::SamplingParams params = greedy;
    change(params);
    return params;
  };
  using P = nanovllm::SamplingParams;
  out.add("Once upon a time there was a king who had", greedy);
  out.add("The wolf said", with([](P& p) { p.stop = {" the", "never said"}; }));
  out.add("The wolf said", with([](P& p) {
            p.stop = {"and"};
            p.include_stop_str_in_output = true;
          }));
  out.add("In the forest", with([](P& p) { p.min_tokens = 30; }));
  out.add("In the forest", with([](P& p) {
            p.min_tokens = 12;
            p.stop_token_ids = {13, 11};
          }));
  out.add("A fox", with([](P& p) {
            p.ignore_eos = true;
            p.skip_special_tokens = false;
          }));
  for (int i = 0; i < 4; ++i) {
    out.add("Once upon a time", {.seed = static_cast<std::uint64_t>(i), .max_tokens = 40});
  }
  out.add("\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80 <|im_start|> 123,456\r\n\tdon't",
          with([](P& p) { p.max_tokens = 8; }));
  out.add(std::vector<nanovllm::ChatMessage>{{"user", "Tell me of a fox."}}, greedy);
  out.add(nanovllm::ChatPrompt{{{"system", "You tell tales."},
                                {"user", "Tell me of a fox."},
                                {"assistant", "There was a fox."},
                                {"user", "And then?"}},
                               {.enable_thinking = false}},
          with([](P& p) { p.temperature = 0.8f, p.seed = 5; }));
  return out;
}

inline const char*& pattern() {
  static const char* instance = "";
  return instance;
}

/// Runs `requests` in an engine of its own and prints the line.
template <class Model, class Policy>
void run(const std::string& directory, const std::string& prefix, const Case& c,
         const Requests& requests) {
  const std::string name = prefix + "/" + c.name;
  if (name.find(pattern()) == name.npos) return;
  nanovllm::EngineConfig config{.model = directory,
                                .tensor_parallel = c.tensor_parallel,
                                .num_threads = 2,
                                .max_num_seqs = c.max_num_seqs,
                                .max_num_batched_tokens = c.max_num_batched_tokens,
                                .prefix_caching = c.prefix_caching,
                                .overlap = c.overlap,
                                .seed = 7};
  const int block = Policy::kv.block_size;
  config.kv_size = nanovllm::KvSize::blocks(c.pool_tokens != 0 ? (c.pool_tokens + block - 1) / block
                                                               : 32768 / block);
  nanovllm::Engine<Model, Policy> engine(std::move(config));
  Hash tokens, logprobs, text;
  for (int round = 0; round < c.rounds; ++round) {
    for (const nanovllm::Output& output : engine.generate(requests.prompts, requests.params)) {
      for (const nanovllm::TokenId token : output.token_ids)
        tokens.add(static_cast<std::uint64_t>(token));
      tokens.add(output.token_ids.size());
      for (const nanovllm::TokenLogprobs& entry : output.logprobs) {
        logprobs.add(std::bit_cast<std::uint32_t>(entry.logprob));
        for (const auto& [token, logprob] : entry.top) {
          logprobs.add(static_cast<std::uint64_t>(token));
          logprobs.add(std::bit_cast<std::uint32_t>(logprob));
        }
      }
      text.add(output.text);
      text.add(output.error);
      text.add(static_cast<std::uint64_t>(output.finish_reason));
    }
  }
  std::printf("%s requests=%zu tokens=%016llx logprobs=%016llx text=%016llx\n", name.c_str(),
              requests.prompts.size(), tokens.value(), logprobs.value(), text.value());
  std::fflush(stdout);
  const nanovllm::EngineStats stats = engine.stats();
  std::fprintf(stderr, "  %s: %lld steps, %lld preemptions, %lld hit tokens\n", name.c_str(),
               static_cast<long long>(stats.num_steps),
               static_cast<long long>(stats.num_preemptions),
               static_cast<long long>(stats.num_hit_tokens));
}

/// Every case of one checkpoint under one policy.
template <class Model, class Policy>
void run_model(const std::string& directory, const std::string& prefix, int num_devices) {
  const nanovllm::Qwen3Config model = nanovllm::Qwen3Config::load(directory);
  const std::int64_t longest = model.max_position_embeddings > 1000 ? 600 : 100;
  const Requests work = token_requests(model.vocab_size, longest, 14);
  const Requests growing = token_requests(model.vocab_size, 20, 40);
  const auto run_case = [&](const Case& c, const Requests& requests) {
    run<Model, Policy>(directory, prefix, c, requests);
  };
  run_case({.name = "one_after_the_other", .rounds = 2, .overlap = false}, work);
  run_case({.name = "overlap", .rounds = 2, .overlap = true}, work);
  run_case({.name = "chunked", .max_num_seqs = 3, .max_num_batched_tokens = 7, .overlap = true},
           work);
  run_case({.name = "tight", .pool_tokens = static_cast<int>(longest) + 40, .overlap = true}, work);
  run_case({.name = "no_cache", .prefix_caching = false}, work);
  for (const bool overlap : {false, true}) {
    const std::string name = overlap ? "preempted_overlap" : "preempted";
    run_case({.name = name, .pool_tokens = 192, .overlap = overlap}, growing);
    run_case({.name = name + "_no_cache",
              .pool_tokens = 192,
              .prefix_caching = false,
              .overlap = overlap},
             growing);
  }
  if (num_devices >= 2 && model.num_key_value_heads % 2 == 0) {
    run_case({.name = "tp2", .rounds = 2, .tensor_parallel = 2, .overlap = true}, work);
    run_case({.name = "tp2_preempted", .pool_tokens = 192, .tensor_parallel = 2, .overlap = true},
             growing);
  }
  if (prefix.find("fairytale") == prefix.npos) return;
  run_case({.name = "text", .rounds = 2}, text_requests());
  run_case(
      {.name = "text_tight", .pool_tokens = 192, .max_num_batched_tokens = 33, .overlap = true},
      text_requests());
}

template <class Float32, class Bfloat16, class Small>
int main_of(int argc, char** argv, int num_devices) try {
  using namespace nanovllm;
  if (argc > 1) pattern() = argv[1];
  for (const char* name :
       {"fairytale", "group4_untied_sharded", "group1_tied_yarn", "group8_untied_yarn_4x"}) {
    const std::string model = name;
    const std::string directory =
        (model == "fairytale" ? "examples/models/" : "tests/fixtures/parity/") + model;
    run_model<Qwen3<shapes::qwen3_any>, Float32>(directory, model + "/float32", num_devices);
    run_model<Qwen3<shapes::qwen3_any>, Bfloat16>(directory, model + "/bfloat16", num_devices);
  }
  run_model<Qwen3<shapes::fairytale>, Small>("examples/models/fairytale", "fairytale/small",
                                             num_devices);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "fingerprint: %s\n", error.what());
  return 1;
}

}  // namespace fingerprint
