#!/usr/bin/env python3
"""The program `serve` as a network meets it: raw sockets, the standard library alone.

    python3 server_protocol_test.py SERVE MODEL_DIR [unittest arguments]

Starts the program on free ports. Nothing else may use the machine's CPU all the time, since some
cases wait for time-outs of a second or two.
"""

import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

SERVE, MODEL = "", ""
DEADLINE = 60  # seconds after which something hangs


class Server:
    """The program, listening; `log()` is what it has written to standard error so far."""

    def __init__(self, *arguments, environment=None, error_file=None):
        self.error_file = error_file or tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [SERVE, "--model", MODEL, "--port", "0", "--check-invariants-at-exit", *arguments],
            stdout=subprocess.PIPE,
            stderr=self.error_file,
            env={**os.environ, **(environment or {})},
        )
        line = self.process.stdout.readline().decode()
        found = re.match(r"listening on (https?)://127\.0\.0\.1:(\d+)\n", line)
        if not found:
            self.process.wait(DEADLINE)
            raise AssertionError(f"no ready line but {line!r}: {self.log()}")
        self.port = int(found[2])

    def log(self):
        self.error_file.flush()
        return os.pread(self.error_file.fileno(), 1 << 24, 0).decode()

    def connect(self, receive_bytes=None):
        connection = socket.socket()
        if receive_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.settimeout(DEADLINE)
        connection.connect(("127.0.0.1", self.port))
        return connection

    def get(self, path, headers=None, method="GET"):
        return self.ask(method, path, None, headers)

    def ask(self, method, path, body=None, headers=None):
        """Status, headers and body of the reply to one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)
        try:
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            return reply.status, reply.headers, reply.read()
        finally:
            connection.close()

    def running(self):
        """Requests that the engine has, waiting or running."""
        text = self.get("/metrics")[2].decode()
        counts = re.findall(r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} (\S+)$", text, re.M)
        return sum(float(count) for count in counts)

    def metric(self, name, **labels):
        """The sum of the samples of `name` with these labels."""
        total = 0
        for line in self.get("/metrics")[2].decode().splitlines():
            found = re.fullmatch(r"([\w:]+)\{(.*)\} (\S+)", line)
            if found and found[1] == name and all(
                    f'{key}="{value}"' in found[2] for key, value in labels.items()):
                total += float(found[3])
        return total

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def stop(self, number=signal.SIGTERM):
        """Ends it; returns the exit status and the rest of standard output."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        output = self.process.communicate(timeout=DEADLINE)[0].decode()
        return self.process.returncode, output

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        self.error_file.close()


def chat(stream=False, max_tokens=8, **more):
    """The body of a request that is answered with `max_tokens` tokens."""
    request = {"messages": [{"role": "user", "content": "Tell me of a fox."}], "stream": stream,
               "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **more}
    return json.dumps(request).encode()


def post(body, version="1.1", headers=()):
    lines = [f"POST /v1/chat/completions HTTP/{version}", "Host: localhost",
             f"Content-Length: {len(body)}", "Content-Type: application/json", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def read_all(connection):
    """What comes until the end of the connection, which may be a reset."""
    out = b""
    try:
        while piece := connection.recv(65536):
            out += piece
    except ConnectionError:
        pass
    return out


def read_until(connection, mark):
    out = b""
    while mark not in out:
        piece = connection.recv(65536)
        if not piece:
            raise AssertionError(f"the end came before {mark!r}: {out!r}")
        out += piece
    return out


def read_reply(file):
    """Status, headers and body of one reply of a file on a socket."""
    status = int(file.readline().split()[1])
    headers = http.client.parse_headers(file)
    if headers["Transfer-Encoding"] == "chunked":
        body = b""
        while size := int(file.readline(), 16):
            body += file.read(size)
            assert file.readline() == b"\r\n"
        assert file.readline() == b"\r\n"
        return status, headers, body
    return status, headers, file.read(int(headers["Content-Length"]))


def status_of(reply):
    return int(reply.split(b" ", 2)[1]) if reply.startswith(b"HTTP/1.1 ") else reply


def soon(condition, seconds=DEADLINE):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


class ProtocolTest(unittest.TestCase):
    """One server with short time-outs for all cases; none of them may leave anything behind."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server("--header-timeout", "1", "--body-timeout", "1.5", "--idle-timeout", "2",
                            "--write-timeout", "2", "--max-body-mib", "1")
        cls.server.ask("POST", "/v1/chat/completions", chat())  # everything is warm
        time.sleep(0.2)
        cls.num_descriptors = cls.server.descriptors()
        cls.num_threads = cls.server.threads()

    @classmethod
    def tearDownClass(cls):
        try:
            server = cls.server
            assert soon(lambda: server.running() == 0, 20), "requests are left"
            assert soon(lambda: server.descriptors() == cls.num_descriptors, 20), (
                f"{server.descriptors()} descriptors, {cls.num_descriptors} at the beginning")
            assert server.threads() == cls.num_threads
            status, output = server.stop()
            assert (status, output) == (0, "invariants hold\n"), (status, output, server.log()[-2000:])
        finally:
            cls.server.kill()

    def setUp(self):
        self.connection = self.server.connect()
        self.addCleanup(self.connection.close)

    def send(self, text):
        self.connection.sendall(text.encode() if isinstance(text, str) else text)

    def refused(self, request, status):
        """`request` is answered with an error in OpenAI's shape, and the connection ends."""
        self.send(request)
        with self.connection.makefile("rb") as file:
            code, headers, body = read_reply(file)
            self.assertEqual(code, status, body)
            self.assertEqual(headers["Connection"], "close")
            error = json.loads(body)["error"]
            self.assertEqual(set(error), {"message", "type", "param", "code"})
            self.assertEqual(file.read(), b"")

    # ---- Requests in pieces ----

    def test_keep_alive(self):
        with self.connection.makefile("rb") as file:
            for _ in range(3):
                self.send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                self.assertEqual(read_reply(file)[0], 200)
                self.send(post(chat()))
                status, headers, _ = read_reply(file)
                self.assertEqual((status, headers["Connection"]), (200, "keep-alive"))

    def test_pipelining(self):
        get = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
        self.send(post(chat(True, 16)) + get + post(chat()) + get)
        with self.connection.makefile("rb") as file:
            replies = [read_reply(file) for _ in range(4)]
        self.assertEqual([reply[0] for reply in replies], [200] * 4)
        self.assertTrue(replies[0][2].endswith(b"data: [DONE]\n\n"))
        self.assertEqual(json.loads(replies[1][2])["object"], "list")
        self.assertEqual(json.loads(replies[2][2])["object"], "chat.completion")
        self.assertEqual(replies[3][2], replies[1][2])

    def test_a_byte_at_a_time(self):
        body = chat(max_tokens=2)
        request = post(body)
        for at in range(len(request) - len(body) - 40, len(request)):
            self.send(request[at : at + 1] if at != len(request) - len(body) - 40
                      else request[: at + 1])
        with self.connection.makefile("rb") as file:
            self.assertEqual(read_reply(file)[0], 200)

    def test_chunked_request(self):
        body = chat()
        chunks = b"".join(b"%x;extension\r\n%s\r\n" % (len(body[i : i + 7]), body[i : i + 7])
                          for i in range(0, len(body), 7))
        self.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked"
                  b"\r\n\r\n" + chunks + b"0\r\nTrailer: x\r\n\r\n")
        with self.connection.makefile("rb") as file:
            self.assertEqual(read_reply(file)[0], 200)

    def test_expect_continue(self):
        body = chat()
        request = post(body, headers=["Expect: 100-continue"])
        self.send(request[: -len(body)])
        self.assertEqual(read_until(self.connection, b"\r\n\r\n"), b"HTTP/1.1 100 Continue\r\n\r\n")
        self.send(body)
        with self.connection.makefile("rb") as file:
            self.assertEqual(read_reply(file)[0], 200)

    def test_other_expectations(self):
        body = chat()
        self.refused(post(body, headers=["Expect: miracles"])[: -len(body)], 417)

    # ---- Too slow ----

    def test_slow_header(self):
        self.send("GET /health HTTP/1.1\r\nHo")
        begin = time.monotonic()
        self.assertEqual(status_of(read_all(self.connection)), 408)
        self.assertGreater(time.monotonic() - begin, 0.9)

    def test_dripping_header(self):
        begin = time.monotonic()
        try:
            while time.monotonic() < begin + DEADLINE:
                self.send("x")
                time.sleep(0.1)
        except ConnectionError:
            pass
        self.assertLess(time.monotonic() - begin, 10)

    def test_half_a_body(self):
        self.send(post(chat())[:-5])
        self.assertEqual(status_of(read_all(self.connection)), 408)

    def test_idle_connection(self):
        self.assertEqual(read_all(self.connection), b"")
        connection = self.server.connect()
        self.addCleanup(connection.close)
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.assertEqual(status_of(read_all(connection)), 200)  # and ends

    def test_half_a_request_and_gone(self):
        for part in (b"G", post(chat())[:-1]):
            connection = self.server.connect()
            connection.sendall(part)
            connection.close()

    # ---- Malformed ----

    def test_header_too_long(self):
        self.refused("GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + "x" * 20_000 + "\r\n\r\n", 431)

    def test_endless_header(self):
        try:
            self.send("GET /health HTTP/1.1\r\n" + "A: b\r\n" * 100_000)
        except ConnectionError:
            return
        self.assertIn(status_of(read_all(self.connection)), (431, b""))

    def test_body_too_long(self):
        self.refused("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                     "Content-Length: 1048577\r\n\r\n", 413)

    def test_body_too_long_is_sent_all_the_same(self):
        self.refused(post(b"x" * (3 << 20)), 413)

    def test_chunked_body_too_long(self):
        self.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        self.refused(chunk * 17, 413)

    def test_huge_length(self):
        for length in ("18446744073709551616", "-1", "1e3", "0x10", "", "5, 6", "+5"):
            with self.subTest(length), self.server.connect() as connection:
                connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
                                   + length.encode() + b"\r\n\r\n{}    ")
                self.assertEqual(status_of(read_all(connection)), 400)

    def test_bad_chunks(self):
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        for chunk in (b"zz\r\n", b"-1\r\n", b"5\r\nhelloworld\r\n", b"fffffffffffffffff\r\n"):
            with self.subTest(chunk), self.server.connect() as connection:
                connection.sendall(head + chunk)
                self.assertIn(status_of(read_all(connection)), (400, 413))

    def test_bodies_of_unclear_length(self):
        post_line = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        cases = {
            "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n": 400,
            "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n": 400,
            "Content-Length: 2\r\nContent-Length: 3\r\n": 400,
            "Transfer-Encoding: gzip\r\n": 501,
            "Transfer-Encoding: gzip, chunked\r\n": 501,
            "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n": 501,
            "Transfer-Encoding: CHUNKED\r\nContent-Encoding: gzip\r\n": 415,
            "Content-Encoding: gzip\r\nContent-Length: 2\r\n": 415,
            "Content-Encoding: identity\r\nContent-Encoding: br\r\nContent-Length: 2\r\n": 415,
            "Transfer-Encoding: chunked, gzip\r\n": 501,
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n": 400,
        }
        for headers, status in cases.items():
            with self.subTest(headers), self.server.connect() as connection:
                connection.sendall((post_line + headers + "\r\n{}").encode())
                self.assertEqual(status_of(read_all(connection)), status)

    def test_not_http(self):
        for text, status in ((b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), 400),
                             (b"hello\r\n\r\n", 400),
                             (b"GET /health HTTP/1.1\r\n\r\n", 400),
                             (b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: b\r\n\r\n", 400),
                             (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n", 400),
                             (b"GET /health HTTP/1.1\r\nHost : a\r\n\r\n", 400),
                             (b"GET /hea lth HTTP/1.1\r\nHost: localhost\r\n\r\n", 505),
                             (b"GET /health HTTP/2.0\r\nHost: localhost\r\n\r\n", 505)):
            with self.subTest(text), self.server.connect() as connection:
                connection.sendall(text)
                self.assertEqual(status_of(read_all(connection)), status)

    def test_malformed_requests_hear_which_rule_they_break(self):
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        for text, rule in (("hello\r\n\r\n", "method"),
                           ("GET  HTTP/1.1\r\n\r\n", "target"),
                           ("GET /health HTTP/1.1\r\n\r\n", "no Host"),
                           (head + "Host: b\r\n\r\n", "several Host"),
                           ("GET /health HTTP/1.1\r\nHost : a\r\n\r\n", "colon"),
                           ("GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n", "control characters"),
                           (head + "Content-Length: 1e3\r\n\r\n", "decimal number"),
                           (head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", "hexadecimal"),
                           (head + "Transfer-Encoding: chunked\r\n\r\n5;;\r\n", "extension")):
            with self.subTest(text), self.server.connect() as connection:
                connection.sendall(text.encode())
                with connection.makefile("rb") as file:
                    status, _, body = read_reply(file)
                message = json.loads(body)["error"]["message"]
                self.assertEqual(status, 400, message)
                self.assertTrue(message.startswith("this is not a request of HTTP/1.1: "), message)
                self.assertIn(rule, message)

    def test_coded_bodies_hear_what_to_send(self):
        self.refused("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip"
                     "\r\nContent-Length: 2\r\n\r\n", 415)
        status, headers, body = self.server.ask("POST", "/v1/completions", b"{}",
                                                {"Content-Encoding": "gzip"})
        self.assertEqual((status, headers["Accept-Encoding"]), (415, "identity"))
        self.assertIn("Content-Encoding", json.loads(body)["error"]["message"])

    def test_chunk_extensions_and_trailers_are_bounded(self):
        head = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n")
        long = b"x" * 1000
        cases = {
            "one extension": b"1;" + b"x" * 40_000,
            "extensions of many chunks": (b"1;" + long + b"\r\n{\r\n") * 100,
            "sizes with many zeros": (b"0" * 4000 + b"1\r\n{\r\n") * 30,
            "one trailer": b"0\r\nX: " + b"x" * 40_000,
            "many trailers": b"0\r\n" + b"X: y\r\n" * 10_000,
        }
        for name, body in cases.items():
            begin = time.monotonic()
            with self.subTest(name), self.server.connect() as connection:
                try:
                    connection.sendall(head + body)
                except ConnectionError:
                    pass
                self.assertEqual(status_of(read_all(connection)), 431)
                self.assertLess(time.monotonic() - begin, 1.4)  # not the time-out of the body
        body = chat(max_tokens=2)
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)  # costly, and right
        self.send(head.replace(b"completions", b"chat/completions") + chunks + b"0\r\n\r\n")
        with self.connection.makefile("rb") as file:
            self.assertEqual(read_reply(file)[0], 200)

    # ---- Methods, versions, pages ----

    def test_absolute_targets(self):
        for target in ("http://localhost/v1/models", "HTTP://localhost:80/v1/models?x=1", "https://localhost/"):
            self.send(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n")
            with self.connection.makefile("rb") as file:
                self.assertEqual(read_reply(file)[0], 200, target)
        body = chat()
        self.send(f"POST http://localhost/v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                  f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        with self.connection.makefile("rb") as file:
            self.assertEqual(read_reply(file)[0], 200)

    def test_unknown_paths_and_methods(self):
        self.assertEqual(self.server.get("/nowhere")[0], 404)
        status, headers, _ = self.server.get("/v1/chat/completions")
        self.assertEqual((status, headers["Allow"]), (405, "POST"))
        self.assertEqual(self.server.ask("BREW", "/health")[0], 405)
        self.assertEqual(self.server.ask("OPTIONS", "/v1/models")[0], 405)

    def test_head(self):
        for path in ("/health", "/v1/models", "/nowhere"):
            expected = self.server.get(path)
            self.send(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head = read_until(self.connection, b"\r\n\r\n").decode()
            self.assertTrue(head.endswith("\r\n\r\n"))  # and nothing behind
            self.assertIn(f" {expected[0]} ", head)
            self.assertIn(f"Content-Length: {len(expected[2])}\r\n", head)

    def test_http_1_0(self):
        self.send("GET /health HTTP/1.0\r\n\r\n")
        self.assertEqual(status_of(read_all(self.connection)), 200)  # and ends
        connection = self.server.connect()
        self.addCleanup(connection.close)
        connection.sendall(post(chat(True), version="1.0"))
        reply = read_all(connection)
        self.assertNotIn(b"chunked", reply)
        self.assertTrue(reply.endswith(b"data: [DONE]\n\n"))

    def test_half_closed(self):
        """What is answered at once still is, when the client has said that it says no more."""
        self.send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.connection.shutdown(socket.SHUT_WR)
        self.assertEqual(status_of(read_all(self.connection)), 200)

    def test_half_closed_clients_get_their_answers(self):
        for body in (chat(), chat(True), chat(max_tokens=900, n=4)):
            with self.server.connect() as connection, connection.makefile("rb") as file:
                connection.sendall(post(body))
                connection.shutdown(socket.SHUT_WR)
                while True:
                    if (line := file.readline()).split()[1] != b"100":
                        break
                    self.assertEqual(file.readline(), b"\r\n")
                self.assertEqual(status_of(line), 200)
                self.assertRegex(file.read(), rb"completion_tokens|DONE")
        with self.server.connect() as connection:  # and of HTTP/1.0, which has no 100
            connection.sendall(post(chat(max_tokens=300), version="1.0"))
            connection.shutdown(socket.SHUT_WR)
            self.assertEqual(status_of(read_all(connection)), 200)

    def test_heads(self):
        _, headers, _ = self.server.get("/v1/models")
        self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
        self.assertRegex(headers["Date"], r"^\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT$")
        _, headers, _ = self.server.ask("POST", "/v1/chat/completions", chat(True))
        self.assertTrue(headers["Content-Type"].startswith("text/event-stream"))
        self.assertEqual(headers.get_all("Cache-Control"), ["no-cache"])

    def test_page(self):
        status, headers, page = self.server.get("/")
        if status == 404:
            self.skipTest("the program has no page")
        self.assertEqual(status, 200)
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        self.assertTrue(page.lower().startswith(b"<!doctype html>"))

    # ---- Clients that leave ----

    def cut_off(self):
        """How many tokens were generated for each client that has left so far."""
        return [int(count) for count in
                re.findall(r"(?m)chat prompt=\d+ cached=\d+ generated=(\d+) .* disconnected$",
                           self.server.log())]

    def assert_cut_off(self, before):
        """One more client has left, and most of its 7,200 tokens were never made."""
        self.assertTrue(soon(lambda: len(self.cut_off()) > len(before), 10), self.server.log()[-500:])
        self.assertLess(self.cut_off()[-1], 6000)
        self.assertTrue(soon(lambda: self.server.running() == 0, 10), self.server.running())

    def leave(self, is_reset):
        if is_reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def test_leaves_before_the_answer(self):
        for is_reset in (False, True):
            before = self.cut_off()
            self.connection = self.server.connect()
            self.send(post(chat(max_tokens=900, n=8)))
            self.assertTrue(soon(lambda: self.server.running() > 0))
            self.leave(is_reset)
            self.assert_cut_off(before)

    def test_leaves_within_a_stream(self):
        for is_reset in (False, True):
            before = self.cut_off()
            self.connection = self.server.connect()
            self.send(post(chat(True, 900, n=8)))
            read_until(self.connection, b"data: ")
            self.leave(is_reset)
            self.assert_cut_off(before)

    def test_leaves_with_requests_ahead(self):
        before = self.cut_off()
        self.send(post(chat(max_tokens=900, n=8)) + post(chat(max_tokens=900, n=8)))
        self.assertTrue(soon(lambda: self.server.running() > 0))
        self.connection.close()
        self.assert_cut_off(before)

    def test_reads_nothing(self):
        """A reader that has stopped ends by the write time-out, and holds nobody up."""
        connection = self.server.connect(receive_bytes=2048)
        self.addCleanup(connection.close)
        logprobs = {"logprobs": True, "top_logprobs": 20}
        connection.sendall(post(chat(True, 900, n=32, **logprobs)))
        self.assertTrue(soon(lambda: self.server.running() > 0))
        self.assertEqual(self.server.ask("POST", "/v1/chat/completions", chat())[0], 200)
        self.assertTrue(soon(lambda: self.server.running() == 0))
        self.assertTrue(soon(lambda: "disconnected" in self.server.log(), 10))

    def test_many_streams(self):
        results = []

        def stream():
            status, _, body = self.server.ask("POST", "/v1/chat/completions", chat(True, 16))
            results.append((status, body.endswith(b"data: [DONE]\n\n"), body.count(b"data: ")))

        threads = [threading.Thread(target=stream) for _ in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(results), 200)
        self.assertTrue(all(status == 200 and is_done and 3 <= count <= 19
                            for status, is_done, count in results), results)

    # ---- Metrics ----

    def test_metrics_count_requests_and_not_choices(self):
        names = ("vllm:request_success_total", "nanovllm:requests_finished_total",
                 "vllm:e2e_request_latency_seconds_count")
        self.assertTrue(soon(lambda: self.server.running() == 0))
        before = [self.server.metric(name) for name in names]
        for fields in ({"best_of": 2}, {"best_of": 3, "n": 2}, {"n": 2}):
            body = {"prompt": "Once upon", "max_tokens": 4, "temperature": 1, **fields}
            self.assertEqual(self.server.ask("POST", "/v1/completions", json.dumps(body))[0], 200)
        after = [self.server.metric(name) for name in names]
        self.assertEqual([b - a for a, b in zip(before, after)], [3, 3, 3])

    def test_refusals_by_the_transport_are_counted(self):
        before = self.server.metric("nanovllm:requests_refused_total", status=413)
        self.refused("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                     "Content-Length: 1048577\r\n\r\n", 413)
        self.assertTrue(soon(lambda: self.server.metric(
            "nanovllm:requests_refused_total", status=413) == before + 1, 5))

    # ---- Statistics ----

    def stats(self):
        """The answer of /stats, whose law holds."""
        status, headers, body = self.server.get("/stats")
        self.assertEqual((status, headers["Content-Type"]), (200, "application/json"))
        out = json.loads(body)
        blocks = out["kv_blocks"]
        if blocks is not None:
            self.assertEqual(blocks["num_free"] + blocks["num_cached"] + blocks["num_held"], blocks["num_blocks"])
            for state in ("cached", "held"):
                self.assertEqual(sum(blocks[state]), blocks["num_" + state])
            for i, (cached, held) in enumerate(zip(blocks["cached"], blocks["held"], strict=True)):
                size = min(blocks["blocks_per_cell"], blocks["num_blocks"] - i * blocks["blocks_per_cell"])
                self.assertTrue(0 <= cached and 0 <= held and cached + held <= size, (i, cached, held))
        return out

    def test_stats_add_up_at_every_poll_whatever_comes_and_leaves(self):
        dice = random.Random(5)
        is_over = threading.Event()
        failures = []

        def use(seed):
            dice = random.Random(seed)
            while not is_over.is_set():
                body = chat(dice.random() < 0.7, dice.randint(1, 300), n=dice.randint(1, 4))
                body = body.replace(b"a fox", b"a fox and " + str(dice.randint(0, 5)).encode() * 30)
                connection = self.server.connect()
                try:
                    connection.sendall(post(body))
                    if dice.random() < 0.5:
                        time.sleep(dice.random() / 10)  # and leaves
                    else:
                        connection.recv(1 << 20)
                finally:
                    connection.close()

        def poll():
            try:
                while not is_over.is_set():
                    polls.append(self.stats())
            except AssertionError as error:
                failures.append(error)

        polls = []
        threads = [threading.Thread(target=use, args=(seed,)) for seed in range(6)]
        threads += [threading.Thread(target=poll) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(4 + dice.random())
        is_over.set()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        maps = [p["kv_blocks"] for p in polls if p["kv_blocks"]]
        self.assertGreater(len(maps), len(polls) - 20)  # there is none in the first poll of a step
        self.assertGreater(max(m["num_held"] for m in maps), 0)
        self.assertGreater(max(m["num_cached"] for m in maps), 0)
        self.assertLess(sorted(m["age_seconds"] for m in maps)[len(maps) // 2], 1)
        self.assertTrue(soon(lambda: self.stats()["kv_blocks"]["num_held"] == 0, 10))
        after = self.stats()
        self.assertEqual((after["status"], after["num_running"], after["num_waiting"]), ("ok", 0, 0))
        self.assertGreater(after["num_generated_tokens"], polls[0]["num_generated_tokens"])

    def test_stats_are_not_logged(self):
        self.stats()
        self.server.get("/version")
        self.assertTrue(soon(lambda: "/version" in self.server.log()))
        self.assertNotIn("/stats", self.server.log())

    # ---- The log ----

    def test_log(self):
        self.server.ask("POST", "/v1/chat/completions?key=geheim",
                        chat(user="x").replace(b"fox", b"Rumpelstilz"))
        self.send(b"GET /\xc2\x9b31m\\nforged HTTP/1.1\r\nHost: localhost\r\n\r\n")
        read_until(self.connection, b"\r\n\r\n")
        escaped = r" GET /\xc2\x9b31m\x5cnforged 404 "
        self.assertTrue(soon(lambda: escaped in self.server.log(), 5))
        log = self.server.log()
        self.assertNotIn("Rumpelstilz", log)
        self.assertNotIn("geheim", log)
        self.assertRegex(log, r"(?m)^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z 127\.0\.0\.1:\d+ "
                              r"POST /v1/chat/completions 200 chat prompt=\d+ cached=\d+ "
                              r"generated=8 first=\d+\.\d+ total=\d+\.\d+ length$")


class SettingsTest(unittest.TestCase):
    """Servers of their own."""

    def start(self, *arguments, **more):
        server = Server(*arguments, **more)
        self.addCleanup(server.kill)
        return server

    def check_keys(self, server, keys):
        self.assertEqual(server.get("/health")[0], 200)
        for given in ("", "Bearer", "Bearer ", "Bearer wrong", "Basic " + keys[0], keys[0],
                      "Bearer " + keys[0][:-1], "Bearer " + keys[0] * 2):
            for path in ("/v1/models", "/metrics", "/stats", "/nowhere"):
                status, headers, body = server.get(path, {"Authorization": given} if given else {})
                self.assertEqual((status, headers["WWW-Authenticate"]), (401, "Bearer"), given)
                error = json.loads(body)["error"]
                self.assertEqual((error["type"], error["code"]),
                                 ("authentication_error", "invalid_api_key"))
        for key in keys:
            for scheme in ("Bearer", "bearer"):
                self.assertEqual(
                    server.get("/v1/models", {"Authorization": f"{scheme} {key}"})[0], 200)
            self.assertNotIn(key, server.log())

    def test_keys(self):
        self.check_keys(self.start("--api-key", "sesame-1", "--api-key", "sesame-22",
                                   "--log-requests"), ["sesame-1", "sesame-22"])
        self.check_keys(self.start(environment={"NANOVLLM_API_KEY": "from-there"}), ["from-there"])
        self.check_keys(self.start("--api-key", "from-here",
                                   environment={"NANOVLLM_API_KEY": "from-there"}),
                        ["from-here", "from-there"])

    def test_cors_and_logged_requests(self):
        server = self.start("--cors-origin", "https://a.example", "--log-requests", "--api-key", "k")
        status, headers, body = server.ask("OPTIONS", "/v1/chat/completions", headers={
            "Origin": "https://a.example", "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,x-mine"})
        self.assertEqual((status, body), (204, b""))
        self.assertEqual(headers["Access-Control-Allow-Origin"], "https://a.example")
        self.assertEqual(headers["Access-Control-Allow-Headers"], "authorization,x-mine")
        status, headers, _ = server.ask("POST", "/v1/chat/completions", chat(),
                                        {"Authorization": "Bearer k"})
        self.assertEqual((status, headers["Access-Control-Allow-Origin"]),
                         (200, "https://a.example"))
        self.assertTrue(soon(lambda: "Tell me of a fox." in server.log(), 5))

    def test_pages_of_other_origins_may_not_ask(self):
        """A page can send a text without asking for leave, and must not be served."""
        server = self.start()
        own = f"http://127.0.0.1:{server.port}"
        for origin in ("https://evil.example", "http://127.0.0.1:1", "null", own + ".evil.example"):
            headers = {"Origin": origin, "Content-Type": "text/plain"}
            for method, path, body in (("POST", "/v1/chat/completions", chat()),
                                       ("GET", "/v1/models", None), ("GET", "/", None),
                                       ("OPTIONS", "/v1/chat/completions", None)):
                status, replied, body = server.ask(method, path, body, headers)
                self.assertEqual(status, 403, (origin, method, path))
                self.assertIn("--cors-origin", json.loads(body)["error"]["message"])
                self.assertIsNone(replied["Access-Control-Allow-Origin"])
        self.assertEqual(server.metric("vllm:prompt_tokens_total"), 0)
        self.assertEqual(
            server.ask("POST", "/v1/chat/completions", chat(), {"Origin": own})[0], 200)
        self.assertEqual(server.ask("POST", "/v1/chat/completions", chat())[0], 200)

    def test_unknown_hosts_are_refused(self):
        """A page whose name was made to point to the server (DNS rebinding) has an origin of its own."""
        server = self.start()
        evil = f"evil.example:{server.port}"
        for path in ("/v1/models", "/", "/metrics"):
            status, _, body = server.get(path, {"Host": evil})
            self.assertEqual(status, 403, path)
            self.assertIn("--allowed-host evil.example", json.loads(body)["error"]["message"])
        status, _, _ = server.ask("POST", "/v1/chat/completions", chat(),
                                  {"Host": evil, "Origin": "http://" + evil})
        self.assertEqual(status, 403)
        for host in ("localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8000", "192.168.0.1"):
            self.assertEqual(server.get("/v1/models", {"Host": host})[0], 200, host)
        for path in ("/health", "/ping"):  # probes have names of their own
            self.assertEqual(server.get(path, {"Host": evil})[0], 200)
        self.assertEqual(server.get("/v1/models", {"Host": 'a"\\b'})[0], 403)
        allowing = self.start("--allowed-host", "ai.example", "--cors-origin", "https://a.example",
                              "--cors-origin", "https://b.example")
        self.assertEqual(allowing.get("/v1/models", {"Host": "AI.example:80"})[0], 200)
        self.assertEqual(allowing.get("/v1/models", {"Host": "evil.example"})[0], 403)
        for origin, status in (("https://a.example", 200), ("https://b.example", 200),
                               ("https://c.example", 403)):
            got, headers, _ = allowing.get("/v1/models", {"Origin": origin})
            self.assertEqual(got, status)
            if status == 200:
                self.assertEqual(headers["Access-Control-Allow-Origin"], origin)
        keyed = self.start("--api-key", "k")
        self.assertEqual(keyed.get("/v1/models", {"Host": evil, "Authorization": "Bearer k"})[0], 200)

    def test_too_many_connections(self):
        server = self.start("--max-connections", "2")
        held = [server.connect() for _ in range(2)]
        for connection in held:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            read_until(connection, b"\r\n\r\n")
        status, headers, _ = server.get("/health")
        self.assertEqual((status, headers["Retry-After"]), (503, "1"))
        for connection in held:
            connection.close()
        self.assertTrue(soon(lambda: server.get("/health")[0] == 200, 10))

    def slowest_health(self, server, request):
        """Seconds that /health took at the most while `request` was answered."""
        replies, slowest = [], 0
        client = threading.Thread(
            target=lambda: replies.append(server.ask("POST", "/v1/chat/completions", request)))
        client.start()
        while client.is_alive():
            begin = time.monotonic()
            self.assertEqual(server.get("/health")[0], 200)
            slowest = max(slowest, time.monotonic() - begin)
            time.sleep(0.002)
        self.assertEqual(replies[0][0], 200, replies[0][2][:500])
        self.assertGreater(len(replies[0][2]), 10_000_000)
        return slowest

    def test_large_replies_hold_up_nobody(self):
        server = self.start("--io-threads", "1")
        large = chat(max_tokens=100, n=64, logprobs=True, top_logprobs=20)
        times = []
        while min(times, default=1) > 0.1 and len(times) < 3:  # the machine may have been busy
            times.append(self.slowest_health(server, large))
        self.assertLess(min(times), 0.1, times)

    def test_memory_of_bodies_is_bounded(self):
        server = self.start("--max-body-mib", "2", "--max-body-memory-mib", "3")
        body = chat(user="x" * (2 << 20))[:2 << 20]
        large = chat(user="x" * (3 << 19))  # 1.5 MiB

        def ask():
            try:
                return server.ask("POST", "/v1/chat/completions", large)[0]
            except ConnectionError:  # refused before all of it was sent
                return 503

        def refused_beside(pause):
            """Whether it is, beside a body that lacks its end."""
            with server.connect() as held:
                held.sendall(post(body)[:-1])
                time.sleep(pause)  # else that one may be refused
                if ask() != 503:
                    return False
                self.assertEqual(server.ask("POST", "/v1/chat/completions", chat())[0], 200)
                with server.connect() as connection:
                    connection.sendall(post(large))
                    with connection.makefile("rb") as file:
                        code, headers, text = read_reply(file)
                self.assertEqual((code, headers["Retry-After"]), (503, "1"))
                self.assertIn("bodies", json.loads(text)["error"]["message"])
                return True

        self.assertTrue(any(refused_beside(pause) for pause in (0.1, 0.5, 2)))
        self.assertTrue(soon(lambda: ask() == 200, 10))
        for _ in range(5):  # what is answered counts no more
            self.assertEqual(ask(), 200)

    def test_memory_of_bodies_that_never_end_is_given_back(self):
        server = self.start()

        def resident_mib():
            with open(f"/proc/{server.process.pid}/status", encoding="ascii") as status:
                return int(re.search(r"VmRSS:\s+(\d+) kB", status.read())[1]) >> 10

        server.ask("POST", "/v1/chat/completions", chat())
        before = resident_mib()
        for _ in range(3):
            held = []
            for _ in range(30):
                held.append(server.connect())
                held[-1].sendall(post(b"x" * (7 << 20))[:-1])
            self.assertTrue(soon(lambda: resident_mib() > before + 100, 10))
            for connection in held:
                connection.close()
            self.assertTrue(soon(lambda: resident_mib() < before + 40, 10),
                            f"{before} MiB before, {resident_mib()} MiB now")

    def test_full_queue(self):
        server = self.start("--max-num-seqs", "1", "--max-queue", "1")
        with server.connect() as first:
            first.sendall(post(chat(True, 900)))
            read_until(first, b"data: ")
            with server.connect() as second:
                second.sendall(post(chat(True, 900)))
                self.assertTrue(soon(lambda: server.running() == 2))
                status, headers, body = server.ask("POST", "/v1/chat/completions", chat())
                self.assertEqual((status, headers["Retry-After"]), (429, "1"), body)

    def test_recovers_from_a_step_that_took_too_long(self):
        server = self.start("--step-timeout", "0.5")
        with server.connect() as stream:
            stream.sendall(post(chat(True, 900, n=64)))
            read_until(stream, b"data: ")
            for _ in range(8):  # it may be stopped between two steps, and the stream goes on
                server.process.send_signal(signal.SIGSTOP)
                time.sleep(1)
                server.process.send_signal(signal.SIGCONT)
                if soon(lambda: server.get("/health")[0] == 503, 0.1):
                    break
            self.assertIn(b"step_timeout", read_until(stream, b"[DONE]"))
        # Nothing but questions for its health, and what they try the engine with.
        states = []

        def is_well():
            status, _, body = server.get("/health")
            states.append(json.loads(body)["status"])
            return status == 200

        self.assertTrue(soon(is_well), states)
        self.assertIn("recovering", states)
        self.assertEqual(server.ask("POST", "/v1/chat/completions", chat())[0], 200)
        self.assertIn("its ranks were made anew", server.log())

    def ask_in_threads(self, server, requests):
        """Sends all at once; returns the threads, and the statuses as they come."""
        statuses = []

        def ask(path, fields):
            try:
                statuses.append(server.ask("POST", path, json.dumps(fields))[0])
            except (ConnectionError, http.client.HTTPException) as error:
                statuses.append(type(error).__name__)

        threads = [threading.Thread(target=ask, args=request) for request in requests]
        for thread in threads:
            thread.start()
        return threads, statuses

    @staticmethod
    def long_requests(count):
        return [("/tokenize", {"prompt": "qzjxkv" * (300_000 + i)}) for i in range(count)]

    def test_long_requests_hold_up_nobody(self):
        server = self.start()
        server.ask("POST", "/v1/chat/completions", chat())
        patterns = [("/v1/chat/completions",
                     {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1,
                      "guided_regex": f"({i}|.*a.{{16}}b)"}) for i in range(16)]
        threads, statuses = self.ask_in_threads(server, patterns + self.long_requests(8))
        self.assertTrue(soon(lambda: server.metric("nanovllm:num_requests_preparing") > 8))
        self.assertGreater(json.loads(server.get("/health")[2])["num_preparing"], 8)
        times = []
        for _ in range(30):
            begin = time.monotonic()
            self.assertEqual(server.ask("POST", "/v1/chat/completions", chat(max_tokens=1))[0], 200)
            times.append(time.monotonic() - begin)
        self.assertGreater(server.metric("nanovllm:num_requests_preparing"), 0)
        self.assertLess(sorted(times)[-3], 0.25, times)
        begin = time.monotonic()
        self.assertEqual(server.stop(), (0, "invariants hold\n"))
        self.assertLess(time.monotonic() - begin, 10)
        for thread in threads:
            thread.join(DEADLINE)
        self.assertEqual(len(statuses), 24)
        self.assertLessEqual(set(statuses), {200, 400, 503})
        self.assertIn(503, statuses)

    def test_long_texts_do_not_hold_up_the_end(self):
        server = self.start("--drain-timeout", "3")
        texts = ["qzjxkv" * 1_300_000, "Once upon a time there was a fox. " * 230_000]
        threads, statuses = self.ask_in_threads(
            server, [("/tokenize", {"prompt": text, "return_token_strs": True}) for text in texts])
        self.assertTrue(soon(lambda: server.metric("nanovllm:num_requests_preparing") == 2))
        time.sleep(0.2)  # both are read, and one or both encoded
        begin = time.monotonic()
        self.assertEqual(server.stop(), (0, "invariants hold\n"))
        self.assertLess(time.monotonic() - begin, 2)
        for thread in threads:
            thread.join(DEADLINE)
        self.assertEqual(statuses, [503, 503])

    def test_long_requests_are_bounded_by_client(self):
        keys = ["--api-key", "one", "--api-key", "two"]
        server = self.start("--long-handler-threads", "1", "--max-long-requests", "2", *keys)
        statuses = {"one": [], "two": []}

        def ask(key, fields):
            statuses[key].append(server.ask("POST", "/tokenize", json.dumps(fields),
                                            {"Authorization": f"Bearer {key}"})[0])

        threads = []
        for _, fields in self.long_requests(6):
            threads.append(threading.Thread(target=ask, args=("one", fields)))
            threads[-1].start()
        authorised = {"Authorization": "Bearer one"}
        self.assertTrue(soon(lambda: 429 in statuses["one"], 10))
        threads.append(threading.Thread(target=ask, args=("two", {"prompt": "a " * 20_000})))
        threads[-1].start()
        self.assertEqual(
            server.ask("POST", "/v1/chat/completions", chat(max_tokens=1), authorised)[0], 200)
        for thread in threads:
            thread.join(DEADLINE)
        self.assertEqual(statuses["two"], [200])
        self.assertEqual(set(statuses["one"]), {200, 429})
        self.assertGreaterEqual(statuses["one"].count(200), 2)

    def test_long_requests_of_clients_that_leave_are_dropped(self):
        server = self.start("--long-handler-threads", "1")
        for _, fields in self.long_requests(30):
            connection = server.connect()
            connection.sendall(post(json.dumps(fields).encode()).replace(
                b"/v1/chat/completions", b"/tokenize", 1))
            connection.close()
        begin = time.monotonic()
        self.assertTrue(soon(lambda: server.get("/health") and server.metric(
            "nanovllm:num_requests_preparing") == 0))
        self.assertLess(time.monotonic() - begin, 20)
        self.assertTrue(soon(lambda: server.metric("nanovllm:http_disconnects_total") >= 25, 10))

    def test_durations_of_any_length(self):
        forever = ["--idle-timeout", "1e12", "--header-timeout", "1e300", "--body-timeout", "inf",
                   "--write-timeout", "1e18", "--handshake-timeout", "1e10", "--drain-timeout",
                   "1e300", "--step-timeout", "1e12"]
        server = self.start(*forever)
        with server.connect() as idle, server.connect() as stream:
            stream.sendall(post(chat(True, 300)))
            read_until(stream, b"data: ")
            server.process.send_signal(signal.SIGTERM)
            self.assertTrue(read_all(stream).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"))
            self.assertEqual(server.process.wait(DEADLINE), 0)
        for value in ("nan", "-1", "0", "soon"):
            done = subprocess.run([SERVE, "--model", MODEL, "--idle-timeout", value],
                                  capture_output=True, timeout=DEADLINE)
            self.assertGreater(done.returncode, 0, value)
            self.assertIn(b"--idle-timeout", done.stderr)

    def test_starts_with_three_lines(self):
        server = self.start("--served-model-name", "tales")
        lines = server.log().splitlines()
        self.assertEqual(len(lines), 2, lines)  # and that on standard output
        self.assertRegex(lines[0], r"^model +tales: \d+\.\d MiB of weights, loaded in \d+\.\d s$")
        self.assertRegex(lines[1], r"^memory +\d+ MiB in use; cpu, .* KV blocks")
        self.assertIn("Scheduling", self.start("-v").log())

    def test_speculation_keeps_every_answer(self):
        requests = [
            {"prompt": "the king and the queen, the king and the queen, the king", "temperature": 0},
            {"prompt": "Once upon a time", "temperature": 0.9, "seed": 7},
            {"prompt": "Once upon a time", "temperature": 0.7, "seed": 8, "n": 2, "stop": "the"},
            {"prompt": "one two one two one two", "temperature": 0.5, "seed": 9, "logprobs": 2,
             "repetition_penalty": 1.1}]

        def answers(server):
            out = []
            for request in requests:
                body = json.dumps({"max_tokens": 48, "ignore_eos": True, **request}).encode()
                status, _, reply = server.ask("POST", "/v1/completions", body)
                self.assertEqual(status, 200, reply)
                out.append(json.loads(reply)["choices"])
            return out

        plain = self.start()
        expected = answers(plain)
        self.assertFalse(b"spec_decode" in plain.get("/metrics")[2])
        ngram = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 5, ' \
                '"prompt_lookup_min": 1, "adaptive": false}'
        small = json.dumps({"method": "draft_model", "model": MODEL, "num_speculative_tokens": 3,
                            "model_kv_blocks": 200, "adaptive": False})
        for config, line in ((ngram, "ngram, up to 3 tokens at a time, after 1 to 5 that came before"),
                             (small, f"draft_model, up to 3 tokens at a time, model '{MODEL}'")):
            server = self.start("--speculative-config", config)
            self.assertEqual(server.log().splitlines()[2], f"drafts   {line}")
            self.assertEqual(answers(server), expected, config)
            count = lambda name, **labels: server.metric(f"vllm:spec_decode_num_{name}_total", **labels)
            drafted, accepted = count("draft_tokens"), count("accepted_tokens")
            self.assertGreater(count("drafts"), 0)
            self.assertGreaterEqual(drafted, count("drafts"))
            self.assertGreater(accepted, 0)
            self.assertLessEqual(accepted, drafted)
            by_position = [count("accepted_tokens_per_pos", position=i) for i in range(4)]
            self.assertEqual((sum(by_position), by_position[3]), (accepted, 0))
            self.assertEqual(sorted(by_position, reverse=True), by_position)
            self.assertEqual(server.stop(), (0, "invariants hold\n"))
        short = self.start("--speculative-method", "ngram", "--speculative-tokens", "2")
        self.assertEqual(answers(short), expected)
        off = self.start("--speculative-tokens", "0")
        self.assertEqual(answers(off), expected)
        self.assertFalse(b"spec_decode" in off.get("/metrics")[2])

    def test_speculation_that_cannot_be_is_refused(self):
        for arguments, said in (
                (["--speculative-config", "[]"], "expected a JSON object, got array"),
                (["--speculative-config", '{"method": "eagle"}'], "expected ngram, draft_model or eagle3, got 'eagle'"),
                (["--speculative-config", '{"num_speculative_tokens": -2}'], "must be an integer in [0, 63], got -2"),
                (["--speculative-config", '{"tokens": 2}'], "got 'tokens'"),
                (["--speculative-config", '{"method": "ngram", "method": "ngram"}'], "method: expected at most once"),
                (["--speculative-method", "draft_model"], "expected a model"),
                (["--speculative-model", "/nonexistent"], "/nonexistent")):
            done = subprocess.run([SERVE, "--model", MODEL, *arguments], capture_output=True, timeout=DEADLINE)
            self.assertGreater(done.returncode, 0, arguments)
            self.assertIn(said, done.stderr.decode())

    def test_a_log_that_nobody_reads(self):
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        server = self.start("--log-requests", error_file=os.fdopen(writer, "wb"))
        body = chat(max_tokens=1, user="x" * 12_000)
        for _ in range(100):
            self.assertEqual(server.ask("POST", "/v1/chat/completions", body)[0], 200)
        self.assertGreater(server.metric("nanovllm:log_lines_dropped_total"), 0)
        begin = time.monotonic()
        self.assertEqual(server.stop(), (0, "invariants hold\n"))
        self.assertLess(time.monotonic() - begin, 5)

    def test_settings_that_make_no_sense(self):
        held = socket.socket()
        held.bind(("127.0.0.1", 0))
        held.listen()
        self.addCleanup(held.close)
        for arguments in (["--port", str(held.getsockname()[1])], ["--host", "no.such.host.invalid"],
                          ["--tls-cert", "x"], ["--api-key", ""], ["--api-key", "k\n"], ["--device", "cuda"],
                          ["--max-body-mib", "0"], ["--model", "/nonexistent"],
                          ["--max-body-mib", "8", "--max-body-memory-mib", "7"]):
            done = subprocess.run([SERVE, "--model", MODEL, *arguments], capture_output=True,
                                  timeout=DEADLINE)
            self.assertGreater(done.returncode, 0, arguments)
            self.assertNotEqual(done.stdout + done.stderr, b"", arguments)
        done = subprocess.run([SERVE, "--model", MODEL, "--dtype", "float32", "--kv-dtype", "int8"],
                              capture_output=True, timeout=DEADLINE)
        self.assertIn(b"--kv-dtype int8 is for --dtype bfloat16, got --dtype float32", done.stderr)
        done = subprocess.run([SERVE, "--model", MODEL], capture_output=True, timeout=DEADLINE,
                              env={**os.environ, "NANOVLLM_API_KEY": ""})
        self.assertGreater(done.returncode, 0)
        self.assertIn(b"NANOVLLM_API_KEY", done.stderr)

    def test_values_of_a_list_are_told_the_nearest(self):
        for arguments, said in ((["--device", "cdua"], b"--device: expected auto, cpu or cuda, got 'cdua'; did you mean cuda?"),
                                (["--tool-call-parser=hermse"], b"got 'hermse'; did you mean hermes?"),
                                (["--dtype", "int8"], b"--dtype: expected float32 or bfloat16, got 'int8'\n")):
            done = subprocess.run([SERVE, "--model", MODEL, *arguments], capture_output=True, timeout=DEADLINE)
            self.assertGreater(done.returncode, 0, arguments)
            self.assertIn(said, done.stderr)

    def test_unknown_options_are_told_the_nearest(self):
        for arguments, said in ((["--modle", "x"], b"unknown option --modle; did you mean --model?"),
                                (["--model", MODEL, "--prot=0"], b"--prot; did you mean --port?"),
                                (["--model", MODEL, "--quux"], b"unknown option --quux\n")):
            done = subprocess.run([SERVE, *arguments], capture_output=True, timeout=DEADLINE)
            self.assertGreater(done.returncode, 0, arguments)
            self.assertIn(said, done.stderr)
        done = subprocess.run([SERVE, "--version"], capture_output=True, timeout=DEADLINE)
        self.assertRegex(done.stdout, rb"^nanovllm \d+\.\d+\.\d+\n$")
        self.assertEqual(done.returncode, 0)

    # ---- Signals ----

    def test_sigterm_drains(self):
        server = self.start()
        idle = server.connect()
        stream, whole = server.connect(), server.connect()
        stream.sendall(post(chat(True, 900, n=4)))
        whole.sendall(post(chat(False, 900, n=4)))
        read_until(stream, b"data: ")
        self.assertTrue(soon(lambda: server.running() == 8))
        server.process.send_signal(signal.SIGTERM)
        self.assertTrue(soon(lambda: server.get("/health")[0] == 503, 5))
        self.assertEqual(server.ask("POST", "/v1/chat/completions", chat())[0], 503)
        self.assertTrue(read_all(stream).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"))
        self.assertEqual(status_of(read_all(whole)), 200)
        self.assertEqual(read_all(idle), b"")
        output = server.process.communicate(timeout=DEADLINE)[0]
        self.assertEqual((server.process.returncode, output), (0, b"invariants hold\n"))
        for connection in (idle, stream, whole):
            connection.close()

    def test_time_to_drain_is_limited(self):
        server = self.start("--drain-timeout", "0.5", "--write-timeout", "60")
        with server.connect() as half, server.connect() as stream:
            half.sendall(post(chat())[:-1])
            stream.sendall(post(chat(True, 900, n=64)))
            read_until(stream, b"data: ")
            begin = time.monotonic()
            self.assertEqual(server.stop(), (0, "invariants hold\n"))
            self.assertLess(time.monotonic() - begin, 10)
            self.assertEqual(read_all(half), b"")

    def assert_cut_off(self, body):
        """A stream that ends with an error of the server's end, and as all streams do."""
        self.assertTrue(body.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), body[-200:])
        event = body.split(b"data: ")[-2]
        self.assertIn("shutting down", json.loads(event)["error"]["message"])

    def test_streams_beyond_the_time_to_drain_are_told(self):
        server = self.start("--drain-timeout", "0.3")
        with server.connect() as chats, server.connect() as messages:
            chats.sendall(post(chat(True, 900, n=64)))
            messages.sendall(post(chat(True, 900)).replace(b"chat/completions", b"messages"))
            for connection in (chats, messages):
                read_until(connection, b"data: ")
            server.process.send_signal(signal.SIGTERM)
            self.assert_cut_off(read_all(chats))
            events = read_all(messages).decode()
            self.assertIn("event: error\ndata: {", events)
            self.assertIn("overloaded_error", events)
            self.assertTrue(events.endswith("\r\n0\r\n\r\n"))
        output = server.process.communicate(timeout=DEADLINE)[0]
        self.assertEqual((server.process.returncode, output), (0, b"invariants hold\n"))
        self.assertRegex(server.log(), r"/v1/messages 200 messages .* error\n")

    def test_whole_replies_beyond_the_time_to_drain_are_503(self):
        server = self.start("--drain-timeout", "0.3")
        with server.connect() as whole, server.connect() as stream:
            whole.sendall(post(chat(False, 900, n=64)))
            stream.sendall(post(chat(True, 900, n=64)))
            read_until(stream, b"data: ")
            self.assertTrue(soon(lambda: server.running() == 128))
            server.process.send_signal(signal.SIGTERM)
            with whole.makefile("rb") as file:
                status, headers, body = read_reply(file)
                self.assertEqual((status, headers["Connection"]), (503, "close"))
                self.assertIn("shutting down", json.loads(body)["error"]["message"])
            self.assert_cut_off(read_all(stream))
        output = server.process.communicate(timeout=DEADLINE)[0]
        self.assertEqual((server.process.returncode, output), (0, b"invariants hold\n"))

    def test_sigterm_among_requests(self):
        for _ in range(4):  # what it is about takes a moment to hit
            server = self.start("--io-threads", "1", "--drain-timeout", "0.01")
            connections = [server.connect() for _ in range(400)]
            self.assertTrue(soon(lambda: server.descriptors() > 400, 5))
            for i, connection in enumerate(connections):
                if i == 100:
                    server.process.send_signal(signal.SIGTERM)
                try:
                    connection.sendall(post(chat()))
                except ConnectionError:
                    pass
            self.assertEqual(server.process.wait(20), 0)
            for connection in connections:
                connection.close()

    def test_second_signal(self):
        for number, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            server = self.start()
            with server.connect() as stream:
                stream.sendall(post(chat(True, 900, n=64)))
                read_until(stream, b"data: ")
                server.process.send_signal(number)
                self.assertTrue(soon(lambda: "draining" in server.log(), 5))
                self.assertEqual(server.stop(number)[0], status)

    # ---- TLS ----

    def test_tls(self):
        if not shutil.which("openssl"):
            self.skipTest("there is no openssl to make a certificate")
        with tempfile.TemporaryDirectory() as folder:
            files = [f"{folder}/cert.pem", f"{folder}/key.pem"]
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                            "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1", "-subj",
                            "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
                            "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
            try:
                server = self.start("--tls-cert", files[0], "--tls-key", files[1],
                                    "--handshake-timeout", "1")
            except AssertionError as error:
                if "without OpenSSL" in str(error):
                    self.skipTest("the program was built without OpenSSL")
                raise
            context = ssl.create_default_context(cafile=files[0])
            for stream in (True, False):
                connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=DEADLINE,
                                                         context=context)
                for _ in range(2):
                    connection.request("POST", "/v1/chat/completions", chat(stream, 16))
                    reply = connection.getresponse()
                    self.assertEqual((reply.status, b"chat.completion" in reply.read()), (200, True))
                connection.close()
            with server.connect() as slow:  # says nothing
                begin = time.monotonic()
                self.assertEqual(read_all(slow), b"")
                self.assertLess(time.monotonic() - begin, 10)
            with server.connect() as plain:
                plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                self.assertNotIn(b"200", read_all(plain)[:16])
            with context.wrap_socket(server.connect(), server_hostname="127.0.0.1") as old:
                old.sendall(post(chat(True), version="1.0"))
                self.assertTrue(read_all(old).endswith(b"data: [DONE]\n\n"))  # and a proper end
            with context.wrap_socket(server.connect(), server_hostname="127.0.0.1") as leaves:
                leaves.sendall(post(chat(True, 900, n=8)))
                read_until(leaves, b"data: ")
            self.assertEqual(server.stop(), (0, "invariants hold\n"))


if __name__ == "__main__":
    SERVE, MODEL = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
