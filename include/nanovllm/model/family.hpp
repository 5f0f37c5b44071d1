#pragma once
/// What tensors a family of models has, as a table with a line for each module. Loader, noise, the
/// number of parameters, ranks, and wings that name or pack tensors read it.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "nanovllm/core/error.hpp"
#include "nanovllm/model/shape.hpp"

namespace nanovllm {

/// Heads of one rank.
struct AttentionHeads {
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;

  /// Columns of q, k and v, side by side.
  [[nodiscard]] std::int64_t qkv_width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
};

struct DecoderSizes {
  std::int64_t hidden_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t vocab_size = 0;
  std::int64_t intermediate_size = 0;  ///< this rank's
  AttentionHeads heads{};              ///< this rank's
  std::int64_t num_entries = 0;        ///< of a table that the family alone has: positions
};

/// An extent of a tensor, of the whole model or of a rank.
using Extent = std::int64_t (*)(const DecoderSizes& sizes);

namespace extents {

using Sizes = DecoderSizes;
inline constexpr Extent hidden = [](const Sizes& s) { return s.hidden_size; };
inline constexpr Extent vocab = [](const Sizes& s) { return s.vocab_size; };
inline constexpr Extent width = [](const Sizes& s) { return s.intermediate_size; };
inline constexpr Extent entries = [](const Sizes& s) { return s.num_entries; };
inline constexpr Extent head = [](const Sizes& s) { return s.heads.head_dim; };
inline constexpr Extent q = [](const Sizes& s) { return s.heads.num_heads * s.heads.head_dim; };
inline constexpr Extent kv = [](const Sizes& s) { return s.heads.num_kv_heads * s.heads.head_dim; };

}  // namespace extents

enum class ModuleRole : std::uint8_t {
  norm,        ///< a vector
  table,       ///< a matrix that all ranks have
  vocabulary,  ///< a matrix with a row for each token, of which ranks may have a part
  by_rows,     ///< a projection, [out, in], of which each rank has as many rows
  by_columns,  ///< a projection of which each rank has as many columns
};

/// The sizes of a whole model, and of what one rank has of it.
struct RankSizes {
  DecoderSizes all{}, own{};
  int rank = 0, num_ranks = 1;
  std::int64_t vocab_rows = 0;   ///< of lm_head and of a divided embedding, padding included
  std::int64_t first_token = 0;  ///< id of the first of them
};

/// A line of the table: a weight and, in some families, a bias. A # in a name stands for a number:
/// that of the layer, and one in a list that a layer has.
struct FamilyModule {
  std::string_view name;        ///< of Hugging Face, without ".weight" and ".bias"
  std::string_view short_name;  ///< of llama.cpp, likewise
  ModuleRole role;
  Extent rows = nullptr;
  Extent columns = nullptr;
  std::int64_t parts = 1;  ///< so many such matrices are one tensor, below each other

  /// Whether formats of weights pack it, and an adapter may add to it.
  [[nodiscard]] constexpr bool is_projection() const { return role >= ModuleRole::by_rows; }
};

/// `name` with `number` in the place of its first #.
[[nodiscard]] inline std::string with_number(std::string_view name, const auto& number) {
  const std::size_t at = name.find('#');
  if (at == name.npos) return std::string(name);
  return concat(name.substr(0, at), number, name.substr(at + 1));
}

/// How many elements all matrices of `modules` have.
[[nodiscard]] constexpr std::int64_t size_of(std::span<const FamilyModule> modules,
                                             const DecoderSizes& sizes) {
  std::int64_t out = 0;
  for (const FamilyModule& module : modules) {
    if (module.columns == nullptr) continue;
    const bool in_layer = module.name.find('#') != module.name.npos;
    const std::int64_t elements = module.rows(sizes) * module.columns(sizes);
    out += (in_layer ? sizes.num_layers : 1) * module.parts * elements;
  }
  return out;
}

/// The table of a family, or one of several. Its header adds it to the list of all.
struct FamilyTable {
  std::string_view short_name;  ///< of the family, as llama.cpp has it
  std::span<const FamilyModule> modules;
  /// What config.json calls the sizes that ranks divide. Null: as many kv heads as heads.
  const char *heads = nullptr, *kv_heads = nullptr, *width = nullptr;
  const FamilyTable* next = nullptr;

  static inline constinit std::atomic<const FamilyTable*> first{nullptr};
  /// Once, before `main`.
  static bool add(FamilyTable& table) {
    table.next = first.exchange(&table);
    return true;
  }

  /// The module of these short names; null where there is none.
  static const FamilyModule* find(std::string_view family, std::string_view module) {
    for (const FamilyTable* table = first; table != nullptr; table = table->next) {
      const auto found = std::ranges::find(table->modules, module, &FamilyModule::short_name);
      if (table->short_name == family && found != table->modules.end()) return &*found;
    }
    return nullptr;
  }

  /// Throws ConfigError naming every size that `num_ranks` does not divide.
  [[nodiscard]] RankSizes divide(const DecoderSizes& all, int rank, int num_ranks) const {
    RankSizes out{.all = all, .own = all, .rank = rank, .num_ranks = num_ranks};
    detail::RankShares shares(num_ranks);
    AttentionHeads& own = out.own.heads;
    own.num_heads = shares.divide(heads, all.heads.num_heads);
    own.num_kv_heads =
        kv_heads == nullptr ? own.num_heads : shares.divide(kv_heads, all.heads.num_kv_heads);
    out.own.intermediate_size = shares.divide(width, all.intermediate_size);
    shares.raise();
    out.vocab_rows = shares.vocab_rows(all.vocab_size);
    out.first_token = rank * out.vocab_rows;
    return out;
  }
};

}  // namespace nanovllm
