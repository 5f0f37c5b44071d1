"""Two servers behind a router, of which one is killed under load: no request of the other is lost.

    python3 router_test.py --server PATH_TO_serve --model DIR [TEST...]

The router is the package vllm-router, of this Python; without it the tests are skipped (status 77).
"""

import argparse
import collections
import http.client
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from server_process import ServerProcess

NUM_REQUESTS = 240
NUM_CLIENTS = 16

options = None


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for sock in sockets:
        sock.bind(("127.0.0.1", 0))
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


class Router:
    def __init__(self, servers):
        self.port, metrics_port = free_ports(2)
        self.log = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen(
            [os.path.join(os.path.dirname(sys.executable), "vllm-router"),
             "--host", "127.0.0.1", "--port", str(self.port),
             "--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port),
             "--policy", "round_robin", "--worker-urls", *(server.url for server in servers),
             "--worker-startup-timeout-secs", "30", "--worker-startup-check-interval", "1",
             "--health-check-interval-secs", "1", "--health-failure-threshold", "1",
             "--health-check-timeout-secs", "2", "--retry-max-backoff-ms", "500"],
            stdout=self.log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 60
        while True:
            try:
                if self.request("/health", None, "GET")[0] == 200:
                    return
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > deadline:
                said = self.said()
                self.close()
                raise RuntimeError("the router does not answer:\n" + said)
            time.sleep(0.1)

    def said(self):
        return os.pread(self.log.fileno(), 1 << 20, 0).decode(errors="replace")[-4000:]

    def request(self, path, body, method="POST"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, None if body is None else json.dumps(body),
                               {"Content-Type": "application/json"})
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def close(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


def body_of(i, **fields):
    return {"model": "tale", "prompt": f"Tale {i % 20}:", "max_tokens": 40, "temperature": 0.7,
            "seed": i % 20, "ignore_eos": True, **fields}


def streamed_text(data):
    """The text of a stream, or None if it was cut off."""
    if not data.rstrip().endswith(b"data: [DONE]"):
        return None
    events = [json.loads(line[6:]) for line in data.splitlines()
              if line.startswith(b"data: {")]
    if any("error" in event for event in events):
        return None
    return "".join(choice["text"] for event in events for choice in event["choices"])


class TwoServers(unittest.TestCase):
    def setUp(self):
        if importlib.util.find_spec("vllm_router") is None:
            self.skipTest("no vllm-router")
        fields = ("--kv-blocks", "512", "--served-model-name", "tale", "--num-threads", "1")
        self.servers = []
        for _ in range(2):
            self.servers.append(ServerProcess(options.server, options.model, *fields))
            self.addCleanup(self.servers[-1].kill)
        self.router = Router(self.servers)
        self.addCleanup(self.router.close)
        self.alone = [self.servers[0].json("POST", "/v1/completions", body_of(i))["choices"][0]["text"]
                      for i in range(20)]

    def load(self, stream, at_half):
        """Sends NUM_REQUESTS from NUM_CLIENTS threads. Returns how many came to what."""
        results, lock, numbers = collections.Counter(), threading.Lock(), iter(range(NUM_REQUESTS))

        def client():
            while True:
                with lock:
                    i = next(numbers, None)
                if i is None:
                    return
                if i == NUM_REQUESTS // 2:
                    at_half()
                try:
                    status, data = self.router.request("/v1/completions", body_of(i, stream=stream))
                    if status != 200:
                        result = f"status {status}: {data[:100]!r}"
                    elif stream:
                        text = streamed_text(data)
                        result = "cut off" if text is None else text == self.alone[i % 20]
                    else:
                        result = json.loads(data)["choices"][0]["text"] == self.alone[i % 20]
                except (OSError, http.client.HTTPException):
                    result = "cut off"
                with lock:
                    results[result] += 1

        threads = [threading.Thread(target=client) for _ in range(NUM_CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def check(self, stream):
        num_lost = []

        def kill_one():
            num_lost.append(self.servers[1].num_running())
            self.servers[1].kill()

        results = self.load(stream, kill_one)
        self.assertEqual(results[False], 0, "answers that are not those of the request alone")
        num_good = results[True]
        self.assertEqual(sum(results.values()), NUM_REQUESTS)
        # The router asks again for a whole reply. Streams that have begun on the killed server are cut
        # off; each client has one under way at the most.
        print(f"stream={stream}: {dict(results)}, {num_lost[0]:.0f} ran on the server that was killed",
              flush=True)
        if stream:
            self.assertGreaterEqual(num_good, NUM_REQUESTS - NUM_CLIENTS)
        else:
            self.assertEqual(num_good, NUM_REQUESTS)
        self.servers[0].wait_until_idle()
        self.assertGreaterEqual(
            self.servers[0].metric("vllm:request_success_total", finished_reason="length"),
            NUM_REQUESTS // 2)
        self.assertEqual(self.servers[0].stop()[0], 0)

    def test_whole_replies(self):
        self.check(stream=False)

    def test_streams(self):
        self.check(stream=True)


def main():
    global options
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", required=True, help="the program 'serve'")
    parser.add_argument("--model", required=True, help="checkpoint directory")
    options, rest = parser.parse_known_args()
    if importlib.util.find_spec("vllm_router") is None:
        print("skipped: no vllm-router")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
