#pragma once
/// Keys and values in files: whose they are, and the way between a runner's blocks and a file.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/engine/step_runner.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/io/section_file.hpp"
#include "nanovllm/kv/cached_block.hpp"
#include "nanovllm/kv/kv_rows.hpp"

namespace nanovllm {

class Checkpoint;

/// The files of sessions and of prefix caches. Their sections are
///
///     what it is     a JSON object: "kind", "model" (a KvIdentity), and what the kind has besides
///     the tokens     of the kind's own form
///     the number of rows, u64
///     rows of K/V    of as many tokens as it takes: see KvRows. Sections of some megabytes.
inline constexpr SectionFormat kKvFormat{.magic = "nanovllm-kv\n", .version = 1};

/// Names and values that must be equal for the keys and values of one engine to be another's:
/// sizes, element types, the config and a hash over a part of every weight.
using KvIdentity = std::vector<std::pair<std::string, std::string>>;

/// Of the tensors' names, types, shapes and of some pages of each, at its beginning, middle and
/// end; and of config.json.
[[nodiscard]] KvIdentity identity_of(const Checkpoint& checkpoint);

/// Begins a file with what it is. `fields` is an object that "kind" and "model" are added to.
void write_kv_header(SectionWriter& file, std::string_view kind, const KvIdentity& identity,
                     Json fields);

/// Throws LoadError unless the file is of this kind and of this model, naming the first thing that
/// differs. Returns the object.
[[nodiscard]] Json read_kv_header(SectionReader& file, std::string_view kind,
                                  const KvIdentity& identity);

/// Adds the first `counts[i]` tokens of each `blocks[i]`, in this order. No step may be under way.
void write_kv(SectionWriter& file, StepRunner& runner, std::span<const BlockId> blocks,
              std::span<const std::int32_t> counts);

/// The rows of all tokens, with which the file ends. They are valid as long as `file`.
[[nodiscard]] std::vector<const std::byte*> read_kv(SectionReader& file, const KvRows& layout);

/// Fills the first `counts[i]` slots of each `blocks[i]` with the next `rows`. The other slots
/// become zero. No step may be under way.
void upload_kv(StepRunner& runner, std::span<const BlockId> blocks,
               std::span<const std::int32_t> counts, std::span<const std::byte* const> rows);

/// The section of a prefix cache's tokens: for each entry its parent, the number of its tokens and
/// they themselves, all of them i32.
void write_entries(SectionWriter& file, std::span<const CachedBlock> entries);

/// The reverse; blocks are 0. Throws LoadError for what is no list of entries of a pool with this
/// block size and a model of this vocabulary.
[[nodiscard]] std::vector<CachedBlock> read_entries(SectionReader& file, std::int64_t block_size,
                                                    std::int64_t vocab_size);

/// A section of token ids.
void write_tokens(SectionWriter& file, std::span<const TokenId> tokens);
[[nodiscard]] std::vector<TokenId> read_tokens(SectionReader& file);

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/engine/kv_file.inc"
#endif
