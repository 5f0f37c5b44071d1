#pragma once
/// A test case in a process of its own.

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"

extern char** environ;

namespace nanovllm::test {

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

}  // namespace nanovllm::test
