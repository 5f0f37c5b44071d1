"""mypy --strict has nothing to say of the package, nor of a program that uses it."""

import importlib.util
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PACKAGE = Path(__file__).parent.parent.parent / ".python"
PROGRAM = """
from nanovllm import LLM, SamplingParams, StructuredOutputsParams
llm = LLM("model", max_model_len=5)
llm.generate([[1, 2]])
llm.generate({"prompt": "a", "cache_salt": "b"})
text: str = llm.generate(["a", "b"], SamplingParams())[0].outputs[0].text
for piece in llm.stream("a"):
    reason: str | None = piece.finish_reason
    stopped_by: int | str | None = piece.stop_reason
SamplingParams(structured_outputs=StructuredOutputsParams(json={"type": "object"}))
with llm.session() as session:
    ids: list[int] = session.generate("a").outputs[0].token_ids
"""


class TypesTest(unittest.TestCase):
    def mypy(self, *arguments):
        with tempfile.TemporaryDirectory() as cache:
            return subprocess.run([sys.executable, "-m", "mypy", "--cache-dir", cache, *arguments],
                                  cwd=PACKAGE, capture_output=True, text=True)

    def test_package(self):
        result = self.mypy()
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_programs(self):
        for program, status in ((PROGRAM, 0), (PROGRAM + "llm.generate(5)\n", 1),
                                (PROGRAM + "number: int = text\n", 1)):
            result = self.mypy("--config-file=", "--strict", "-c", program)
            self.assertEqual(result.returncode, status, result.stdout + result.stderr)


if __name__ == "__main__":
    for name in ("mypy", "numpy"):
        if importlib.util.find_spec(name) is None:
            print(f"skipped: {name} is not installed")
            sys.exit(77)
    unittest.main(argv=sys.argv[:1])
