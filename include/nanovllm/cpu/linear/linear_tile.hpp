#pragma once
/// What the linear kernels of all instruction sets share: the panel of weights they stream, the
/// tile of results they leave behind, and how threads share the panels out.
///
/// A kernel family is a struct of static members:
///   Operand      what x is made of for the kernel: a float, or a 32-bit word of two bf16;
///   kMaxRows     rows of x that one call takes at most;
///   multiply(rows, x, panel, tile)
///                tile[r][c] = Σ_k x[r][k] · w[c][k] for r < rows, c < 32, x being interleaved:
///                `[operands of a row][compiled_rows(rows)]`;
///   store(tile, rows, cols, y, stride, accumulate)
///                rounds the tile's first rows and columns into y.
/// Every element of a tile is summed by one chain over ascending k, whatever `rows` is: this is
/// what makes a row's result independent of its batch.

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/cpu/linear/packed_matrix.hpp"

namespace nanovllm::cpu::detail {

inline constexpr int kPanelRows = 32;
inline constexpr int kMaxTileRows = 32;

/// Results of one kernel call: rows of x by rows of a panel.
struct alignas(64) Tile {
  float values[kMaxTileRows][kPanelRows];
};

/// One panel of a weight, and what to prefetch while working on it.
template <class T>
struct Panel {
  const T* data;
  std::int64_t words;  ///< 32-bit words of a row that hold elements
  std::int64_t ahead;  ///< elements from here to the panel that this thread reads next, or 0
};

/// The number of rows of the kernel that serves `rows` rows: 1, 2, 4, 6, …
[[nodiscard]] constexpr int compiled_rows(int rows) { return rows <= 1 ? 1 : (rows + 1) / 2 * 2; }

/// Calls `f.operator()<compiled_rows(rows)>()`, for 1 ≤ rows ≤ kMax and an even kMax.
template <int kMax, class F>
void with_compiled_rows(int rows, const F& f) {
  if constexpr (kMax > 2) {
    if (rows <= kMax - 2) return with_compiled_rows<kMax - 2>(rows, f);
  } else {
    if (rows == 1) return f.template operator()<1>();
  }
  f.template operator()<kMax>();
}

/// Rounds columns [begin, end) of a tile's first rows into y, in plain C++.
template <class Out>
void store_columns(const Tile& tile, int rows, int begin, int end, Out* y, std::int64_t stride,
                   bool accumulate) {
  for (int r = 0; r < rows; ++r) {
    Out* const to = y + r * stride;
    for (int c = begin; c < end; ++c) {
      const float old = accumulate ? static_cast<float>(to[c]) : 0.0f;
      to[c] = static_cast<Out>(tile.values[r][c] + old);
    }
  }
}

/// Hands the numbers in [0, count) to T threads in ranges, each a 2T-th of what is left. So a
/// thread reads long runs of weights in order, and the last ranges are short. Two threads that take
/// panels in turn read weights of 4 bits up to twice as slowly (docs/quantization.md).
class IndexQueue {
 public:
  IndexQueue(std::int64_t count, std::int64_t num_threads)
      : count_(count), parts_(2 * num_threads) {}

  [[nodiscard]] std::int64_t count() const { return count_; }

  /// What one thread takes.
  class Taker {
   public:
    explicit Taker(IndexQueue& queue) : queue_(queue) {}

    /// A number that no other call gives, or count() when there is none.
    [[nodiscard]] std::int64_t next() {
      if (next_ == end_) queue_.claim(next_, end_);
      return next_ == end_ ? queue_.count_ : next_++;
    }

   private:
    IndexQueue& queue_;
    std::int64_t next_ = 0, end_ = 0;
  };

 private:
  void claim(std::int64_t& begin, std::int64_t& end) {
    begin = unclaimed_.load(std::memory_order_relaxed);
    do {
      end = begin + ceil_div(count_ - begin, parts_);
    } while (begin != end &&
             !unclaimed_.compare_exchange_weak(begin, end, std::memory_order_relaxed));
  }

  const std::int64_t count_, parts_;
  std::atomic<std::int64_t> unclaimed_{0};
};

/// Calls `body(begin, end)` on ranges that cover [0, count), on the threads of `context`.
template <class Body>
void share(const Context& context, std::int64_t count, std::int64_t grain, const Body& body) {
  if (context.pool == nullptr) return body(0, count);
  context.pool->parallel_for(count, grain,
                             [&](std::int64_t begin, std::int64_t end, int) { body(begin, end); });
}

/// Calls `body(queue)` with the numbers in [0, count) on as many threads of `context` as there are
/// numbers.
template <class Body>
void share_queue(const Context& context, std::int64_t count, const Body& body) {
  const std::int64_t threads =
      std::min<std::int64_t>(context.pool == nullptr ? 1 : context.pool->num_threads(), count);
  if (threads == 0) return;
  IndexQueue queue(count, threads);
  share(context, threads, 1, [&](std::int64_t, std::int64_t) { body(queue); });
}

/// Calls `body(panel, first)` for the panels that this thread takes, `first` being the weight's row
/// that a panel begins with. The next panel is claimed before one is worked on, so that it can be
/// prefetched.
template <class T, class Body>
void drain_panels(IndexQueue& queue, const PackedMatrix<T>& weight, const Body& body) {
  IndexQueue::Taker taker(queue);
  for (std::int64_t index = taker.next(), next = 0; index < queue.count(); index = next) {
    next = taker.next();
    const std::int64_t ahead = next < queue.count() ? next - index : 0;
    body(Panel<T>{weight.panel(index), weight.num_words(), ahead * weight.panel_size()},
         index * kPanelRows);
  }
}

/// Sixteen columns of a tile, from `column` on.
template <int kRows, class T>
void portable_multiply(const float* x, const Panel<T>& panel, int column, Tile& tile) {
  constexpr int kLanes = 16, kPerWord = PackedMatrix<T>::kPerWord;
  float sum[kRows][kLanes] = {};
  const T* weights = panel.data + column * kPerWord;
  for (std::int64_t word = 0; word < panel.words; ++word, weights += kPanelRows * kPerWord) {
    for (int step = 0; step < kPerWord; ++step, x += kRows) {
      float w[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) w[lane] = weights[lane * kPerWord + step];
      for (int r = 0; r < kRows; ++r) {
        for (int lane = 0; lane < kLanes; ++lane) sum[r][lane] += x[r] * w[lane];
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int lane = 0; lane < kLanes; ++lane) tile.values[r][column + lane] = sum[r][lane];
  }
}

struct PortableLinear {
  using Operand = float;
  static constexpr int kMaxRows = 2;

  template <class T>
  static void multiply(int rows, const float* x, const Panel<T>& panel, Tile& tile) {
    with_compiled_rows<kMaxRows>(rows, [&]<int kRows>() {
      portable_multiply<kRows>(x, panel, 0, tile);
      portable_multiply<kRows>(x, panel, 16, tile);
    });
  }

  template <class Out>
  static void store(const Tile& tile, int rows, int cols, Out* y, std::int64_t stride,
                    bool accumulate) {
    store_columns(tile, rows, 0, cols, y, stride, accumulate);
  }
};

}  // namespace nanovllm::cpu::detail
