#pragma once
/// The processes of one tensor-parallel group, one rank each, on one host or several.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
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
#include "nanovllm/core/thread.hpp"
#include "nanovllm/parallel/launch_environment.hpp"
#include "nanovllm/parallel/rendezvous.hpp"
#include "nanovllm/parallel/socket.hpp"

namespace nanovllm {

/// This process's end of a group: two TCP connections between rank 0 and each of the others.
///
/// `data` carries messages, which the threads that compute send and receive themselves, one at a
/// time, in an order that both ends know. `control` carries failures: a thread of this object
/// listens there, so that a rank which waits for a message or for its device is released when
/// another rank fails or is lost. A group that has failed stays so; calls that need the others
/// throw an Error that says which rank failed first, and why.
class ProcessGroup {
 public:
  /// What a message is about.
  using Tag = detail::MessageTag;

  /// Joins the group; returns when all have joined. Throws ConfigError for a port in use or a place
  /// that makes no sense, and Error naming who has not come within `timeout`.
  explicit ProcessGroup(ProcessPlace place,
                        std::chrono::milliseconds timeout = std::chrono::seconds(60))
      : place_(std::move(place)) {
    validate(place_);
    peers_.resize(static_cast<std::size_t>(rank() == 0 ? size() : 1));
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    if (rank() > 0) {
      peers_[0] = detail::join_rank_0(place_, deadline);
    } else if (size() > 1) {
      detail::Reception(place_, peers_).run(deadline, timeout);
    }
    int ends[2];
    check(::pipe2(ends, O_CLOEXEC) == 0, "a pipe was refused: ", std::strerror(errno));
    stop_ = {detail::Socket(ends[0]), detail::Socket(ends[1])};
    watchers_ = start_threads(
        "process group", 1, [this](int) { watch(); }, [] {});
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
    for (std::thread& watcher : watchers_) watcher.join();
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
    const detail::MessageHead frame{tag, 0, head.size() + body.size()};
    if (!peer(to).data.send({detail::bytes_of(frame), head, body})) throw_gone(to);
  }

  /// Rank 0 sends to all others.
  void broadcast(Tag tag, std::span<const std::byte> head, std::span<const std::byte> body = {}) {
    for (int to = 1; to < size(); ++to) send(to, tag, head, body);
  }

  /// The next message of rank `from`, whatever it is about.
  [[nodiscard]] Tag receive(int from, std::vector<std::byte>& out) {
    detail::MessageHead frame{};
    if (!peer(from).data.receive(detail::bytes_of(frame))) throw_gone(from);
    out.resize(frame.size);
    if (!peer(from).data.receive(out)) throw_gone(from);
    return frame.tag;
  }

  /// The next message of rank `from`, which must be about `tag` and as long as `out`.
  void receive(int from, Tag tag, std::span<std::byte> out) {
    detail::MessageHead frame{};
    if (!peer(from).data.receive(detail::bytes_of(frame))) throw_gone(from);
    check(frame.tag != Tag::end, "rank ", from, " has ended what the group was doing");
    check(frame.tag == tag && frame.size == out.size(), "rank ", from, " sent ", frame.size,
          " bytes about ", static_cast<int>(frame.tag), " where ", out.size(), " about ",
          static_cast<int>(tag), " were expected; do all ranks run the same program?");
    if (!peer(from).data.receive(out)) throw_gone(from);
  }

  /// Waits for a message of rank `from`, negative milliseconds without limit. Returns whether there
  /// is one, or the end of them.
  [[nodiscard]] bool wait_for_message(int from, int milliseconds) {
    return peer(from).data.wait_readable(milliseconds);
  }

  /// All ranks call this: everybody's bytes become rank 0's.
  void share(std::span<std::byte> bytes) {
    if (rank() == 0) return broadcast(Tag::exchange, bytes);
    receive(0, Tag::exchange, bytes);
  }

  /// All ranks call this and get the least of the values they brought. It returns on no rank before
  /// every rank has called it.
  [[nodiscard]] std::int64_t minimum(std::int64_t value) {
    if (rank() != 0) send(0, Tag::exchange, detail::bytes_of(value));
    for (int from = 1; rank() == 0 && from < size(); ++from) {
      std::int64_t other = 0;
      receive(from, Tag::exchange, detail::bytes_of(other));
      value = std::min(value, other);
    }
    share(detail::bytes_of(value));
    return value;
  }

  // ---- Failures. From any thread. ----

  /// This rank cannot continue. Everybody's pending and later calls throw; the first failure
  /// counts.
  void fail(const std::string& reason) { fail_with(concat("rank ", rank(), ": ", reason)); }

  /// Throws Error when the group has failed.
  void check_alive() const {
    const std::lock_guard lock(mutex_);
    check(reason_.empty(), reason_);
  }

  /// `release` is called once when the group fails, on any thread; it must end what this rank waits
  /// for outside the group. What it throws is dropped. While one is set, ranks that leave are
  /// failures on rank 0. An empty one unsets it; no call is in progress afterwards.
  void on_failure(std::function<void()> release) {
    const std::lock_guard lock(release_mutex_);
    release_ = std::move(release);
  }

 private:
  [[nodiscard]] detail::Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }

  void tell_all(Tag tag, const std::string& text) {
    for (const detail::Peer& peer : peers_)
      static_cast<void>(detail::tell(peer.control, tag, text));
  }

  void watch();
  void listen_to(int other);
  void fail_with(const std::string& reason);
  [[noreturn]] void throw_gone(int other);

  ProcessPlace place_;
  std::vector<detail::Peer> peers_;  // by rank; those of other ranks than 0 have rank 0 alone
  std::pair<detail::Socket, detail::Socket> stop_;  // a pipe: written to, it ends the watcher
  std::vector<std::thread> watchers_;               // one

  mutable std::mutex mutex_;  // guards `reason_`, `left` of the peers, and sending on `control`
  std::condition_variable changed_;
  std::string reason_;  // of the failure, or empty

  std::mutex release_mutex_;  // held during the call
  std::function<void()> release_;
};

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
  const auto message = detail::hear(peer(other).control);
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

/// Remembers the first failure, tells the other ranks, and releases the threads that wait here.
inline void ProcessGroup::fail_with(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (!reason_.empty()) return;
    reason_ = reason;
    tell_all(Tag::error, reason);
  }
  changed_.notify_all();
  for (const detail::Peer& peer : peers_) peer.data.shut_down();
  const std::lock_guard lock(release_mutex_);
  try {
    if (release_) release_();
  } catch (...) {  // the watcher's thread continues; the failure itself is known
  }
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
