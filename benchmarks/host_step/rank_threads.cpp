// What it costs the host to hand a step to ranks that are threads:
//
//   rank_threads [RANKS...]
//
// Time of the call beyond the caller's own part, 20 microseconds: of RankThreads::run, which waits
// for the other ranks, and of `start`, which does not. Calls are 3 milliseconds apart, as steps of
// a GPU are, and what was started is joined in between.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>
#include <vector>

#include "nanovllm/parallel/rank_threads.hpp"

namespace nv = nanovllm;

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kLaunch{20}, kPause{3000};
constexpr int kCalls = 1000;

void launch(int /*rank*/) {
  for (const auto end = Clock::now() + kLaunch; Clock::now() < end;) {
  }
}

/// Microseconds of each call, sorted.
std::vector<double> measure(nv::RankThreads& threads, bool waits) {
  std::vector<double> out;
  for (int i = 0; i < kCalls; ++i) {
    std::this_thread::sleep_for(kPause);
    threads.join();
    const auto begin = Clock::now();
    waits ? threads.run(launch) : threads.start(launch);
    const std::chrono::duration<double, std::micro> taken = Clock::now() - begin - kLaunch;
    out.push_back(taken.count());
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

int main(int argc, char** argv) try {
  std::vector<int> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::max(1, std::atoi(argv[i])));
  if (sizes.empty()) sizes = {2};
  std::printf("%6s %6s %10s %10s %12s\n", "ranks", "call", "least", "median", "nine of ten");
  for (const int num_ranks : sizes) {
    nv::RankThreads threads(num_ranks);
    for (const bool waits : {true, false, true, false}) {
      const std::vector<double> us = measure(threads, waits);
      std::printf("%6d %6s %7.1f us %7.1f us %9.1f us\n", num_ranks, waits ? "run" : "start",
                  us.front(), us[us.size() / 2], us[us.size() * 9 / 10]);
    }
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
