#pragma once
/// Lines on standard error, written by a separate thread: a reader that has stopped reading
/// holds nothing up.

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace nanovllm::examples {

/// `text` in which nothing can be taken for another line or for a terminal's commands: bytes that
/// are not printable ASCII, and backslashes, are written as \xHH. What is longer than `most` bytes
/// is cut off.
[[nodiscard]] inline std::string escape_for_log(std::string_view text, std::size_t most = 256) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const char c : text.substr(0, most)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte > 0x1f && byte < 0x7f && c != '\\')
      out += c;
    else
      out.append("\\x").append(1, kDigits[byte >> 4]).append(1, kDigits[byte & 15]);
  }
  if (text.size() > most) out += "...";
  return out;
}

/// Any thread may write. Lines that come while `kMostBytes` wait to be written are dropped, and
/// counted in a separate line. Nothing is written while standard error takes nothing, so nobody
/// waits for a reader that has stopped.
class Log {
 public:
  static constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  /// For which the last lines may wait for a reader.
  static constexpr std::chrono::milliseconds kPatience{500};

  /// @param num_dropped  counts the lines that were dropped; must outlive this.
  explicit Log(std::atomic<std::int64_t>& num_dropped)
      : num_dropped_(num_dropped), writer_([this] { write_all(); }) {}

  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  /// Writes what waits, if anybody reads it, and ends.
  ~Log() {
    {
      const std::lock_guard lock(mutex_);
      end_ = std::chrono::steady_clock::now() + kPatience;
    }
    update_.notify_one();
    writer_.join();
  }

  /// Queues a line: the time, and `text`, which has no control characters. One that there is no
  /// memory for is dropped, too.
  void write(std::string_view text) noexcept {
    const Timestamp time = timestamp();
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.size() > kMostBytes || !append_line(waiting_, time, text)) {
        ++num_untold_;
        ++num_dropped_;
        return;
      }
    }
    update_.notify_one();
  }

  /// The same for `what`, and of `error` as much as there is memory for.
  void write(std::string_view what, const std::exception& error) noexcept {
    try {
      write(std::string(what) + ": " + escape_for_log(error.what()));
    } catch (const std::bad_alloc&) {
      write(what);
    }
  }

 private:
  using Timestamp = std::array<char, 32>;

  [[nodiscard]] static Timestamp timestamp() {
    const auto now = std::chrono::system_clock::now();
    const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
    const auto since = now.time_since_epoch();
    const auto milliseconds =
        std::chrono::duration_cast<std::chrono::milliseconds>(since).count() % 1000;
    std::tm utc{};
    Timestamp out{}, date{};
    std::strftime(date.data(), date.size(), "%Y-%m-%dT%H:%M:%S", gmtime_r(&seconds, &utc));
    std::snprintf(out.data(), out.size(), "%.19s.%03dZ", date.data(),
                  static_cast<int>(milliseconds));
    return out;
  }

  /// Returns false if there is no memory for it.
  [[nodiscard]] static bool append_line(std::string& out, const Timestamp& time,
                                        std::string_view text) noexcept {
    const std::size_t size = out.size();
    try {
      out.append(time.data()).append(" ").append(text).append("\n");
      return true;
    } catch (const std::bad_alloc&) {
      out.resize(size);
      return false;
    }
  }

  void write_all() {
    std::unique_lock lock(mutex_);
    for (;;) {
      update_.wait(lock, [this] { return end_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      std::string text = std::exchange(waiting_, {});
      if (num_untold_ != 0) {
        std::array<char, 32> line{};
        std::snprintf(line.data(), line.size(), "dropped=%lld",
                      static_cast<long long>(num_untold_));
        if (append_line(text, timestamp(), line.data())) num_untold_ = 0;
      }
      lock.unlock();
      const std::size_t num_written = write_to_stderr(text);
      num_dropped_ +=
          std::count(text.begin() + static_cast<std::ptrdiff_t>(num_written), text.end(), '\n');
      lock.lock();
    }
  }

  /// Returns how many bytes were written: all, unless this ends or nothing can be written.
  [[nodiscard]] std::size_t write_to_stderr(std::string_view text) {
    constexpr std::size_t kPiece = 4096;  // what a pipe takes at once if it takes anything
    std::size_t num_written = 0;
    while (num_written < text.size()) {
      pollfd state{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
      const int num_ready = poll(&state, 1, 50);
      if (num_ready <= 0) {
        if (is_over()) break;
        continue;
      }
      const std::string_view piece = text.substr(num_written, kPiece);
      const ssize_t count = ::write(STDERR_FILENO, piece.data(), piece.size());
      if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (count < 0) break;  // closed
      num_written += static_cast<std::size_t>(count);
    }
    return num_written;
  }

  [[nodiscard]] bool is_over() {
    const std::lock_guard lock(mutex_);
    return end_ && std::chrono::steady_clock::now() >= *end_;
  }

  std::atomic<std::int64_t>& num_dropped_;
  std::mutex mutex_;
  std::condition_variable update_;
  std::string waiting_;
  std::int64_t num_untold_ = 0;                               ///< of lines dropped
  std::optional<std::chrono::steady_clock::time_point> end_;  ///< set when it ends
  std::thread writer_;
};

}  // namespace nanovllm::examples
