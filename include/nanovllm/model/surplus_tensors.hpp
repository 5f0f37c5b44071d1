#pragma once
/// Tensors of a checkpoint that no parameter of its model asks for.

#include <cstddef>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/model/stored_matrix.hpp"

namespace nanovllm::detail {

/// Lines of a message, of which the first ones are written out: a mixture of experts may miss
/// thousands of tensors.
class FirstLines {
 public:
  /// @param rest  what the others are, after their number.
  explicit FirstLines(std::string_view rest) : rest_(rest) {}

  template <class... Parts>
  void add(const Parts&... parts) {
    if (++count_ <= kMost) text_ += concat("\n  - ", parts...);
  }

  [[nodiscard]] std::string text() const {
    return count_ <= kMost ? text_ : text_ + concat("\n  - and ", count_ - kMost, rest_);
  }

 private:
  static constexpr std::size_t kMost = 16;
  std::string_view rest_;
  std::string text_;
  std::size_t count_ = 0;
};

/// Lines for the tensors that are neither `expected` nor ignored. Ignored are those that one of
/// `readers` ignores, what every engine computes itself (`rotary_emb.inv_freq`), and, with a
/// warning, heads beside the one for tokens, such as the value head of a training by PPO: no other
/// tensor depends on them.
[[nodiscard]] std::string surplus_of(const Checkpoint& checkpoint,
                                     const std::set<std::string_view>& expected,
                                     std::span<const std::unique_ptr<FormReader>> readers);

}  // namespace nanovllm::detail

#if NANOVLLM_BODIES

#include <algorithm>

namespace nanovllm::detail {

/// Whether a tensor of this name holds rotary frequencies, which older files have.
[[nodiscard]] NANOVLLM_INLINE bool is_rotary_table(std::string_view name) {
  constexpr std::string_view kModule = "rotary_emb.";
  const std::size_t dot = name.rfind('.');
  if (dot == name.npos || !name.substr(0, dot + 1).ends_with(kModule)) return false;
  const std::string_view buffer = name.substr(dot + 1);
  return buffer == "inv_freq" || buffer == "cos_cached" || buffer == "sin_cached";
}

/// The module of a head that has nothing to do with tokens, "v_head" of "v_head.summary.weight";
/// empty for other tensors.
[[nodiscard]] NANOVLLM_INLINE std::string_view other_head(std::string_view name) {
  const std::string_view module = name.substr(0, name.find('.'));
  const bool is_head = (module.ends_with("_head") && module != "lm_head") || module == "score";
  return is_head && name.find("lora_") == name.npos ? module : std::string_view();
}

NANOVLLM_INLINE std::string surplus_of(const Checkpoint& checkpoint,
                                       const std::set<std::string_view>& expected,
                                       std::span<const std::unique_ptr<FormReader>> readers) {
  FirstLines surplus(" more that are not in the model");
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    const auto ignores = [&](const auto& reader) { return reader->ignores(tensor); };
    if (expected.contains(tensor.name) || std::ranges::any_of(readers, ignores) ||
        is_rotary_table(tensor.name))
      continue;
    if (const std::string_view head = other_head(tensor.name); !head.empty()) {
      checkpoint.warn(concat("'", checkpoint.name(), "': the tensors '", head,
                             ".*' are ignored: tokens do not depend on them"));
      continue;
    }
    const bool is_adapter = tensor.name.find("lora_") != tensor.name.npos ||
                            tensor.name.find("base_layer") != tensor.name.npos;
    surplus.add("'", tensor.name, "' ", shape_string(tensor.shape),
                " is in the checkpoint, but not in the model",
                is_adapter ? ": it is of a LoRA adapter, which must be merged first" : "");
  }
  return surplus.text();
}

}  // namespace nanovllm::detail

#endif  // NANOVLLM_BODIES
