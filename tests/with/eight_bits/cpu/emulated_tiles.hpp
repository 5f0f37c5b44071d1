#pragma once
/// The tile instructions of AMX that the kernel for integers uses, in C++, for CPUs that have none.
/// To be included ahead of with/eight_bits/cpu/int_amx.hpp. They check what the CPU would fault on.

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace nanovllm::test {

struct EmulatedTiles {
  struct Register {
    std::uint8_t rows = 0;
    std::uint16_t row_bytes = 0;
    std::uint8_t bytes[16][64] = {};
  };

  static EmulatedTiles& of_thread() {
    thread_local EmulatedTiles tiles;
    return tiles;
  }

  /// The operand of `ldtilecfg`: palette 1, at 16 two bytes a register, and at 48 their rows.
  void configure(const void* config) {
    const auto* const from = static_cast<const std::uint8_t*>(config);
    if (from[0] != 1) throw std::logic_error("no palette 1");
    for (int i = 0; i < 8; ++i) {
      registers[i] = {.rows = from[48 + i]};
      std::memcpy(&registers[i].row_bytes, from + 16 + 2 * i, 2);
      if (registers[i].rows > 16 || registers[i].row_bytes > 64)
        throw std::logic_error("a tile is too large");
    }
  }

  void release() { *this = {}; }

  Register& at(int i) {
    if (registers[i].rows == 0) throw std::logic_error("a tile is not configured");
    return registers[i];
  }

  void zero(int i) { std::memset(at(i).bytes, 0, sizeof(at(i).bytes)); }

  void load(int i, const void* from, std::int64_t stride) {
    zero(i);
    for (int r = 0; r < at(i).rows; ++r)
      std::memcpy(at(i).bytes[r], static_cast<const char*>(from) + r * stride, at(i).row_bytes);
  }

  void store(int i, void* to, std::int64_t stride) {
    for (int r = 0; r < at(i).rows; ++r)
      std::memcpy(static_cast<char*>(to) + r * stride, at(i).bytes[r], at(i).row_bytes);
  }

  /// sums += x · w, of signed bytes, four columns to a word.
  void multiply(int sums, int x, int w) {
    Register &to = at(sums), &left = at(x), &right = at(w);
    if (left.rows != to.rows || right.row_bytes != to.row_bytes ||
        left.row_bytes != 4 * right.rows) {
      throw std::logic_error("tiles do not fit together");
    }
    for (int r = 0; r < to.rows; ++r) {
      for (int c = 0; c < to.row_bytes / 4; ++c) {
        std::int32_t sum;
        std::memcpy(&sum, to.bytes[r] + 4 * c, 4);
        for (int k = 0; k < left.row_bytes; ++k) {
          sum += static_cast<std::int8_t>(left.bytes[r][k]) *
                 static_cast<std::int8_t>(right.bytes[k / 4][4 * c + k % 4]);
        }
        std::memcpy(to.bytes[r] + 4 * c, &sum, 4);
      }
    }
  }

  Register registers[8];
};

}  // namespace nanovllm::test

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#define _tile_loadconfig(config) ::nanovllm::test::EmulatedTiles::of_thread().configure(config)
#define _tile_release() ::nanovllm::test::EmulatedTiles::of_thread().release()
#define _tile_zero(i) ::nanovllm::test::EmulatedTiles::of_thread().zero(i)
#define _tile_loadd(i, from, stride) \
  ::nanovllm::test::EmulatedTiles::of_thread().load(i, from, stride)
#define _tile_stored(i, to, stride) \
  ::nanovllm::test::EmulatedTiles::of_thread().store(i, to, stride)
#define _tile_dpbssd(sums, x, w) ::nanovllm::test::EmulatedTiles::of_thread().multiply(sums, x, w)

#endif
