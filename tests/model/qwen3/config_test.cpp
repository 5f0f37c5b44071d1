#include "nanovllm/model/qwen3/config.hpp"

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "catch.hpp"
#include "safetensors_writer.hpp"

namespace nv = nanovllm;
using nanovllm_test::TempDirectory;
using nlohmann::json;

namespace {

/// Qwen3-0.6B's config.json in the spelling of transformers 4.x.
json qwen3_4x() {
  return json::parse(R"({
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072,
    "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
    "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
    "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
    "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})");
}

/// `base` with the fields of `changes` replaced; the value "absent" removes a field.
json with(json base, const json& changes) {
  for (const auto& [key, value] : changes.items()) {
    if (value == "absent") {
      base.erase(key);
    } else {
      base[key] = value;
    }
  }
  return base;
}

nv::Qwen3Config parse(const json& config) { return nv::Qwen3Config::from_json(config.dump()); }

nv::Qwen3Config parse(const json& base, const json& changes) { return parse(with(base, changes)); }

/// The message of the ConfigError for Qwen3-0.6B with `changes`; empty if there is none.
std::string error_text(const std::string& text, std::string_view generation = {}) {
  try {
    (void)nv::Qwen3Config::from_json(text, generation);
    return {};
  } catch (const nv::ConfigError& error) {
    return error.what();
  }
}

std::string error_of(const json& changes) { return error_text(with(qwen3_4x(), changes).dump()); }

bool mentions(const std::string& text, std::string_view part) {
  return text.find(part) != text.npos;
}

const json kYarn = {
    {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};

}  // namespace

TEST_CASE("The config of Qwen3-0.6B is read", "[config]") {
  const auto config = parse(qwen3_4x());
  CHECK(config.hidden_size == 1024);
  CHECK(config.num_hidden_layers == 28);
  CHECK(config.num_attention_heads == 16);
  CHECK(config.num_key_value_heads == 8);
  CHECK(config.head_dim == 128);
  CHECK(config.intermediate_size == 3072);
  CHECK(config.vocab_size == 151936);
  CHECK(config.max_position_embeddings == 40960);
  CHECK(config.rms_norm_eps == 1e-6);
  CHECK(config.tie_word_embeddings);
  CHECK(config.dtype == nv::DType::bfloat16);
  CHECK(config.rope.type == nv::RopeType::standard);
  CHECK(config.rope.theta == 1e6);
  CHECK(config.eos_token_ids == std::vector<nv::TokenId>{151645});
}

TEST_CASE("The reference config files are read, in the 4.x and the 5.x spelling", "[config]") {
  const char* variable = std::getenv("NANOVLLM_SHARED");
  const std::filesystem::path shared = variable != nullptr ? variable : "../shared";
  if (!std::filesystem::exists(shared / "qwen3")) {
    std::puts("skipped: the reference config files are not there");
    return;
  }
  const auto old_spelling = nv::Qwen3Config::load(shared / "qwen3");
  CHECK(old_spelling.eos_token_ids == std::vector<nv::TokenId>{151643, 151645});
  CHECK(old_spelling.generation.temperature == 0.6f);
  CHECK(old_spelling.generation.top_k == 20);
  CHECK(old_spelling.generation.top_p == 0.95f);
  CHECK_FALSE(old_spelling.generation.min_p.has_value());

  const auto new_spelling = nv::Qwen3Config::load(shared / "models/fairytale");
  CHECK(new_spelling.hidden_size == 256);
  CHECK(new_spelling.dtype == nv::DType::bfloat16);
  CHECK(new_spelling.rope.theta == 1e6);
  CHECK(new_spelling.eos_token_ids == std::vector<nv::TokenId>{4091, 4093});
}

TEST_CASE("Both spellings give the same config", "[config]") {
  const json base = with(qwen3_4x(), {{"rope_theta", "absent"}, {"rope_scaling", "absent"}});
  json both = kYarn;
  both["rope_theta"] = 1e6;
  json old_type = kYarn;
  old_type.erase("rope_type");
  old_type["type"] = "yarn";
  for (const json& rope :
       {json{{"rope_theta", 1000000}, {"rope_scaling", kYarn}},
        json{{"rope_theta", 1e6}, {"rope_scaling", old_type}}, json{{"rope_parameters", both}},
        json{{"rope_theta", 1000000}, {"rope_parameters", both}},
        json{{"rope_theta", 1000000}, {"rope_parameters", kYarn}},
        json{{"rope_scaling", kYarn}, {"rope_parameters", both}}}) {
    CAPTURE(rope.dump());
    const auto config = parse(base, rope);
    CHECK(config.rope.type == nv::RopeType::yarn);
    CHECK(config.rope.theta == 1e6);
    CHECK(config.rope.factor == 4);
    CHECK(config.rope.original_max_position_embeddings == 32768);
    CHECK(config.rope.beta_fast == 32);
    CHECK(config.rope.beta_slow == 1);
    CHECK(config.rope.truncate);
    CHECK_FALSE(config.rope.attention_factor.has_value());
  }
  const auto plain = parse(
      base, {{"rope_parameters",
              {{"rope_type", "default"}, {"rope_theta", 1e6}, {"partial_rotary_factor", 1.0}}}});
  CHECK(plain.rope.type == nv::RopeType::standard);

  const json no_dtype = with(qwen3_4x(), {{"torch_dtype", "absent"}});
  CHECK(parse(no_dtype).dtype == nv::DType::bfloat16);
  CHECK(parse(no_dtype, {{"dtype", "float16"}}).dtype == nv::DType::float16);
  CHECK(parse(no_dtype, {{"torch_dtype", "float32"}}).dtype == nv::DType::float32);
  CHECK(parse(no_dtype, {{"torch_dtype", "float32"}, {"dtype", "float32"}}).dtype ==
        nv::DType::float32);
}

TEST_CASE("YaRN's optional parameters are read, and the original length has a default",
          "[config]") {
  const auto config = parse(qwen3_4x(), {{"rope_scaling",
                                          {{"rope_type", "yarn"},
                                           {"factor", 2},
                                           {"attention_factor", 0.5},
                                           {"beta_fast", 16},
                                           {"beta_slow", 2.5},
                                           {"mscale", 0.75},
                                           {"mscale_all_dim", 1},
                                           {"truncate", false}}}});
  CHECK(config.rope.factor == 2);
  CHECK(config.rope.original_max_position_embeddings == 40960);
  CHECK(config.rope.attention_factor == 0.5);
  CHECK(config.rope.beta_fast == 16);
  CHECK(config.rope.beta_slow == 2.5);
  CHECK(config.rope.mscale == 0.75);
  CHECK(config.rope.mscale_all_dim == 1);
  CHECK_FALSE(config.rope.truncate);
}

TEST_CASE("Defaults stand in only where they are safe", "[config]") {
  CHECK(parse(qwen3_4x(), {{"head_dim", "absent"}}).head_dim == 128);
  CHECK(parse(qwen3_4x(), {{"head_dim", nullptr}}).head_dim == 128);
  CHECK_FALSE(parse(qwen3_4x(), {{"tie_word_embeddings", "absent"}}).tie_word_embeddings);
  CHECK(parse(qwen3_4x(), {{"eos_token_id", nullptr}}).eos_token_ids.empty());
  for (const char* key : {"hidden_act", "attention_bias", "sliding_window", "use_sliding_window"}) {
    CHECK(error_of({{key, "absent"}}).empty());
  }
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "intermediate_size", "vocab_size",
                          "max_position_embeddings", "rms_norm_eps", "rope_theta", "model_type"}) {
    for (const json& gone : {json("absent"), json(nullptr)}) {
      CHECK(mentions(error_of({{key, gone}}), nv::concat("'", key, "' is missing")));
    }
  }
}

TEST_CASE("Numbers may be written as integers or as fractions", "[config]") {
  const auto config = parse(qwen3_4x(), {{"hidden_size", 1024.0},
                                         {"rope_theta", 5000000},
                                         {"rms_norm_eps", 0.000001},
                                         {"attention_dropout", 0},
                                         {"vocab_size", 1.51936e5}});
  CHECK(config.hidden_size == 1024);
  CHECK(config.vocab_size == 151936);
  CHECK(config.rope.theta == 5e6);
}

TEST_CASE("Values that are no sizes are refused", "[config]") {
  for (const json& bad :
       {json(0), json(-1), json(1.5), json("1024"), json(true), json::array({1024}), json::object(),
        json(2147483648), json(18446744073709551615u), json(1e300), json(-1e300)}) {
    for (const char* key :
         {"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
          "head_dim", "intermediate_size", "vocab_size", "max_position_embeddings"}) {
      CAPTURE(key, bad.dump());
      CHECK(mentions(error_of({{key, bad}}), nv::concat("'", key, "' must be")));
    }
  }
  CHECK(mentions(error_of({{"head_dim", 63}}), "'head_dim' must be even, got 63"));
  CHECK(mentions(error_of({{"num_key_value_heads", 5}}),
                 "'num_attention_heads' (16) must be a multiple of 'num_key_value_heads' (5)"));
  for (const json& bad : {json(0), json(-1e-6), json(1), json("1e-6"), json(1e300)}) {
    CHECK(mentions(error_of({{"rms_norm_eps", bad}}), "'rms_norm_eps' must be"));
  }
  for (const json& bad : {json(1), json(0), json(-1e6), json("1e6"), json(true)}) {
    CHECK(mentions(error_of({{"rope_theta", bad}}), "'rope.rope_theta' must be"));
  }
}

TEST_CASE("A model that this engine does not compute is refused", "[config]") {
  CHECK(mentions(error_of({{"model_type", "qwen3_moe"}}), "\"qwen3\", got \"qwen3_moe\""));
  CHECK(mentions(error_of({{"model_type", 3}}), "'model_type' must be"));
  CHECK(mentions(error_of({{"hidden_act", "gelu"}}), "'hidden_act' must be \"silu\""));
  CHECK(mentions(error_of({{"attention_bias", true}}), "'attention_bias' must be false"));
  CHECK(mentions(error_of({{"attention_bias", "no"}}), "'attention_bias' must be true or false"));
  CHECK(mentions(error_of({{"quantization_config", 4}}), "'quantization_config' must be"));
  CHECK(mentions(error_of({{"torch_dtype", "float8_e4m3fn"}}), "'torch_dtype' must be"));
  CHECK(mentions(error_of({{"torch_dtype", 16}}), "'torch_dtype' must be"));
}

TEST_CASE("Fields that change nothing are ignored, with a warning where they might have",
          "[config]") {
  const auto warnings = [](const json& changes) { return parse(qwen3_4x(), changes).warnings; };
  CHECK(parse(qwen3_4x(), {{"dtype", "float32"}}).dtype == nv::DType::float32);
  CHECK(warnings({{"dtype", "float32"}}) ==
        std::vector<std::string>{"'torch_dtype' (bfloat16) is ignored: 'dtype' is float32"});
  CHECK(warnings({{"dtype", "bfloat16"}}).empty());
  for (const char* key : {"dtype", "torch_dtype"}) {
    for (const json& value : {json("auto"), json(nullptr)}) {
      CHECK(parse(qwen3_4x(), {{key, value}}).dtype == nv::DType::bfloat16);
      CHECK(warnings({{key, value}}).empty());
    }
  }
  CHECK(warnings({{"quantization_config", json::object()}}).empty());
  CHECK(warnings({{"quantization_config", nullptr}}).empty());
  CHECK(warnings({}).empty());
  // Neutral settings of RoPE; with another value they would not be.
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}};
  const auto rope = [&](const json& changes) {
    return json{{"rope_scaling", with(yarn, changes)}};
  };
  for (const json& neutral :
       {json{{"finetuned", true}}, json{{"attn_factor", 1.0}}, json{{"extrapolation_factor", 1}}}) {
    CAPTURE(neutral.dump());
    CHECK(error_of(rope(neutral)).empty());
    CHECK(parse(qwen3_4x(), rope(neutral)).rope.factor == 4);
  }
  CHECK(mentions(error_of(rope({{"attn_factor", 1.5}})), "'rope.attn_factor' (1.5)"));
  CHECK(mentions(error_of(rope({{"finetuned", 1}})), "'rope.finetuned' must be true or false"));
  CHECK(error_of({{"rope_scaling", {{"type", "linear"}, {"factor", 1.0}}}}).empty());
  CHECK(mentions(error_of({{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}}),
                 "'rope.rope_type' must be"));
}

TEST_CASE("Sliding-window attention is refused where it would be used, and only there",
          "[config]") {
  const json window = {{"use_sliding_window", true}, {"sliding_window", 4096}};
  CHECK(error_of(window).empty());  // max_window_layers is 28 of 28
  CHECK(error_of({{"use_sliding_window", true}, {"max_window_layers", 0}}).empty());  // no window
  CHECK(mentions(error_of(with(window, {{"max_window_layers", 27}})), "layers from 27"));
  CHECK(mentions(
      error_of(
          {{"use_sliding_window", true}, {"sliding_window", "absent"}, {"max_window_layers", 27}}),
      "sliding-window"));
  CHECK(mentions(error_of(with(window, {{"num_hidden_layers", 29}})), "layers from 28"));

  const std::vector<std::string> full(28, "full_attention");
  std::vector<std::string> mixed = full;
  mixed[27] = "sliding_attention";
  CHECK(error_of({{"layer_types", full}}).empty());
  CHECK(error_of(with(window, {{"layer_types", full}, {"max_window_layers", 0}})).empty());
  CHECK(mentions(error_of({{"layer_types", mixed}}),
                 "'layer_types' must be a list of \"full_attention\" only, got "
                 "\"sliding_attention\""));
  CHECK(mentions(error_of({{"layer_types", {"full_attention"}}}), "(28) entries, got 1"));
  CHECK(mentions(error_of({{"layer_types", "full_attention"}}), "'layer_types' must be"));
  CHECK(mentions(error_of({{"layer_types", json::array({1, 2})}}), "only, got 1"));
}

TEST_CASE("RoPE settings that are unknown or contradict each other are refused", "[config]") {
  for (const char* type : {"linear", "dynamic", "llama3", "longrope", "su", "yarnn", ""}) {
    CHECK(mentions(error_of({{"rope_scaling", {{"rope_type", type}, {"factor", 4}}}}),
                   "'rope.rope_type' must be \"default\" or \"yarn\""));
  }
  const auto yarn_with = [](const json& changes) {
    return error_of({{"rope_scaling", with(kYarn, changes)}});
  };
  CHECK(yarn_with(json::object()).empty());
  CHECK(mentions(yarn_with({{"factor", "absent"}}), "'rope.factor' is missing"));
  for (const json& bad : {json(0.5), json(0), json(-4), json("4"), json(true), json(1e7)}) {
    CHECK(mentions(yarn_with({{"factor", bad}}), "'rope.factor' must be a number in [1, 1e6]"));
  }
  for (const char* key :
       {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}) {
    for (const json& bad : {json(0), json(-1), json("1"), json(false), json(1e300)}) {
      CHECK(mentions(yarn_with({{key, bad}}), nv::concat("'rope.", key, "' must be")));
    }
  }
  CHECK(mentions(yarn_with({{"original_max_position_embeddings", 0}}), "original_max_position"));
  CHECK(mentions(yarn_with({{"truncate", 1}}), "'rope.truncate' must be true or false"));
  CHECK(mentions(yarn_with({{"beta_fast", 1}}), "must exceed"));
  CHECK(mentions(yarn_with({{"type", "linear"}}), "two values for 'rope.rope_type'"));
  CHECK(mentions(yarn_with({{"rope_theta", 10000}}), "two values for 'rope.rope_theta'"));
  CHECK(mentions(yarn_with({{"mrope_section", {1, 2}}}), "'rope.mrope_section' must be a number"));
  CHECK(mentions(yarn_with({{"low_freq_factor", 1}}), "'rope.low_freq_factor' (1) is not known"));
  CHECK(mentions(yarn_with({{"rope_type", "default"}}), "'rope.factor' (4.0) is not known"));
  CHECK(mentions(
      error_of({{"rope_scaling", kYarn}, {"rope_parameters", with(kYarn, {{"factor", 2}})}}),
      "two values for 'rope.factor'"));
  CHECK(mentions(error_of({{"rope_scaling", 4}}), "'rope_scaling' must be an object or null"));
  CHECK(mentions(error_of({{"rope_parameters", json::array()}}), "'rope_parameters' must be"));
  CHECK(mentions(error_of({{"partial_rotary_factor", 0.5}}),
                 "'rope.partial_rotary_factor' must be 1"));
}

TEST_CASE("One error lists every problem of both files", "[config]") {
  const std::string text = with(qwen3_4x(), {{"hidden_size", "absent"},
                                             {"vocab_size", -5},
                                             {"model_type", "llama"},
                                             {"hidden_act", "relu"},
                                             {"attention_bias", true},
                                             {"rope_scaling", {{"rope_type", "linear"}}},
                                             {"torch_dtype", "int8"}})
                               .dump();
  const std::string message = error_text(text, R"({"temperature": -1, "eos_token_id": "x"})");
  CAPTURE(message);
  CHECK(mentions(message, "config.json: 9 problems"));
  for (const char* part :
       {"'hidden_size' is missing", "'vocab_size'", "'model_type'", "'hidden_act'",
        "'attention_bias'", "'rope.rope_type'", "'torch_dtype'",
        "'generation_config.json: temperature'", "'generation_config.json: eos_token_id'"}) {
    CAPTURE(part);
    CHECK(mentions(message, part));
  }
}

TEST_CASE("End tokens are the union of both files", "[config]") {
  const auto ids = [](const json& config_ids, const char* generation) {
    return nv::Qwen3Config::from_json(with(qwen3_4x(), {{"eos_token_id", config_ids}}).dump(),
                                      generation)
        .eos_token_ids;
  };
  using Ids = std::vector<nv::TokenId>;
  CHECK(ids(151645, "") == Ids{151645});
  CHECK(ids(151645, "{}") == Ids{151645});
  CHECK(ids(151645, R"({"eos_token_id": [151645, 151643]})") == Ids{151643, 151645});
  CHECK(ids(json::array({7, 7, 3}), R"({"eos_token_id": 5})") == Ids{3, 5, 7});
  CHECK(ids(nullptr, R"({"eos_token_id": 0})") == Ids{0});
  CHECK(ids(json::array(), "{}").empty());
  for (const json& bad : {json("1"), json::array({json::array({1})}), json(1.5), json::object(),
                          json::array({"1"})}) {
    CHECK(mentions(error_of({{"eos_token_id", bad}}), "'eos_token_id' must be"));
  }
  // What no token of the vocabulary has is ignored: that was cut, perhaps.
  const nv::Qwen3Config cut = nv::Qwen3Config::from_json(
      with(qwen3_4x(), {{"eos_token_id", json::array({151935, -1})}}).dump(),
      R"({"eos_token_id": [151936, 7, 4294967296]})");
  CHECK(cut.eos_token_ids == Ids{7, 151935});
  CHECK(cut.generation.eos_token_ids == Ids{7});
  CHECK(cut.warnings ==
        std::vector<std::string>{
            "'eos_token_id' (-1) is ignored: no token has this id",
            "'generation_config.json: eos_token_id' (4294967296) is ignored: no token has this id",
            "'eos_token_id' (151936) is ignored: 'vocab_size' is 151936"});
}

TEST_CASE("Text that is no JSON object is a ConfigError", "[config]") {
  std::string deep(100000, '[');
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("null"),
        std::string("\xff"), std::string(R"({"rms_norm_eps": NaN})"),
        std::string(R"({"rope_theta": 1e999})"), deep, deep + std::string(100000, ']')}) {
    CHECK(mentions(error_text(text), "config.json"));
    CHECK_FALSE(error_text(qwen3_4x().dump(), text.empty() ? "{" : text).empty());
  }
}

TEST_CASE("defect 7: deep nesting in config.json is a ConfigError, wherever it is", "[config]") {
  const auto with_nested = [](const char* key, int depth) {
    const std::string nested = nv::concat(std::string(depth, '['), std::string(depth, ']'));
    const std::string base = with(qwen3_4x(), {{key, "absent"}}).dump();
    return error_text(nv::concat(base.substr(0, base.size() - 1), ",\"", key, "\":", nested, "}"));
  };
  for (const char* key : {"hidden_size", "model_type", "eos_token_id", "layer_types", "torch_dtype",
                          "rope_theta", "rope_scaling", "quantization_config", "extra"}) {
    CAPTURE(key);
    CHECK(with_nested(key, 200).empty() == (std::string(key) == "extra"));
    CHECK(mentions(with_nested(key, 1000000), "nested more than 256 levels deep"));
    CHECK(mentions(error_text(qwen3_4x().dump(), std::string(1000000, '[')),
                   "generation_config.json is nested more than 256 levels deep"));
  }
  const json rope = {{"factor", json::array()}};
  CHECK(mentions(error_of({{"rope_scaling", rope}, {"rope_parameters", rope}}),
                 "'rope.factor' must be a number, a string or a boolean"));
}

TEST_CASE("defect 7: sizes in config.json that no memory holds are refused before it is asked for",
          "[config]") {
  using Limits = nv::ModelLimits;
  for (const auto& [key, limit] : {std::pair("hidden_size", Limits::kHiddenSize),
                                   {"num_hidden_layers", Limits::kNumLayers},
                                   {"num_attention_heads", Limits::kNumHeads},
                                   {"num_key_value_heads", Limits::kNumHeads},
                                   {"head_dim", Limits::kHeadDim},
                                   {"intermediate_size", Limits::kIntermediateSize},
                                   {"vocab_size", Limits::kVocabSize},
                                   {"max_position_embeddings", Limits::kNumPositions}}) {
    CAPTURE(key);
    CHECK_FALSE(mentions(error_of({{key, limit}}), nv::concat("'", key, "' must be")));
    CHECK(mentions(
        error_of({{key, limit + 1}}),
        nv::concat("'", key, "' must be an integer in [1, ", limit, "], got ", limit + 1)));
  }
  // Each size is fine alone.
  CHECK(mentions(error_of({{"hidden_size", Limits::kHiddenSize},
                           {"num_hidden_layers", Limits::kNumLayers},
                           {"intermediate_size", Limits::kIntermediateSize}}),
                 "weights; at most 4398046511104 are supported"));
  CHECK(mentions(error_of({{"max_position_embeddings", Limits::kNumPositions},
                           {"head_dim", Limits::kHeadDim}}),
                 "times 'head_dim' (1024) must be at most"));
  CHECK(mentions(error_of({{"rope_scaling", with(kYarn, {{"factor", 1e6}})}}),
                 "times 'head_dim' (128) must be at most"));
  json settings;
  for (int i = 0; i < 100; ++i) settings[nv::concat("x", i)] = i;
  CHECK(mentions(error_of({{"rope_scaling", settings}}), "must have at most 64 settings"));
}

TEST_CASE("The number of weights follows from the sizes", "[config]") {
  // Qwen3-0.6B has 596,049,920 weights, norms included.
  const std::int64_t count = nv::num_parameters(parse(qwen3_4x()));
  CHECK(count > 595'000'000);
  CHECK(count <= 596'049'920);
}

TEST_CASE("The head follows from the architecture", "[config]") {
  const auto head = [](const json& architectures) {
    return parse(qwen3_4x(), {{"architectures", architectures}}).head;
  };
  CHECK(head({"Qwen3ForCausalLM"}) == nv::ModelHead::tokens);
  CHECK(head({"Qwen3ForSequenceClassification"}) == nv::ModelHead::labels);
  CHECK(head({"Qwen3Model"}) == nv::ModelHead::none);
  CHECK(head({"Other", "Qwen3Model", "Qwen3ForCausalLM"}) == nv::ModelHead::none);
  CHECK(head({"Qwen3MoeModel"}) == nv::ModelHead::tokens);
  CHECK(head("absent") == nv::ModelHead::tokens);
  CHECK(head(json::array({1})) == nv::ModelHead::tokens);
}

TEST_CASE("A directory is read with or without generation_config.json", "[config]") {
  TempDirectory directory;
  CHECK_THROWS_AS(nv::Qwen3Config::load(directory.path()), nv::LoadError);
  directory.write("config.json", qwen3_4x().dump());
  CHECK(nv::Qwen3Config::load(directory.path()).eos_token_ids.size() == 1);
  directory.write("generation_config.json", R"({"eos_token_id": [1], "top_k": 7})");
  const auto config = nv::Qwen3Config::load(directory.path());
  CHECK(config.eos_token_ids.size() == 2);
  CHECK(config.generation.top_k == 7);
  directory.write("config.json", "{}");
  try {
    (void)nv::Qwen3Config::load(directory.path());
    FAIL("an empty config was read");
  } catch (const nv::ConfigError& error) {
    CHECK(mentions(error.what(), (directory.path() / "config.json").string()));
  }
}
