#!/usr/bin/env python3
"""Plain chats among requests that take long: how long they take, and what becomes of the others.

    python3 hostile_load.py SERVE MODEL_DIR [--bodies 64] [--chats 200] [--most-ms 0]

Starts the program, measures chats of one token alone, and then among BODIES requests that never end:
patterns that cannot be compiled, each different and all equal, long texts to make tokens of, and
lists of documents behind one long query. Prints a line for each kind: the median, the 99th
percentile and the longest of the chats, and the statuses of the others. Ends with status 1 if a 99th
percentile is above `--most-ms`, unless that is 0, or if a chat fails.
"""

import argparse
import collections
import http.client
import itertools
import json
import multiprocessing
import os
import queue
import sys
import threading
import time

from server_process import ServerProcess

NUMBERS = itertools.count(17)


def chat_with(**fields):
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}],
                                    "max_tokens": 1, **fields}


KINDS = {
    "equal patterns": lambda: chat_with(guided_regex="(.*a.{16}b)"),
    "new patterns": lambda: chat_with(guided_regex=f"({next(NUMBERS)}|.*a.{{16}}b)"),
    "long texts": lambda: ("/tokenize", {"prompt": "word " * (8 << 20 >> 3)}),
    "one long word": lambda: ("/tokenize", {"prompt": "qzjxkv" * (1 << 20 >> 3)}),
    "long query": lambda: ("/rerank", {"query": "word " * 3000, "documents": ["a"] * 500}),
}


def send_for_ever(host, port, kind, statuses):
    """Sends requests of one kind, one behind the other, and counts the replies."""
    while True:
        path, fields = KINDS[kind]()
        body = json.dumps(fields).encode()
        connection = http.client.HTTPConnection(host, port, timeout=60)
        try:
            connection.request("POST", path, body)
            statuses.put(connection.getresponse().status)
        except (OSError, http.client.HTTPException) as error:
            statuses.put(type(error).__name__)
        finally:
            connection.close()


def send_by_many(host, port, kind, count, statuses):
    os.nice(19)  # these clients are on other machines
    for _ in range(count):
        threading.Thread(target=send_for_ever, args=(host, port, kind, statuses)).start()


class Others:
    """Clients in a process of their own, so that the chats' times are not those of this one."""

    def __init__(self, server, kind, count):
        self.server = server
        self.statuses = multiprocessing.Queue()
        self.process = multiprocessing.Process(
            target=send_by_many, args=(server.host, server.port, kind, count, self.statuses))

    def __enter__(self):
        self.process.start()
        return self

    def __exit__(self, *_):
        self.process.kill()  # what waits leaves the queue
        self.process.join()
        self.server.wait_until_prepared()

    def counts(self):
        counts, end = collections.Counter(), time.monotonic() + 5
        try:
            while time.monotonic() < end:  # more may come as long as the clients run
                counts[self.statuses.get(timeout=0.1)] += 1
        except queue.Empty:
            return counts


def measure(server, count):
    """Seconds of `count` chats, one behind the other on one connection, sorted; all must succeed."""
    path, fields = chat_with()
    body = json.dumps(fields).encode()
    connection = http.client.HTTPConnection(server.host, server.port, timeout=120)
    times = []
    for _ in range(count):
        begin = time.monotonic()
        connection.request("POST", path, body)
        reply = connection.getresponse()
        text = reply.read()
        times.append(time.monotonic() - begin)
        if reply.status != 200:
            raise RuntimeError(f"a plain chat got {reply.status}: {text[:300]!r}")
    connection.close()
    return sorted(times)


def percentile(times, share):
    return times[min(len(times) - 1, int(len(times) * share))]


def report(name, times, statuses):
    print(f"{name:16} median {1e3 * percentile(times, 0.5):8.1f} ms   p99 "
          f"{1e3 * percentile(times, 0.99):8.1f} ms   longest {1e3 * times[-1]:8.1f} ms   "
          f"others {dict(statuses)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("serve")
    parser.add_argument("model")
    parser.add_argument("--bodies", type=int, default=64)
    parser.add_argument("--chats", type=int, default=200)
    parser.add_argument("--most-ms", type=float, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--option", action="append", default=[], help="of serve")
    options = parser.parse_args()
    worst = 0
    with ServerProcess(options.serve, options.model, *options.option) as server:
        measure(server, 20)
        report("alone", measure(server, options.chats), {})
        for name in options.kinds.split(","):
            with Others(server, name, options.bodies) as others:
                time.sleep(0.5)
                times = measure(server, options.chats)
                statuses = others.counts()
            report(name, times, statuses)
            worst = max(worst, percentile(times, 0.99))
        begin = time.monotonic()
        status, _ = server.stop()
        print(f"SIGTERM: status {status} after {time.monotonic() - begin:.2f} s")
    return int(status != 0 or 0 < options.most_ms < 1e3 * worst)


if __name__ == "__main__":
    sys.exit(main())
