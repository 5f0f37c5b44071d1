#pragma once
/// A terminal of which a test has both sides.

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <string>

#include "catch.hpp"

namespace nanovllm_test {

/// Of the kind that TERM is set to, of `columns` characters a line; 0: it does not say.
struct Terminal {
  int main_side = ::posix_openpt(O_RDWR | O_NOCTTY);
  std::FILE* stream = nullptr;

  explicit Terminal(const char* term = "xterm", unsigned short columns = 0) {
    ::setenv("TERM", term, 1);
    REQUIRE(main_side >= 0);
    REQUIRE(::grantpt(main_side) == 0);
    REQUIRE(::unlockpt(main_side) == 0);
    stream = std::fopen(::ptsname(main_side), "w");
    REQUIRE(stream != nullptr);
    const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    REQUIRE(::ioctl(main_side, TIOCSWINSZ, &size) == 0);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal() {
    std::fclose(stream);
    ::close(main_side);
  }

  /// What was written since the last call.
  std::string shown() {
    std::fflush(stream);
    std::string out;
    char part[4096];
    pollfd waiting{.fd = main_side, .events = POLLIN, .revents = 0};
    while (::poll(&waiting, 1, 30) > 0) {  // the system hands it over a little later
      const ssize_t count = ::read(main_side, part, sizeof part);
      if (count <= 0) break;
      out.append(part, static_cast<std::size_t>(count));
    }
    return out;
  }
};

}  // namespace nanovllm_test
