#pragma once
/// Groups of processes for tests: on threads of this one, or as processes of their own.

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "nanovllm/parallel/process_group.hpp"

extern char** environ;

namespace nanovllm::test {

/// A port of this host that nobody listens on.
inline std::uint16_t free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  ::close(fd);
  return ntohs(address.sin_port);
}

inline ProcessPlace place_of(int rank, int size, std::uint16_t port) {
  return {.rank = rank, .size = size, .local_rank = rank, .local_size = size, .port = port};
}

/// Runs `body(group)` for every rank of a new group, each on a thread with an end of its own, as if
/// they were processes. Returns what they threw, by rank; empty for what did not.
inline std::vector<std::string> run_group(
    int size, const std::function<void(const std::shared_ptr<ProcessGroup>&)>& body) {
  const std::uint16_t port = free_port();
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(std::make_shared<ProcessGroup>(place_of(rank, size, port)));
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

/// A process that runs one test case of this program, with variables in its environment.
class Child {
 public:
  Child(const std::string& test_case, const std::map<std::string, std::string>& variables) {
    std::vector<std::string> environment;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      if (!variables.contains(text.substr(0, text.find('=')))) environment.push_back(text);
    }
    for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
    std::string program = "/proc/self/exe", name = test_case;
    char* arguments[] = {program.data(), name.data(), nullptr};
    std::vector<char*> pointers;
    for (std::string& entry : environment) pointers.push_back(entry.data());
    pointers.push_back(nullptr);
    REQUIRE(::posix_spawn(&pid_, program.c_str(), nullptr, nullptr, arguments, pointers.data()) ==
            0);
  }
  ~Child() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// The exit status, -1 for a signal, or -2 when it has not ended in time.
  int wait(std::chrono::seconds most) {
    const auto deadline = std::chrono::steady_clock::now() + most;
    for (int status = 0; std::chrono::steady_clock::now() < deadline;) {
      if (::waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = 0;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return -2;
  }

 private:
  pid_t pid_ = 0;
};

/// What a launcher tells the process of `rank`.
inline std::map<std::string, std::string> launch_variables(int rank, int size, std::uint16_t port) {
  return {{"RANK", std::to_string(rank)},       {"WORLD_SIZE", std::to_string(size)},
          {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", std::to_string(size)},
          {"MASTER_ADDR", "localhost"},         {"MASTER_PORT", std::to_string(port)}};
}

}  // namespace nanovllm::test
