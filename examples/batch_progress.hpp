#pragma once
/// A line on a terminal that says how far a batch is.

#include <nanovllm/core/error.hpp>
#include <nanovllm/engine/engine_config.hpp>

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>

namespace nanovllm::examples {

/// Lines of a file that are not blank. Nothing for what can be read once alone, such as a pipe.
[[nodiscard]] inline std::optional<std::size_t> count_lines(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error) || error) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  std::size_t count = 0;
  bool is_blank = true;
  for (char part[1 << 16]; file.read(part, sizeof part), file.gcount() > 0;) {
    for (std::streamsize i = 0; i < file.gcount(); ++i) {
      if (part[i] == '\n') {
        is_blank = true;
      } else if (is_blank && part[i] != ' ' && part[i] != '\t' && part[i] != '\r') {
        is_blank = false;
        ++count;
      }
    }
  }
  return count;
}

/// Shows requests that are done and under way, and tokens per second since the run began, at most
/// ten times a second. Silent unless the stream is a terminal.
class BatchProgress {
 public:
  /// @param input   the file of requests, of which a terminal is told the number.
  /// @param stream  null for none.
  explicit BatchProgress(const std::string& input, std::FILE* stream = stderr)
      : stream_(stream != nullptr && ::isatty(::fileno(stream)) == 1 ? stream : nullptr) {
    if (stream_ != nullptr) total_ = count_lines(input);
  }
  ~BatchProgress() { clear(); }
  BatchProgress(const BatchProgress&) = delete;
  BatchProgress& operator=(const BatchProgress&) = delete;

  /// After a step of `engine`.
  template <class Engine>
  void show(std::size_t num_done, std::size_t num_alive, const Engine& engine) {
    const Clock::time_point now = Clock::now();
    if (stream_ == nullptr || now - shown_ < std::chrono::milliseconds(100)) return;
    shown_ = now;
    const std::string line = describe(num_done, num_alive, engine.stats());
    std::fprintf(stream_, "\r%s\033[K", line.c_str());
    std::fflush(stream_);
    has_line_ = true;
  }

  /// Takes the line off the terminal. Returns what the end of the run is to say of time and speed:
  /// nothing unless the stream is a terminal.
  [[nodiscard]] std::string end(const EngineStats& stats) {
    clear();
    if (stream_ == nullptr) return "";
    char out[64];
    const double time = seconds();
    std::snprintf(out, sizeof out, ", %.1f s, %.0f tokens per second", time,
                  static_cast<double>(stats.num_sampled_tokens) / time);
    return out;
  }

  /// "12/100 requests, 8 under way; a second 5230 prompt tokens, 810 generated".
  [[nodiscard]] std::string describe(std::size_t num_done, std::size_t num_alive,
                                     const EngineStats& stats) const {
    char rates[96];
    const double time = seconds();
    std::snprintf(rates, sizeof rates, "; a second %.0f prompt tokens, %.0f generated",
                  static_cast<double>(stats.num_prefill_tokens) / time,
                  static_cast<double>(stats.num_sampled_tokens) / time);
    return concat(num_done, total_ ? concat('/', *total_) : "", " requests, ", num_alive,
                  " under way", rates);
  }

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(Clock::now() - begin_).count();
  }
  void clear() {
    if (!has_line_) return;
    std::fputs("\r\033[K", stream_);
    std::fflush(stream_);
    has_line_ = false;
  }

  std::FILE* stream_;
  std::optional<std::size_t> total_;
  Clock::time_point begin_ = Clock::now(), shown_{};
  bool has_line_ = false;
};

}  // namespace nanovllm::examples
