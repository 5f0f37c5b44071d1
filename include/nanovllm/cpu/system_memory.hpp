#pragma once
/// How much memory this process can still get: what the machine has, within the limits of the
/// control groups that the process is in.

#include <cstddef>
#include <string>

#include "nanovllm/core/separate.hpp"

namespace nanovllm::cpu {

/// Bytes that can be had without swapping: the machine's, or what the control groups of this
/// process (version 1 or 2, the container's and all those around it that are seen) leave of their
/// limits, whichever is less. File pages that the group can reclaim count as free.
///
/// @param system  prefix of the paths that are read, for tests: "" is this machine.
[[nodiscard]] std::size_t available_system_memory(const std::string& system = "");

}  // namespace nanovllm::cpu

#if NANOVLLM_BODIES

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>

#include <unistd.h>

namespace nanovllm::cpu {

namespace detail {

/// The text of a file of /proc or /sys; empty when it cannot be read.
[[nodiscard]] inline std::string read_text(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "r"),
                                                             std::fclose);
  std::string out;
  char part[4096];
  while (file) {
    const std::size_t count = std::fread(part, 1, sizeof part, file.get());
    out.append(part, count);
    if (count == 0) break;
  }
  return out;
}

/// Cuts the text up to the next `separator` off `rest`.
[[nodiscard]] inline std::string_view next_part(std::string_view& rest, char separator) {
  const std::size_t end = std::min(rest.find(separator), rest.size());
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return part;
}

/// The number that `text` begins with. "max", which a control group without a limit says, is none.
[[nodiscard]] inline std::optional<std::uint64_t> leading_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end.ec != std::errc{}) return std::nullopt;
  return value;
}

/// The number after `key` at the beginning of a line.
[[nodiscard]] inline std::optional<std::uint64_t> number_of(std::string_view text,
                                                            std::string_view key) {
  while (!text.empty()) {
    std::string_view line = next_part(text, '\n');
    if (!line.starts_with(key)) continue;
    line.remove_prefix(key.size());
    line.remove_prefix(std::min(line.find_first_not_of(": \t"), line.size()));
    return leading_number(line);
  }
  return std::nullopt;
}

/// One version of the kernel's control groups: what its files are called.
struct CgroupFiles {
  bool unified;  ///< version 2
  const char* mount;
  const char* limits[2];
  const char* usage;
  const char* reclaimable;  ///< in memory.stat: file pages reclaimed before the limit is hit
};
inline constexpr CgroupFiles kCgroupFiles[] = {
    {true, "/sys/fs/cgroup", {"memory.max", "memory.high"}, "memory.current", "inactive_file "},
    {false,
     "/sys/fs/cgroup/memory",
     {"memory.limit_in_bytes", "memory.limit_in_bytes"},
     "memory.usage_in_bytes",
     "total_inactive_file "}};

/// The group of this process, as /proc/self/cgroup tells: "0::/path", or "4:cpu,memory:/path".
[[nodiscard]] inline std::optional<std::string> cgroup_of(std::string_view text, bool unified) {
  while (!text.empty()) {
    std::string_view line = next_part(text, '\n');
    const std::string_view hierarchy = next_part(line, ':');
    std::string_view controllers = next_part(line, ':');
    bool found = unified && hierarchy == "0" && controllers.empty();
    while (!unified && !controllers.empty()) found |= next_part(controllers, ',') == "memory";
    if (found) return std::string(line == "/" ? "" : line);
  }
  return std::nullopt;
}

/// Where a hierarchy is mounted, and which of its groups is seen there. From /proc/self/mountinfo:
/// "id parent major:minor root mount options [tags] - type source options".
struct CgroupMount {
  std::string path, root;
};

[[nodiscard]] inline CgroupMount cgroup_mount(std::string_view text, const CgroupFiles& files) {
  while (!text.empty()) {
    std::string_view line = next_part(text, '\n');
    const std::size_t dash = line.find(" - ");
    if (dash == line.npos) continue;
    std::string_view end = line.substr(dash + 3);
    const std::string_view type = next_part(end, ' ');
    static_cast<void>(next_part(end, ' '));
    if (type != (files.unified ? "cgroup2" : "cgroup")) continue;
    if (!files.unified && ("," + std::string(end) + ",").find(",memory,") == std::string::npos)
      continue;
    for (int i = 0; i < 3; ++i) static_cast<void>(next_part(line, ' '));
    const std::string_view root = next_part(line, ' ');
    return {std::string(next_part(line, ' ')), std::string(root == "/" ? "" : root)};
  }
  return {files.mount, ""};
}

/// The memory that the group in `folder` may still use within its limits.
[[nodiscard]] inline std::uint64_t left_in_group(const std::string& folder,
                                                 const CgroupFiles& files) {
  constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t limit = kUnlimited;
  for (const char* name : files.limits)
    limit = std::min(limit, leading_number(read_text(folder + "/" + name)).value_or(kUnlimited));
  if (limit == kUnlimited) return kUnlimited;
  std::uint64_t usage = leading_number(read_text(folder + "/" + files.usage)).value_or(0);
  usage -=
      std::min(usage, number_of(read_text(folder + "/memory.stat"), files.reclaimable).value_or(0));
  return limit - std::min(limit, usage);
}

/// What the group of this process and all above it leave, as far up as they are seen.
[[nodiscard]] inline std::uint64_t left_in_groups(const std::string& system,
                                                  const CgroupFiles& files) {
  std::uint64_t left = std::numeric_limits<std::uint64_t>::max();
  const auto group = cgroup_of(read_text(system + "/proc/self/cgroup"), files.unified);
  if (!group) return left;
  const CgroupMount mount = cgroup_mount(read_text(system + "/proc/self/mountinfo"), files);
  std::string below;  // the part of the group's path that is seen under the mount
  if (group->starts_with(mount.root)) below = group->substr(mount.root.size());
  if (!below.starts_with('/') || below.find("/..") != below.npos) below.clear();
  for (;; below.resize(below.rfind('/'))) {
    left = std::min(left, left_in_group(system + mount.path + below, files));
    if (below.empty()) return left;
  }
}

/// MemAvailable of /proc/meminfo, else the free pages that sysconf reports.
[[nodiscard]] inline std::uint64_t left_in_machine(const std::string& system) {
  if (const auto kib = number_of(read_text(system + "/proc/meminfo"), "MemAvailable:"))
    return *kib * 1024;
#if defined(_SC_AVPHYS_PAGES)
  return static_cast<std::uint64_t>(sysconf(_SC_AVPHYS_PAGES)) *
         static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
#else
  return std::uint64_t{4} << 30;
#endif
}

}  // namespace detail

NANOVLLM_INLINE std::size_t available_system_memory(const std::string& system) {
  std::uint64_t left = detail::left_in_machine(system);
  for (const detail::CgroupFiles& files : detail::kCgroupFiles)
    left = std::min(left, detail::left_in_groups(system, files));
  return static_cast<std::size_t>(left);
}

}  // namespace nanovllm::cpu

#endif  // NANOVLLM_BODIES
