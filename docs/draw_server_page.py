#!/usr/bin/env python3
"""Draws docs/images/server_page_*.png: the page of examples/server.

    python3 docs/draw_server_page.py                # server_page_light.png, _dark.png: scripted answers
    python3 docs/draw_server_page.py --serve SERVE  # server_page_engine.png: the program, with clients

Needs chromium and Pillow, which makes the files small.
"""

import argparse
import json
import pathlib
import random
import re
import subprocess
import sys
import threading
import time
import urllib.request

from PIL import Image

DOCS = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent / "tests/examples/server"))

from browser import Browser, find_chromium  # noqa: E402
from mock_server import Handler, MockServer  # noqa: E402

THOUGHT = "The user asks how a paged KV cache avoids fragmentation. Name the problem, then the idea, then what it costs."
ANSWER = """A cache that gives each request one contiguous piece must reserve room for the longest answer it could have. Most of that is never used.

Paging takes the idea of virtual memory:

- The pool is cut into **blocks** of, say, 16 tokens.
- Each sequence has a *block table*, and gets one more block when the last is full.
- So at most 15 tokens a sequence are wasted, and any free block fits.

The kernel then looks up where a token is:

```cpp
const BlockId block = table[position / kBlockSize];
const std::size_t row = block * kBlockSize + position % kBlockSize;
```

Full blocks of equal prefixes can be shared, which is what makes the second question of a conversation start at once."""
CITY = "It is 14 °C in Bath, with light rain until the evening. **Take an umbrella**, and expect it to be dry again by seven."


class Demo(Handler):
    def script_how(self):
        self.deltas(THOUGHT, "reasoning_content", 0.08)
        self.deltas(ANSWER, pause=0.006, size=5)
        self.end("stop")

    def script_do(self):
        self.deltas("They ask about the weather in Bath; there is a tool for that.", "reasoning_content", 0.01)
        self.chunk({"tool_calls": [{"index": 0, "id": "call_0", "type": "function",
                                    "function": {"name": "get_weather", "arguments": '{"city": "Bath"}'}}]})
        self.end("tool_calls")

    def script_result(self):
        self.deltas(CITY, pause=0.006, size=5)
        self.end("stop")


def ask(browser, text):
    browser.run("document.getElementById('prompt').focus()")
    browser.type(text)
    browser.press("Enter")
    wait(browser)


def wait(browser):
    browser.wait("running === null && messages.at(-1).isOver")


def save(browser, name):
    path = DOCS / "images" / name
    time.sleep(0.3)
    browser.screenshot(path)
    Image.open(path).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(path, optimize=True)
    print(path.name, path.stat().st_size, "bytes")


def tell(url, seed, is_over):
    """Asks for one tale after the other, by one of a few system prompts."""
    dice = random.Random(seed)
    while not is_over.is_set():
        rules = "You tell tales to children. " * (1 + dice.randrange(4))
        body = {"messages": [{"role": "system", "content": rules},
                             {"role": "user", "content": f"Tell me of {dice.choice(('a fox', 'a king', 'a witch'))}."}],
                "max_tokens": dice.randint(20, 300), "ignore_eos": True}
        request = urllib.request.Request(url + "v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            reply.read()
        time.sleep(dice.random() / 2)


def draw_engine(serve):
    process = subprocess.Popen([serve, "--model", str(DOCS.parent / "examples/models/fairytale"), "--port", "0",
                                "--max-num-seqs", "16", "--kv-blocks", "800"],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    is_over = threading.Event()
    clients, browser = [], None
    try:
        url = re.search(r"http://\S+", process.stdout.readline())[0] + "/"
        clients = [threading.Thread(target=tell, args=(url, seed, is_over)) for seed in range(24)]
        for client in clients:
            client.start()
        browser = Browser(find_chromium())
        browser.view(1200, 800, scale=2, dark=True)
        browser.open(url)
        browser.wait("models.length && pool && pool.num_cached > 100", 120)
        ask(browser, "Tell me of a fox and a king.")
        browser.run("document.activeElement.blur()")
        save(browser, "server_page_engine.png")
    finally:
        is_over.set()
        for client in clients:
            client.join()
        if browser:
            browser.close()
        process.terminate()
        process.wait()


def draw_answers():
    browser = Browser(find_chromium())
    server = MockServer(models=("Qwen3-8B",))
    server.RequestHandlerClass = Demo
    try:
        browser.view(1200, 860, scale=2)
        browser.open(server.url)
        browser.wait("models.length")
        browser.run("closePanel()")
        ask(browser, "How does a paged KV cache keep memory from fragmenting?")
        browser.run("document.activeElement.blur()")
        save(browser, "server_page_light.png")
        browser.view(390, 844, scale=2, dark=True, phone=True)
        browser.open(server.url)
        browser.wait("models.length")
        ask(browser, "Do I need an umbrella in Bath?")
        browser.run("document.getElementById('result-call_0').value = '14 °C, light rain until 19:00';"
                    "document.querySelector('.calls .outline').click()")
        wait(browser)
        browser.run("document.activeElement.blur()")
        save(browser, "server_page_dark.png")
    finally:
        browser.close()
        server.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", help="the program")
    options = parser.parse_args()
    if options.serve:
        draw_engine(options.serve)
    else:
        draw_answers()


if __name__ == "__main__":
    main()
