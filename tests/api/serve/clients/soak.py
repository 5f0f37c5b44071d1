"""Mixed traffic against a server for long, by Python's standard library alone.

    python3 soak.py --server PATH_TO_serve --model DIR [--seconds S | --requests N] [--clients C]
                    [--seed N]

Clients in threads send, at random: good requests, whole and streamed, some over connections that
stay open, some read slowly; streams that are left in their midst; requests that are left before any
answer; bodies that are malformed, of the wrong types or too large; halves of requests; and client
processes that are killed with signal 9. At the end:

  * every good request got, letter for letter, what the same request got alone at the beginning
    (temperature 0.7 and a seed), and every bad one the status that it should have
  * nothing runs, threads and descriptors are as many as after the warm-up, and memory is not more
    than 32 MiB above it
  * SIGTERM ends the server with status 0, and the scheduler's books are right (`invariants hold`)

Says what it counted, and exits with 1 if any of that is not so.
"""

import argparse
import collections
import http.client
import json
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

from server_process import ServerProcess

NUM_PROMPTS = 24
GROWTH_LIMIT = 32 << 20
MAX_BODY_MIB = 1
KV_BLOCKS = 512

# A client that asks for a stream and is killed while it reads.
VICTIM = """
import http.client, json, sys
connection = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]), timeout=60)
connection.request("POST", "/v1/completions", sys.argv[3], {"Content-Type": "application/json"})
reply = connection.getresponse()
print("reading", flush=True)
while reply.read(64): pass
"""


def good_request(i):
    """(path, body) of one of NUM_PROMPTS requests, long and short, of both kinds."""
    fields = {"temperature": 0.7, "seed": i, "max_tokens": (4, 16, 48, 120)[i % 4]}
    words = "and so it came that the fox went on " * (1 + 5 * (i % 5))
    if i % 2 == 0:
        return "/v1/completions", {"prompt": f"Tale {i}: {words}", **fields}
    return "/v1/chat/completions", {
        "messages": [{"role": "user", "content": f"Tale {i}: {words}"}], **fields}


def text_of(choice):
    if "text" in choice:
        return choice["text"]
    return (choice.get("message") or choice.get("delta") or {}).get("content") or ""


class Soak:
    def __init__(self, server, seed):
        self.server = server
        self.seed = seed
        self.counts = collections.Counter()
        self.faults = []
        self.lock = threading.Lock()
        self.touch_pool()
        self.expected = [self.whole(i, None) for i in range(NUM_PROMPTS)]
        self.actions = [(self.good_whole, 30), (self.good_stream, 25), (self.keep_alive, 8),
                        (self.slow_reader, 2), (self.leave_stream, 12), (self.leave_early, 8),
                        (self.malformed, 10), (self.wrong_types, 6), (self.huge, 2),
                        (self.half, 5), (self.others, 5), (self.killed_process, 1)]

    def touch_pool(self):
        """Writes to every block of the KV pool, which takes memory only then."""
        for i in range(2 + KV_BLOCKS * 16 // 3500):
            prompt = [100 + (i * 7 + k * (i + 1)) % 3000 for k in range(3500)]
            self.server.json("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 1})

    # What clients do. Each gets a random generator of its own, and says what went wrong.

    def connect(self, timeout=120):
        return http.client.HTTPConnection(self.server.host, self.server.port, timeout=timeout)

    def send(self, connection, path, body):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", path, data, {"Content-Type": "application/json"})
        return connection.getresponse()

    def whole(self, i, connection):
        own = connection is None
        connection = connection or self.connect()
        try:
            path, body = good_request(i)
            reply = self.send(connection, path, body)
            data = reply.read()
            if reply.status != 200:
                raise ValueError(f"status {reply.status}: {data[:300]!r}")
            return text_of(json.loads(data)["choices"][0])
        finally:
            if own:
                connection.close()

    def compare(self, i, text):
        if text != self.expected[i]:
            raise ValueError(f"request {i}: {text!r}, alone it was {self.expected[i]!r}")

    def stream(self, i, delay=0.0):
        connection = self.connect()
        try:
            path, body = good_request(i)
            reply = self.send(connection, path, {**body, "stream": True})
            if reply.status != 200:
                raise ValueError(f"status {reply.status}: {reply.read()[:300]!r}")
            text, is_done = "", False
            for line in reply:
                time.sleep(delay)
                if not line.startswith(b"data: "):
                    continue
                if line.strip() == b"data: [DONE]":
                    is_done = True
                    continue
                event = json.loads(line[len(b"data: "):])
                text += "".join(text_of(choice) for choice in event["choices"])
            if not is_done:
                raise ValueError(f"a stream ended without [DONE] behind {text!r}")
            return text
        finally:
            connection.close()

    def good_whole(self, rng):
        i = rng.randrange(NUM_PROMPTS)
        self.compare(i, self.whole(i, None))

    def good_stream(self, rng):
        i = rng.randrange(NUM_PROMPTS)
        self.compare(i, self.stream(i))

    def slow_reader(self, rng):
        i = rng.randrange(NUM_PROMPTS)
        self.compare(i, self.stream(i, delay=0.02))

    def keep_alive(self, rng):
        connection = self.connect()
        try:
            for _ in range(rng.randrange(2, 5)):
                i = rng.randrange(NUM_PROMPTS)
                self.compare(i, self.whole(i, connection))
        finally:
            connection.close()

    def long_body(self, rng, **fields):
        return {"prompt": f"A tale without end, {rng.random()}", "max_tokens": 1000,
                "ignore_eos": True, "n": rng.choice((1, 1, 3)), **fields}

    def leave_stream(self, rng):
        connection = self.connect()
        reply = self.send(connection, "/v1/completions", self.long_body(rng, stream=True))
        for _ in range(rng.randrange(8)):
            reply.readline()
        self.leave(connection.sock or reply.fp.raw._sock, rng)
        reply.close()
        connection.close()

    def leave_early(self, rng):
        sock = self.raw("POST", "/v1/completions", json.dumps(self.long_body(rng)).encode())
        time.sleep(rng.choice((0, 0, 0.01, 0.05)))
        self.leave(sock, rng)

    @staticmethod
    def leave(sock, rng):
        if rng.random() < 0.5:  # with a reset instead of an orderly end
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()

    def raw(self, method, path, body, length=None):
        sock = socket.create_connection((self.server.host, self.server.port), timeout=60)
        head = (f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body) if length is None else length}\r\n\r\n")
        sock.sendall(head.encode() + body)
        return sock

    def expect_status(self, path, body, wanted):
        connection = self.connect()
        try:
            reply = self.send(connection, path, body)
            data = reply.read()
            if reply.status != wanted:
                raise ValueError(f"{body[:80]!r}: {reply.status} {data[:200]!r}, not {wanted}")
            if "message" not in json.loads(data)["error"]:
                raise ValueError(f"no message in {data[:200]!r}")
        finally:
            connection.close()

    def malformed(self, rng):
        path, body = good_request(rng.randrange(NUM_PROMPTS))
        data = bytearray(json.dumps(body).encode())
        kind = rng.randrange(4)
        if kind == 0:
            data = data[:rng.randrange(len(data))]
        elif kind == 1:
            data = bytearray(b"[" * rng.randrange(1, 200000))
        elif kind == 2:
            data = bytearray(rng.randbytes(rng.randrange(1, 5000))) + b"{"
        else:
            data[0] = rng.choice(b"}]x\x00\xff")
        self.expect_status(path, bytes(data), 400)

    def wrong_types(self, rng):
        path, body = good_request(rng.randrange(NUM_PROMPTS))
        body[rng.choice(("temperature", "max_tokens", "seed", "n", "logit_bias", "top_p"))] = (
            rng.choice(("warm", [1], True, {"a": 1.5})))
        self.expect_status(path, json.dumps(body).encode(), 400)

    def huge(self, rng):
        try:
            self.expect_status("/v1/completions",
                               b'{"prompt":"' + b"x" * ((MAX_BODY_MIB << 20) + 4096) + b'"}', 413)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused by its length, before all of it was sent

    def half(self, rng):
        body = json.dumps(good_request(0)[1]).encode()
        kind = rng.randrange(3)
        if kind == 0:
            sock = self.raw("POST", "/v1/completions", body[:rng.randrange(len(body))], len(body))
        else:
            sock = socket.create_connection((self.server.host, self.server.port), timeout=60)
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: te"[:rng.randrange(1, 40)])
        time.sleep(rng.choice((0, 0.02, 0.2)))
        self.leave(sock, rng)

    def others(self, rng):
        path = rng.choice(("/health", "/metrics", "/v1/models", "/version"))
        status = self.server.request("GET", path)[0]
        if status != 200:
            raise ValueError(f"{path}: {status}")

    def killed_process(self, rng):
        victim = subprocess.Popen(
            [sys.executable, "-S", "-c", VICTIM, self.server.host, str(self.server.port),
             json.dumps(self.long_body(rng, stream=True))],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        victim.stdout.readline()
        time.sleep(rng.random() * 0.2)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        victim.stdout.close()

    # The run.

    def client(self, number, may_go_on):
        rng = random.Random(self.seed * 1000003 + number)
        actions, weights = zip(*self.actions)
        while may_go_on():
            action = rng.choices(actions, weights)[0]
            fault = None
            try:
                action(rng)
            except Exception as error:  # whatever it is, it is a finding, and the others go on
                fault = f"{action.__name__}: {type(error).__name__}: {error}"
            with self.lock:
                self.counts[action.__name__] += 1
                if fault:
                    self.faults.append(fault)

    def run(self, num_clients, may_go_on):
        threads = [threading.Thread(target=self.client, args=(i, may_go_on))
                   for i in range(num_clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def num_done(self):
        with self.lock:
            return sum(self.counts.values())

    def settled(self):
        """(threads, descriptors, bytes) of the server once it has nothing to do."""
        self.server.wait_until_idle(60)
        deadline = time.monotonic() + 20
        state = None
        while time.monotonic() < deadline:
            now = (self.server.num_threads(), self.server.num_descriptors())
            if now == state:
                break
            state = now
            time.sleep(1)
        return (*state, self.server.resident_bytes())


def soak(options):
    server_options = ["--kv-blocks", str(KV_BLOCKS), "--max-body-mib", str(MAX_BODY_MIB),
                      "--check-invariants-at-exit", *options.server_option]
    with ServerProcess(options.server, options.model, *server_options) as server:
        run = Soak(server, options.seed)
        warm_up = max(200, options.clients * 10)
        run.run(options.clients, lambda: run.num_done() < warm_up)
        before = run.settled()

        begin = time.monotonic()
        if options.requests:
            last = warm_up + options.requests
            run.run(options.clients, lambda: run.num_done() < last)
        else:
            run.run(options.clients, lambda: time.monotonic() - begin < options.seconds)
        seconds = time.monotonic() - begin
        after = run.settled()

        faults = run.faults
        if after[0] != before[0]:
            faults.append(f"threads: {before[0]} before, {after[0]} after")
        if after[1] != before[1]:
            faults.append(f"descriptors: {before[1]} before, {after[1]} after")
        if after[2] > before[2] + GROWTH_LIMIT:
            faults.append(f"memory: {before[2] >> 20} MiB before, {after[2] >> 20} MiB after")
        status, said = server.stop()
        if status != 0 or "invariants hold" not in said:
            faults.append(f"exit status {status}, said {said!r}; log:\n{server.log()[-2000:]}")

        print(", ".join(f"{count} {name}" for name, count in sorted(run.counts.items())))
        print(f"{run.num_done()} actions in all, {seconds:.0f} s after the warm-up; "
              f"threads {before[0]} -> {after[0]}, descriptors {before[1]} -> {after[1]}, "
              f"memory {before[2] / 2**20:.1f} -> {after[2] / 2**20:.1f} MiB")
        for fault in faults[:20]:
            print("FAULT", fault)
        print(f"{len(faults)} faults")
        return 1 if faults else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", required=True, help="the program 'serve'")
    parser.add_argument("--model", required=True, help="checkpoint directory")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--requests", type=int, default=0, help="instead of --seconds")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--server-option", action="append", default=[],
                        help="a further argument of the server, several times")
    sys.exit(soak(parser.parse_args()))


if __name__ == "__main__":
    main()
