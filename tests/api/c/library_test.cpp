// The functions of c/nanovllm.h over an engine that does what a test says: statuses, callbacks, and
// who waits for whom. tests/api/c/run_test.sh has the shared library with a real engine.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <span>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "nanovllm/api/c/library.inc"
#include "nanovllm/engine/request/frontend.hpp"
#include "nanovllm/with/moe/expert_parallel.hpp"
#include "nanovllm/with/peers/options.hpp"
#include "nanovllm/with/sessions/options.hpp"
#include "nanovllm/with/speculation/config.hpp"

using namespace nanovllm;

namespace {

/// What the next engines do.
struct Script {
  std::function<void(const EngineConfig&)> on_create = [](const EngineConfig&) {};
  std::function<bool()> on_step = [] { return false; };
  std::function<void(const std::stop_token&)> on_run = [](const std::stop_token&) {};
  std::atomic<bool> is_destroyed = false;
  SamplingParams params;  // of the last request
  std::vector<TokenCallback> callbacks;
  std::mutex mutex;  // of the next: several threads may abort at a time
  std::set<RequestId> aborted;
};
Script* script = nullptr;

class ScriptedEngine final : public AnyEngine {
 public:
  ~ScriptedEngine() override {
    const Output output = output_of(FinishReason::abort);
    for (std::size_t i = 0; i < script->callbacks.size(); ++i) {
      if (!script->callbacks[i]) continue;
      script->callbacks[i](
          {.id = i + 1, .finish_reason = FinishReason::abort, .text = {}, .output = &output});
    }
    script->is_destroyed = true;
  }

  [[nodiscard]] static Output output_of(FinishReason reason) {
    Output output;
    output.finish_reason = reason;
    output.num_prompt_tokens = 5;
    output.num_cached_tokens = 3;
    output.error = reason == FinishReason::error ? "it broke" : "";
    return output;
  }

  RequestId submit(const Prompt&, const SamplingParams& params, TokenCallback callback) override {
    script->params = params;
    script->callbacks.push_back(std::move(callback));
    return script->callbacks.size();
  }
  bool abort(RequestId id) override {
    const std::lock_guard lock(script->mutex);
    return script->aborted.insert(id).second;
  }
  bool step() override { return script->on_step(); }
  void run(const std::stop_token& stop) override { script->on_run(stop); }
  void run_worker() override {}
  std::vector<TokenId> encode(const Prompt&) const override { return {1, 2, 3}; }
  const TextSide& text() const override { return text_; }
  std::span<const TokenId> eos_token_ids() const override { return ends_; }
  std::int64_t vocab_size() const override { return 100; }
  std::int64_t max_total_tokens() const override { return 50; }
  EngineStats stats() const override { return {.num_steps = 17}; }
  Latencies latencies() const override { return {}; }
  Health health() const override {
    return {.state = Health::State::hung, .reason = std::string(2000, 'x'), .seconds = 1.5};
  }
  void reset() override {}
  std::string describe() const override { return "scripted"; }
  void check_invariants() const override {}

  static constexpr TokenId kEnd = 99;

 private:
  TextSide text_;
  std::vector<TokenId> ends_ = {kEnd};
};

/// A script in force.
struct Scripted : Script {
  Scripted() { script = this; }
};

nvllm_engine* create(const char* model = "model") {
  nvllm_engine_config config{};
  nvllm_engine_config_init(&config);
  config.model = model;
  nvllm_engine* engine = nullptr;
  REQUIRE(nvllm_engine_create(&config, &engine) == NVLLM_OK);
  return engine;
}

nvllm_request text_request() {
  nvllm_request request{};
  nvllm_request_init(&request);
  request.text = "text";
  return request;
}

std::string last_error() { return nvllm_last_error(); }

/// The status and the message of a step that throws this.
template <class Thrown>
nvllm_status status_of(nvllm_engine* engine, Thrown thrown) {
  script->on_step = [thrown]() -> bool { throw thrown; };
  return nvllm_step(engine);
}

}  // namespace

std::unique_ptr<AnyEngine> c_api::make_engine(EngineChoice choice) {
  script->on_create(choice.config);
  return std::make_unique<ScriptedEngine>();
}

TEST_CASE("every exception becomes a status and a message") {
  Scripted scripted;
  nvllm_engine* engine = create();
  CHECK(status_of(engine, ConfigError("a setting")) == NVLLM_ERROR_CONFIG);
  CHECK(last_error() == "a setting");
  CHECK(status_of(engine, UnsupportedModelError("a model")) == NVLLM_ERROR_UNSUPPORTED);
  CHECK(status_of(engine, LoadError("a file")) == NVLLM_ERROR_LOAD);
  CHECK(status_of(engine, RequestError("a request")) == NVLLM_ERROR_REQUEST);
  CHECK(status_of(engine, CudaError("a device")) == NVLLM_ERROR_CUDA);
  CHECK(status_of(engine, ShapeError("a shape")) == NVLLM_ERROR_INTERNAL);
  CHECK(status_of(engine, std::bad_alloc()) == NVLLM_ERROR_MEMORY);
  CHECK(status_of(engine, std::runtime_error("other")) == NVLLM_ERROR_INTERNAL);
  CHECK(last_error() == "other");
  CHECK(status_of(engine, 5) == NVLLM_ERROR_INTERNAL);
  CHECK(last_error() == "unknown");
  CHECK(status_of(engine, LoadError(std::string("a\0b", 3))) == NVLLM_ERROR_LOAD);
  CHECK(last_error() == "a\\x00b");
  // What is too long is cut, between two characters.
  std::string text(2046, 'x');
  CHECK(status_of(engine, Error(text + "\xC3\xA9")) == NVLLM_ERROR_INTERNAL);
  CHECK(last_error() == text);
  CHECK(nvllm_engine_destroy(engine) == NVLLM_OK);
  CHECK(last_error() == text);

  scripted.on_create = [](const EngineConfig&) { throw LoadError("no model"); };
  nvllm_engine_config config{};
  nvllm_engine_config_init(&config);
  config.model = "model";
  engine = nullptr;
  CHECK(nvllm_engine_create(&config, &engine) == NVLLM_ERROR_LOAD);
  CHECK(engine == nullptr);
}

TEST_CASE("settings of C arrive, and zero is the default") {
  Scripted scripted;
  nvllm_engine_config c{};
  nvllm_engine_config_init(&c);
  c.model = "somewhere";
  EngineConfig config = c_api::read_engine_config(&c).config;
  const EngineConfig defaults;
  CHECK(config.max_num_seqs == defaults.max_num_seqs);
  CHECK(config.tensor_parallel == defaults.tensor_parallel);
  CHECK(config.extras.find<ExpertParallel>() == nullptr);
  CHECK(config.extras.find<PeerOptions>() == nullptr);
  CHECK(config.extras.find<HostKv>() == nullptr);
  CHECK(config.extras.find<DiskKv>() == nullptr);
  CHECK(config.extras.find<SpeculativeConfig>() == nullptr);
  CHECK(config.prefix_caching);
  CHECK_FALSE(config.kv_size);
  CHECK_FALSE(config.seed);
  CHECK_FALSE(config.step_timeout);
  c.kv_blocks = 9;
  c.host_kv_bytes = 4096;
  c.disk_kv_path = "cache";
  c.disk_kv_bytes = 8192;
  c.max_model_len = 77;
  c.device_index = 2;
  c.tensor_parallel = 4;
  c.expert_parallel = 1;
  c.disable_custom_all_reduce = 1;
  c.num_threads = 3;
  c.max_num_seqs = 5;
  c.max_num_batched_tokens = 64;
  c.disable_prefix_caching = 1;
  c.has_seed = 1;  // of 0
  c.step_timeout_seconds = 2.5;
  c.session_blocks = 12;
  c.dtype = "float32";
  c.device = "cuda";
  const c_api::EngineChoice choice = c_api::read_engine_config(&c);
  config = choice.config;
  CHECK(choice.device == "cuda");
  CHECK(choice.dtype == "float32");
  CHECK(config.model == "somewhere");
  CHECK((config.kv_size->kind() == KvSize::Kind::blocks && config.kv_size->count() == 9));
  const KvSize host = config.extras.of<HostKv>().size;
  CHECK((host.kind() == KvSize::Kind::bytes && host.count() == 4096));
  CHECK(config.extras.of<DiskKv>().path == "cache");
  CHECK(config.extras.of<DiskKv>().max_bytes == 8192);
  CHECK(config.max_model_len == 77);
  CHECK(config.device == 2);
  CHECK(config.tensor_parallel == 4);
  CHECK(config.extras.of<ExpertParallel>().on);
  CHECK(config.extras.find<ExpertParallel>() != nullptr);
  CHECK(config.extras.of<PeerOptions>().max_bytes == 0);
  CHECK(config.num_threads == 3);
  CHECK(config.max_num_seqs == 5);
  CHECK(config.max_num_batched_tokens == 64);
  CHECK_FALSE(config.prefix_caching);
  CHECK(config.seed == 0);
  CHECK(config.step_timeout->count() == 2.5);
  CHECK(config.extras.of<SessionOptions>().max_blocks == 12);
  c.kv_bytes = 1;
  CHECK_THROWS_AS(c_api::read_engine_config(&c), c_api::InvalidError);

  nvllm_sampling_params p{};
  nvllm_sampling_params_init(&p);
  SamplingParams params = c_api::read_sampling(&p);
  CHECK_FALSE((params.temperature || params.top_p || params.top_k || params.min_p || params.seed ||
               params.repetition_penalty || params.logprobs));
  CHECK((params.n == 1 && params.max_tokens == 256 && params.skip_special_tokens));
  const std::array<const char*, 2> texts = {"a", "b"};
  const std::array<std::int32_t, 2> tokens = {4, 5};
  const nvllm_token_bias bias = {6, 1.5f};
  p.has_temperature = p.has_min_p = p.has_logprobs = 1;
  p.top_p = 0.5f;
  p.top_k = -1;
  p.repetition_penalty = 1.25f;
  p.frequency_penalty = 0.75f;
  p.presence_penalty = -0.75f;
  p.n = 2;
  p.max_tokens = 3;
  p.min_tokens = 1;
  p.ignore_eos = p.keep_special_tokens = p.include_stop_str_in_output = 1;
  p.priority = -4;
  p.stop = p.bad_words = texts.data();
  p.num_stop = p.num_bad_words = 2;
  p.stop_token_ids = p.allowed_token_ids = tokens.data();
  p.num_stop_token_ids = 2;
  p.num_allowed_token_ids = 1;
  p.logit_bias = &bias;
  p.num_logit_bias = 1;
  params = c_api::read_sampling(&p);
  CHECK(params.temperature == 0.f);
  CHECK(params.min_p == 0.f);
  CHECK(params.logprobs == 0);
  CHECK(params.top_p == 0.5f);
  CHECK(params.top_k == -1);
  CHECK(params.repetition_penalty == 1.25f);
  CHECK((params.frequency_penalty == 0.75f && params.presence_penalty == -0.75f));
  CHECK((params.n == 2 && params.max_tokens == 3 && params.min_tokens == 1));
  CHECK((params.ignore_eos && !params.skip_special_tokens && params.include_stop_str_in_output));
  CHECK(params.priority == -4);
  CHECK(params.stop == std::vector<std::string>{"a", "b"});
  CHECK(params.bad_words == params.stop);
  CHECK(params.stop_token_ids == std::vector<TokenId>{4, 5});
  CHECK(params.allowed_token_ids == std::vector<TokenId>{4});
  CHECK((params.logit_bias.size() == 1 && params.logit_bias[0].token == 6));
}

TEST_CASE("speculative decoding of C") {
  const auto read = [](const auto& edit) {
    nvllm_engine_config c{};
    nvllm_engine_config_init(&c);
    c.model = "somewhere";
    edit(c);
    return c_api::read_engine_config(&c).config.extras.of<SpeculativeConfig>();
  };
  const auto fails = [&](const char* words, const auto& edit) {
    CHECK_THROWS_AS(read(edit), c_api::InvalidError);
    CHECK_THROWS_WITH(read(edit), Catch::Contains(words));
  };
  // A field of it is enough.
  CHECK(read([](auto& c) { c.speculative_method = "ngram"; }).method == "ngram");
  CHECK(read([](auto& c) { c.num_speculative_tokens = 7; }).method == "ngram");
  CHECK(read([](auto& c) { c.prompt_lookup_min = 2; }).method == "ngram");
  CHECK(read([](auto& c) { c.disable_adaptive_drafts = 1; }).method == "ngram");
  CHECK(read([](auto& c) { c.speculative_model = "small"; }).method == "draft_model");
  CHECK(read([](auto& c) { c.speculative_model = "examples/models/fairytale_eagle3"; }).method ==
        "eagle3");
  const SpeculativeConfig unset = read([](auto& c) { c.speculative_method = "ngram"; });
  const SpeculativeConfig defaults;
  CHECK(unset.num_speculative_tokens == defaults.num_speculative_tokens);
  CHECK_FALSE((unset.prompt_lookup_max || unset.prompt_lookup_min || unset.model_kv_size));
  CHECK((unset.adaptive && unset.model.empty()));
  const SpeculativeConfig ngram = read([](auto& c) {
    c.num_speculative_tokens = 7;
    c.prompt_lookup_max = 9;
    c.prompt_lookup_min = 2;
    c.disable_adaptive_drafts = 1;
  });
  CHECK(ngram.num_speculative_tokens == 7);
  CHECK((ngram.prompt_lookup_max == 9 && ngram.prompt_lookup_min == 2));
  CHECK_FALSE(ngram.adaptive);
  const SpeculativeConfig model = read([](auto& c) {
    c.speculative_method = "another";
    c.speculative_model = "small";
    c.speculative_model_kv_blocks = 12;
  });
  CHECK((model.method == "another" && model.model == "small"));
  CHECK(
      (model.model_kv_size->kind() == KvSize::Kind::blocks && model.model_kv_size->count() == 12));

  fails("disable_adaptive_drafts must be 0 or 1, got 2",
        [](auto& c) { c.disable_adaptive_drafts = 2; });
  fails("\"draft_model\", got NULL", [](auto& c) { c.speculative_method = "draft_model"; });
  fails("\"draft_model\", got \"\"", [](auto& c) { c.speculative_model = ""; });
  fails("got \"ngram\"", [](auto& c) {
    c.speculative_method = "ngram";
    c.speculative_model = "small";
  });
  fails("speculative_model_kv_blocks is for the speculative_method \"draft_model\", got \"ngram\"",
        [](auto& c) { c.speculative_model_kv_blocks = 3; });
  fails("got \"draft_model\"", [](auto& c) {
    c.speculative_model = "small";
    c.prompt_lookup_max = 3;
  });
  // A head has the blocks of the target's cache.
  fails("speculative_model_kv_blocks is for the speculative_method \"draft_model\", got \"eagle3\"",
        [](auto& c) {
          c.speculative_method = "eagle3";
          c.speculative_model = "head";
          c.speculative_model_kv_blocks = 3;
        });
  fails("must be a directory for the speculative_method \"eagle3\", got NULL",
        [](auto& c) { c.speculative_method = "eagle3"; });
  fails("prompt_lookup_min is for the speculative_method \"ngram\", got \"eagle3\"", [](auto& c) {
    c.speculative_method = "eagle3";
    c.speculative_model = "head";
    c.prompt_lookup_min = 3;
  });
  fails("speculative_method must be NULL or a name, got \"\"",
        [](auto& c) { c.speculative_method = ""; });
  // The engine says of an unknown method which it has, with a model and without.
  CHECK(read([](auto& c) { c.speculative_method = "medusa"; }).method == "medusa");

  EngineStats stats;
  CHECK(c_api::to_c(stats).num_draft_positions == 0);
  stats.extras.set(SpeculationStats{1, 2, 9, 5, 3, {4, 0, 1}});
  const nvllm_stats out = c_api::to_c(stats);
  CHECK((out.num_draft_steps == 1 && out.num_drafts == 2 && out.num_draft_tokens == 9));
  CHECK((out.num_accepted_tokens == 5 && out.num_failed_drafts == 3));
  CHECK(out.num_draft_positions == 3);
  CHECK((out.num_accepted_tokens_per_pos[0] == 4 && out.num_accepted_tokens_per_pos[2] == 1));
  CHECK(out.num_accepted_tokens_per_pos[3] == 0);
}

TEST_CASE("forms of texts of C") {
  using Kind = serve::OutputConstraint::Kind;
  nvllm_sampling_params p{};
  nvllm_sampling_params_init(&p);
  CHECK(c_api::read_constraint(nullptr).kind == Kind::none);
  CHECK(c_api::read_constraint(&p).kind == Kind::none);
  const std::array<const char*, 2> texts = {"a", "b"};
  p.choice = texts.data();
  p.num_choice = 2;
  CHECK(c_api::read_constraint(&p) ==
        serve::OutputConstraint{.kind = Kind::choice, .choices = {"a", "b"}});
  p.num_choice = 0;
  p.json_schema = "{}";
  p.json_space = NVLLM_JSON_SPACE_NONE;
  p.after_reasoning = 1;
  CHECK(c_api::read_constraint(&p) == serve::OutputConstraint{.kind = Kind::json_schema,
                                                              .text = "{}",
                                                              .json_space = serve::JsonSpace::none,
                                                              .after_reasoning = true});
  const auto fails = [&](const char* words) {
    CHECK_THROWS_WITH(c_api::read_constraint(&p), Catch::Contains(words));
    CHECK_THROWS_AS(c_api::read_constraint(&p), c_api::InvalidError);
  };
  p.json_object = 1;
  fails("only one of json_schema, json_object");
  p.json_schema = nullptr;
  p.json_space = NVLLM_JSON_SPACE_ANY;
  CHECK(c_api::read_constraint(&p) == serve::OutputConstraint{.kind = Kind::json_object,
                                                              .json_space = serve::JsonSpace::any,
                                                              .after_reasoning = true});
  p.json_space = 3;
  fails("json_space must be 0, 1 or 2, got 3");
  p.json_space = p.json_object = 0;
  fails("go with a form");
  p.after_reasoning = 0;
  p.regex = "a+";
  CHECK(c_api::read_constraint(&p) == serve::OutputConstraint{.kind = Kind::regex, .text = "a+"});
  p.grammar = "root ::= \"a\"";
  fails("only one of");
  p.regex = nullptr;
  CHECK(c_api::read_constraint(&p).kind == Kind::grammar);
  // Of a header without them: what lies after its struct is not read.
  p.struct_size = offsetof(nvllm_sampling_params, json_schema);
  CHECK(c_api::read_constraint(&p).kind == Kind::none);

  Scripted scripted;
  nvllm_engine* engine = create();
  p.struct_size = sizeof p;
  nvllm_request request = text_request();
  request.sampling = &p;
  const auto hear = [](void*, const nvllm_event*) -> std::int32_t { return 0; };
  CHECK(nvllm_submit(engine, &request, hear, nullptr, nullptr) == NVLLM_ERROR_REQUEST);
  CHECK_THAT(last_error(), Catch::Contains("tokenizer.json"));
  CHECK(scripted.callbacks.empty());
  CHECK(nvllm_engine_destroy(engine) == NVLLM_OK);
}

TEST_CASE("what stopped a sample of C") {
  Scripted scripted;
  nvllm_engine* engine = create();
  struct Heard {
    std::vector<std::string> strings;
    std::vector<int> have_token, tokens;
  } heard;
  const auto hear = [](void* user, const nvllm_event* event) -> std::int32_t {
    auto& to = *static_cast<Heard*>(user);
    to.strings.emplace_back(event->stop_string == nullptr ? "-" : event->stop_string);
    to.have_token.push_back(event->has_stop_token);
    to.tokens.push_back(event->stop_token);
    return 0;
  };
  const std::array<const char*, 2> stops = {"ab", "c"};
  const std::array<std::int32_t, 2> ids = {7, ScriptedEngine::kEnd};
  nvllm_sampling_params params{};
  nvllm_sampling_params_init(&params);
  params.stop = stops.data();
  params.stop_token_ids = ids.data();
  params.num_stop = params.num_stop_token_ids = 2;
  nvllm_request request = text_request();
  request.sampling = &params;
  const auto submit = [&] {
    heard = {};
    REQUIRE(nvllm_submit(engine, &request, hear, &heard, nullptr) == NVLLM_OK);
    return scripted.callbacks.back();
  };
  const auto tell = [](const TokenCallback& to, FinishReason reason, TokenId token,
                       std::string_view stop) {
    to({.id = 1, .finish_reason = reason, .stop_string = stop, .token = &token, .text = {}});
  };
  TokenCallback call = submit();
  tell(call, FinishReason::none, 7, {});
  tell(call, FinishReason::length, 7, {});
  tell(call, FinishReason::stop, 5, std::string_view("abx", 2));  // no zero byte after it
  tell(call, FinishReason::stop, 7, {});
  tell(call, FinishReason::stop, ScriptedEngine::kEnd, {});
  tell(call, FinishReason::stop, 5, {});
  CHECK(heard.strings == std::vector<std::string>{"-", "-", "ab", "-", "-", "-"});
  CHECK(heard.have_token == std::vector<int>{0, 0, 0, 1, 0, 0});
  CHECK(heard.tokens == std::vector<int>{0, 0, 0, 7, 0, 0});

  // With ignore_eos the model's end token is a stop token as others are.
  params.ignore_eos = 1;
  call = submit();
  tell(call, FinishReason::stop, ScriptedEngine::kEnd, {});
  CHECK(heard.tokens == std::vector<int>{ScriptedEngine::kEnd});

  request.whole = 1;
  call = submit();
  Output output = ScriptedEngine::output_of(FinishReason::stop);
  output.token_ids = {1, 7};
  Completion& other = output.alternatives.emplace_back();
  other.finish_reason = FinishReason::stop;
  other.token_ids = {1, 7};
  other.stop_string = "c";
  call({.id = 1, .finish_reason = FinishReason::stop, .text = {}, .output = &output});
  CHECK(heard.strings == std::vector<std::string>{"-", "c"});
  CHECK(heard.have_token == std::vector<int>{1, 0});
  CHECK(nvllm_engine_destroy(engine) == NVLLM_OK);
}

TEST_CASE("an engine without an inside has no sessions of C") {
  Scripted scripted;
  nvllm_engine* engine = create();
  nvllm_session* session = nullptr;
  CHECK(nvllm_session_create(engine, &session) < 0);
  CHECK(session == nullptr);
  CHECK(nvllm_session_create(engine, nullptr) == NVLLM_ERROR_INVALID);
  CHECK(nvllm_session_submit(nullptr, nullptr, nullptr, nullptr, nullptr) == NVLLM_ERROR_INVALID);
  CHECK(nvllm_session_destroy(nullptr) == NVLLM_OK);
  CHECK(nvllm_engine_destroy(engine) == NVLLM_OK);
}

TEST_CASE("warnings of C") {
  Scripted scripted;
  scripted.on_create = [](const EngineConfig& config) {
    const std::string_view lines = "one line, another";
    if (!config.on_warning) return;
    config.on_warning(lines.substr(0, 8));  // no zero byte after it
    config.on_warning(lines.substr(10));
  };
  nvllm_engine_config config{};
  nvllm_engine_config_init(&config);
  config.model = "model";
  std::vector<std::string> heard;
  config.warning_user = &heard;
  nvllm_engine* engine = nullptr;
  REQUIRE(nvllm_engine_create(&config, &engine) == NVLLM_OK);  // they are dropped
  CHECK(nvllm_engine_destroy(engine) == NVLLM_OK);
  config.on_warning = [](void* user, const char* text) {
    static_cast<std::vector<std::string>*>(user)->emplace_back(text);
  };
  REQUIRE(nvllm_engine_create(&config, &engine) == NVLLM_OK);
  CHECK(nvllm_engine_destroy(engine) == NVLLM_OK);
  CHECK(heard == std::vector<std::string>{"one line", "another"});
}

TEST_CASE("structs of other versions") {
  // Of a newer header: 16 bytes more.
  struct Newer {
    nvllm_request known{};
    std::array<char, 16> added{};
  } newer;
  newer.known = text_request();
  newer.known.struct_size = sizeof newer;
  CHECK(std::string(c_api::read_struct(&newer.known).text) == "text");
  newer.added[15] = 1;
  CHECK_THROWS_AS(c_api::read_struct(&newer.known), c_api::UnsupportedError);

  // Of an older one: it ends with the text, and what lies after is not read.
  nvllm_request older = text_request();
  older.struct_size = offsetof(nvllm_request, text_size);
  older.text_size = 12345;
  CHECK(c_api::read_struct(&older).text_size == 0);

  // What is written keeps to the caller's size.
  nvllm_stats stats;
  std::memset(&stats, 0x55, sizeof stats);
  stats.struct_size = offsetof(nvllm_stats, num_finished);
  nvllm_stats value{};
  value.num_running = 3;
  value.num_finished = 4;
  c_api::write_struct(&stats, value);
  CHECK(stats.num_running == 3);
  CHECK(stats.num_finished == 0x5555555555555555);
  CHECK(stats.struct_size == offsetof(nvllm_stats, num_finished));
}

TEST_CASE("the salt of a request of C") {
  nvllm_request request = text_request();
  CHECK(c_api::read_prompt(c_api::read_struct(&request)).cache_salt.empty());
  request.cache_salt = "alice";
  CHECK(c_api::read_prompt(c_api::read_struct(&request)).cache_salt == "alice");
  request.struct_size = offsetof(nvllm_request, cache_salt);  // an older header's, without it
  CHECK(c_api::read_prompt(c_api::read_struct(&request)).cache_salt.empty());
  request.struct_size = sizeof request;
  request.cache_salt = "";
  CHECK_THROWS_AS(c_api::read_prompt(c_api::read_struct(&request)), c_api::InvalidError);
}

TEST_CASE("events of C") {
  Scripted scripted;
  nvllm_engine* engine = create();
  struct Heard {
    std::string text, error;
    int num_events = 0, num_top = 0, generated = 0, prompt = 0, cached = 0, reason = 0;
    int abort_at = 0;
  } heard;
  const auto hear = [](void* user, const nvllm_event* event) -> std::int32_t {
    auto& to = *static_cast<Heard*>(user);
    to.text.append(event->text, event->text_size);
    if (event->error != nullptr) to.error = event->error;
    to.num_top += event->num_top;
    to.generated = event->num_generated_tokens;
    to.prompt = event->num_prompt_tokens;
    to.cached = event->num_cached_tokens;
    to.reason = event->finish_reason;
    return ++to.num_events == to.abort_at;
  };
  const nvllm_request request = text_request();
  std::uint64_t id = 0;
  REQUIRE(nvllm_submit(engine, &request, hear, &heard, &id) == NVLLM_OK);
  CHECK(id == 1);
  const TokenId token = 7;
  const TokenLogprobs logprobs{.token_id = 7, .logprob = -1, .top = {{7, -1.f}, {8, -2.f}}};
  // A view, without a zero byte after it.
  scripted.callbacks[0](
      {.id = 1, .token = &token, .text = std::string_view("abcd", 2), .logprobs = &logprobs});
  CHECK(heard.text == "ab");
  CHECK(heard.num_top == 2);
  const Output failed = ScriptedEngine::output_of(FinishReason::error);
  scripted.callbacks[0](
      {.id = 1, .finish_reason = FinishReason::error, .text = {}, .output = &failed});
  CHECK(heard.error == "it broke");
  CHECK((heard.generated == 1 && heard.prompt == 5 && heard.cached == 3));
  CHECK(heard.reason == NVLLM_FINISH_ERROR);
  scripted.callbacks[0] = {};

  // A callback that aborts hears of the end, and of nothing that was under way.
  Heard aborting;
  aborting.abort_at = 1;
  REQUIRE(nvllm_submit(engine, &request, hear, &aborting, nullptr) == NVLLM_OK);
  scripted.callbacks[1]({.id = 2, .token = &token, .text = "x"});
  CHECK(scripted.aborted.contains(2));
  scripted.callbacks[1]({.id = 2, .token = &token, .text = "y"});
  CHECK(aborting.num_events == 1);
  const Output aborted = ScriptedEngine::output_of(FinishReason::abort);
  scripted.callbacks[1](
      {.id = 2, .finish_reason = FinishReason::abort, .text = "z", .output = &aborted});
  CHECK((aborting.num_events == 2 && aborting.text == "x"));
  CHECK(aborting.reason == NVLLM_FINISH_ABORT);
  scripted.callbacks[1] = {};
  CHECK(nvllm_engine_destroy(engine) == NVLLM_OK);
}

TEST_CASE("events of C for whole samples") {
  Scripted scripted;
  nvllm_engine* engine = create();
  struct Heard {
    std::vector<std::string> texts, errors;
    std::vector<std::vector<TokenId>> tokens;
    std::vector<int> reasons, are_last, generated;
  } heard;
  const auto hear = [](void* user, const nvllm_event* event) -> std::int32_t {
    auto& to = *static_cast<Heard*>(user);
    to.texts.emplace_back(event->text, event->text_size);
    to.errors.emplace_back(event->error == nullptr ? "" : event->error);
    to.tokens.emplace_back(event->token_ids, event->token_ids + event->num_token_ids);
    to.reasons.push_back(event->finish_reason);
    to.are_last.push_back(event->is_last);
    to.generated.push_back(event->num_generated_tokens);
    return 1;
  };
  nvllm_request request = text_request();
  request.whole = 1;
  REQUIRE(nvllm_submit(engine, &request, hear, &heard, nullptr) == NVLLM_OK);
  const TokenId token = 7;
  scripted.callbacks[0]({.id = 1, .token = &token, .text = "x"});
  CHECK(heard.texts.empty());
  Output output = ScriptedEngine::output_of(FinishReason::error);
  output.text = std::string("a\0b", 3);
  output.token_ids = {7, 8};
  Completion& other = output.alternatives.emplace_back();
  other.text = "c";
  other.token_ids = {9};
  other.finish_reason = FinishReason::error;
  scripted.callbacks[0](
      {.id = 1, .finish_reason = FinishReason::error, .text = {}, .output = &output});
  CHECK(heard.texts == std::vector<std::string>{std::string("a\0b", 3), "c"});
  CHECK(heard.errors == std::vector<std::string>(2, "it broke"));
  CHECK(heard.tokens == std::vector<std::vector<TokenId>>{{7, 8}, {9}});
  CHECK(heard.reasons == std::vector<int>(2, NVLLM_FINISH_ERROR));
  CHECK(heard.are_last == std::vector<int>{0, 1});
  CHECK(heard.generated == std::vector<int>(2, 3));
  CHECK(scripted.aborted.empty());
  scripted.callbacks[0] = {};
  CHECK(nvllm_engine_destroy(engine) == NVLLM_OK);
}

TEST_CASE("health of C is cut to its room") {
  Scripted scripted;
  nvllm_engine* engine = create();
  nvllm_health health;
  nvllm_health_init(&health);
  REQUIRE(nvllm_get_health(engine, &health) == NVLLM_OK);
  CHECK((health.state == NVLLM_HEALTH_HUNG && health.seconds == 1.5));
  CHECK(std::string(health.reason) == std::string(1023, 'x'));
  nvllm_engine_destroy(engine);
}

TEST_CASE("destroying waits for other threads' calls and refuses new ones") {
  Scripted scripted;
  std::atomic<bool> runs = false, may_return = false;
  std::atomic<int> num_returned = 0;
  scripted.on_run = [&](const std::stop_token& stop) {
    runs = true;
    while (!stop.stop_requested() || !may_return) std::this_thread::yield();
    if (!scripted.is_destroyed) ++num_returned;
  };
  nvllm_engine* engine = create();
  nvllm_status run_status = 1, destroy_status = 1;  // one thread's each
  std::thread runner([&] { run_status = nvllm_run(engine); });
  while (!runs) std::this_thread::yield();
  std::thread destroyer([&] { destroy_status = nvllm_engine_destroy(engine); });
  // The runner holds the engine, so the handle is there; at some time the calls are refused.
  const auto call_until_busy = [&] {
    while (nvllm_abort(engine, 1) != NVLLM_ERROR_BUSY) std::this_thread::yield();
  };
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) callers.emplace_back(call_until_busy);
  for (std::thread& caller : callers) caller.join();
  CHECK(nvllm_engine_destroy(engine) == NVLLM_ERROR_BUSY);
  CHECK(nvllm_step(engine) == NVLLM_ERROR_BUSY);
  CHECK_FALSE(scripted.is_destroyed);
  may_return = true;
  runner.join();
  destroyer.join();
  CHECK(scripted.is_destroyed);
  CHECK((run_status == NVLLM_OK && destroy_status == NVLLM_OK));
  CHECK(num_returned == 1);
}

TEST_CASE("callbacks of an engine that ends are refused what they ask for") {
  Scripted scripted;
  nvllm_engine* engine = create();
  struct Heard {
    nvllm_engine* engine;
    std::vector<nvllm_status> statuses;
  } heard{engine, {}};
  const nvllm_request request = text_request();
  const auto hear = [](void* user, const nvllm_event* event) -> std::int32_t {
    auto& to = *static_cast<Heard*>(user);
    const nvllm_request again = text_request();
    to.statuses.push_back(nvllm_submit(to.engine, &again, nullptr, nullptr, nullptr));
    to.statuses.push_back(nvllm_abort(to.engine, event->id));
    to.statuses.push_back(nvllm_engine_destroy(to.engine));
    return 1;
  };
  REQUIRE(nvllm_submit(engine, &request, hear, &heard, nullptr) == NVLLM_OK);
  CHECK(nvllm_engine_destroy(engine) == NVLLM_OK);
  CHECK(heard.statuses == std::vector<nvllm_status>(3, NVLLM_ERROR_BUSY));
}

TEST_CASE("a callback may destroy another engine than its own") {
  Scripted scripted;
  nvllm_engine* other = create();
  nvllm_engine* engine = create();
  nvllm_status status = 1;
  scripted.on_step = [&] {
    status = nvllm_engine_destroy(other);
    return false;
  };
  CHECK(nvllm_step(engine) == 0);
  CHECK(status == NVLLM_OK);
  scripted.on_step = [&] {
    status = nvllm_engine_destroy(engine);
    return false;
  };
  CHECK(nvllm_step(engine) == 0);
  CHECK(status == NVLLM_ERROR_BUSY);
  CHECK(nvllm_engine_destroy(engine) == NVLLM_OK);
}
