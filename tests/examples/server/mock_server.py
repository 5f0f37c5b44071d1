"""The OpenAI API as the page meets it, from scripts: the last message says which."""

import base64
import hashlib
import http.server
import json
import pathlib
import re
import socket
import threading
import time

PAGE = pathlib.Path(__file__).resolve().parents[3] / "examples/server/page.html"

EVIL = """<img src=x onerror="window.pwned=1"><script>window.pwned=2</script>
**<b onmouseover=alert(1)>bold</b>** [link](javascript:window.pwned=3) `</code><script>window.pwned=4</script>`

```html"><script>window.pwned=5</script>
</pre><iframe srcdoc="<script>parent.pwned=6</script>"></iframe>
```
"""

MARKDOWN = """## Heading *one*

A paragraph with **bold**, *italic*, `code` and a [link](https://example.com/a?b=c).
snake_case_name and 2 * 3 * 4 stay as they are.

1. one
2. two
   - inner **a**
   - inner b

   more of two
3. three

- [x] open
- **b**: c

> quoted
> text

| a | b |
|---|:-:|
| 1 | `x` |

---

```cpp
int main() { return 0; }  // **not bold**
```

Last, an unclosed fence:
~~~
a < b && c > d"""


def policy_of(page):
    """The policy that embed_page.cmake gives."""
    def digest(tag):
        text = re.search(f"<{tag}>(.*)</{tag}>", page, re.S).group(1)
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return (f"default-src 'none'; style-src 'sha256-{digest('style')}'; "
            f"script-src 'sha256-{digest('script')}'; connect-src 'self'; img-src data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body, content_type="application/json", **headers):
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, status, message):
        self.reply(status, {"error": {"message": message, "type": "error", "param": None, "code": status}})

    def is_allowed(self):
        if self.server.is_down:
            self.close_connection = True
            return False
        key = self.server.api_key
        if key is None or self.headers.get("Authorization") == "Bearer " + key:
            return True
        self.refuse(401, "Incorrect API key provided.")
        return False

    def do_GET(self):
        if self.path == "/":
            page = PAGE.read_text(encoding="utf-8")
            self.reply(200, page, "text/html; charset=utf-8", Content_Security_Policy=policy_of(page))
        elif self.path == "/v1/models":
            if self.is_allowed():
                self.reply(200, {"object": "list", "data": [
                    {"id": name, "object": "model", "max_model_len": 40960} for name in self.server.models]})
        elif self.path == "/stats" and self.server.stats is not None:
            if self.is_allowed():
                self.reply(200, {**self.server.stats, "time": time.monotonic()})
        else:
            self.refuse(404, "Not found.")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.is_allowed():
            return
        self.server.bodies.append(body)
        last = body["messages"][-1]
        name = "result" if last["role"] == "tool" else last["content"].split()[0].lower()
        script = getattr(self, "script_" + name, None)
        if name == "refused":
            self.refuse(400, "temperature: expected a number in [0, 2], got <b>9</b>")
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.tokens = 0
        try:
            if script:
                script()
            else:
                self.deltas(f"You said: {last['content']}")
                self.end("stop")
        except OSError:
            self.server.disconnects.append(name)
            self.close_connection = True

    # What scripts are made of.

    def send(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def chunk(self, delta=None, finish=None, usage=None):
        choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
        data = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": choices}
        if usage or delta:
            self.tokens += 1 if delta else 0
            data["usage"] = {"prompt_tokens": 1210, "completion_tokens": self.tokens,
                             "total_tokens": 1210 + self.tokens,
                             "prompt_tokens_details": {"cached_tokens": 1024}}
        self.send(b"data: " + json.dumps(data, ensure_ascii=False).encode() + b"\n\n")

    def deltas(self, text, field="content", pause=0.0, size=7):
        for at in range(0, len(text), size):
            self.chunk({field: text[at:at + size]})
            time.sleep(pause)

    def end(self, finish):
        self.chunk({}, finish)
        self.chunk(usage=True)
        self.send(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    # The scripts, by the first word of the last message.

    def script_think(self):
        self.deltas("Let me see.\nTwo and two are four.", "reasoning_content", 0.02)
        self.server.gate.wait(10)
        self.deltas("It is **four**.")
        self.end("stop")

    def script_evil(self):
        self.deltas(EVIL, "reasoning_content")
        self.deltas(EVIL, size=3)
        self.end("stop")

    def script_markdown(self):
        self.deltas(MARKDOWN, size=1)
        self.end("stop")

    def script_tool(self):
        self.deltas("I ask two.")
        for i, (name, city) in enumerate((("get_weather", "Bath"), ("get_time", "Lyon"))):
            self.chunk({"tool_calls": [{"index": i, "id": f"call_{i}", "type": "function",
                                        "function": {"name": name, "arguments": ""}}]})
            for piece in ('{"ci', 'ty": "', city, '"}'):
                self.chunk({"tool_calls": [{"index": i, "function": {"arguments": piece}}]})
        self.end("tool_calls")

    def script_result(self):
        self.deltas("So it rains.")
        self.end("stop")

    def script_slow(self):
        for i in range(2000):
            self.deltas(f"{i} ", pause=0.02)

    def script_long(self):
        self.deltas("word " * 40 + "\n\n", size=50)
        self.deltas("a line\n\n" * 60, size=64)
        self.end("length")

    def script_failing(self):
        self.deltas("It begins")
        self.send(b'data: {"error": {"message": "the machine is on fire", "code": 500}}\n\n')
        self.send(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def script_cut(self):
        self.deltas("It begins and")
        time.sleep(0.2)  # what is not read when a connection breaks is lost
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def script_short(self):
        self.deltas("It begins and")
        self.wfile.write(b"0\r\n\r\n")  # no [DONE]

    def script_odd(self):
        """Everything that the format of events allows, in odd pieces."""
        text = json.dumps({"choices": [{"index": 0, "delta": {"content": "né 😀!"}}]}, ensure_ascii=False)
        data = (": a comment\r\nevent: x\r\nid: 1\r\ndata:" + text + "\r\n\r\n"
                + text[:12].join(["data: ", "\ndata: "]) + text[12:] + "\n\n").encode()
        for at in range(0, len(data), 5):
            self.send(data[at:at + 5])
            time.sleep(0.001)
        self.end("stop")


def stats(states="", per_cell=1, **counters):
    """An answer of /stats. `states` has a letter a block: h(eld), c(ached) or f(ree)."""
    cells = [states[at:at + per_cell] for at in range(0, len(states), per_cell)]
    count = states.count
    return {"num_running": 0, "num_waiting": 0, "num_preparing": 0, "num_finished": 0,
            "num_generated_tokens": 0, "num_prefill_tokens": 0, "num_queried_tokens": 0,
            "num_hit_tokens": 0, "status": "ok",
            "kv_blocks": {"num_blocks": len(states), "num_free": count("f"), "num_cached": count("c"),
                          "num_held": count("h"), "age_seconds": 0.1, "blocks_per_cell": per_cell,
                          "cached": [cell.count("c") for cell in cells],
                          "held": [cell.count("h") for cell in cells]} if states else None,
            **counters}


class MockServer(http.server.ThreadingHTTPServer):
    """Serves on a port of its own until `close`. `bodies` are the requests that came, `disconnects`
    the scripts whose clients left; `gate` is what a script waits for."""

    daemon_threads = True

    def __init__(self, models=("mock-model",), api_key=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.models, self.api_key = models, api_key
        self.bodies, self.disconnects = [], []
        self.gate = threading.Event()
        self.stats = stats("f" * 100)  # None: it has none
        self.is_down = False  # connections are closed without an answer
        self.url = f"http://127.0.0.1:{self.server_address[1]}/"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, *_):
        pass

    def close(self):
        self.gate.set()
        self.shutdown()
        self.server_close()
