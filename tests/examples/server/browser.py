"""A headless Chromium, driven over a pair of pipes with the standard library alone."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time


def find_chromium():
    """The path of a Chromium or Chrome, or None."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next(filter(None, map(shutil.which, names)), None)


class Browser:
    """One tab. `events` has what the browser has reported: pairs of a method and its parameters."""

    def __init__(self, binary):
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        # The browser reads commands from descriptor 3 and writes to 4.
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        theirs_in, theirs_out = (fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (theirs_in, theirs_out))

        def take_pipes():
            os.dup2(theirs_in, 3)
            os.dup2(theirs_out, 4)

        self._process = subprocess.Popen(
            [binary, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--no-first-run", "--disable-extensions", "--disable-background-networking",
             "--disable-component-update", "--hide-scrollbars", "--remote-debugging-pipe",
             f"--user-data-dir={self._folder.name}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=take_pipes, pass_fds=(3, 4))
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer = b""
        self._last_id = 0
        self._session = None
        self.events = []
        pages = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        target = pages[0]["targetId"] if pages else self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def close(self):
        try:
            self._session = None
            self.call("Browser.close")
        except (OSError, AssertionError):
            pass
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._folder.cleanup()

    def _read(self, timeout):
        """The next message, or None when there is none in that time."""
        end = time.monotonic() + timeout
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(0, end - time.monotonic()))[0]:
                return None
            data = os.read(self._in, 1 << 16)
            assert data, "the browser has gone"
            self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **parameters):
        """A command of the DevTools protocol, and its result."""
        self._last_id += 1
        command = {"id": self._last_id, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        data = json.dumps(command).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data):]
        while True:
            message = self._read(30)
            assert message is not None, f"no answer to {method}"
            if message.get("id") == self._last_id:
                assert "error" not in message, f"{method}: {message.get('error')}"
                return message["result"]
            if "method" in message:
                self.events.append((message["method"], message["params"]))

    def run(self, code):
        """The value of an expression in the page; of a promise, what it comes to."""
        result = self.call("Runtime.evaluate", expression=code, returnByValue=True,
                           awaitPromise=True, userGesture=True)
        assert "exceptionDetails" not in result, f"{code}: {result['exceptionDetails']}"
        return result["result"].get("value")

    def wait(self, code, timeout=10):
        """Waits until an expression is true, and returns its value."""
        end = time.monotonic() + timeout
        while True:
            value = self.run(code)
            if value:
                return value
            assert time.monotonic() < end, f"not true within {timeout} s: {code}"
            time.sleep(0.02)

    def open(self, url):
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def view(self, width, height, scale=1, dark=False, phone=False):
        """The size of the window and the colours that its user prefers."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=scale, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def type(self, text):
        self.call("Input.insertText", text=text)

    def press(self, key, shift=False):
        codes = {"Enter": 13, "Escape": 27, "Tab": 9}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                      windowsVirtualKeyCode=codes[key], modifiers=8 if shift else 0,
                      **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {}))

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def problems(self):
        """Exceptions, errors on the console and breaches of the policy, so far."""
        self.run("0")  # reads what the browser has said
        out = [p["exceptionDetails"] for m, p in self.events if m == "Runtime.exceptionThrown"]
        out += [p["entry"] for m, p in self.events
                if m == "Log.entryAdded" and p["entry"]["level"] == "error" and p["entry"]["source"] != "network"]
        return out

    def requests(self):
        """The addresses that were asked for."""
        self.run("0")
        return [p["request"]["url"] for m, p in self.events if m == "Network.requestWillBeSent"]
