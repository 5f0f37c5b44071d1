#pragma once
/// How much memory the machine can still give.

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>

#include <unistd.h>

namespace nanovllm::cpu {

/// Bytes available without swapping: MemAvailable of /proc/meminfo where there is one, else the
/// free pages that sysconf reports. A container's lower limit is not seen.
[[nodiscard]] inline std::size_t available_system_memory() {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/meminfo", "r"),
                                                             std::fclose);
  char line[256];
  unsigned long long kib = 0;
  while (file && std::fgets(line, sizeof line, file.get())) {
    if (std::sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
      return static_cast<std::size_t>(kib) * 1024;
  }
#if defined(_SC_AVPHYS_PAGES)
  return static_cast<std::size_t>(sysconf(_SC_AVPHYS_PAGES)) *
         static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
#else
  return std::size_t{4} << 30;
#endif
}

}  // namespace nanovllm::cpu
