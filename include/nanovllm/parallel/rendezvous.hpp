#pragma once
/// How the processes of a group find each other: rank 0 listens, the others connect and greet.

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/parallel/launch_environment.hpp"
#include "nanovllm/parallel/socket.hpp"

namespace nanovllm::detail {

/// What a message is about.
enum class MessageTag : std::uint32_t {
  hello,
  welcome,
  error,
  bye,
  exchange,
  reduce,
  step,
  sample,
  logits,
  end
};

/// What a message begins with.
struct MessageHead {
  MessageTag tag;
  std::uint32_t unused;
  std::uint64_t size;  ///< of what follows, in bytes
};

/// The connections to another rank.
struct Peer {
  Socket control;
  Socket data;
  bool left = false;  ///< has said goodbye
};

template <class T>
[[nodiscard]] std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <class T>
[[nodiscard]] std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

/// Sends a message on a control connection, if there is one. Returns false when that is gone.
inline bool tell(const Socket& control, MessageTag tag, const std::string& text) {
  const MessageHead head{tag, 0, text.size()};
  return control.fd() < 0 || control.send({bytes_of(head), std::as_bytes(std::span(text)), {}});
}

/// A message of a control connection, or nothing at its end or, if there is one, the deadline.
template <class... Deadline>
[[nodiscard]] std::optional<std::pair<MessageTag, std::string>> hear(const Socket& control,
                                                                     Deadline... deadline) {
  MessageHead head{};
  if (!control.receive(bytes_of(head), deadline...) || head.size > 1 << 20) return std::nullopt;
  std::string text(head.size, '\0');
  if (!control.receive(std::as_writable_bytes(std::span(text)), deadline...)) return std::nullopt;
  return std::pair(head.tag, std::move(text));
}

/// What a process says first on each of its connections.
struct Greeting {
  static constexpr std::uint64_t kMagic = 0x6e616e6f'766c6c31;  ///< also tells the byte order

  std::uint64_t magic;
  std::int32_t rank;
  std::int32_t size;
  std::int32_t is_data;
  std::int32_t unused;
};

/// Someone at rank 0's port who has not greeted yet.
struct Caller {
  Socket socket;
  SteadyTime deadline;
  Greeting greeting{};
  std::size_t num_read = 0;

  /// Reads on, without waiting. Returns false for one who is gone or no rank.
  [[nodiscard]] bool read() {
    const auto got = socket.receive_some(bytes_of(greeting).subspan(num_read));
    if (!got) return false;
    num_read += *got;
    return num_read < sizeof(greeting.magic) || greeting.magic == Greeting::kMagic;
  }
  [[nodiscard]] bool is_complete() const { return num_read == sizeof(greeting); }
};

/// Rank 0's part. Every connection has a few seconds to greet as a rank does, while the others are
/// served; one that does not is a stranger's and dropped, and so is the oldest of more than are to
/// be expected.
class Reception {
 public:
  Reception(const ProcessPlace& place, std::vector<Peer>& peers)
      : place_(place), peers_(peers), listener_(Socket::listen(place.host, place.port)) {}

  /// Accepts connections until both of every other rank are made. Throws Error, here and on those
  /// who came, naming who has not come within `timeout` or does not fit.
  void run(SteadyTime deadline, std::chrono::milliseconds timeout) {
    std::string problem;
    for (int num_missing = 2 * (place_.size - 1); num_missing > 0 && problem.empty();) {
      const auto now = std::chrono::steady_clock::now();
      if (now >= deadline) {
        problem = describe_missing(timeout);
        break;
      }
      while (!callers_.empty() && callers_.front().deadline <= now) callers_.pop_front();
      wait(deadline);
      std::erase_if(callers_, [&](Caller& caller) {
        if (!problem.empty() || !caller.read()) return true;
        if (!caller.is_complete()) return false;
        problem = greet(std::move(caller.socket), caller.greeting);
        --num_missing;
        return true;
      });
      take_callers();
    }
    for (const Peer& peer : peers_) {
      static_cast<void>(
          tell(peer.control, problem.empty() ? MessageTag::welcome : MessageTag::error, problem));
    }
    check(problem.empty(), problem);
  }

 private:
  static constexpr std::chrono::seconds kGreetingTime{5};

  /// Waits for a connection or data, or the first deadline.
  void wait(SteadyTime deadline) const {
    std::vector<pollfd> entries{{.fd = listener_.fd(), .events = POLLIN, .revents = 0}};
    for (const Caller& caller : callers_)
      entries.push_back({.fd = caller.socket.fd(), .events = POLLIN, .revents = 0});
    if (!callers_.empty()) deadline = std::min(deadline, callers_.front().deadline);
    static_cast<void>(::poll(entries.data(), entries.size(), milliseconds_until(deadline)));
  }

  void take_callers() {
    errno = 0;
    while (std::optional<Socket> socket = listener_.accept()) {
      callers_.push_back({*std::move(socket), std::chrono::steady_clock::now() + kGreetingTime});
      if (callers_.size() <= 64 + 2 * peers_.size()) continue;
      callers_.pop_front();
      return;  // those who are left are heard before more are let in
    }
    if (errno != EMFILE && errno != ENFILE) return;
    // Strangers hold all descriptors that this process may have; or others do, which may pass.
    if (!callers_.empty()) return callers_.pop_front();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }

  /// Takes one connection in, or returns why not.
  [[nodiscard]] std::string greet(Socket socket, const Greeting& greeting) {
    std::string problem;
    if (greeting.size != place_.size) {
      problem = concat("rank ", greeting.rank, " was started as one of ", greeting.size,
                       " processes, rank 0 as one of ", place_.size);
    } else if (greeting.rank < 1 || greeting.rank >= place_.size) {
      problem = concat("a process came as rank ", greeting.rank, " of ", place_.size);
    } else {
      Peer& peer = peers_[static_cast<std::size_t>(greeting.rank)];
      Socket& place = greeting.is_data ? peer.data : peer.control;
      if (place.fd() < 0) {
        place = std::move(socket);
        static_cast<void>(tell(place, MessageTag::hello, {}));
        return {};
      }
      problem = concat("two processes came as rank ", greeting.rank);
    }
    static_cast<void>(tell(socket, MessageTag::error, problem));
    return problem;
  }

  [[nodiscard]] std::string describe_missing(std::chrono::milliseconds timeout) const {
    std::string out;
    for (int rank = 1; rank < place_.size; ++rank) {
      if (peers_[static_cast<std::size_t>(rank)].data.fd() >= 0) continue;
      out += concat(out.empty() ? "rank " : ", ", rank);
    }
    return out + concat(" of ", place_.size, " did not come within ",
                        std::chrono::duration_cast<std::chrono::seconds>(timeout).count(), " s to ",
                        place_.host, ":", place_.port);
  }

  const ProcessPlace& place_;
  std::vector<Peer>& peers_;  // by rank
  Socket listener_;
  std::deque<Caller> callers_;  // in the order of their coming, which is that of their deadlines
};

/// One connection with rank 0, greeted and answered. One that rank 0 drops, as it may among many
/// strangers, is made again. Throws Error when rank 0 is not there, does not answer or does not
/// want this rank.
[[nodiscard]] inline Socket call_rank_0(const ProcessPlace& place, bool is_data,
                                        SteadyTime deadline, SteadyTime patience) {
  const Greeting greeting{Greeting::kMagic, place.rank, place.size, is_data, 0};
  while (true) {
    Socket socket = Socket::connect(place.host, place.port, deadline);
    static_cast<void>(socket.send({bytes_of(greeting), {}, {}}));
    if (const auto answer = hear(socket, patience)) {
      check(answer->first == MessageTag::hello, answer->second);
      return socket;
    }
    check(std::chrono::steady_clock::now() < deadline, "rank 0 at ", place.host, ":", place.port,
          " did not answer rank ", place.rank, " of ", place.size);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

/// Another rank's part: both connections with rank 0, and its word that all ranks are there. Throws
/// Error as `call_rank_0`.
[[nodiscard]] inline Peer join_rank_0(const ProcessPlace& place, SteadyTime deadline) {
  // Rank 0 may wait for the others for any time, but it should be there by now.
  const auto patience = deadline + std::chrono::seconds(5);
  Peer out;
  out.control = call_rank_0(place, false, deadline, patience);
  out.data = call_rank_0(place, true, deadline, patience);
  const auto answer = hear(out.control, patience);
  check(answer.has_value(), "rank 0 at ", place.host, ":", place.port, " did not answer rank ",
        place.rank, " of ", place.size);
  check(answer->first == MessageTag::welcome, answer->second);
  return out;
}

}  // namespace nanovllm::detail
