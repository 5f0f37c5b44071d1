#pragma once
/// Of which model a checkpoint is, by its config.json.

#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/model/model.hpp"

namespace nanovllm::detail {

/// What config.json says the model is.
struct ModelName {
  std::string source{};                      ///< path of config.json, for messages
  std::string model_type{};                  ///< empty where it is missing
  std::vector<std::string> architectures{};  ///< empty where they are missing

  /// By the architectures, or without those by the type.
  [[nodiscard]] bool is_of(const ModelFamily& family) const;
};

/// Throws LoadError when config.json cannot be read, ConfigError when it is malformed.
[[nodiscard]] ModelName read_model_name(const Checkpoint& checkpoint);

/// Throws UnsupportedModelError for a checkpoint of another family than `family`, by "model_type"
/// or without that by "architectures": says what it is, and what opens it. One that says neither,
/// or has no config.json, is left to the model's `Config`.
void check_family(const Checkpoint& checkpoint, const ModelFamily& family);

}  // namespace nanovllm::detail

#if NANOVLLM_BODIES

#include <algorithm>
#include <iterator>

#include "nanovllm/core/error.hpp"
#include "nanovllm/fwd.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/io/json_fields.hpp"

namespace nanovllm::detail {

NANOVLLM_INLINE bool ModelName::is_of(const ModelFamily& family) const {
  if (architectures.empty()) return model_type == family.model_type;
  return std::ranges::any_of(architectures, [&](std::string_view name) {
    return name == family.architecture ||
           (!name.empty() && std::ranges::find(family.others, name) != family.others.end());
  });
}

NANOVLLM_INLINE ModelName read_model_name(const Checkpoint& checkpoint) {
  ModelName out{.source = checkpoint.path_of("config.json")};
  const Json json =
      parse_json_object<ConfigError>(checkpoint.required_text("config.json"), out.source);
  Problems problems;
  const JsonFields fields(json, "", problems);
  out.model_type = fields.string("model_type").value_or("");
  if (const Json* list = fields.find("architectures")) {
    const Json* const wrong =
        JsonFields::first_wrong(*list, [](const Json& entry) { return entry.is_string(); });
    if (wrong != nullptr) fields.wrong("architectures", "a list of strings", *wrong);
    for (const Json& entry : wrong == nullptr ? *list : Json::array())
      out.architectures.push_back(entry.string());
  }
  if (out.model_type.empty() && out.architectures.empty())
    problems.add("there is neither 'model_type' nor 'architectures'");
  problems.raise<ConfigError>(out.source);
  return out;
}

NANOVLLM_INLINE void check_family(const Checkpoint& checkpoint, const ModelFamily& family) {
  ModelName name;
  try {
    name = read_model_name(checkpoint);
  } catch (const LoadError&) {
    return;
  } catch (const ConfigError&) {
    return;
  }
  const bool fits =
      name.model_type.empty() ? name.is_of(family) : name.model_type == family.model_type;
  if (fits) return;
  const auto opener = std::ranges::find_if(kModelHeaders, [&](const ModelHeader& known) {
    return name.model_type.empty() ? name.architectures.front() == known.architecture
                                   : name.model_type == known.model_type;
  });
  std::string text =
      concat(name.source, ": this checkpoint is a ",
             name.model_type.empty() ? name.architectures.front() : name.model_type,
             ", but the engine was made for a ", family.model_type, " (", family.architecture, ")");
  if (opener == std::end(kModelHeaders))
    throw UnsupportedModelError(text + "; no model here opens it");
  throw UnsupportedModelError(concat(text, "; ", opener->engine, " of nanovllm/", opener->header,
                                     " opens it, and so does ", kAnyModelHeader));
}

}  // namespace nanovllm::detail

#endif  // NANOVLLM_BODIES
