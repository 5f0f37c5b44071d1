// What a decode step costs the host, whatever computes the model: planning, packing the inputs,
// taking the results, text and callbacks.
//
//   host_step MODEL [NUM_SEQS...]
//
// MODEL is a checkpoint's folder with a tokeniser. A backend that computes nothing takes the place
// of the CPU's; its tokens are made up. Caches are warm, as beside a GPU.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

#include "nanovllm/cpu.hpp"
#include "nanovllm/engine.hpp"
#include "nanovllm/policy.hpp"

namespace nv = nanovllm;

namespace {

/// Does nothing, and draws a token of its own for every row.
class NullBackend : public nv::CpuBackend {
 public:
  using CpuBackend::CpuBackend;

  template <class Args>
  requires nv::RunsOp<nv::CpuBackend, Args>
  void run(const Args&) {}

  void run(const nv::SampleArgs& args) {
    for (std::int64_t row = 0; row < args.logits.extent(0); ++row)
      *args.tokens.at(row) = static_cast<nv::TokenId>(300 + row);
  }
};

struct NullPolicy : nv::DefaultPolicy {
  using Backend = NullBackend;
};

using NullEngine = nv::Engine<nv::Qwen3<nv::shapes::qwen3_any>, NullPolicy>;

constexpr int kPromptTokens = 24, kOutputTokens = 900, kRounds = 6;

/// Seconds of the host in every step that decodes all of `num_seqs` sequences.
std::vector<double> measure(NullEngine& engine, int num_seqs, bool streams) {
  std::vector<double> seconds;
  std::size_t num_bytes = 0;
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < num_seqs; ++i) {
      std::vector<nv::TokenId> prompt;
      for (int j = 0; j < kPromptTokens; ++j)
        prompt.push_back((i * 37 + j * 11 + round) % 3000 + 5);
      nv::TokenCallback callback;
      if (streams) callback = [&](const nv::TokenEvent& event) { num_bytes += event.text.size(); };
      engine.submit(prompt, {.temperature = 1.f, .max_tokens = kOutputTokens, .ignore_eos = true},
                    callback);
    }
    nv::EngineStats before = engine.stats();
    while (engine.step()) {
      const nv::EngineStats now = engine.stats();
      if (now.num_decode_tokens - before.num_decode_tokens == num_seqs)
        seconds.push_back(now.host_seconds - before.host_seconds);
      before = now;
    }
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

int run(const char* model, const std::vector<int>& sizes) {
  std::printf("%9s %10s %10s %10s\n", "sequences", "streams", "median", "least");
  for (const int num_seqs : sizes) {
    for (const bool streams : {false, true}) {
      const std::int64_t blocks = (kPromptTokens + kOutputTokens) / NullPolicy::kv.block_size + 2;
      NullEngine engine({.model = model,
                         .num_threads = 1,
                         .max_num_seqs = num_seqs,
                         .max_model_len = 1024,
                         .kv_size = nv::KvSize::blocks(num_seqs * blocks),
                         .overlap = false});
      const std::vector<double> seconds = measure(engine, num_seqs, streams);
      std::printf("%9d %10s %7.1f us %7.1f us\n", num_seqs, streams ? "yes" : "no",
                  1e6 * seconds.at(seconds.size() / 2), 1e6 * seconds.front());
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) {
    std::fprintf(stderr, "usage: host_step MODEL [NUM_SEQS...]\n");
    return 2;
  }
  std::vector<int> sizes;
  for (int i = 2; i < argc; ++i) sizes.push_back(std::max(1, std::atoi(argv[i])));
  return run(argv[1], sizes.empty() ? std::vector<int>{1, 64, 256} : sizes);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
