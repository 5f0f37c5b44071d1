/// The memory that a process can still get, in trees of /proc and /sys made for the test.

#include "nanovllm/cpu/system_memory.hpp"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include <unistd.h>

#include "catch.hpp"

using nanovllm::cpu::available_system_memory;

namespace {

/// A machine of files, gone with the object. 8 GiB are available unless /proc/meminfo says more.
class Machine {
 public:
  Machine()
      : root_(std::filesystem::temp_directory_path() /
              ("nanovllm_memory_" + std::to_string(getpid()))) {
    std::filesystem::remove_all(root_);
    write("/proc/meminfo",
          "MemTotal:       16777216 kB\nMemFree:         1024 kB\n"
          "MemAvailable:    8388608 kB\n");
  }
  ~Machine() { std::filesystem::remove_all(root_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_.string() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  /// A group of version 2; `high` may be empty.
  void group(const std::string& folder, const std::string& max, const std::string& high,
             std::uint64_t current, std::uint64_t inactive_file = 0) {
    const std::string at = std::string("/sys/fs/cgroup").append(folder);
    write(at + "/memory.max", max + "\n");
    if (!high.empty()) write(at + "/memory.high", high + "\n");
    write(at + "/memory.current", std::to_string(current) + "\n");
    write(at + "/memory.stat",
          "anon 1\nfile 7\ninactive_file " + std::to_string(inactive_file) + "\nactive_file 5\n");
  }

  [[nodiscard]] std::int64_t available() const {
    return static_cast<std::int64_t>(available_system_memory(root_.string()));
  }

 private:
  std::filesystem::path root_;
};

constexpr std::int64_t kMib = std::int64_t{1} << 20, kGib = std::int64_t{1} << 30;
const char* const kMounts2 =
    "22 1 0:21 / /proc rw - proc proc rw\n"
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
const char* const kMounts1 =
    "31 23 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "32 23 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";

}  // namespace

TEST_CASE("defect 12: a control group's limit bounds the available memory, version 2") {
  Machine machine;
  CHECK(machine.available() == 8 * kGib);
  machine.write("/proc/self/cgroup", "0::/job\n");
  machine.write("/proc/self/mountinfo", kMounts2);
  machine.group("/job", std::to_string(2 * kGib), "max", 512 * kMib);
  CHECK(machine.available() == 2 * kGib - 512 * kMib);
  machine.group("/job", std::to_string(2 * kGib), "max", 512 * kMib, 200 * kMib);
  CHECK(machine.available() == 2 * kGib - 312 * kMib);
  machine.group("/job", "max", "max", 512 * kMib);
  CHECK(machine.available() == 8 * kGib);
  machine.group("/job", std::to_string(64 * kGib), "max", 512 * kMib);
  CHECK(machine.available() == 8 * kGib);
}

TEST_CASE("defect 12: memory.high is a limit, and more than the limit leaves nothing") {
  Machine machine;
  machine.write("/proc/self/cgroup", "0::/job\n");
  machine.write("/proc/self/mountinfo", kMounts2);
  machine.group("/job", std::to_string(4 * kGib), std::to_string(kGib), 256 * kMib);
  CHECK(machine.available() == kGib - 256 * kMib);
  machine.group("/job", std::to_string(4 * kGib), std::to_string(kGib), 2 * kGib);
  CHECK(machine.available() == 0);
}

TEST_CASE("defect 12: the narrowest of nested control groups counts") {
  Machine machine;
  machine.write("/proc/self/cgroup", "0::/slice/service/job\n");
  machine.write("/proc/self/mountinfo", kMounts2);
  machine.group("/slice", std::to_string(3 * kGib), "max", 2 * kGib);
  machine.group("/slice/service", "max", "max", kGib);
  machine.group("/slice/service/job", std::to_string(2 * kGib), "max", 100 * kMib);
  CHECK(machine.available() == kGib);
  machine.group("", std::to_string(700 * kMib), "", 0);  // as a container sees its own
  CHECK(machine.available() == 700 * kMib);
}

TEST_CASE("defect 12: a container sees its own group at the mount, whatever it is called outside") {
  Machine machine;
  machine.write("/proc/self/mountinfo",
                "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
  machine.group("", std::to_string(kGib), "max", 24 * kMib);
  for (const char* group : {"0::/\n", "0::/docker/abc\n", "0::/../other\n", "0::/elsewhere\n"}) {
    machine.write("/proc/self/cgroup", group);
    INFO(group);
    CHECK(machine.available() == 1000 * kMib);
  }
  machine.group("/inner", std::to_string(500 * kMib), "max", 0);
  machine.write("/proc/self/cgroup", "0::/docker/abc/inner\n");
  CHECK(machine.available() == 500 * kMib);
}

TEST_CASE("defect 12: a control group's limit bounds the available memory, version 1") {
  Machine machine;
  machine.write("/proc/self/cgroup", "5:cpu,cpuacct:/other\n4:memory:/a/b\n0::/unified\n");
  machine.write("/proc/self/mountinfo", kMounts1);
  const std::string a = "/sys/fs/cgroup/memory/a", b = a + "/b";
  machine.write(a + "/memory.limit_in_bytes", std::to_string(kGib) + "\n");
  machine.write(a + "/memory.usage_in_bytes", std::to_string(300 * kMib) + "\n");
  machine.write(a + "/memory.stat", "inactive_file 7\ntotal_inactive_file 104857600\n");
  machine.write(b + "/memory.limit_in_bytes", "9223372036854771712\n");  // no limit
  machine.write(b + "/memory.usage_in_bytes", "1\n");
  CHECK(machine.available() == kGib - 200 * kMib);
  machine.write(b + "/memory.limit_in_bytes", std::to_string(64 * kMib) + "\n");
  CHECK(machine.available() == 64 * kMib - 1);
}

TEST_CASE("without a table of mounts the usual place is looked at, and garbage is no limit") {
  Machine machine;
  machine.write("/proc/self/cgroup", "0::/job\n");
  machine.group("/job", std::to_string(kGib), "max", 0);
  CHECK(machine.available() == kGib);
  machine.write("/proc/self/mountinfo", "nonsense\n - cgroup2\n");
  machine.write("/proc/self/cgroup", "\n:\n::\n0:\nx\n");
  CHECK(machine.available() == 8 * kGib);
  machine.write("/proc/self/cgroup", "0::/job");
  machine.write("/proc/self/mountinfo", "");
  machine.group("/job", "", "-1", 5);
  CHECK(machine.available() == 8 * kGib);
  machine.write("/proc/meminfo", "MemTotal: 1 kB\n");  // a kernel from before MemAvailable
  CHECK(machine.available() > 0);
}

TEST_CASE("this machine has memory to give") { CHECK(available_system_memory() > 0); }
