"""What the threads of a process have computed while a command ran.

    python3 thread_times.py PID COMMAND...

CPU seconds of each thread in user and system mode, and its share of a core, the busiest first.
"""

import os
import subprocess
import sys
import time


def read_times(pid: str) -> dict[int, tuple[str, int, int]]:
    """Name, user and system ticks by thread id."""
    times = {}
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/stat", encoding="utf-8") as file:
                stat = file.read()
        except OSError:  # it has ended
            continue
        name = stat[stat.index("(") + 1 : stat.rindex(")")]
        fields = stat[stat.rindex(")") + 2 :].split()
        times[int(thread)] = (name, int(fields[11]), int(fields[12]))
    return times


def main() -> int:
    pid, command = sys.argv[1], sys.argv[2:]
    before, begin = read_times(pid), time.monotonic()
    status = subprocess.run(command, check=False).returncode
    seconds, after = time.monotonic() - begin, read_times(pid)
    tick = os.sysconf("SC_CLK_TCK")
    rows = []
    for thread, (name, user, system) in after.items():
        _, user_before, system_before = before.get(thread, ("", 0, 0))
        rows.append(((user - user_before) / tick, (system - system_before) / tick, name, thread))
    for user, system, name, thread in sorted(rows, key=lambda row: -row[0] - row[1]):
        if user + system > 0:
            times = f"user {user:6.2f} s  system {system:6.2f} s"
            print(f"{name:16} {thread:8}  {times}  {100 * (user + system) / seconds:5.1f}%")
    return status


if __name__ == "__main__":
    sys.exit(main())
