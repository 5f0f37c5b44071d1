#pragma once
/// A run of the offline batch tool: lines are read as there is room for them, results are written
/// as they come, and no more than a window of lines is in memory at a time, however long the input.

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jsonl.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/engine/request/output.hpp"
#include "nanovllm/with/sessions.hpp"

namespace nanovllm::examples {

/// Lines of a file or a pipe, with or without waiting for them.
class LineReader {
 public:
  /// Longest line; of a longer one only so much is kept, and `Line::cut` says so.
  static constexpr std::size_t kMaxLineBytes = std::size_t{64} << 20;

  struct Line {
    std::string text;        ///< without its line end
    std::size_t number = 0;  ///< from 1
    bool cut = false;
  };

  /// Opens `path`; "-" is standard input. Throws LoadError.
  explicit LineReader(const std::string& path, std::size_t max_line_bytes = kMaxLineBytes)
      : LineReader(path == "-" ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC), path,
                   path != "-", max_line_bytes) {}
  /// Reads the descriptor `file`, which remains the caller's.
  explicit LineReader(int file, std::size_t max_line_bytes = kMaxLineBytes)
      : LineReader(file, "the input", false, max_line_bytes) {}
  ~LineReader() {
    if (owned_) ::close(file_);
  }
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  /// The next line. Nothing at the end of the input, and where `wait` is false also while the next
  /// line has not arrived in full. Throws LoadError when the input cannot be read.
  [[nodiscard]] std::optional<Line> next(bool wait) {
    while (true) {
      const std::size_t end = buffer_.find('\n', searched_);
      if (end != buffer_.npos) return take(end, end + 1);
      searched_ = buffer_.size();
      drop_excess();
      if (ended_) {
        if (buffer_.size() == begin_ && !cut_) return std::nullopt;
        return take(buffer_.size(), buffer_.size());
      }
      if (!fill(wait)) return std::nullopt;
    }
  }

  /// Whether the input has ended and all of its lines are taken.
  [[nodiscard]] bool at_end() const { return ended_ && begin_ == buffer_.size() && !cut_; }

 private:
  LineReader(int file, const std::string& path, bool owned, std::size_t max_line_bytes)
      : file_(file), owned_(owned), max_line_bytes_(max_line_bytes), path_(path) {
    check<LoadError>(file_ >= 0, "cannot read '", path_, "': ", std::strerror(errno));
  }

  Line take(std::size_t end, std::size_t next_begin) {
    Line line{buffer_.substr(begin_, std::min(end - begin_, max_line_bytes_)), ++number_,
              cut_ || end - begin_ > max_line_bytes_};
    begin_ = searched_ = next_begin;
    cut_ = false;
    return line;
  }

  /// Forgets the lines that are taken, and what a line has beyond its longest.
  void drop_excess() {
    buffer_.erase(0, begin_);
    begin_ = 0;
    if (buffer_.size() > max_line_bytes_) {
      cut_ = true;
      buffer_.resize(max_line_bytes_);
    }
    searched_ = buffer_.size();
  }

  /// Reads once. False when that would mean to wait and `wait` is false.
  bool fill(bool wait) {
    constexpr std::size_t kPart = std::size_t{64} << 10;
    pollfd poller{.fd = file_, .events = POLLIN, .revents = 0};
    if (!wait && ::poll(&poller, 1, 0) == 0) return false;
    const std::size_t size = buffer_.size();
    buffer_.resize(size + kPart);
    ssize_t count;
    do {
      count = ::read(file_, buffer_.data() + size, kPart);
    } while (count < 0 && errno == EINTR);
    buffer_.resize(size + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    check<LoadError>(count >= 0, "reading '", path_, "' failed: ", std::strerror(errno));
    ended_ = count == 0;
    return true;
  }

  int file_;
  bool owned_;
  std::size_t max_line_bytes_;
  std::string path_;
  std::string buffer_;                    // what has been read and not taken begins at begin_
  std::size_t begin_ = 0, searched_ = 0;  // there is no line end in [begin_, searched_)
  std::size_t number_ = 0;
  bool cut_ = false, ended_ = false;
};

/// Results on their way out: in the order of their numbers, or as they come.
class ResultQueue {
 public:
  explicit ResultQueue(bool in_order) : in_order_(in_order) {}

  /// The number of a new result, which is owed from now on.
  [[nodiscard]] std::size_t open() {
    ++num_owed_;
    if (in_order_) ordered_.emplace_back();
    return next_++;
  }

  void put(std::size_t number, std::string line) {
    if (in_order_) {
      ordered_[number - first_] = std::move(line);
    } else {
      ready_.push_back(std::move(line));
    }
  }

  /// Results that are owed and not written.
  [[nodiscard]] std::size_t num_owed() const { return num_owed_; }

  /// Writes what can be written. Throws Error when the stream does not take it.
  void write(std::ostream& stream) {
    const std::size_t before = num_owed_;
    for (; !ordered_.empty() && ordered_.front(); ordered_.pop_front(), ++first_, --num_owed_)
      stream << *ordered_.front();
    num_owed_ -= ready_.size();
    for (const std::string& line : ready_) stream << line;
    ready_.clear();
    if (num_owed_ == before) return;
    stream.flush();
    check(stream.good(), "writing the output failed after ", next_ - before, " lines");
  }

 private:
  bool in_order_;
  std::size_t next_ = 0, num_owed_ = 0;
  std::deque<std::optional<std::string>> ordered_;  // results first_, first_ + 1, ...
  std::size_t first_ = 0;
  std::vector<std::string> ready_;
};

/// The sessions of a run by their names. Turns of the same name follow each other, the next one
/// when the one before has ended, however that was; those of different names are served together.
template <class Session>
class BatchSessions {
 public:
  using Turn = std::function<void(Session&)>;

  /// Submits `turn` now, or when the turns before it have ended. It must see to it that `end_turn`
  /// is called when it has ended.
  template <class Engine>
  void add_turn(Engine& engine, const std::string& name, Turn turn) {
    Entry& entry = entries_[name];
    if (!entry.session) entry.session.emplace(engine);
    entry.waiting.push_back(std::move(turn));
    if (entry.waiting.size() == 1) begin_first(entry);
  }

  void end_turn(const std::string& name) {
    Entry& entry = entries_[name];
    entry.waiting.pop_front();
    if (!entry.waiting.empty()) begin_first(entry);
  }

 private:
  struct Entry {
    std::optional<Session> session;
    std::deque<Turn> waiting;  ///< the first is under way
  };

  static void begin_first(Entry& entry) {
    const Turn turn = std::move(entry.waiting.front());  // its place may go while it is called
    turn(*entry.session);
  }

  std::map<std::string, Entry> entries_;
};

/// The seed of the request of line `number`, from 0, in a run with `seed`. It depends on nothing
/// else: not on the lines before it, nor on when the turns of a session end.
[[nodiscard]] inline std::uint64_t seed_of(std::uint64_t seed, std::size_t number) {
  const std::uint64_t place = number + 1;
  const auto words = philox4x32(
      seed, {static_cast<std::uint32_t>(place), static_cast<std::uint32_t>(place >> 32), 0, 1});
  return std::uint64_t{words[0]} << 32 | words[1];
}

struct BatchCounts {
  std::size_t lines = 0;   ///< that are not blank
  std::size_t errors = 0;  ///< of them
};

/// Serves the lines of `input` and writes a result for each that is not blank. At most `window` of
/// them are read and not written at any time. Waits for input only while no request is alive, so
/// results are written as soon as they are ready, whether or not the input continues.
///
/// A bad line costs that line alone; if it has no usable id, its error begins with its number. A
/// turn of a session that fails leaves the conversation as it was for the next.
/// @param seed     of requests without their own, see `seed_of`; unset: as the engine gives them.
/// @param on_step  is called after every step with the requests that are done and those under way.
/// @tparam Session  of the engine.
template <class Session = nanovllm::Session, class Engine>
BatchCounts serve_batch(Engine& engine, LineReader& input, std::ostream& output, bool in_order,
                        std::size_t window, std::optional<std::uint64_t> seed = {},
                        const std::function<void(std::size_t, std::size_t)>& on_step = {}) {
  struct State {
    ResultQueue results;
    std::size_t num_alive = 0;
    BatchCounts counts{};
    BatchSessions<Session> sessions{};

    void fail(std::size_t number, const Json& id, const std::string& error) {
      ++counts.errors;
      results.put(number, error_line(id, error));
    }
  };
  // The engine may call back after a failure here.
  const auto state = std::make_shared<State>(State{ResultQueue(in_order)});
  const auto submit = [&](const LineReader::Line& read) {
    std::optional<BatchLine> line = parse_batch_line(read.text);
    if (read.cut) {
      line = BatchLine{};
      line->error = concat("the line is longer than ", read.text.size(), " bytes");
    }
    if (!line) return;  // blank
    const std::size_t number = state->results.open();
    ++state->counts.lines;
    if (!line->request) {
      if (line->id.is_null()) line->error = concat("line ", read.number, ": ", line->error);
      return state->fail(number, line->id, line->error);
    }
    if (seed && !line->request->sampling.seed)
      line->request->sampling.seed = seed_of(*seed, number);
    // Submits to an engine or a session; `done` is called at the end, whatever it is.
    const auto serve = [state, number, id = line->id, request = *line->request](
                           auto& server, const std::function<void()>& done) {
      const bool with_logprobs = request.sampling.logprobs.has_value();
      try {
        server.submit(request.prompt, request.sampling,
                      [state, number, id, with_logprobs, done](const TokenEvent& event) {
                        if (!event.output) return;
                        --state->num_alive;
                        if (!event.output->error.empty()) ++state->counts.errors;
                        state->results.put(number, result_line(id, *event.output, with_logprobs));
                        done();
                      });
      } catch (const RequestError& error) {
        --state->num_alive;
        state->fail(number, id, error.what());
        done();
      }
    };
    ++state->num_alive;
    const std::string name = line->request->session;
    if (name.empty()) return serve(engine, [] {});
    state->sessions.add_turn(engine, name, [state, serve, name](auto& session) {
      serve(session, [state, name] { state->sessions.end_turn(name); });
    });
  };
  while (!input.at_end() || state->num_alive > 0) {
    while (state->results.num_owed() < window) {
      const std::optional<LineReader::Line> line = input.next(state->num_alive == 0);
      if (!line) break;
      submit(*line);
      state->results.write(output);
    }
    if (state->num_alive > 0) {
      const bool moved = engine.step();
      check(moved || state->num_alive == 0, "the engine rests with ", state->num_alive,
            " requests not answered");
      if (on_step) on_step(state->counts.lines - state->num_alive, state->num_alive);
    }
    state->results.write(output);
  }
  return state->counts;
}

}  // namespace nanovllm::examples
