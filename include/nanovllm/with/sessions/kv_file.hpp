#pragma once
/// Keys and values in files: whose they are, and the way between a runner's blocks and a file.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/engine/engine_inside.hpp"
#include "nanovllm/engine/kv_identity.hpp"
#include "nanovllm/engine/runner/step_runner.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/kv/cached_block.hpp"
#include "nanovllm/kv/prefix/cache_salt.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/with/sessions/held_sequences.hpp"
#include "nanovllm/with/sessions/kv_rows.hpp"
#include "nanovllm/with/sessions/section_file.hpp"

namespace nanovllm {

/// The files of sessions and of prefix caches. Their sections are
///
///     what it is     a JSON object: "kind", "model" (a KvIdentity), and what the kind has besides
///     the tokens     of the kind's own form
///     the number of rows, u64
///     rows of K/V    of as many tokens as it takes: see KvRows. Sections of some megabytes.
inline constexpr SectionFormat kKvFormat{.magic = "nanovllm-kv\n", .version = 1};

/// What sessions and files need of `engine`. Throws Error if it has no inside.
[[nodiscard]] std::shared_ptr<EngineInside> inside_of(AnyEngine& engine);

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

/// Adds the keys and values that `held`, a sequence that keeps its blocks, has of the beginning of
/// `tokens`.
void write_held(SectionWriter& file, EngineInside& engine, const Sequence& held,
                std::span<const TokenId> tokens);

/// `held`, which is fresh, keeps blocks with the first of `tokens`, one for each of `rows`, as far
/// as there is room. Throws what the runner throws, having changed nothing.
void load_held(EngineInside& engine, Sequence& held, std::vector<TokenId> tokens,
               std::span<const std::byte* const> rows);

/// The rows of all tokens, with which the file ends. They are valid until `file` is destroyed.
[[nodiscard]] std::vector<const std::byte*> read_kv(SectionReader& file, const StepRunner& runner);

/// Fills the first `counts[i]` slots of each `blocks[i]` with the next `rows`. The other slots
/// become zero. No step may be under way.
void upload_kv(StepRunner& runner, std::span<const BlockId> blocks,
               std::span<const std::int32_t> counts, std::span<const std::byte* const> rows);

/// The section of a prefix cache's tokens: for each entry its parent, the number of its tokens and
/// they themselves, all of them i32. The parent is -1 for none, and -2 for none but a salt, whose
/// 32 bytes follow.
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

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/io/json_fields.hpp"
#include "nanovllm/io/mapped_file.hpp"

namespace nanovllm {

namespace detail {

/// In the place of an entry's parent: there is none, but a salt.
inline constexpr TokenId kSaltFollows = -2;
inline constexpr std::size_t kSaltWords = CacheSalt::kNumBytes / sizeof(TokenId);

/// Bytes that go through host memory at a time, or one block if that is more.
inline constexpr std::size_t kKvPieceBytes = std::size_t{16} << 20;

NANOVLLM_INLINE std::size_t blocks_a_piece(const KvRows& layout) {
  return std::max<std::size_t>(1, kKvPieceBytes / layout.block_bytes(1));
}

NANOVLLM_INLINE KvRows layout_of(const StepRunner& runner) {
  return KvRows(runner.kv_shape(), runner.num_ranks());
}

}  // namespace detail

NANOVLLM_INLINE std::shared_ptr<EngineInside> inside_of(AnyEngine& engine) {
  auto inside = engine.inside();
  check(inside != nullptr, "this engine has no sessions");
  return inside;
}

NANOVLLM_INLINE void write_kv_header(SectionWriter& file, std::string_view kind,
                                     const KvIdentity& identity, Json fields) {
  Json model = Json::object();
  for (const auto& [name, value] : identity) model[name] = value;
  fields["kind"] = std::string(kind);
  fields["model"] = std::move(model);
  file.write(fields.dump());
}

NANOVLLM_INLINE Json read_kv_header(SectionReader& file, std::string_view kind,
                                    const KvIdentity& identity) {
  Json header = parse_json_object<LoadError>(file.read_text("the header"), file.name());
  const auto text = [&](const Json* value) {
    return value != nullptr && value->is_string() ? value->string() : std::string("nothing");
  };
  const std::string got = text(header.find("kind"));
  check<LoadError>(got == kind, file.name(), ": expected the file of a ", kind, ", got that of a ",
                   got);
  const Json* const model = header.find("model");
  check<LoadError>(model != nullptr && model->is_object(), file.name(),
                   ": expected the model that it is of, got nothing");
  for (const auto& [name, value] : identity) {
    const std::string saved = text(model->find(name));
    check<LoadError>(saved == value, file.name(), " is of another model: ", name, ": expected ",
                     value, ", got ", saved);
  }
  return header;
}

NANOVLLM_INLINE void write_kv(SectionWriter& file, StepRunner& runner,
                              std::span<const BlockId> blocks,
                              std::span<const std::int32_t> counts) {
  const KvRows layout = detail::layout_of(runner);
  std::uint64_t num_rows = 0;
  for (const std::int32_t count : counts) num_rows += static_cast<std::uint64_t>(count);
  file.write(std::as_bytes(std::span(&num_rows, 1)));
  const std::size_t most = detail::blocks_a_piece(layout);
  std::vector<std::byte> in_blocks, rows;
  for (std::size_t first = 0; first < blocks.size(); first += most) {
    const std::size_t num_blocks = std::min(most, blocks.size() - first);
    in_blocks.resize(layout.block_bytes(num_blocks));
    runner.pool().read_blocks(blocks.subspan(first, num_blocks), in_blocks);
    rows.clear();
    for (std::size_t block = 0; block < num_blocks; ++block) {
      for (std::int32_t slot = 0; slot < counts[first + block]; ++slot) {
        rows.resize(rows.size() + layout.row_bytes());
        layout.read(in_blocks, num_blocks, block, static_cast<std::size_t>(slot),
                    rows.data() + rows.size() - layout.row_bytes());
      }
    }
    file.write(rows);
  }
}

namespace detail {

/// How many of `num_tokens` tokens are in each of the blocks that hold them.
NANOVLLM_INLINE std::vector<std::int32_t> tokens_a_block(const StepRunner& runner,
                                                         std::int32_t num_tokens) {
  const auto size = static_cast<std::int32_t>(runner.kv_shape().block_size);
  std::vector<std::int32_t> counts(static_cast<std::size_t>(ceil_div(num_tokens, size)), size);
  if (const std::int32_t in_last = num_tokens % size) counts.back() = in_last;
  return counts;
}

}  // namespace detail

NANOVLLM_INLINE void write_held(SectionWriter& file, EngineInside& engine, const Sequence& held,
                                std::span<const TokenId> tokens) {
  engine.between_steps([&](SchedulerInside&) {
    const auto most = std::min<std::ptrdiff_t>(std::ssize(tokens), held.num_computed_tokens);
    const auto differs = std::mismatch(tokens.begin(), tokens.begin() + most, held.tokens.begin());
    const auto counts = detail::tokens_a_block(
        engine.runner, static_cast<std::int32_t>(differs.first - tokens.begin()));
    write_kv(file, engine.runner, std::span(held.block_table).first(counts.size()), counts);
  });
}

NANOVLLM_INLINE void load_held(EngineInside& engine, Sequence& held, std::vector<TokenId> tokens,
                               std::span<const std::byte* const> rows) {
  engine.between_steps([&](SchedulerInside& scheduler) {
    held_in(scheduler).add(held);
    try {
      held_in(scheduler).allocate(held, std::move(tokens), static_cast<std::int32_t>(rows.size()));
      upload_kv(engine.runner, held.block_table,
                detail::tokens_a_block(engine.runner, held.num_computed_tokens), rows);
      held_in(scheduler).publish(held);
    } catch (...) {
      held_in(scheduler).remove(held);
      throw;
    }
  });
}

NANOVLLM_INLINE std::vector<const std::byte*> read_kv(SectionReader& file,
                                                      const StepRunner& runner) {
  const KvRows layout = detail::layout_of(runner);
  const std::span<const std::byte> count = file.read("the number of rows");
  std::uint64_t num_rows = 0;
  check<LoadError>(count.size() == sizeof num_rows, file.name(), ": expected a number of ",
                   sizeof num_rows, " bytes, got ", count.size());
  std::memcpy(&num_rows, count.data(), sizeof num_rows);
  std::vector<const std::byte*> rows;
  while (rows.size() < num_rows) {
    const std::span<const std::byte> piece = file.read("keys and values");
    const std::size_t num_here = piece.size() / layout.row_bytes();
    check<LoadError>(num_here > 0 && piece.size() % layout.row_bytes() == 0 &&
                         num_here <= num_rows - rows.size(),
                     file.name(), ": expected keys and values of up to ", num_rows - rows.size(),
                     " tokens, ", layout.row_bytes(), " bytes each, got ", piece.size(), " bytes");
    for (std::size_t i = 0; i < num_here; ++i)
      rows.push_back(piece.data() + i * layout.row_bytes());
  }
  file.finish();
  return rows;
}

NANOVLLM_INLINE void upload_kv(StepRunner& runner, std::span<const BlockId> blocks,
                               std::span<const std::int32_t> counts,
                               std::span<const std::byte* const> rows) {
  const KvRows layout = detail::layout_of(runner);
  const std::size_t most = detail::blocks_a_piece(layout);
  std::vector<std::byte> in_blocks;
  auto row = rows.begin();
  for (std::size_t first = 0; first < blocks.size(); first += most) {
    const std::size_t num_blocks = std::min(most, blocks.size() - first);
    in_blocks.assign(layout.block_bytes(num_blocks), std::byte{0});
    for (std::size_t block = 0; block < num_blocks; ++block) {
      for (std::int32_t slot = 0; slot < counts[first + block]; ++slot)
        layout.write(in_blocks, num_blocks, block, static_cast<std::size_t>(slot), *row++);
    }
    runner.pool().write_blocks(blocks.subspan(first, num_blocks), in_blocks);
  }
}

NANOVLLM_INLINE void write_tokens(SectionWriter& file, std::span<const TokenId> tokens) {
  file.write(std::as_bytes(tokens));
}

NANOVLLM_INLINE std::vector<TokenId> read_tokens(SectionReader& file) {
  const std::span<const std::byte> bytes = file.read("the tokens");
  check<LoadError>(bytes.size() % sizeof(TokenId) == 0, file.name(), ": expected tokens of ",
                   sizeof(TokenId), " bytes, got ", bytes.size(), " bytes");
  std::vector<TokenId> tokens(bytes.size() / sizeof(TokenId));
  if (!tokens.empty()) std::memcpy(tokens.data(), bytes.data(), bytes.size());
  return tokens;
}

NANOVLLM_INLINE void write_entries(SectionWriter& file, std::span<const CachedBlock> entries) {
  std::vector<TokenId> out;
  for (const CachedBlock& entry : entries) {
    const bool has_salt = entry.parent < 0 && entry.salt;
    out.push_back(has_salt ? detail::kSaltFollows : entry.parent);
    if (has_salt) {
      std::array<TokenId, detail::kSaltWords> words{};
      std::memcpy(words.data(), entry.salt.bytes().data(), CacheSalt::kNumBytes);
      out.insert(out.end(), words.begin(), words.end());
    }
    out.push_back(static_cast<TokenId>(entry.tokens.size()));
    out.insert(out.end(), entry.tokens.begin(), entry.tokens.end());
  }
  write_tokens(file, out);
}

NANOVLLM_INLINE std::vector<CachedBlock> read_entries(SectionReader& file, std::int64_t block_size,
                                                      std::int64_t vocab_size) {
  const std::vector<TokenId> all = read_tokens(file);
  std::vector<CachedBlock> entries;
  for (std::size_t at = 0; at < all.size();) {
    std::int32_t parent = all[at];
    CacheSalt salt;
    if (parent == detail::kSaltFollows) {
      const auto rest = std::span(all).subspan(at + 1);
      check<LoadError>(rest.size() >= detail::kSaltWords, file.name(), ": expected a salt of ",
                       detail::kSaltWords, " numbers, got ", rest.size());
      salt = *CacheSalt::from_bytes(std::as_bytes(rest.first(detail::kSaltWords)));
      parent = -1;
      at += detail::kSaltWords;
    }
    const std::size_t left = all.size() - at;
    const std::int32_t count = left > 1 ? all[at + 1] : 0;
    check<LoadError>(
        count >= 1 && count <= block_size && static_cast<std::size_t>(count) <= left - 2,
        file.name(), ": expected an entry of 1 to ", block_size, " tokens, got ", count);
    const bool is_behind =
        parent == -1 ||
        (parent >= 0 && parent < std::ssize(entries) &&
         std::ssize(entries[static_cast<std::size_t>(parent)].tokens) == block_size);
    check<LoadError>(is_behind, file.name(), ": expected entry ", entries.size(),
                     " to be after a full one before it, got ", parent);
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(at) + 2;
    entries.push_back(
        {.block = 0, .parent = parent, .tokens = {first, first + count}, .salt = salt});
    for (const TokenId token : entries.back().tokens) {
      check<LoadError>(token >= 0 && token < vocab_size, file.name(), ": expected tokens in [0, ",
                       vocab_size, "), got ", token);
    }
    at += 2 + static_cast<std::size_t>(count);
  }
  return entries;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
