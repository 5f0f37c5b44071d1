#pragma once
/// The CPU backend's weight type: a matrix in the order in which the kernels read it.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cpu/aligned_buffer.hpp"

namespace nanovllm::cpu {

/// An owned weight matrix [rows, cols].
///
/// A 32-bit *word* is one float, or two neighbouring 16-bit elements of one row. 32 rows form a
/// *panel*, stored as `[words][32 rows]`: a word of sixteen rows is a cache line, a vector register
/// of AVX-512, and a row of an AMX tile. Panels follow each other; rows are padded to whole panels
/// and words to a multiple of 16, with zeros. So a kernel reads each weight once, at ascending
/// addresses, in whole cache lines.
template <Element T>
class PackedMatrix {
 public:
  using value_type = T;

  static constexpr int kPanelRows = 32;
  static constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));  ///< elements in a word
  static constexpr int kTileWords = 16;                             ///< padding of a row, in words
  static constexpr int kTileCols = kTileWords * kPerWord;           ///< padding of a row

  PackedMatrix() = default;

  /// An all-zero matrix. Throws ShapeError for a negative extent.
  PackedMatrix(std::int64_t rows, std::int64_t cols) : rows_(rows), cols_(cols) {
    check<ShapeError>(rows >= 0 && cols >= 0, "PackedMatrix: extents must be >= 0, got [", rows,
                      ", ", cols, "]");
    data_ = AlignedBuffer<T>(num_panels() * panel_size());
  }

  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::int64_t cols() const { return cols_; }

  /// Memory held, padding included.
  [[nodiscard]] std::int64_t size_bytes() const { return data_.size_bytes(); }

  [[nodiscard]] std::int64_t num_panels() const { return ceil_div(rows_, kPanelRows); }

  /// Words of a row that hold elements.
  [[nodiscard]] std::int64_t num_words() const { return ceil_div(cols_, kPerWord); }

  /// Elements from one panel to the next.
  [[nodiscard]] std::int64_t panel_size() const { return align_up(cols_, kTileCols) * kPanelRows; }

  /// The panel of rows [32 * index, 32 * index + 32), 64-byte aligned.
  [[nodiscard]] const T* panel(std::int64_t index) const {
    return data_.data() + index * panel_size();
  }

  /// Sets rows [first_row, first_row + rows.extent(0)). Calls for disjoint rows may run at the same
  /// time. Throws ShapeError when the rows do not fit.
  void set_rows(std::int64_t first_row, MatrixView<const T> rows) {
    const std::int64_t count = rows.extent(0);
    check<ShapeError>(first_row >= 0 && first_row + count <= rows_ && rows.extent(1) == cols_,
                      "PackedMatrix: rows of shape ", shape_string(rows), " at row ", first_row,
                      " do not fit a matrix [", rows_, ", ", cols_, "]");
    for (std::int64_t done = 0; done < count;) {
      const std::int64_t row = first_row + done;
      const int lane = static_cast<int>(row % kPanelRows);
      const auto lanes = static_cast<int>(std::min<std::int64_t>(kPanelRows - lane, count - done));
      T* const panel = data_.data() + row / kPanelRows * panel_size();
      set_lanes(panel, lane, rows.slice(done, done + lanes));
      done += lanes;
    }
  }

  /// Copies row `row`, in [0, rows()), to out[0, cols()), as elements of another type.
  template <Element Out>
  void copy_row(std::int64_t row, Out* out) const {
    const T* word = panel(row / kPanelRows) + row % kPanelRows * kPerWord;
    for (std::int64_t col = 0; col < cols_; ++col) {
      out[col] = Out(static_cast<float>(word[col / kPerWord * kLine + col % kPerWord]));
    }
  }

  /// The same as they are.
  void copy_row(std::int64_t row, T* out) const {
    const T* word = panel(row / kPanelRows) + row % kPanelRows * kPerWord;
    std::int64_t col = 0;
    for (; col + kPerWord <= cols_; col += kPerWord, word += kLine) {
      std::memcpy(out + col, word, sizeof(std::uint32_t));
    }
    for (; col < cols_; ++col) out[col] = *word++;
  }

 private:
  static constexpr int kLine = kPanelRows * kPerWord;  ///< elements from one word to the next

  /// Writes the rows to lanes [lane, lane + rows) of a panel, sixteen words at a time: these
  /// 2 KiB stay in the nearest cache while one cache line of each row is spread over them.
  void set_lanes(T* panel, int lane, MatrixView<const T> rows) {
    const auto count = static_cast<int>(rows.extent(0));
    for (std::int64_t col = 0; col < cols_; col += kTileCols) {
      const auto width = static_cast<int>(std::min<std::int64_t>(kTileCols, cols_ - col));
      T* const tile = panel + col * kPanelRows + lane * kPerWord;
      for (int r = 0; r < count; ++r) {
        const T* const from = rows.at(r, col);
        T* const to = tile + r * kPerWord;
        int c = 0;
        for (; c + kPerWord <= width; c += kPerWord) {
          std::memcpy(to + c * kPanelRows, from + c, sizeof(std::uint32_t));
        }
        for (; c < width; ++c) to[c * kPanelRows] = from[c];  // at most one, in an odd last word
      }
    }
  }

  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
  AlignedBuffer<T> data_;
};

}  // namespace nanovllm::cpu
