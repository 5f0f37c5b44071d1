// The formulas of examples/kv_cache_primer, and that both ways of generating choose the same tokens.

#include "../../examples/kv_cache_primer.hpp"

#include "catch.hpp"
#include "with/gpt2/parity/gpt2_checkpoint.hpp"

using namespace nanovllm;
using examples::Multiplications;

namespace {

Gpt2Config small_config() {
  Gpt2Config config;
  config.hidden_size = 8, config.num_layers = 3, config.num_heads = 2;
  config.intermediate_size = 20, config.vocab_size = 11, config.num_positions = 64;
  return config;
}

/// The multiplications of a forward pass, counted by doing its loops.
std::int64_t counted(const Gpt2Config& c, std::int64_t first, std::int64_t last) {
  std::int64_t count = 0;
  const auto product = [&](std::int64_t rows, std::int64_t columns) {
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j) ++count;
  };
  for (std::int64_t layer = 0; layer < c.num_layers; ++layer) {
    for (std::int64_t token = first; token < last; ++token) {
      for (int part = 0; part < 4; ++part) product(c.hidden_size, c.hidden_size);  // q, k, v, out
      product(c.intermediate_size, c.hidden_size);
      product(c.hidden_size, c.intermediate_size);
      for (std::int64_t seen = 0; seen <= token; ++seen) {
        for (std::int64_t head = 0; head < c.num_heads; ++head) {
          product(1, c.hidden_size / c.num_heads);  // q · k
          product(1, c.hidden_size / c.num_heads);  // p · v
        }
      }
    }
  }
  product(c.vocab_size, c.hidden_size);
  return count;
}

}  // namespace

TEST_CASE("the primer's formula counts every multiplication of a forward pass", "[examples]") {
  const Gpt2Config config = small_config();
  for (const std::int64_t first : {0, 1, 7}) {
    for (const std::int64_t last : {8, 9, 20}) {
      INFO(first << " to " << last);
      CHECK(Multiplications(config, first, last).sum() == counted(config, first, last));
    }
  }
  CHECK(examples::kv_bytes_per_token(config, 4) == 2 * 3 * 8 * 4);
}

TEST_CASE("the primer's two ways choose the same tokens, and the cache is as large as its formula",
          "[examples]") {
  const test::Gpt2Files files({{"model_type", "gpt2"},
                               {"n_embd", 24},
                               {"n_head", 3},
                               {"n_layer", 2},
                               {"n_positions", 96},
                               {"vocab_size", 61}},
                              3);
  const std::int64_t block_bytes = 16 * 2 * 2 * 24 * 4;
  Engine<Gpt2<shapes::gpt2_any>, Float32Policy> engine({.model = files.path(),
                                                        .num_threads = 1,
                                                        .max_num_seqs = 1,
                                                        .kv_size = KvSize::bytes(7 * block_bytes),
                                                        .prefix_caching = false});
  CHECK(engine.stats().num_kv_blocks == 7);
  const std::vector<TokenId> prompt = {5, 6, 7, 8, 9};
  const examples::PrimerRun with = examples::run_with_cache(engine, prompt, 40);
  const examples::PrimerRun without = examples::run_without_cache(engine, prompt, 40);
  CHECK(with.tokens == without.tokens);
  CHECK(with.seconds.size() == 40);
  CHECK(with.kv_blocks == 3);                        // 44 tokens
  for (const int count : {2, 11, 12, 13, 28, 29}) {  // 6, 15, 16, 17, 32, 33 tokens
    INFO(count << " tokens");
    CHECK(examples::run_with_cache(engine, prompt, count).kv_blocks == (5 + count - 1 + 15) / 16);
  }
  const Gpt2Config& config = engine.model_config();
  std::int64_t once = Multiplications(config, 0, 5).sum(), again = once;
  for (std::int64_t last = 6; last < 45; ++last) {
    once += Multiplications(config, last - 1, last).sum();
    again += Multiplications(config, 0, last).sum();
  }
  CHECK(with.multiplications == once);
  CHECK(without.multiplications == again);

  const std::string svg = examples::draw_times(with, without, prompt.size());
  CHECK_THAT(svg, Catch::Matchers::Contains("</svg>"));
  CHECK_THAT(svg, !Catch::Matchers::Contains("nan"));
}

TEST_CASE("A time is the median of the runs, whatever one of them waited for") {
  const auto run = [](std::vector<double> seconds) {
    examples::PrimerRun out;
    out.tokens = {7, 8, 9};
    out.seconds = std::move(seconds);
    return out;
  };
  const std::vector<examples::PrimerRun> runs{run({1, 900, 3}), run({1, 2, 800}), run({700, 2, 3})};
  CHECK(examples::median_of(runs).seconds == std::vector<double>{1, 2, 3});
  CHECK(examples::median_of(runs).tokens == runs[0].tokens);
  CHECK(examples::median_of({run({4, 5})}).seconds == std::vector<double>{4, 5});
}
