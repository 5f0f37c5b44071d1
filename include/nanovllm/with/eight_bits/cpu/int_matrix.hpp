#pragma once
/// The CPU's matrix of 8- or 4-bit integers with a scale for each row and 32 columns, and the
/// rounding of rows of weights and of activations to such integers.
///
/// What is rounded is the same, bit for bit, on every instruction set: quotients are divisions, and
/// what is squared is short enough for the product to be exact, so a multiply-add has nothing to
/// round differently.

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cpu/aligned_buffer.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/cpu/isa.hpp"
#include "nanovllm/cpu/linear/linear_tile.hpp"
#include "nanovllm/cpu/simd/simd.hpp"
#include "nanovllm/with/eight_bits/weights.hpp"

namespace nanovllm::cpu {

/// Columns that share a scale.
inline constexpr std::int64_t kIntGroup = 32;

/// 32 columns of a row of activations: element i is codes[i] · scale.
struct ActivationGroup {
  std::int8_t codes[kIntGroup];  ///< in [-127, 127]
  float scale;                   ///< the largest |x| / 127; NaN where an x is not finite
  std::int32_t sum;              ///< of the codes

  [[nodiscard]] float float_sum() const { return static_cast<float>(sum); }
};

namespace detail {

// Whose scratch memory it is.
struct PaddedColumns;
struct RoundedColumns;

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// The smallest half that is not below `x` > 0; infinity above 65504.
[[nodiscard]] inline half half_above(float x) {
  half out(x);
  if (static_cast<float>(out) < x) ++out.bits;
  return out;
}

[[nodiscard]] inline bool is_infinite(half x) { return (x.bits & 0x7fffu) == 0x7c00u; }

}  // namespace detail

}  // namespace nanovllm::cpu

#define NANOVLLM_KERNELS "nanovllm/with/eight_bits/cpu/quantise_kernels.inc"
#include "nanovllm/cpu/for_each_isa.inc"

namespace nanovllm::cpu {

/// An owned matrix [rows, cols]: element (i, j) is scale · (code + shift), with the scale and the
/// shift of row i and of the 32 columns that j belongs to, both halves; the shift is 0 but for
/// stored rows that have offsets.
///
/// 32 rows form a *panel*, of which 32 columns are a *group*: codes and then the 32 scales, whole
/// cache lines at ascending addresses. Codes have 2^(kBits - 1) added, so that they are unsigned.
/// - 8 bits: `[8 words][32 rows][4 columns]`, a byte each: 8.5 bits an element with its scale.
/// - 4 bits: `[4 pairs of words][32 rows][4 columns]`, a byte for two: word 2p in the low half of
///   the byte, word 2p + 1 in the high one. 4.5 bits.
/// Rows are padded to whole panels, columns to whole groups. Shifts lie apart, and only in matrices
/// that have any.
template <int kBits>
class IntMatrix {
  static_assert(kBits == 8 || kBits == 4);

 public:
  using StoredRows = IntRows;  ///< of a checkpoint, that it keeps

  static constexpr int kPanelRows = 32;
  static constexpr std::int64_t kGroupColumns = kIntGroup;
  static constexpr std::int64_t kCodeBytes = kPanelRows * kIntGroup * kBits / 8;  ///< of a group
  static constexpr std::int64_t kGroupBytes = kCodeBytes + kPanelRows * std::int64_t{sizeof(half)};
  static constexpr int kBias = 1 << (kBits - 1);  ///< what is added to a code

  IntMatrix() = default;

  /// All zeros. Throws ShapeError for a negative extent.
  IntMatrix(std::int64_t rows, std::int64_t cols) : rows_(rows), cols_(cols) {
    check<ShapeError>(rows >= 0 && cols >= 0, "IntMatrix: extents must be >= 0, got [", rows, ", ",
                      cols, "]");
    data_ = AlignedBuffer<std::uint8_t>(num_panels() * panel_bytes());
  }

  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::int64_t cols() const { return cols_; }
  [[nodiscard]] std::int64_t num_groups() const {
    return ceil_div(cols_, kIntGroup);
  }  ///< of a row
  [[nodiscard]] std::int64_t num_panels() const { return ceil_div(rows_, kPanelRows); }
  [[nodiscard]] std::int64_t panel_bytes() const { return num_groups() * kGroupBytes; }

  /// Memory held, padding included.
  [[nodiscard]] std::int64_t size_bytes() const {
    return data_.size_bytes() + shifts_.size_bytes();
  }

  /// The panel of rows [32 · index, 32 · index + 32), 64-byte aligned.
  [[nodiscard]] const std::uint8_t* panel(std::int64_t index) const {
    return data_.data() + index * panel_bytes();
  }

  /// The panel's shifts, [num_groups()][32 rows]; null where all are 0.
  [[nodiscard]] const half* shifts(std::int64_t index) const {
    return shifts_.size() == 0 ? nullptr : shifts_.data() + index * num_groups() * kPanelRows;
  }

  /// Quantises rows to rows [first_row, first_row + rows.extent(0)); quantise_kernels.inc says how.
  /// A group with an element that is not finite, or beyond what a scale can be, is NaN. Calls for
  /// disjoint rows may run at the same time. Throws ShapeError when the rows do not fit.
  template <Element T>
  void set_rows(std::int64_t first_row, MatrixView<const T> rows, const Context& context = {}) {
    check_rows(first_row, rows.extent(0), rows.extent(1));
    const auto quantise = kBits == 8 ? NANOVLLM_PICK(best_isa(), quantise_to_8_bits<T>)
                                     : NANOVLLM_PICK(best_isa(), quantise_to_4_bits<T>);
    detail::share(context, rows.extent(0), kRowGrain, [&](std::int64_t begin, std::int64_t end) {
      auto* const codes = detail::scratch<IntMatrix, std::int8_t>(num_groups() * kIntGroup);
      auto* const scales = detail::scratch<IntMatrix, half>(num_groups());
      for (std::int64_t i = begin; i < end; ++i) {
        quantise(rows.at(i), cols_, codes, scales);
        for (std::int64_t g = 0; g < num_groups(); ++g) {
          set_group(first_row + i, g, codes + g * kIntGroup, scales[g]);
          if (shifts_.size() != 0) *shift_at(first_row + i, g) = half(0.f);
        }
      }
    });
  }

  /// Keeps the codes of stored rows as they are; scales, and offsets in units of their scale, are
  /// rounded to halves, which those of files mostly are. False, with nothing done, for codes of
  /// more bits than here, where a scale changes within 32 of these columns, and where one of these
  /// numbers is not 0 and no half is near it. Rows with offsets may not be set by several calls at
  /// once. Throws ShapeError when the rows do not fit, and what `rows` throws.
  bool set_rows(std::int64_t first_row, const IntRows& rows, const Context& context = {}) {
    check_rows(first_row, rows.rows, rows.columns);
    if (rows.bits > kBits || !rows.has_one_scale_in_each(kIntGroup)) return false;
    const std::int64_t grain = std::max<std::int64_t>(kRowGrain, rows.rows_at_once);
    std::vector<StoredGroup> groups(static_cast<std::size_t>(rows.rows * num_groups()));
    std::atomic<bool> fits = true;
    share_all(context, rows.rows, grain, [&](std::int64_t begin, std::int64_t end) {
      auto to = groups.begin() + begin * num_groups();
      for (std::int64_t i = begin; i < end && fits; ++i) {
        for (std::int64_t g = 0; g < num_groups(); ++g, ++to) {
          const auto group = StoredGroup::of(rows.group(i, g * kIntGroup));
          if (!group) fits = false;
          *to = group.value_or(StoredGroup{});
        }
      }
    });
    if (!fits) return false;
    if (rows.has_offsets && shifts_.size() == 0)
      shifts_ = AlignedBuffer<half>(num_panels() * num_groups() * kPanelRows);
    share_all(context, rows.rows, grain, [&](std::int64_t begin, std::int64_t end) {
      const auto read = rows.read;  // a copy has a state of its own
      auto* const codes = detail::scratch<IntMatrix, std::int8_t>(num_groups() * kIntGroup);
      auto group = groups.begin() + begin * num_groups();
      for (std::int64_t i = begin; i < end; ++i) {
        std::fill(codes + cols_, codes + num_groups() * kIntGroup, std::int8_t{0});
        read(i, codes);
        for (std::int64_t g = 0; g < num_groups(); ++g, ++group) {
          std::int8_t* const of_group = codes + g * kIntGroup;
          if (group->is_constant) std::fill_n(of_group, kIntGroup, std::int8_t{0});
          set_group(first_row + i, g, of_group, group->scale);
          if (shifts_.size() != 0) *shift_at(first_row + i, g) = group->shift;
        }
      }
    });
    return true;
  }

  /// Copies row `row`, in [0, rows()), to out[0, cols()).
  template <Element Out>
  void copy_row(std::int64_t row, Out* out) const {
    const half* const shift = shifts(row / kPanelRows);
    for (std::int64_t g = 0; g < num_groups(); ++g) {
      const std::uint8_t* const group = panel(row / kPanelRows) + g * kGroupBytes;
      const auto lane = row % kPanelRows;
      half scale;
      std::memcpy(&scale, group + kCodeBytes + lane * std::int64_t{sizeof(half)}, sizeof(half));
      const float by = shift == nullptr ? 0.f : static_cast<float>(shift[g * kPanelRows + lane]);
      const std::int64_t begin = g * kIntGroup, count = std::min(kIntGroup, cols_ - begin);
      for (std::int64_t c = 0; c < count; ++c) {
        const auto code = static_cast<float>(code_of(group, lane, c));
        out[begin + c] = Out(static_cast<float>(scale) * (code + by));
      }
    }
  }

  /// Copies the codes of row `row`, in [0, rows()), to codes[0, cols()), and its scales to
  /// scales[0, num_groups()): the row itself where there are no shifts.
  void copy_codes(std::int64_t row, std::int8_t* codes, half* scales) const {
    const auto lane = row % kPanelRows;
    for (std::int64_t g = 0; g < num_groups(); ++g) {
      const std::uint8_t* const group = panel(row / kPanelRows) + g * kGroupBytes;
      std::memcpy(scales + g, group + kCodeBytes + lane * std::int64_t{sizeof(half)}, sizeof(half));
      const std::int64_t begin = g * kIntGroup, count = std::min(kIntGroup, cols_ - begin);
      for (std::int64_t c = 0; c < count; ++c)
        codes[begin + c] = static_cast<std::int8_t>(code_of(group, lane, c));
    }
  }

 private:
  /// A group of stored rows as it is kept.
  struct StoredGroup {
    half scale, shift;
    bool is_constant;  ///< all elements are the offset

    /// Nothing where a number that is not 0 would become 0, or no number.
    [[nodiscard]] static std::optional<StoredGroup> of(const IntRows::Group& group) {
      const bool is_constant = group.scale == 0.f && group.offset != 0.f;
      const float scale = is_constant ? group.offset : group.scale;
      const bool has_shift = scale != 0.f && group.offset != 0.f;
      const float shift = has_shift ? group.offset / scale : 0.f;
      const StoredGroup out{half(scale), half(shift), is_constant};
      const bool fits = std::isfinite(static_cast<float>(out.scale)) &&
                        std::isfinite(static_cast<float>(out.shift)) &&
                        (scale == 0.f) == (static_cast<float>(out.scale) == 0.f);
      return fits ? std::optional(out) : std::nullopt;
    }
  };

  static constexpr std::int64_t kWord = 4;                   ///< columns that lie together
  static constexpr std::int64_t kLine = kPanelRows * kWord;  ///< bytes from a word to the next

  /// `share` with a body that may throw: the first exception is thrown when all have ended.
  template <class Body>
  static void share_all(const Context& context, std::int64_t count, std::int64_t grain,
                        const Body& body) {
    std::mutex mutex;
    std::exception_ptr error;
    detail::share(context, count, grain, [&](std::int64_t begin, std::int64_t end) {
      try {
        body(begin, end);
      } catch (...) {
        const std::lock_guard lock(mutex);
        error = std::current_exception();
      }
    });
    if (error) std::rethrow_exception(error);
  }

  void check_rows(std::int64_t first_row, std::int64_t rows, std::int64_t columns) const {
    check<ShapeError>(first_row >= 0 && first_row + rows <= rows_ && columns == cols_,
                      "IntMatrix: ", rows, " rows of ", columns, " at row ", first_row,
                      " do not fit a matrix [", rows_, ", ", cols_, "]");
  }

  [[nodiscard]] half* shift_at(std::int64_t row, std::int64_t group) {
    return shifts_.data() + (row / kPanelRows * num_groups() + group) * kPanelRows +
           row % kPanelRows;
  }

  /// The code of a column in [0, 32), signed.
  static int code_of(const std::uint8_t* group, std::int64_t lane, std::int64_t column) {
    const std::int64_t word = column / kWord, at = lane * kWord + column % kWord;
    if constexpr (kBits == 8) {
      return group[word * kLine + at] - kBias;
    } else {
      const int both = group[word / 2 * kLine + at];
      return (word % 2 == 0 ? both & 15 : both >> 4) - kBias;
    }
  }

  /// Writes 32 codes of one row, and their scale.
  void set_group(std::int64_t row, std::int64_t g, const std::int8_t* codes, half scale) {
    const std::int64_t lane = row % kPanelRows;
    std::uint8_t* const group = data_.data() + row / kPanelRows * panel_bytes() + g * kGroupBytes;
    std::uint8_t biased[kIntGroup];
    for (int c = 0; c < kIntGroup; ++c) biased[c] = static_cast<std::uint8_t>(codes[c] + kBias);
    std::uint8_t* to = group + lane * kWord;
    if constexpr (kBits == 8) {
      for (int c = 0; c < kIntGroup; c += kWord, to += kLine) std::memcpy(to, biased + c, kWord);
    } else {
      for (int c = 0; c < kIntGroup; c += 2 * kWord, to += kLine) {
        for (int j = 0; j < kWord; ++j)
          to[j] = static_cast<std::uint8_t>(biased[c + j] | biased[c + kWord + j] << 4);
      }
    }
    std::memcpy(group + kCodeBytes + lane * std::int64_t{sizeof(half)}, &scale, sizeof(half));
  }

  std::int64_t rows_ = 0, cols_ = 0;
  AlignedBuffer<std::uint8_t> data_;
  AlignedBuffer<half> shifts_;
};

using Int8Matrix = IntMatrix<8>;
using Int4Matrix = IntMatrix<4>;

}  // namespace nanovllm::cpu
