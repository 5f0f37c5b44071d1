#pragma once
/// What the engine reports while it loads and generates, and lines on a terminal that show it.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "nanovllm/core/separate.hpp"

namespace nanovllm {

/// How far the start-up is: the loading of weights, and on devices the stages after it.
struct LoadProgress {
  std::uint64_t bytes_done = 0;
  std::uint64_t bytes_total = 0;
  const char* stage = "loading weights";  ///< what has begun; bytes are those of the weights
};

/// How far a call of `generate` is. Rates are averages over the call.
struct GenerateProgress {
  std::int64_t num_finished = 0;  ///< requests
  std::int64_t num_requests = 0;
  double prefill_tokens_per_second = 0;
  double decode_tokens_per_second = 0;  ///< generated: no guesses that were refused
};

using LoadCallback = std::function<void(const LoadProgress&)>;
using GenerateCallback = std::function<void(const GenerateProgress&)>;
using WarningCallback = std::function<void(std::string_view)>;

/// A bar: "loading weights [#####     ] 50% of 1.2 GB".
/// @param share    of it that is done; unset: there is no bar, as where there is no room for one.
/// @param columns  the line is cut to so many characters.
/// @param colours  the part that is done is green.
[[nodiscard]] std::string progress_bar(std::string_view label, std::optional<double> share,
                                       std::string_view text, std::size_t columns, bool colours);

/// A line on a terminal that is written over again and again, and taken off in the end. Silent
/// where the stream is null, no terminal, or one that cannot take a line back: TERM is unset or
/// "dumb". Without colours where NO_COLOR is set and not empty.
class ProgressLine {
 public:
  explicit ProgressLine(std::FILE* stream = stderr);
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Whether anything is ever shown.
  [[nodiscard]] bool is_shown() const { return stream_ != nullptr; }
  /// Whether `show` would show a bar that is not done yet: a tenth of a second after the last.
  [[nodiscard]] bool is_due() const;
  /// Shows a `progress_bar`, if it is due or done.
  void show(std::string_view label, std::optional<double> share, std::string_view text);
  /// Takes the line off.
  void clear();
  /// Leaves the line where it is: the next is below it.
  void keep();

 private:
  std::FILE* stream_;  ///< null: silent
  bool colours_ = false, has_line_ = false;
  std::chrono::steady_clock::time_point shown_{};
};

/// Shows loading as a bar on `stream`, for checkpoints of at least `min_bytes`, and the stages
/// after it as lines. Silent as a ProgressLine.
[[nodiscard]] LoadCallback load_progress_line(std::FILE* stream = stderr,
                                              std::uint64_t min_bytes = 0);

/// Shows generation as a bar on `stream`, which stays there in the end. Silent as a ProgressLine.
[[nodiscard]] GenerateCallback generate_progress_line(std::FILE* stream = stderr);

/// Writes each warning to `stream`, as a line that begins with "warning: ".
[[nodiscard]] WarningCallback warning_lines(std::FILE* stream = stderr);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

#include <sys/ioctl.h>
#include <unistd.h>

namespace nanovllm {

NANOVLLM_INLINE std::string progress_bar(std::string_view label, std::optional<double> share,
                                         std::string_view text, std::size_t columns, bool colours) {
  constexpr std::size_t kMost = 30, kLeast = 5, kFrame = 4;  // "[", "]" and a space on each side
  const std::size_t taken = label.size() + text.size() + kFrame;
  const std::size_t width = columns > taken ? std::min(kMost, columns - taken) : 0;
  std::string out(label);
  if (!share || width < kLeast) {
    if (!out.empty()) out += ' ';
    return out.append(text).substr(0, columns);
  }
  const auto filled =
      static_cast<std::size_t>(std::clamp(*share, 0.0, 1.0) * static_cast<double>(width));
  if (!out.empty()) out += ' ';
  out.append("[").append(colours ? "\033[32m" : "").append(filled, '#');
  out.append(colours ? "\033[0m" : "").append(width - filled, ' ').append("] ");
  return out.append(text);
}

NANOVLLM_INLINE ProgressLine::ProgressLine(std::FILE* stream) : stream_(nullptr) {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string_view(value != nullptr ? value : "");
  };
  const std::string_view term = variable("TERM");
  if (stream == nullptr || term.empty() || term == "dumb" || isatty(fileno(stream)) != 1) return;
  stream_ = stream;
  colours_ = variable("NO_COLOR").empty();
}

NANOVLLM_INLINE bool ProgressLine::is_due() const {
  return is_shown() && std::chrono::steady_clock::now() - shown_ >= std::chrono::milliseconds(100);
}

NANOVLLM_INLINE void ProgressLine::show(std::string_view label, std::optional<double> share,
                                        std::string_view text) {
  if (!is_shown() || (share.value_or(0) < 1 && !is_due())) return;
  shown_ = std::chrono::steady_clock::now();
  winsize size{};
  const bool is_known = ioctl(fileno(stream_), TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  const std::size_t columns = is_known ? size.ws_col - std::size_t{1} : 79;  // no line's end
  std::fprintf(stream_, "\r%s\033[K", progress_bar(label, share, text, columns, colours_).c_str());
  std::fflush(stream_);
  has_line_ = true;
}

NANOVLLM_INLINE void ProgressLine::clear() {
  if (!has_line_) return;
  std::fputs("\r\033[K", stream_);
  std::fflush(stream_);
  has_line_ = false;
}

NANOVLLM_INLINE void ProgressLine::keep() {
  if (has_line_) std::fputs("\n", stream_);
  has_line_ = false;
}

NANOVLLM_INLINE LoadCallback load_progress_line(std::FILE* stream, std::uint64_t min_bytes) {
  const auto line = std::make_shared<ProgressLine>(stream);
  if (!line->is_shown()) return {};
  return [line, stream, min_bytes](const LoadProgress& p) {
    if (p.bytes_total < min_bytes || p.bytes_total == 0) return;
    if (std::string_view(p.stage) != LoadProgress{}.stage) {
      line->clear();
      std::fprintf(stream, "%s\n", p.stage);
      return;
    }
    const double bytes = static_cast<double>(p.bytes_total);
    const double share = static_cast<double>(p.bytes_done) / bytes;
    const bool is_large = p.bytes_total >= 1'000'000'000;
    std::array<char, 64> text{};
    std::snprintf(text.data(), text.size(), "%3.0f%% of %.1f %s", 100 * share,
                  bytes * (is_large ? 1e-9 : 1e-6), is_large ? "GB" : "MB");
    line->show(p.stage, share, text.data());
    if (p.bytes_done == p.bytes_total) line->clear();
  };
}

NANOVLLM_INLINE GenerateCallback generate_progress_line(std::FILE* stream) {
  const auto line = std::make_shared<ProgressLine>(stream);
  if (!line->is_shown()) return {};
  return [line](const GenerateProgress& p) {
    const bool is_done = p.num_finished == p.num_requests;
    const double share =
        is_done ? 1 : static_cast<double>(p.num_finished) / static_cast<double>(p.num_requests);
    std::array<char, 160> text{};
    std::snprintf(text.data(), text.size(), "%lld/%lld  prefill %.0f tok/s  decode %.0f tok/s",
                  static_cast<long long>(p.num_finished), static_cast<long long>(p.num_requests),
                  p.prefill_tokens_per_second, p.decode_tokens_per_second);
    line->show("generating", share, text.data());
    if (is_done) line->keep();
  };
}

NANOVLLM_INLINE WarningCallback warning_lines(std::FILE* stream) {
  return [stream](std::string_view text) {
    std::fprintf(stream, "warning: %.*s\n", static_cast<int>(text.size()), text.data());
  };
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
