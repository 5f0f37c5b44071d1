#pragma once
/// The whole prefix cache of an engine in a file.

#include <cstdint>
#include <filesystem>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/any_engine.hpp"

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

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/engine/engine_inside.hpp"
#include "nanovllm/engine/request/frontend.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/io/json_fields.hpp"
#include "nanovllm/kv/cached_block.hpp"
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
    const std::optional<std::vector<CachedBlock>> entries = scheduler.entries();
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
    check<ConfigError>(scheduler.keeps_prefixes(),
                       "load_cache: the engine has no prefix cache, or prefix_caching is off");
    num_blocks = scheduler.restore(entries, write);
  });
  return num_blocks;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
