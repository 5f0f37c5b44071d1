#pragma once
/// TCP connections between the processes of a group. POSIX.

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "nanovllm/core/error.hpp"

namespace nanovllm::detail {

using SteadyTime = std::chrono::steady_clock::time_point;

/// Milliseconds from now to `deadline`, at least 0, as `poll` wants them.
[[nodiscard]] inline int milliseconds_until(SteadyTime deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000'000));
}

/// Owner of a socket, connected or listening. One thread may send while another receives.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  /// Listens on `port`: for this host alone when `host` names it so, else on all its addresses.
  /// Throws ConfigError when the port cannot be had.
  static Socket listen(const std::string& host, std::uint16_t port);

  /// Tries to connect until `deadline`; throws Error with the last reason.
  static Socket connect(const std::string& host, std::uint16_t port, SteadyTime deadline);

  /// A connection that waits at a listening socket, or nothing. Does not wait.
  [[nodiscard]] std::optional<Socket> accept() const {
    Socket out(::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC));
    if (out.fd_ < 0) return std::nullopt;  // gone again, or there is no descriptor to be had
    out.tune();
    return out;
  }

  /// Waits for something to read, or for the end of the stream. Returns whether there is any; a
  /// negative number of milliseconds waits without limit.
  [[nodiscard]] bool wait_readable(int milliseconds) const {
    pollfd entry{.fd = fd_, .events = POLLIN, .revents = 0};
    int ready = 0;
    do ready = ::poll(&entry, 1, milliseconds);
    while (ready < 0 && errno == EINTR);
    return ready > 0;
  }

  /// Sends the parts one after another. Returns false when the connection is gone.
  [[nodiscard]] bool send(std::array<std::span<const std::byte>, 3> parts) const {
    std::array<iovec, 3> entries{};
    for (std::size_t i = 0; i < 3; ++i)
      entries[i] = {const_cast<std::byte*>(parts[i].data()), parts[i].size()};
    msghdr message{};
    message.msg_iov = entries.data();
    message.msg_iovlen = entries.size();
    for (std::size_t left = parts[0].size() + parts[1].size() + parts[2].size(); left > 0;) {
      const ssize_t sent = ::sendmsg(fd_, &message, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) return false;
      auto n = static_cast<std::size_t>(sent);
      left -= n;
      for (iovec& entry : entries) {
        const std::size_t taken = std::min(n, entry.iov_len);
        entry.iov_base = static_cast<std::byte*>(entry.iov_base) + taken;
        entry.iov_len -= taken;
        n -= taken;
      }
    }
    return true;
  }

  /// Reads the bytes that have arrived, at most `bytes`, without waiting. Returns how much that
  /// was, or nothing when the connection is gone.
  [[nodiscard]] std::optional<std::size_t> receive_some(std::span<std::byte> bytes) const {
    const ssize_t got = ::recv(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
    return std::nullopt;
  }

  /// Fills `bytes`. Returns false when the connection is gone before, or `deadline` has come.
  [[nodiscard]] bool receive(std::span<std::byte> bytes, SteadyTime deadline) const {
    while (!bytes.empty()) {
      if (!wait_readable(milliseconds_until(deadline))) return false;
      const auto got = receive_some(bytes);
      if (!got) return false;
      bytes = bytes.subspan(*got);
    }
    return true;
  }

  /// Fills `bytes`. Returns false when the connection is gone before.
  [[nodiscard]] bool receive(std::span<std::byte> bytes) const {
    for (std::size_t done = 0; done < bytes.size();) {
      const ssize_t got = ::recv(fd_, bytes.data() + done, bytes.size() - done, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      done += static_cast<std::size_t>(got);
    }
    return true;
  }

  /// Calls that wait for this socket, and all later ones, find the connection gone.
  void shut_down() const { ::shutdown(fd_, SHUT_RDWR); }

  [[nodiscard]] int fd() const { return fd_; }

 private:
  struct FreeAddresses {
    void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
  };
  using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

  /// Throws ConfigError for a host name that does not resolve.
  static Addresses look_up(const char* host, std::uint16_t port, int flags) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags;
    addrinfo* list = nullptr;
    const int status = ::getaddrinfo(host, std::to_string(port).c_str(), &hints, &list);
    check<ConfigError>(status == 0, "host '", host == nullptr ? "" : host,
                       "': ", ::gai_strerror(status));
    return Addresses(list);
  }

  static Socket open(const addrinfo& address) {
    return Socket(
        ::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, address.ai_protocol));
  }

  /// Of this host's own name there is one address, so that both ends choose the same.
  static const char* numeric(const std::string& host) {
    return host == "localhost" ? "127.0.0.1" : host.c_str();
  }

  [[nodiscard]] int try_connect(const addrinfo& address, SteadyTime deadline);

  void set(int level, int name, int value) const {
    ::setsockopt(fd_, level, name, &value, sizeof(value));
  }

  /// Small messages go at once, and a host that vanishes is noticed within half a minute.
  void tune() const {
    set(IPPROTO_TCP, TCP_NODELAY, 1);
    set(SOL_SOCKET, SO_KEEPALIVE, 1);
#if defined(TCP_KEEPIDLE) && defined(TCP_USER_TIMEOUT)
    set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
    set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
    set(IPPROTO_TCP, TCP_KEEPCNT, 4);
    set(IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);
#endif
  }

  int fd_ = -1;
};

inline Socket Socket::listen(const std::string& host, std::uint16_t port) {
  const bool only_here = host == "localhost" || host == "127.0.0.1" || host == "::1";
  const Addresses list = look_up(only_here ? numeric(host) : nullptr, port, AI_PASSIVE);
  int reason = 0;
  // One IPv6 socket takes both kinds of connection, if there is IPv6.
  for (const int family : {AF_INET6, AF_INET}) {
    for (const addrinfo* address = list.get(); address != nullptr; address = address->ai_next) {
      if (address->ai_family != family || reason == EADDRINUSE) continue;
      Socket socket = open(*address);
      if (socket.fd_ >= 0) {
        socket.set(SOL_SOCKET, SO_REUSEADDR, 1);
        if (family == AF_INET6) socket.set(IPPROTO_IPV6, IPV6_V6ONLY, only_here ? 1 : 0);
        if (::bind(socket.fd_, address->ai_addr, address->ai_addrlen) == 0 &&
            ::listen(socket.fd_, 128) == 0) {
          ::fcntl(socket.fd_, F_SETFL, ::fcntl(socket.fd_, F_GETFL) | O_NONBLOCK);
          return socket;
        }
      }
      reason = errno;
    }
  }
  throw ConfigError(concat("rank 0 cannot listen on port ", port, " of ", host, ": ",
                           std::strerror(reason), "; choose another with MASTER_PORT"));
}

/// One attempt, which does not hold us beyond the deadline. Returns 0 or the reason.
inline int Socket::try_connect(const addrinfo& address, SteadyTime deadline) {
  const int flags = ::fcntl(fd_, F_GETFL);
  ::fcntl(fd_, F_SETFL, flags | O_NONBLOCK);
  if (::connect(fd_, address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return errno;
    pollfd entry{.fd = fd_, .events = POLLOUT, .revents = 0};
    if (::poll(&entry, 1, milliseconds_until(deadline)) <= 0) return ETIMEDOUT;
    int reason = 0;
    socklen_t size = sizeof(reason);
    ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &reason, &size);
    if (reason != 0) return reason;
  }
  // Where no process listens, TCP can connect a socket of this host with itself.
  sockaddr_storage mine{}, theirs{};
  socklen_t my_size = sizeof(mine), their_size = sizeof(theirs);
  ::getsockname(fd_, reinterpret_cast<sockaddr*>(&mine), &my_size);
  ::getpeername(fd_, reinterpret_cast<sockaddr*>(&theirs), &their_size);
  if (my_size == their_size && std::memcmp(&mine, &theirs, my_size) == 0) return ECONNREFUSED;
  ::fcntl(fd_, F_SETFL, flags);
  tune();
  return 0;
}

inline Socket Socket::connect(const std::string& host, std::uint16_t port, SteadyTime deadline) {
  for (;;) {
    const Addresses list = look_up(numeric(host), port, 0);
    int reason = 0;
    for (const addrinfo* address = list.get(); address != nullptr; address = address->ai_next) {
      Socket socket = open(*address);
      reason = socket.fd_ < 0 ? errno : socket.try_connect(*address, deadline);
      if (reason == 0) return socket;
    }
    check<Error>(std::chrono::steady_clock::now() < deadline, "rank 0 was not found at ", host, ":",
                 port, ": ", std::strerror(reason));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace nanovllm::detail
