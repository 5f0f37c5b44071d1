#!/usr/bin/env python3
"""The bars of `quickstart` and `generate`: on a terminal, and nowhere else.

    python3 progress_test.py QUICKSTART GENERATE MODEL_DIR [unittest arguments]
"""

import json
import os
import pty
import subprocess
import sys
import tempfile
import unittest

QUICKSTART, GENERATE, MODEL = "", "", ""
DEADLINE = 60  # seconds after which something hangs


def run(command, on_terminal=(2,), term="xterm", **environment):
    """Exit status, what came on standard output, and on standard error, where the descriptors
    `on_terminal` are one terminal, and others are pipes."""
    main, side = pty.openpty()
    env = {name: value for name, value in os.environ.items() if name not in ("TERM", "NO_COLOR")}
    env.update(environment)
    if term is not None:
        env["TERM"] = term
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL,
                                   stdout=side if 1 in on_terminal else output,
                                   stderr=side if 2 in on_terminal else errors)
        os.close(side)
        shown = b""
        while True:
            try:
                part = os.read(main, 1 << 16)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            shown += part
        os.close(main)
        status = process.wait(DEADLINE)
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode())
        shown = shown.decode()
        return (status, shown if 1 in on_terminal else texts[0], shown if 2 in on_terminal else texts[1])


class Quickstart(unittest.TestCase):
    COMMAND = ("--max-tokens", "40", "--seed", "1", "--ignore-eos", "true")

    def run_it(self, *arguments, **more):
        status, out, errors = run([QUICKSTART, MODEL, "Once upon a time", *self.COMMAND, *arguments], **more)
        self.assertEqual(status, 0, errors)
        return out, errors

    def test_loading_and_writing_have_bars_on_a_terminal(self):
        out, shown = self.run_it()
        self.assertRegex(shown, r"\rloading weights \[.*#.*\] +\d+% of [\d.]+ MB")
        self.assertRegex(shown, r"100% of [\d.]+ MB\x1b\[K\r\x1b\[K")  # it is taken off
        self.assertRegex(shown, r"\rwriting \[.*\] \d+ of at most 40 tokens")
        self.assertIn("40 of at most 40 tokens", shown)
        self.assertTrue(shown.endswith("\r\x1b[K"), shown[-40:])
        self.assertNotIn("\n", shown)
        self.assertIn("Once upon a time", out)
        self.assertNotIn("\r", out)
        self.assertNotIn("\x1b", out)

    def test_a_text_on_the_terminal_is_not_written_into(self):
        shown, _ = self.run_it(on_terminal=(1, 2))
        self.assertIn("loading weights [", shown)
        self.assertNotIn("writing [", shown)
        self.assertNotIn("\x1b", shown[shown.index("Once upon a time"):])

    def test_a_pipe_gets_none(self):
        out, errors = self.run_it(on_terminal=())
        self.assertEqual(errors, "")
        self.assertNotIn("\x1b", out)
        out, errors = self.run_it(on_terminal=(1,))
        self.assertEqual(errors, "")
        self.assertNotIn("\x1b", out)

    def test_a_terminal_that_cannot_take_a_line_back_gets_none(self):
        for term in ("dumb", "", None):
            self.assertEqual(self.run_it(term=term)[1], "", term)

    def test_no_color(self):
        self.assertIn("\x1b[32m", self.run_it()[1])
        shown = self.run_it(NO_COLOR="1")[1]
        self.assertIn("writing [", shown)
        self.assertNotIn("\x1b[32m", shown)
        self.assertIn("\x1b[32m", self.run_it(NO_COLOR="")[1])

    def test_a_load_that_fails_leaves_a_line_of_its_own(self):
        status, _, errors = run([QUICKSTART, MODEL + "/nowhere"])
        self.assertEqual(status, 1)
        self.assertRegex(errors, r"^quickstart: .*nowhere")


class Generate(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.input, self.output = folder.name + "/in.jsonl", folder.name + "/out.jsonl"
        with open(self.input, "w") as file:
            for i in range(12):
                print(json.dumps({"id": i, "prompt": "Once upon", "sampling": {"max_tokens": 8}}), file=file)

    def run_it(self, output, **more):
        status, out, errors = run([GENERATE, "--model", MODEL, "--input", self.input, "--output", output,
                                   "--max-num-seqs", "2"], **more)
        self.assertEqual(status, 0, errors)
        return out, errors

    def test_a_batch_has_a_bar_on_a_terminal(self):
        _, shown = self.run_it(self.output)
        self.assertIn("loading weights [", shown)
        self.assertRegex(shown, r"\r\[.*\] \d+/12 requests, \d+ under way; tokens a second: \d+ in, \d+ out")
        last = shown.rpartition("\r\x1b[K")[2]  # the bar is taken off
        self.assertRegex(last, r"^12 lines, 0 errors, .* generated, [\d.]+ s, \d+ tokens per second\r\n$")
        with open(self.output) as file:
            self.assertEqual([json.loads(line)["id"] for line in file], list(range(12)))

    def test_results_on_standard_output_have_one_where_they_are_not_on_the_terminal(self):
        out, shown = self.run_it("-")
        self.assertIn("/12 requests", shown)
        self.assertEqual(len([json.loads(line) for line in out.splitlines()]), 12)
        shown, _ = self.run_it("-", on_terminal=(1, 2))
        self.assertNotIn("/12 requests", shown)

    def test_a_pipe_gets_the_last_line_alone(self):
        for more in ({"on_terminal": ()}, {"term": "dumb"}):
            _, errors = self.run_it(self.output, **more)
            self.assertRegex(errors, r"^12 lines, 0 errors, [^\x1b\n\r]* generated\r?\n$")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    QUICKSTART, GENERATE, MODEL = sys.argv[1:4]
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
