#pragma once
/// SIGTERM and SIGINT: the first one asks the program to end, the second one ends it with status
/// 143 or 130.

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <future>
#include <memory>
#include <thread>
#include <utility>

namespace nanovllm::examples {

/// To be made before any other thread, so that no signal reaches one of those. A thread of its own
/// takes them, so it ends the program also when everything else hangs.
class TerminationSignals {
 public:
  TerminationSignals() {
    std::signal(SIGPIPE, SIG_IGN);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    std::thread([set, first = std::move(first_), is_awaited = is_awaited_]() mutable {
      int signal = 0;
      sigwait(&set, &signal);
      if (!*is_awaited) _exit(128 + signal);
      first.set_value(signal);
      sigwait(&set, &signal);
      _exit(128 + signal);
    }).detach();
  }

  /// From now on the first one only asks. Before, while a model is loaded, it ends the program.
  void expect() { *is_awaited_ = true; }

  /// Waits for the first one, and returns its number.
  int wait() { return signal_.get(); }

 private:
  std::shared_ptr<std::atomic<bool>> is_awaited_ = std::make_shared<std::atomic<bool>>(false);
  std::promise<int> first_;
  std::future<int> signal_ = first_.get_future();
};

}  // namespace nanovllm::examples
