#pragma once
/// What the config.json of all models have in common.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/model/generation_config.hpp"

namespace nanovllm {

class JsonFields;
class Problems;

/// The largest sizes that are read from a config.json, far above any model there is. They keep a
/// hostile file from asking for all memory, and products of sizes from overflowing.
struct ModelLimits {
  static constexpr std::int64_t kHiddenSize = std::int64_t{1} << 17;
  static constexpr std::int64_t kNumLayers = 1 << 10;
  static constexpr std::int64_t kNumHeads = 1 << 10;
  static constexpr std::int64_t kHeadDim = 1 << 10;
  static constexpr std::int64_t kIntermediateSize = std::int64_t{1} << 20;
  static constexpr std::int64_t kNumExperts = 1 << 12;
  static constexpr std::int64_t kNumExpertsOfAllLayers = 1 << 16;
  static constexpr std::int64_t kVocabSize = std::int64_t{1} << 22;
  static constexpr std::int64_t kNumPositions = std::int64_t{1} << 26;
  /// The rotary table of all positions, YaRN's included: positions times head_dim.
  static constexpr std::int64_t kRopeElements = std::int64_t{1} << 33;
  /// All weights together.
  static constexpr std::int64_t kNumParameters = std::int64_t{1} << 42;
};

/// The texts of config.json and of generation_config.json, which may be absent and is empty then.
struct ConfigTexts {
  std::string config;
  std::string generation;
  std::string source;  ///< path of config.json, for messages
};

/// Throws LoadError when config.json cannot be read.
[[nodiscard]] ConfigTexts read_config_texts(const Checkpoint& checkpoint);

/// Adds a problem unless "model_type" is `type`, and for a "quantization_config" that is no object.
void check_model_type(const JsonFields& fields, std::string_view type, Problems& problems);

/// Has the parts that read forms of their own (model/stored_matrix.hpp) look at config.json. Throws
/// ConfigError for what they do not support.
void check_forms(const Checkpoint& checkpoint, const ConfigTexts& texts,
                 std::vector<std::string>& warnings);

/// Whether a model that is to be tied has an lm_head of its own, with other values than `table`,
/// its embedding: `tie_word_embeddings` was left true when the head was trained. Then the head
/// counts, as in transformers (5.24), and a warning says so. False where there are no tensors.
[[nodiscard]] bool has_own_head(const Checkpoint& checkpoint, const char* table,
                                std::vector<std::string>& warnings);

/// Hands the warnings of a config to its checkpoint.
void pass_warnings(const std::vector<std::string>& warnings, const Checkpoint& checkpoint);

/// Adds a problem when a model has more weights than ModelLimits allow.
void check_num_parameters(std::int64_t count, Problems& problems);

/// Reads "dtype" (transformers 5.x) or else "torch_dtype" (4.x); bfloat16 when there is neither, or
/// "auto". Where they differ, "dtype" counts and a warning says so.
[[nodiscard]] DType read_dtype(const JsonFields& fields, Problems& problems);

/// Reads generation_config.json, if `generation_text` is not empty, and the end tokens of both
/// files. Those that are not less than `vocab_size`, where that is not 0, are ignored with a
/// warning: a vocabulary may have been cut.
void read_generation(const JsonFields& fields, std::string_view generation_text,
                     std::int64_t vocab_size, GenerationConfig& generation,
                     std::vector<TokenId>& eos_token_ids, Problems& problems);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "nanovllm/io/json_fields.hpp"
#include "nanovllm/model/stored_matrix.hpp"

namespace nanovllm {

NANOVLLM_INLINE ConfigTexts read_config_texts(const Checkpoint& checkpoint) {
  return {.config = checkpoint.required_text("config.json"),
          .generation = checkpoint.text("generation_config.json").value_or(""),
          .source = checkpoint.path_of("config.json")};
}

NANOVLLM_INLINE void check_model_type(const JsonFields& fields, std::string_view type,
                                      Problems& problems) {
  if (const Json* found = fields.find("model_type"); found == nullptr) {
    problems.add("'model_type' is missing");
  } else if (*found != Json(std::string(type))) {
    fields.wrong("model_type", concat('"', type, '"'), *found);
  }
  const Json* quantization = fields.find("quantization_config");
  if (quantization != nullptr && !quantization->is_object())
    fields.wrong("quantization_config", "an object", *quantization);
}

NANOVLLM_INLINE void check_forms(const Checkpoint& checkpoint, const ConfigTexts& texts,
                                 std::vector<std::string>& warnings) {
  for (const detail::FormPart* part = detail::FormPart::first; part != nullptr; part = part->next)
    part->check_config(checkpoint, texts.config, texts.source, warnings);
}

namespace detail {

/// Whether two tensors have the same elements in the same type.
NANOVLLM_INLINE bool same_elements(const CheckpointTensor& a, const CheckpointTensor& b) {
  if (a.dtype != b.dtype || a.blocks != b.blocks || a.shape != b.shape) return false;
  constexpr std::size_t kPanel = 4 << 20;
  for (std::size_t begin = 0; begin < a.data.size(); begin += kPanel) {
    const std::size_t size = std::min(kPanel, a.data.size() - begin);
    const auto x = a.data.subspan(begin, size), y = b.data.subspan(begin, size);
    const bool is_same = std::memcmp(x.data(), y.data(), size) == 0;
    if (a.mapping != nullptr) a.mapping->release(x);
    if (b.mapping != nullptr) b.mapping->release(y);
    if (!is_same) return false;
  }
  return true;
}

}  // namespace detail

NANOVLLM_INLINE bool has_own_head(const Checkpoint& checkpoint, const char* table,
                                  std::vector<std::string>& warnings) {
  try {
    const CheckpointTensor* const head = checkpoint.find("lm_head.weight");
    const CheckpointTensor* const embedding = checkpoint.find(table);
    if (head == nullptr || embedding == nullptr || detail::same_elements(*head, *embedding))
      return false;
  } catch (const LoadError&) {  // as above
    return false;
  }
  warnings.push_back(
      "'tie_word_embeddings' (true) is ignored: the checkpoint has an 'lm_head.weight' with other "
      "values than its embedding's");
  return true;
}

NANOVLLM_INLINE void pass_warnings(const std::vector<std::string>& warnings,
                                   const Checkpoint& checkpoint) {
  const std::string source = checkpoint.path_of("config.json");
  for (const std::string& warning : warnings) checkpoint.warn(concat(source, ": ", warning));
}

NANOVLLM_INLINE void check_num_parameters(std::int64_t count, Problems& problems) {
  if (count > ModelLimits::kNumParameters) {
    problems.add("the sizes make a model of ", count, " weights; at most ",
                 ModelLimits::kNumParameters, " are supported");
  }
}

NANOVLLM_INLINE DType read_dtype(const JsonFields& fields, Problems& problems) {
  std::optional<DType> out;
  for (const char* key : {"dtype", "torch_dtype"}) {
    const auto text = fields.string(key);
    if (!text || *text == "auto") continue;
    std::optional<DType> dtype;
    for (const DType known : {DType::float32, DType::float16, DType::bfloat16}) {
      if (*text == name(known)) dtype = known;
    }
    if (!dtype) {
      fields.wrong(key, "float32, float16 or bfloat16", *fields.find(key));
    } else if (out && *out != *dtype) {
      problems.warn("'torch_dtype' (", name(*dtype), ") is ignored: 'dtype' is ", name(*out));
    } else {
      out = dtype;
    }
  }
  return out.value_or(DType::bfloat16);
}

NANOVLLM_INLINE void read_generation(const JsonFields& fields, std::string_view generation_text,
                                     std::int64_t vocab_size, GenerationConfig& generation,
                                     std::vector<TokenId>& eos_token_ids, Problems& problems) {
  eos_token_ids = detail::read_eos_token_ids(fields);
  if (!generation_text.empty()) {
    const auto json = parse_json_object<ConfigError>(generation_text, "generation_config.json");
    generation =
        detail::read_generation_config(JsonFields(json, "generation_config.json: ", problems));
    detail::merge_token_ids(generation.eos_token_ids, eos_token_ids);
  }
  if (vocab_size <= 0) return;
  const auto is_beyond = [&](TokenId id) { return id >= vocab_size; };
  for (const TokenId id : eos_token_ids) {
    if (is_beyond(id))
      problems.warn("'eos_token_id' (", id, ") is ignored: 'vocab_size' is ", vocab_size);
  }
  std::erase_if(eos_token_ids, is_beyond);
  std::erase_if(generation.eos_token_ids, is_beyond);
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
