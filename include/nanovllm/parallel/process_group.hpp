#pragma once
/// The processes of one tensor-parallel group, one rank each, on one host or several.

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/parallel/launch_environment.hpp"
#include "nanovllm/parallel/socket.hpp"

namespace nanovllm {

/// This process's end of a group: two TCP connections between rank 0 and each of the others.
///
/// `data` carries messages, which the threads that compute send and receive themselves, one at a
/// time, in an order that both ends know. `control` carries failures: a thread of this object
/// listens there, so that whoever waits, be it for a message or for a device, is released when
/// another rank fails or is lost. A group that has failed stays so; calls that need the others
/// throw an Error that says which rank failed first, and why.
class ProcessGroup {
 public:
  /// What a message is about.
  enum class Tag : std::uint32_t {
    hello,
    welcome,
    error,
    bye,
    exchange,
    reduce,
    step,
    logits,
    end
  };

  /// Joins the group; returns when all are there. Throws ConfigError for a port in use or a place
  /// that makes no sense, and Error naming who has not come within `timeout`.
  explicit ProcessGroup(ProcessPlace place,
                        std::chrono::milliseconds timeout = std::chrono::seconds(60))
      : place_(std::move(place)) {
    validate(place_);
    peers_.resize(static_cast<std::size_t>(rank() == 0 ? size() : 1));
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    if (rank() > 0) {
      join(deadline);
    } else if (size() > 1) {
      accept_all(deadline, timeout);
    }
    int ends[2];
    check(::pipe2(ends, O_CLOEXEC) == 0, "a pipe was refused: ", std::strerror(errno));
    stop_ = {detail::Socket(ends[0]), detail::Socket(ends[1])};
    watcher_ = std::thread([this] { watch(); });
  }

  /// The group that a launcher describes in the environment, see `place_from_environment`, or null
  /// when there is none.
  static std::shared_ptr<ProcessGroup> from_environment(
      std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
    std::optional<ProcessPlace> place = place_from_environment();
    return place ? std::make_shared<ProcessGroup>(*std::move(place), timeout) : nullptr;
  }

  /// Says goodbye to the others.
  ~ProcessGroup() {
    {
      const std::lock_guard lock(mutex_);
      tell_all(Tag::bye, {});
    }
    static_cast<void>(::write(stop_.second.fd(), "", 1));
    watcher_.join();
  }

  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  [[nodiscard]] int rank() const { return place_.rank; }
  [[nodiscard]] int size() const { return place_.size; }
  [[nodiscard]] const ProcessPlace& place() const { return place_; }

  // ---- Messages. Throw Error when the group has failed. ----

  /// Rank 0 sends to any rank, the others to rank 0.
  void send(int to, Tag tag, std::span<const std::byte> head,
            std::span<const std::byte> body = {}) {
    const Head frame{tag, 0, head.size() + body.size()};
    if (!peer(to).data.send({bytes_of(frame), head, body})) throw_gone(to);
  }

  /// Rank 0 sends to all others.
  void broadcast(Tag tag, std::span<const std::byte> head, std::span<const std::byte> body = {}) {
    for (int to = 1; to < size(); ++to) send(to, tag, head, body);
  }

  /// The next message of rank `from`, whatever it is about.
  [[nodiscard]] Tag receive(int from, std::vector<std::byte>& out) {
    Head frame{};
    if (!peer(from).data.receive(bytes_of(frame))) throw_gone(from);
    out.resize(frame.size);
    if (!peer(from).data.receive(out)) throw_gone(from);
    return frame.tag;
  }

  /// The next message of rank `from`, which must be about `tag` and as long as `out`.
  void receive(int from, Tag tag, std::span<std::byte> out) {
    Head frame{};
    if (!peer(from).data.receive(bytes_of(frame))) throw_gone(from);
    check(frame.tag != Tag::end, "rank ", from, " has ended what the group was doing");
    check(frame.tag == tag && frame.size == out.size(), "rank ", from, " sent ", frame.size,
          " bytes about ", static_cast<int>(frame.tag), " where ", out.size(), " about ",
          static_cast<int>(tag), " were expected; do all ranks run the same program?");
    if (!peer(from).data.receive(out)) throw_gone(from);
  }

  /// Waits for a message of rank `from`, negative milliseconds for ever. Returns whether there is
  /// one, or the end of them.
  [[nodiscard]] bool wait_for_message(int from, int milliseconds) {
    return peer(from).data.wait_readable(milliseconds);
  }

  /// All ranks call this: everybody's bytes become rank 0's.
  void share(std::span<std::byte> bytes) {
    if (rank() == 0) return broadcast(Tag::exchange, bytes);
    receive(0, Tag::exchange, bytes);
  }

  /// All ranks call this and get the least of the values they brought. Nobody returns before all
  /// have called.
  [[nodiscard]] std::int64_t minimum(std::int64_t value) {
    if (rank() != 0) send(0, Tag::exchange, bytes_of(value));
    for (int from = 1; rank() == 0 && from < size(); ++from) {
      std::int64_t other = 0;
      receive(from, Tag::exchange, bytes_of(other));
      value = std::min(value, other);
    }
    share(bytes_of(value));
    return value;
  }

  // ---- Failures. From any thread. ----

  /// This rank cannot go on. Everybody's pending and later calls throw; the first failure counts.
  void fail(const std::string& reason) { fail_with(concat("rank ", rank(), ": ", reason)); }

  /// Throws Error when the group has failed.
  void check_alive() const {
    const std::lock_guard lock(mutex_);
    check(reason_.empty(), reason_);
  }

  /// `release` is called once when the group fails, on any thread; it must end what this rank waits
  /// for outside the group. While one is set, ranks that leave are failures on rank 0. An empty one
  /// unsets it; no call is in progress afterwards.
  void on_failure(std::function<void()> release) {
    const std::lock_guard lock(release_mutex_);
    release_ = std::move(release);
  }

 private:
  struct Head {
    Tag tag;
    std::uint32_t unused;
    std::uint64_t size;  ///< of what follows, in bytes
  };
  static constexpr std::uint64_t kMagic = 0x6e616e6f'766c6c31;  ///< also tells the byte order
  struct Hello {
    std::uint64_t magic;
    std::int32_t rank;
    std::int32_t size;
    std::int32_t is_data;
    std::int32_t unused;
  };
  struct Peer {
    detail::Socket control;
    detail::Socket data;
    bool left = false;  ///< has said goodbye
  };

  template <class T>
  static std::span<const std::byte> bytes_of(const T& value) {
    return std::as_bytes(std::span(&value, 1));
  }
  template <class T>
  static std::span<std::byte> bytes_of(T& value) {
    return std::as_writable_bytes(std::span(&value, 1));
  }

  [[nodiscard]] Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }

  static bool tell(const detail::Socket& control, Tag tag, const std::string& text) {
    const Head head{tag, 0, text.size()};
    return control.fd() < 0 || control.send({bytes_of(head), std::as_bytes(std::span(text)), {}});
  }
  void tell_all(Tag tag, const std::string& text) {
    for (const Peer& peer : peers_) static_cast<void>(tell(peer.control, tag, text));
  }

  /// A message of the control connection, or nothing at its end.
  static std::optional<std::pair<Tag, std::string>> hear(const detail::Socket& control) {
    Head head{};
    if (!control.receive(bytes_of(head)) || head.size > 1 << 20) return std::nullopt;
    std::string text(head.size, '\0');
    if (!control.receive(std::as_writable_bytes(std::span(text)))) return std::nullopt;
    return std::pair(head.tag, std::move(text));
  }

  void accept_all(detail::SteadyTime deadline, std::chrono::milliseconds timeout);
  [[nodiscard]] std::string greet(detail::Socket socket, const Hello& hello);
  void join(detail::SteadyTime deadline);

  void watch();
  void listen_to(int other);
  void fail_with(const std::string& reason);
  [[noreturn]] void throw_gone(int other);

  ProcessPlace place_;
  std::vector<Peer> peers_;  // by rank; those of other ranks than 0 have rank 0 alone
  std::pair<detail::Socket, detail::Socket> stop_;  // a pipe: written to, it ends the watcher
  std::thread watcher_;

  mutable std::mutex mutex_;  // guards `reason_`, `left` of the peers, and sending on `control`
  std::condition_variable changed_;
  std::string reason_;  // of the failure, or empty

  std::mutex release_mutex_;  // held during the call
  std::function<void()> release_;
};

/// Rank 0: takes connections until both of every other rank are there. Who does not greet as a rank
/// does is a stranger and sent away.
inline void ProcessGroup::accept_all(detail::SteadyTime deadline,
                                     std::chrono::milliseconds timeout) {
  const detail::Socket listener = detail::Socket::listen(place_.host, place_.port);
  std::string problem;
  for (int num_missing = 2 * (size() - 1); num_missing > 0 && problem.empty();) {
    std::optional<detail::Socket> socket = listener.accept(deadline);
    Hello hello{};
    if (socket && socket->wait_readable(std::min(5000, detail::milliseconds_until(deadline))) &&
        socket->receive(bytes_of(hello)) && hello.magic == kMagic) {
      problem = greet(*std::move(socket), hello);
      --num_missing;
    } else if (std::chrono::steady_clock::now() >= deadline) {
      for (int other = 1; other < size(); ++other) {
        if (peer(other).data.fd() >= 0) continue;
        problem += concat(problem.empty() ? "rank " : ", ", other);
      }
      problem += concat(" of ", size(), " did not come within ",
                        std::chrono::duration_cast<std::chrono::seconds>(timeout).count(), " s to ",
                        place_.host, ":", place_.port);
    }
  }
  tell_all(problem.empty() ? Tag::welcome : Tag::error, problem);
  check(problem.empty(), problem);
}

/// Takes one connection in, or returns why not.
inline std::string ProcessGroup::greet(detail::Socket socket, const Hello& hello) {
  std::string problem;
  if (hello.size != size()) {
    problem = concat("rank ", hello.rank, " was started as one of ", hello.size,
                     " processes, rank 0 as one of ", size());
  } else if (hello.rank < 1 || hello.rank >= size()) {
    problem = concat("a process came as rank ", hello.rank, " of ", size());
  } else {
    detail::Socket& place = hello.is_data ? peer(hello.rank).data : peer(hello.rank).control;
    if (place.fd() < 0) {
      place = std::move(socket);
      if (!hello.is_data) static_cast<void>(tell(place, Tag::hello, {}));
      return {};
    }
    problem = concat("two processes came as rank ", hello.rank);
  }
  if (!hello.is_data) static_cast<void>(tell(socket, Tag::error, problem));
  return problem;
}

inline void ProcessGroup::join(detail::SteadyTime deadline) {
  // Rank 0 waits for the others as long as it likes, but it should be there by now.
  const auto patience = deadline + std::chrono::seconds(5);
  const auto expect = [&](Tag tag) {
    std::optional<std::pair<Tag, std::string>> answer;
    if (peer(0).control.wait_readable(detail::milliseconds_until(patience)))
      answer = hear(peer(0).control);
    check(answer.has_value(), "rank 0 at ", place_.host, ":", place_.port, " did not answer rank ",
          rank(), " of ", size());
    check(answer->first == tag, answer->second);
  };
  for (const bool is_data : {false, true}) {
    detail::Socket& socket = is_data ? peer(0).data : peer(0).control;
    socket = detail::Socket::connect(place_.host, place_.port, deadline);
    const Hello hello{kMagic, rank(), size(), is_data, 0};
    static_cast<void>(socket.send({bytes_of(hello), {}, {}}));
    if (!is_data) expect(Tag::hello);
  }
  expect(Tag::welcome);
}

/// Listens to the control connections until the end of this object.
inline void ProcessGroup::watch() {
  for (;;) {
    std::vector<pollfd> entries{{.fd = stop_.first.fd(), .events = POLLIN, .revents = 0}};
    std::vector<int> ranks{-1};
    {
      const std::lock_guard lock(mutex_);
      for (int other = 0; other < static_cast<int>(peers_.size()); ++other) {
        if (other == rank() || peer(other).left) continue;
        entries.push_back({.fd = peer(other).control.fd(), .events = POLLIN, .revents = 0});
        ranks.push_back(other);
      }
    }
    if (::poll(entries.data(), entries.size(), -1) < 0) continue;  // a signal
    if (entries[0].revents != 0) return;
    for (std::size_t i = 1; i < entries.size(); ++i) {
      if (entries[i].revents != 0) listen_to(ranks[i]);
    }
  }
}

inline void ProcessGroup::listen_to(int other) {
  const auto message = hear(peer(other).control);
  if (message && message->first == Tag::error) return fail_with(message->second);
  if (!message) {
    fail_with(concat("rank ", other,
                     " was lost: its process ended, or the connection to its host broke"));
  }
  {
    const std::lock_guard lock(mutex_);
    peer(other).left = true;
  }
  changed_.notify_all();
  // Messages say where rank 0's part ends; another rank must not go before it.
  const bool busy = rank() == 0 && [this] {
    const std::lock_guard lock(release_mutex_);
    return release_ != nullptr;
  }();
  if (busy) fail_with(concat("rank ", other, " has left the group"));
}

/// Remembers the first failure, passes it on, and releases whoever waits.
inline void ProcessGroup::fail_with(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (!reason_.empty()) return;
    reason_ = reason;
    tell_all(Tag::error, reason);
  }
  changed_.notify_all();
  for (const Peer& peer : peers_) peer.data.shut_down();
  const std::lock_guard lock(release_mutex_);
  if (release_) release_();
}

/// The connection to another rank is gone; the control connection knows why, or will in a moment.
inline void ProcessGroup::throw_gone(int other) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::seconds(2),
                    [&] { return !reason_.empty() || peer(other).left; });
  check(reason_.empty(), reason_);
  throw Error(concat("rank ", other, peer(other).left ? " has left the group" : " was lost"));
}

}  // namespace nanovllm
