// Ranks that draw from their shards of the vocabulary, in whole engines: with logits that are equal
// bit by bit for any number of ranks, so are tokens and log-probabilities, and whole logits are
// gathered only where a request needs them.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "memory_checkpoint.hpp"
#include "nanovllm/with/shards/shard_draw.hpp"
#include "nanovllm/with/shards/step_sampler.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

/// ThreadGroup that counts what is gathered.
class CountingGroup : public ThreadGroup {
 public:
  static std::vector<CountingGroup> make(int num_ranks) {
    std::vector<CountingGroup> out;
    for (ThreadGroup& end : ThreadGroup::make(num_ranks)) out.push_back(std::move(end));
    return out;
  }
  CountingGroup(ThreadGroup&& end) : ThreadGroup(std::move(end)) {}

  template <class T>
  void all_gather_columns(MatrixView<const T> part, MatrixView<T> whole) {
    const std::int64_t width = part.extent(1);
    if (rank() == 0) ++(width == kWinnerWords ? winners : width == kSurveyWords ? surveys : logits);
    ThreadGroup::all_gather_columns(part, whole);
  }

  static void clear() { winners = surveys = logits = 0; }
  inline static std::atomic<int> winners, surveys, logits;
};

/// CpuBackend with graphs, so that its steps are those of `GraphExecutor`. Ops run at once, or are
/// recorded.
class RecordingBackend : public CpuBackend {
 public:
  using CpuBackend::CpuBackend;
  static constexpr bool kAsynchronous = true;
  static constexpr bool kSamplesPlainRows = true;
  static constexpr bool kSharesPrefixes = true;
  [[nodiscard]] static bool may_share_prefixes() { return may_share; }
  template <class T>
  using HostBuffer = cpu::AlignedBuffer<T>;
  using Graph = std::vector<std::function<void()>>;
  struct Event {
    [[nodiscard]] static bool is_done() { return true; }
    void synchronize() const {}
  };
  inline static std::atomic<int> num_replays, num_sharing;
  inline static std::atomic<bool> may_share = true;

  void run_or_record(std::function<void()> op) {
    if (recorded_ == nullptr) return op();
    recorded_->push_back(std::move(op));
  }
  template <class Args>
  requires RunsOp<CpuBackend, Args>
  void run(const Args& args) {
    run_or_record([this, args] { CpuBackend::run(args); });
  }
  void run(const PlanAttentionArgs& args) {
    run_or_record([this, args] {
      const VectorView<const SharedPrefix>& groups = args.shared.groups;
      num_sharing += groups.extent(0) > 0 && groups.data[0].count > 0 ? 1 : 0;
      CpuBackend::run(args);
    });
  }
  template <class T>
  void download_later(const T* from, T* to, std::size_t count) {
    run_or_record([=] { std::copy_n(from, count, to); });
  }
  void record(Event&) {}
  void synchronize() const {}
  template <class Work>
  [[nodiscard]] Graph capture(const Work& work) {
    Graph graph;
    recorded_ = &graph;
    work();
    recorded_ = nullptr;
    return graph;
  }
  void replay(const Graph& graph) {
    ++num_replays;
    for (const auto& op : graph) op();
  }

 private:
  Graph* recorded_ = nullptr;
};

/// CountingGroup whose calls are recorded with a RecordingBackend's ops.
class RecordedGroup : public CountingGroup {
 public:
  static std::vector<RecordedGroup> make(int num_ranks) {
    std::vector<RecordedGroup> out;
    for (CountingGroup& end : CountingGroup::make(num_ranks)) out.push_back(std::move(end));
    return out;
  }
  RecordedGroup(CountingGroup&& end) : CountingGroup(std::move(end)) {}

  void attach(RecordingBackend& backend) { backend_ = &backend; }
  template <class T>
  void all_reduce(MatrixView<T> x) {
    backend_->run_or_record([this, x] { CountingGroup::all_reduce(x); });
  }
  template <class T>
  void all_gather_columns(MatrixView<const T> part, MatrixView<T> whole) {
    backend_->run_or_record([=, this] { CountingGroup::all_gather_columns(part, whole); });
  }

 private:
  RecordingBackend* backend_ = nullptr;
};

struct DirectPolicy : FullFloat32Policy {
  using Communicator = CountingGroup;
};
struct GraphPolicy : FullFloat32Policy {
  using Backend = RecordingBackend;
  using Communicator = RecordedGroup;
};

constexpr std::int64_t kVocab = 1500, kHidden = 16, kHeads = 24, kHeadDim = 8, kIntermediate = 24;

/// A Qwen3 whose layers add nothing: a row's logits follow from its token, and no sum over ranks is
/// rounded.
nanovllm_test::MemoryCheckpoint make_checkpoint() {
  nanovllm_test::MemoryCheckpoint out;
  out.texts["config.json"] =
      concat(R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": )",
             kHidden, R"(, "num_hidden_layers": 1, "num_attention_heads": )", kHeads,
             R"(, "num_key_value_heads": )", kHeads, R"(, "head_dim": )", kHeadDim,
             R"(, "intermediate_size": )", kIntermediate, R"(, "vocab_size": )", kVocab,
             R"(, "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000,)",
             R"( "tie_word_embeddings": false, "torch_dtype": "float32", "eos_token_id": 3})");
  std::uint64_t seed = 0;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape, float scale,
                       float offset = 0) {
    std::int64_t size = 1;
    for (const std::int64_t extent : shape) size *= extent;
    std::vector<float> values;
    for (std::int64_t i = 0; i < size; ++i) {
      const auto words = philox4x32(seed, {static_cast<std::uint32_t>(i), 0, 0, 0});
      values.push_back(offset + scale * static_cast<float>(to_unit_interval(words[0]) - 0.5));
    }
    ++seed;
    out.add(
        name, FileDType::f32, {shape.begin(), shape.end()},
        std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
  };
  const std::int64_t q = kHeads * kHeadDim;
  const std::string layer = "model.layers.0.";
  add("model.embed_tokens.weight", {kVocab, kHidden}, 2);
  add("model.norm.weight", {kHidden}, 0, 1);
  add("lm_head.weight", {kVocab, kHidden}, 3);
  add(layer + "input_layernorm.weight", {kHidden}, 0, 1);
  add(layer + "post_attention_layernorm.weight", {kHidden}, 0, 1);
  add(layer + "self_attn.q_norm.weight", {kHeadDim}, 0, 1);
  add(layer + "self_attn.k_norm.weight", {kHeadDim}, 0, 1);
  for (const char* name : {"q_proj", "k_proj", "v_proj"})
    add(layer + "self_attn." + name + ".weight", {q, kHidden}, 1);
  add(layer + "self_attn.o_proj.weight", {kHidden, q}, 0);
  add(layer + "mlp.gate_proj.weight", {kIntermediate, kHidden}, 1);
  add(layer + "mlp.up_proj.weight", {kIntermediate, kHidden}, 1);
  add(layer + "mlp.down_proj.weight", {kHidden, kIntermediate}, 0);
  return out;
}

/// Every kind of request that this test knows.
struct RequestKind {
  const char* name;
  std::vector<SamplingParams> params;
  bool surveys, whole;  ///< whether surveys and whole logits are exchanged
};

std::vector<RequestKind> request_kinds() {
  return {
      {"plain", {{.temperature = 0.f}, {.temperature = 1.f}, {.temperature = 0.4f}}, false, false},
      {"filtered",
       {{.temperature = 0.7f, .top_k = 20, .top_p = 0.8f},
        {.temperature = 1.f, .top_k = 64},
        {.temperature = 1.f, .min_p = 0.05f},
        {.temperature = 0.f, .top_p = 0.5f},
        {.temperature = 1.f, .top_k = 5, .min_p = 0.01f, .min_tokens = 9}},
       true,
       false},
      {"log-probabilities",
       {{.temperature = 0.f, .logprobs = 0},
        {.temperature = 1.f, .logprobs = 5},
        {.temperature = 1.f, .top_k = 20, .top_p = 0.9f, .logprobs = 20}},
       true,
       false},
      {"top_p alone", {{.temperature = 1.f, .top_p = 0.9f}}, false, true},
      {"a large top_k", {{.temperature = 1.f, .top_k = 65}}, false, true},
      {"log-probabilities with bans",
       {{.temperature = 1.f, .min_tokens = 12, .logprobs = 2}},
       false,
       true},
      {"penalties", {{.temperature = 1.f, .repetition_penalty = 1.3f}}, false, true},
      {"prompt log-probabilities", {{.temperature = 1.f, .prompt_logprobs = 1}}, false, true},
  };
}

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  std::vector<TokenId> top_tokens;
  friend bool operator==(const Answer&, const Answer&) = default;
};

template <class Policy>
std::vector<Answer> answers(Engine<AnyModel, Policy>& engine, const RequestKind& kind) {
  std::vector<std::vector<TokenId>> prompts;
  std::vector<SamplingParams> params;
  for (std::size_t i = 0; i < 2 * kind.params.size(); ++i) {
    prompts.push_back(random_prompt(0, 160, kVocab));
    const std::vector<TokenId> own = random_prompt(i, 3 + 4 * i, kVocab);
    prompts.back().insert(prompts.back().end(), own.begin(), own.end());
    params.push_back(kind.params[i % kind.params.size()]);
    params.back().max_tokens = 16;
    params.back().seed = 100 + i;
    params.back().ignore_eos = params.back().min_tokens == 0;
  }
  std::vector<Answer> out;
  for (const Output& output : engine.generate(prompts, params)) {
    CHECK(output.error.empty());
    Answer& answer = out.emplace_back();
    answer.tokens = output.token_ids;
    for (const TokenLogprobs& entry : output.logprobs) {
      answer.logprobs.push_back(entry.logprob);
      for (const auto& [token, logprob] : entry.top) {
        answer.top_tokens.push_back(token);
        answer.logprobs.push_back(logprob);
      }
    }
  }
  return out;
}

template <class Policy>
Engine<AnyModel, Policy> make_engine(const Checkpoint& checkpoint, int num_ranks) {
  return Engine<AnyModel, Policy>({.checkpoint = checkpoint,
                                   .tensor_parallel = num_ranks,
                                   .num_threads = num_ranks,
                                   .max_num_seqs = 8,
                                   .max_num_batched_tokens = 64,
                                   .max_model_len = 256,
                                   .kv_size = KvSize::blocks(192),
                                   .share_reads_from = 32,
                                   .seed = 7});
}

/// Engines of 2 to 8 ranks against one of a single rank.
template <class Policy>
void check_ranks() {
  const Checkpoint checkpoint(make_checkpoint());
  auto alone = make_engine<Policy>(checkpoint, 1);
  std::vector<std::vector<Answer>> expected;
  for (const RequestKind& kind : request_kinds()) expected.push_back(answers(alone, kind));
  for (const int num_ranks : {2, 3, 4, 8}) {
    auto engine = make_engine<Policy>(checkpoint, num_ranks);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const RequestKind kind = request_kinds()[i];
      INFO(num_ranks << " ranks, " << kind.name);
      CountingGroup::clear();
      CHECK(answers(engine, kind) == expected[i]);
      CHECK((CountingGroup::logits > 0) == kind.whole);
      if (kind.whole) continue;  // of some steps; bans end, and prompts are scored once
      CHECK(CountingGroup::winners > 0);
      // Graphs of steps that share prefixes are for all rows.
      const bool is_graph = std::is_same_v<Policy, GraphPolicy>;
      CHECK((CountingGroup::surveys > 0) == (kind.surveys || is_graph));
    }
  }
}

}  // namespace

TEST_CASE("any number of ranks draws what one draws, and gathers logits only where it must",
          "[ranks]") {
  check_ranks<DirectPolicy>();
}

TEST_CASE("the same by graphs", "[ranks]") {
  RecordingBackend::num_replays = RecordingBackend::num_sharing = 0;
  check_ranks<GraphPolicy>();
  CHECK(RecordingBackend::num_replays > 1000);
  CHECK(RecordingBackend::num_sharing > 100);
}

TEST_CASE("a backend may stop sharing reads between two steps", "[ranks]") {
  auto engine = make_engine<GraphPolicy>(Checkpoint(make_checkpoint()), 1);
  const RequestKind kind = request_kinds()[0];
  const std::vector<Answer> expected = answers(engine, kind);
  for (const bool may_share : {true, false, true}) {
    RecordingBackend::may_share = may_share;
    RecordingBackend::num_sharing = 0;
    CHECK(answers(engine, kind) == expected);
    CHECK((RecordingBackend::num_sharing > 0) == may_share);
  }
}
