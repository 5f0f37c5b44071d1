"""A server under test: started, watched from outside, and ended."""

import http.client
import json
import os
import re
import resource
import signal
import subprocess
import tempfile
import time


def allow_many_files(count=8192):
    """Raises this process's limit of open files, and so that of its children, towards `count`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class ServerProcess:
    """`serve` on a free port of this machine. `stop` must be called; `with` does so."""

    def __init__(self, program, model, *options, start_timeout=120):
        allow_many_files()
        self._log = tempfile.TemporaryFile(mode="w+", errors="replace")
        self._process = subprocess.Popen(
            [program, "--model", model, "--port", "0", "--device", "cpu", *options],
            stdout=subprocess.PIPE, stderr=self._log, text=True)
        self.url = self._read_url(time.monotonic() + start_timeout)
        self.host, port = re.fullmatch(r"http://(.+):(\d+)", self.url).groups()
        self.port = int(port)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def _read_url(self, deadline):
        for line in self._process.stdout:
            found = re.search(r"listening on (http://\S+)", line)
            if found:
                return found.group(1)
            if time.monotonic() > deadline:
                break
        self.kill()
        raise RuntimeError(f"the server did not say where it listens; its log:\n{self.log()}")

    @property
    def pid(self):
        return self._process.pid

    def is_running(self):
        return self._process.poll() is None

    def log(self):
        """What it has written to stderr."""
        return os.pread(self._log.fileno(), 1 << 24, 0).decode("utf-8", errors="replace")

    def request(self, method, path, body=None, headers=None, timeout=60):
        """(status, headers, body) of one request; a body that is no bytes is sent as JSON."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            if body is not None and not isinstance(body, bytes):
                body = json.dumps(body).encode()
            connection.request(method, path, body,
                               {"Content-Type": "application/json", **(headers or {})})
            reply = connection.getresponse()
            return reply.status, reply.headers, reply.read()
        finally:
            connection.close()

    def json(self, method, path, body=None):
        """The body of a reply that must have status 200."""
        status, _, reply = self.request(method, path, body)
        if status != 200:
            raise RuntimeError(f"{method} {path}: {status} {reply[:500]!r}")
        return json.loads(reply)

    def metric(self, name, **labels):
        """The sum of the samples of `name` that have these labels."""
        text = self.request("GET", "/metrics")[2].decode()
        total, found = 0.0, False
        for line in text.splitlines():
            match = re.fullmatch(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)", line)
            if not match or match.group(1) != name:
                continue
            if all(f'{key}="{value}"' in (match.group(2) or "") for key, value in labels.items()):
                total += float(match.group(3))
                found = True
        if not found:
            raise KeyError(f"/metrics has no {name} {labels}")
        return total

    def num_running(self):
        return self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting")

    def wait_until_idle(self, timeout=30):
        """Seconds until the engine had nothing to do."""
        begin = time.monotonic()
        while self.num_running() > 0:
            if time.monotonic() - begin > timeout:
                raise TimeoutError(f"{self.num_running():.0f} requests run after {timeout} s")
            time.sleep(0.01)
        return time.monotonic() - begin

    def wait_until_prepared(self, timeout=30):
        """Waits until no request is on its way to the engine."""
        begin = time.monotonic()
        while self.metric("nanovllm:num_requests_preparing") > 0:
            if time.monotonic() - begin > timeout:
                raise TimeoutError(f"requests are prepared after {timeout} s")
            time.sleep(0.01)

    def resident_bytes(self):
        with open(f"/proc/{self.pid}/status", encoding="ascii") as status:
            return int(re.search(r"VmRSS:\s+(\d+) kB", status.read()).group(1)) << 10

    def num_threads(self):
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def num_descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def stop(self, timeout=60):
        """SIGTERM; returns (exit status, what else it wrote to stdout)."""
        self._process.send_signal(signal.SIGTERM)
        rest, _ = self._process.communicate(timeout=timeout)
        return self._process.returncode, rest

    def kill(self):
        if self.is_running():
            self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()
