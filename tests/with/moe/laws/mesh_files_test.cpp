// Keys and values in files are found by ranks that divide the experts in the same way, and by no
// others: sums in another order have other bits.

#include <filesystem>
#include <string>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "kv_stats.hpp"
#include "nanovllm/with/moe/expert_parallel.hpp"
#include "nanovllm/with/sessions.hpp"
#include "with/moe/parity/qwen3_moe_checkpoint.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

struct SmallBlocks : FullFloat32Policy {
  static constexpr KvConfig kv{.block_size = 4};
};
using MoeEngine = Engine<Qwen3Moe<shapes::qwen3_moe_any>, SmallBlocks>;

constexpr std::int64_t kVocab = 83;

const MoeFiles& files() {
  static const MoeFiles made({{"architectures", {"Qwen3MoeForCausalLM"}},
                              {"model_type", "qwen3_moe"},
                              {"hidden_size", 40},
                              {"num_hidden_layers", 2},
                              {"num_attention_heads", 4},
                              {"num_key_value_heads", 4},
                              {"head_dim", 8},
                              {"intermediate_size", 48},
                              {"moe_intermediate_size", 32},
                              {"num_experts", 8},
                              {"num_experts_per_tok", 3},
                              {"vocab_size", kVocab},
                              {"max_position_embeddings", 256},
                              {"rms_norm_eps", 1e-6},
                              {"rope_theta", 1e4},
                              {"norm_topk_prob", true},
                              {"tie_word_embeddings", false}},
                             91);
  return made;
}

/// How an engine's ranks divide experts.
struct Division {
  int ranks;
  bool by_experts;
  int columns;
};
constexpr Division kDivisions[] = {{4, false, 1}, {4, true, 1}, {4, true, 2}, {2, true, 1}};

EngineConfig config(const Division& division, const std::filesystem::path& directory) {
  return {
      .model = files().path(),
      .tensor_parallel = division.ranks,
      .extras = {ExpertParallel{.on = division.by_experts, .tensor_parallel = division.columns},
                 HostKv{KvSize::blocks(40)}, DiskKv{.path = directory / "disk", .min_tokens = 1}},
      .num_threads = division.ranks,
      .max_num_seqs = 4,
      .max_model_len = 64,
      .kv_size = KvSize::blocks(16),
      .overlap = false};
}

const SamplingParams kGreedy{
    .temperature = 0.f, .max_tokens = 4, .ignore_eos = true, .logprobs = 2};

bool is_loaded(const auto& load) {
  try {
    load();
    return true;
  } catch (const LoadError&) {
    return false;
  }
}

}  // namespace

TEST_CASE("files of a mesh are found by that mesh alone", "[disk][session_file][moe]") {
  const nanovllm_test::TempDirectory root;
  const std::vector<TokenId> prompt = random_prompt(5, 40, kVocab);
  std::vector<Output> cold;
  for (std::size_t i = 0; i < std::size(kDivisions); ++i) {
    const std::filesystem::path directory = root.path() / std::to_string(i);
    MoeEngine engine(config(kDivisions[i], directory));
    cold.push_back(engine.generate(prompt, kGreedy));
    REQUIRE(cold.back().error == "");
    Session session(engine);
    static_cast<void>(session.generate(prompt, kGreedy));
    session.save(directory / "session");
    session.clear();
    save_cache(engine, directory);
    for (std::uint64_t other = 0; other < 6; ++other)  // what was asked first goes to the disk
      static_cast<void>(engine.generate(random_prompt(100 + other, 40, kVocab), kGreedy));
    while (engine.step()) {
    }
  }
  for (std::size_t writer = 0; writer < std::size(kDivisions); ++writer) {
    for (std::size_t reader = 0; reader < std::size(kDivisions); ++reader) {
      CAPTURE(writer, reader);
      const std::filesystem::path from = root.path() / std::to_string(writer);
      const nanovllm_test::TempDirectory copy;
      std::filesystem::copy(from / "disk", copy.path() / "disk");
      MoeEngine engine(config(kDivisions[reader], copy.path()));
      const Output out = engine.generate(prompt, kGreedy);
      CHECK(out.token_ids == cold[reader].token_ids);
      for (std::size_t t = 0; t < out.logprobs.size(); ++t)
        CHECK(out.logprobs[t].logprob == cold[reader].logprobs[t].logprob);
      const bool is_same = writer == reader;
      CHECK((disk_kv(engine.stats()).num_hit_tokens > 0) == is_same);
      CHECK(is_loaded([&] { static_cast<void>(Session::load(engine, from / "session")); }) ==
            is_same);
      CHECK(is_loaded([&] { load_cache(engine, from); }) == is_same);
    }
  }
}
