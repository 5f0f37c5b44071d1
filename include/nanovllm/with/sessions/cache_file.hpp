#pragma once
/// The whole prefix cache of an engine in a file.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/kv/cached_block.hpp"
#include "nanovllm/sched/block_owner.hpp"

namespace nanovllm {

/// Writes all that the prefix cache has to a file in `directory`, which is made if need be. Steps
/// wait meanwhile. Throws Error when it cannot be written, ConfigError for a cache that cannot be
/// listed.
void save_cache(AnyEngine& engine, const std::filesystem::path& directory);

/// Puts what `save_cache` has written into the prefix cache, as far as there is room. Returns the
/// number of blocks; those that are not full are left out where the cache keeps full ones alone.
/// The file must be of the same model, as for `Session::load`, and block size. Throws LoadError,
/// having changed nothing.
std::int32_t load_cache(AnyEngine& engine, const std::filesystem::path& directory);

/// Puts `entries` of another pool into the cache of `blocks`, parents first, as many as there are
/// free blocks for; those that the cache had and that are in no use give way. Entries that it does
/// not keep, as blocks that are not full of another kind of cache, are left out. Returns how many
/// were put in.
/// @param write  called once as write(blocks, indices of entries), parallel lists, before the cache
///               is told: fills the blocks. What it throws is thrown, and nothing is kept.
std::int32_t restore_cached(
    BlockPool& blocks, std::span<const CachedBlock> entries,
    const std::function<void(std::span<const BlockId>, std::span<const std::size_t>)>& write);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/engine_inside.hpp"
#include "nanovllm/engine/request/frontend.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/io/json_fields.hpp"
#include "nanovllm/with/sessions/kv_file.hpp"
#include "nanovllm/with/sessions/section_file.hpp"

namespace nanovllm {

namespace detail {

inline constexpr const char* kCacheFile = "prefix_cache.kv";
inline constexpr const char* kCacheKind = "prefix cache";

}  // namespace detail

NANOVLLM_INLINE void save_cache(AnyEngine& engine, const std::filesystem::path& directory) {
  const std::shared_ptr<EngineInside> inside = inside_of(engine);
  static_cast<void>(make_private_directories(directory));  // else the file cannot be made
  SectionWriter file(directory / detail::kCacheFile, kKvFormat);
  Json fields = Json::object();
  fields["block_size"] = inside->runner.kv_shape().block_size;
  write_kv_header(file, detail::kCacheKind, inside->identity, std::move(fields));
  inside->between_steps([&](SchedulerInside& scheduler) {
    const std::optional<std::vector<CachedBlock>> entries = scheduler.pool()->entries();
    check<ConfigError>(entries.has_value(),
                       "save_cache: the policy's prefix cache keeps nothing, or has no entries()");
    std::vector<BlockId> blocks;
    std::vector<std::int32_t> counts;
    for (const CachedBlock& entry : *entries) {
      blocks.push_back(entry.block);
      counts.push_back(static_cast<std::int32_t>(entry.tokens.size()));
    }
    write_entries(file, *entries);
    write_kv(file, inside->runner, blocks, counts);
  });
  file.finish();
}

NANOVLLM_INLINE std::int32_t restore_cached(
    BlockPool& blocks, std::span<const CachedBlock> entries,
    const std::function<void(std::span<const BlockId>, std::span<const std::size_t>)>& write) {
  const auto size = static_cast<std::size_t>(blocks.block_size());
  std::vector<BlockId> taken, block_of(entries.size(), -1);
  std::vector<std::size_t> kept;
  taken.reserve(entries.size());
  kept.reserve(entries.size());
  try {
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (!blocks.keeps_block_of(static_cast<std::int32_t>(entries[i].tokens.size()))) continue;
      const std::int32_t parent = entries[i].parent;
      if (parent >= 0 && block_of[static_cast<std::size_t>(parent)] < 0) continue;
      const std::optional<BlockId> block = blocks.allocate();
      if (!block) break;
      taken.push_back(block_of[i] = *block);
      kept.push_back(i);
    }
    write(std::span<const BlockId>(taken), std::span<const std::size_t>(kept));
    for (const std::size_t i : kept) {
      std::vector<std::size_t> path;  // from the entry to the first block
      for (auto at = static_cast<std::int32_t>(i); at >= 0;
           at = entries[static_cast<std::size_t>(at)].parent)
        path.push_back(static_cast<std::size_t>(at));
      std::vector<BlockId> table;
      std::vector<TokenId> tokens;
      for (std::size_t j = path.size(); j-- > 0;) {
        table.push_back(block_of[path[j]]);
        const std::vector<TokenId>& more = entries[path[j]].tokens;
        tokens.insert(tokens.end(), more.begin(), more.end());
      }
      blocks.publish(table, tokens, static_cast<std::int32_t>((path.size() - 1) * size),
                     static_cast<std::int32_t>(tokens.size()), entries[path.back()].salt);
    }
  } catch (...) {
    blocks.release(taken);
    throw;
  }
  blocks.release(taken);  // the last ones first: children before their parents
  return static_cast<std::int32_t>(taken.size());
}

NANOVLLM_INLINE std::int32_t load_cache(AnyEngine& engine, const std::filesystem::path& directory) {
  const std::shared_ptr<EngineInside> inside = inside_of(engine);
  SectionReader file(directory / detail::kCacheFile, kKvFormat);
  const std::int64_t block_size = inside->runner.kv_shape().block_size;
  const Json header = read_kv_header(file, detail::kCacheKind, inside->identity);
  const Json* const found = header.find("block_size");
  const std::int64_t size = found == nullptr ? 0 : JsonFields::as_integer(*found).value_or(0);
  check<LoadError>(size == block_size, file.name(), ": expected blocks of ", block_size,
                   " tokens, got ", size);
  const std::vector<CachedBlock> entries =
      read_entries(file, size, inside->frontend.rules().vocab_size);
  const std::vector<const std::byte*> rows = read_kv(file, inside->runner);
  std::vector<std::size_t> first_row{0};
  for (const CachedBlock& entry : entries)
    first_row.push_back(first_row.back() + entry.tokens.size());
  check<LoadError>(first_row.back() == rows.size(), file.name(), ": expected keys and values of ",
                   first_row.back(), " tokens, got ", rows.size());
  const auto write = [&](std::span<const BlockId> blocks, std::span<const std::size_t> kept) {
    std::vector<std::int32_t> counts;
    std::vector<const std::byte*> of_kept;
    for (const std::size_t i : kept) {
      counts.push_back(static_cast<std::int32_t>(entries[i].tokens.size()));
      for (std::size_t row = first_row[i]; row < first_row[i + 1]; ++row)
        of_kept.push_back(rows[row]);
    }
    upload_kv(inside->runner, blocks, counts, of_kept);
  };
  std::int32_t num_blocks = 0;
  inside->between_steps([&](SchedulerInside& scheduler) {
    const std::unique_ptr<BlockPool> pool = scheduler.pool();
    check<ConfigError>(pool->keeps_prefixes(),
                       "load_cache: the engine has no prefix cache, or prefix_caching is off");
    num_blocks = restore_cached(*pool, entries, write);
  });
  return num_blocks;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
