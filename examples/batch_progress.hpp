#pragma once
/// A bar on a terminal that says how far a batch is.

#include <nanovllm/core/error.hpp>
#include <nanovllm/engine/engine_config.hpp>
#include <nanovllm/engine/request/progress.hpp>

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

/// Shows requests that are done and under way, and tokens per second since the run began. Silent as
/// a ProgressLine.
class BatchProgress {
 public:
  /// @param input   the file of requests, of which a terminal is told the number.
  /// @param stream  null for none.
  explicit BatchProgress(const std::string& input, std::FILE* stream = stderr) : line_(stream) {
    if (line_.is_shown()) total_ = count_lines(input);
  }

  /// After a step of `engine`.
  template <class Engine>
  void show(std::size_t num_done, std::size_t num_alive, const Engine& engine) {
    if (!line_.is_due()) return;
    std::optional<double> share;
    if (total_ && *total_ > 0) share = static_cast<double>(num_done) / static_cast<double>(*total_);
    line_.show("", share, describe(num_done, num_alive, engine.stats()));
  }

  /// Takes the line off the terminal. Returns what the end of the run is to say of time and speed:
  /// nothing where no bar is shown.
  [[nodiscard]] std::string end(const EngineStats& stats) {
    line_.clear();
    if (!line_.is_shown()) return "";
    char out[64];
    const double time = seconds();
    std::snprintf(out, sizeof out, ", %.1f s, %.0f tokens per second", time,
                  static_cast<double>(stats.num_sampled_tokens) / time);
    return out;
  }

  /// "12/100 requests, 8 under way; tokens a second: 5230 in, 810 out".
  [[nodiscard]] std::string describe(std::size_t num_done, std::size_t num_alive,
                                     const EngineStats& stats) const {
    char rates[96];
    const double time = seconds();
    std::snprintf(rates, sizeof rates, "; tokens a second: %.0f in, %.0f out",
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

  ProgressLine line_;
  std::optional<std::size_t> total_;
  Clock::time_point begin_ = Clock::now();
};

}  // namespace nanovllm::examples
