"""examples/python/tales.py, and the programs of docs/python.md, which run in order as one."""

import contextlib
import io
import os
import re
import runpy
import sys
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).parent.parent.parent


class ExampleTest(unittest.TestCase):
    def test_example(self):
        shown = io.StringIO()
        path = ROOT / "examples/python/tales.py"
        with mock.patch.object(sys, "argv", [str(path)]), contextlib.redirect_stdout(shown):
            runpy.run_path(str(path), run_name="__main__")
        self.assertIn("in the prefix cache", shown.getvalue())
        self.assertIn("Once upon a time there was a fox", shown.getvalue())

    def test_page(self):
        page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        self.assertGreater(len(blocks), 4)
        names = {}
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            for block in blocks:
                exec(compile(block, "docs/python.md", "exec"), names)
        self.assertGreater(len(shown.getvalue()), 200)
        names["llm"].close()

    def test_page_names_all_settings(self):
        from nanovllm import llm

        page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
        for name in (*llm._NUMBERS, *llm._FLAGS, *llm._OTHERS, *llm._WITHOUT_EFFECT,
                     *llm._SPECULATIVE_NUMBERS):
            self.assertIn(f"`{name}`", page)


if __name__ == "__main__":
    try:
        import numpy  # noqa: F401
    except ImportError:
        print("skipped: numpy is not installed")
        sys.exit(77)
    os.chdir(ROOT)
    unittest.main(argv=sys.argv[:1])
