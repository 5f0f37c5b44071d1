#pragma once
/// Lines on standard error, written by a separate thread: a reader that has stopped reading
/// holds nothing up.

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <mutex>
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
/// counted in a separate line.
class Log {
 public:
  static constexpr std::size_t kMostBytes = std::size_t{1} << 20;

  Log() : writer_([this] { write_all(); }) {}

  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  /// Writes what waits, and ends.
  ~Log() {
    {
      const std::lock_guard lock(mutex_);
      is_closed_ = true;
    }
    update_.notify_one();
    writer_.join();
  }

  /// Queues a line: the time, and `text`, which has no control characters.
  void write(std::string_view text) {
    const std::string time = timestamp();
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.size() > kMostBytes) {
        ++num_dropped_;
        return;
      }
      waiting_.append(time).append(" ").append(text).append("\n");
    }
    update_.notify_one();
  }

 private:
  [[nodiscard]] static std::string timestamp() {
    const auto now = std::chrono::system_clock::now();
    const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
    const auto since = now.time_since_epoch();
    const auto milliseconds =
        std::chrono::duration_cast<std::chrono::milliseconds>(since).count() % 1000;
    std::tm utc{};
    std::array<char, 32> out{}, date{};
    std::strftime(date.data(), date.size(), "%Y-%m-%dT%H:%M:%S", gmtime_r(&seconds, &utc));
    std::snprintf(out.data(), out.size(), "%.19s.%03dZ", date.data(),
                  static_cast<int>(milliseconds));
    return out.data();
  }

  void write_all() {
    std::unique_lock lock(mutex_);
    for (;;) {
      update_.wait(lock, [this] { return is_closed_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      std::string text = std::exchange(waiting_, {});
      const std::int64_t num_dropped = std::exchange(num_dropped_, 0);
      lock.unlock();
      if (num_dropped != 0) text += timestamp() + " dropped=" + std::to_string(num_dropped) + "\n";
      std::fwrite(text.data(), 1, text.size(), stderr);
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable update_;
  std::string waiting_;
  std::int64_t num_dropped_ = 0;
  bool is_closed_ = false;
  std::thread writer_;
};

}  // namespace nanovllm::examples
