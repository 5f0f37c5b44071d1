#pragma once
/// The keys and values of conversations and of the prefix cache, in the pool and in files.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/engine/request/frontend.hpp"
#include "nanovllm/engine/request/inbox.hpp"
#include "nanovllm/engine/runner/step_runner.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/io/json_fields.hpp"
#include "nanovllm/kv/cached_block.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/with/sessions/kv_file.hpp"
#include "nanovllm/with/sessions/kv_identity.hpp"
#include "nanovllm/with/sessions/kv_rows.hpp"
#include "nanovllm/with/sessions/section_file.hpp"
#include "nanovllm/with/sessions/session_host.hpp"

namespace nanovllm {

/// `SessionStore` on a `Core`, an EngineCore whose scheduler has `Blocks`. What reads and writes
/// the pool waits for the steps under way, and steps wait for it.
template <class Core, class Blocks>
class SessionKv final : public SessionStore {
 public:
  /// `core` must outlive this.
  explicit SessionKv(Core& core) : core_(core) {}

  void open_session(Sequence& held) override {
    core_.with_scheduler([&](auto& scheduler) { scheduler.held().add(held); });
  }
  void close_session(Sequence& held) noexcept override {
    core_.with_scheduler([&](auto& scheduler) { scheduler.held().remove(held); });
  }
  void clear_session(Sequence& held) noexcept override {
    core_.with_scheduler([&](auto& scheduler) { scheduler.held().evict(held); });
  }
  void fork_session(const Sequence& from, Sequence& to) override {
    core_.with_scheduler([&](auto& scheduler) {
      scheduler.held().add(to);
      try {
        scheduler.held().copy(from, to);
      } catch (...) {
        scheduler.held().remove(to);
        throw;
      }
    });
  }

  void save_session(const Sequence& held, std::span<const TokenId> tokens,
                    SectionWriter& file) override {
    core_.between_steps([&](auto&) {
      const auto most = std::min<std::ptrdiff_t>(std::ssize(tokens), held.num_computed_tokens);
      const auto differs =
          std::mismatch(tokens.begin(), tokens.begin() + most, held.tokens.begin());
      const auto num_tokens = static_cast<std::int32_t>(differs.first - tokens.begin());
      const std::vector<std::int32_t> counts = tokens_a_block(num_tokens);
      write_kv(file, core_.runner(), std::span(held.block_table).first(counts.size()), counts);
    });
  }
  void load_session(Sequence& held, std::vector<TokenId> tokens,
                    std::span<const std::byte* const> rows) override {
    core_.between_steps([&](auto& scheduler) {
      scheduler.held().add(held);
      try {
        scheduler.held().allocate(held, std::move(tokens), static_cast<std::int32_t>(rows.size()));
        upload_kv(core_.runner(), held.block_table, tokens_a_block(held.num_computed_tokens), rows);
        scheduler.held().publish(held);
      } catch (...) {
        scheduler.held().remove(held);
        throw;
      }
    });
  }

  void save_cache(const std::filesystem::path& directory, const KvIdentity& identity) override {
    static_cast<void>(make_private_directories(directory));  // else the file cannot be made
    SectionWriter file(directory / kCacheFile, kKvFormat);
    Json fields = Json::object();
    fields["block_size"] = Blocks::block_size();
    write_kv_header(file, kCacheKind, identity, std::move(fields));
    core_.between_steps([&](auto& scheduler) { write_cache(scheduler.blocks().cache(), file); });
    file.finish();
  }
  std::int32_t load_cache(const std::filesystem::path& directory, const KvIdentity& identity,
                          const KvRows& layout) override {
    SectionReader file(directory / kCacheFile, kKvFormat);
    check_block_size(file, read_kv_header(file, kCacheKind, identity));
    const std::vector<CachedBlock> entries =
        read_entries(file, Blocks::block_size(), core_.vocab_size());
    const std::vector<const std::byte*> rows = read_kv(file, layout);
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
      upload_kv(core_.runner(), blocks, counts, of_kept);
    };
    return core_.between_steps([&](auto& scheduler) {
      check<ConfigError>(scheduler.blocks().keeps_prefixes(),
                         "load_cache: the engine has no prefix cache, or prefix_caching is off");
      return restore_cached(scheduler.blocks(), entries, write);
    });
  }

 private:
  static constexpr const char* kCacheFile = "prefix_cache.kv";
  static constexpr const char* kCacheKind = "prefix cache";

  /// How many of `num_tokens` tokens are in each of the blocks that hold them.
  static std::vector<std::int32_t> tokens_a_block(std::int32_t num_tokens) {
    std::vector<std::int32_t> counts(static_cast<std::size_t>(Blocks::blocks_for(num_tokens)),
                                     Blocks::block_size());
    if (const std::int32_t in_last = num_tokens % Blocks::block_size()) counts.back() = in_last;
    return counts;
  }

  template <class Cache>
  void write_cache(const Cache& cache, SectionWriter& file) {
    if constexpr (requires { cache.entries(); }) {
      const std::vector<CachedBlock> entries = cache.entries();
      std::vector<BlockId> blocks;
      std::vector<std::int32_t> counts;
      for (const CachedBlock& entry : entries) {
        blocks.push_back(entry.block);
        counts.push_back(static_cast<std::int32_t>(entry.tokens.size()));
      }
      write_entries(file, entries);
      write_kv(file, core_.runner(), blocks, counts);
    } else {
      throw ConfigError("save_cache: the policy's prefix cache keeps nothing, or has no entries()");
    }
  }

  static void check_block_size(const SectionReader& file, const Json& header) {
    const Json* const found = header.find("block_size");
    const std::int64_t size = found == nullptr ? 0 : JsonFields::as_integer(*found).value_or(0);
    check<LoadError>(size == Blocks::block_size(), file.name(), ": expected blocks of ",
                     Blocks::block_size(), " tokens, got ", size);
  }

  Core& core_;
};

/// What the sessions of an engine need, whose core this is. Everything must outlive it.
/// @param step  one step of the engine, callbacks included.
template <class Blocks, class Core>
[[nodiscard]] SessionHost session_host_on(Core& core, Frontend& frontend, Inbox& inbox,
                                          KvIdentity identity, std::function<void()> step) {
  const StepRunner& runner = core.runner();
  return {.frontend = frontend,
          .inbox = inbox,
          .store = std::make_unique<SessionKv<Core, Blocks>>(core),
          .identity = std::move(identity),
          .layout = KvRows(runner.kv_shape(), runner.num_ranks()),
          .step = std::move(step)};
}

}  // namespace nanovllm
