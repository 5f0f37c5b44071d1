"""The wheel and the source distribution: what is in them, and that a fresh environment runs them.

NANOVLLM_LIBRARY_FILE is a library that was built before. With the argument 'compile' the library is
compiled from the source distribution instead.
"""

import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import unittest
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / ".python"
PROGRAM = """
import nanovllm
llm = nanovllm.LLM({model!r}, device="cpu", num_threads=1)
text = llm.generate("A king", nanovllm.SamplingParams(temperature=0, max_tokens=8))[0]["text"]
print(nanovllm.__version__, nanovllm.__file__, repr(text), sep="\\n")
"""


def environment(**more):
    """Ours, without what shows the way to the package and the library."""
    own = {name: value for name, value in os.environ.items()
           if name not in ("NANOVLLM_LIBRARY", "PYTHONPATH")}
    return {**own, **more}


def run(*command, **options):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                            **{"env": environment(), **options})
    if result.returncode:
        raise AssertionError(f"{command}: {result.stdout}{result.stderr}")
    return result.stdout


def version():
    text = (ROOT / "include/nanovllm/version.hpp").read_text()
    return ".".join(re.findall(r"NANOVLLM_VERSION_[A-Z]+ (\d+)", text))


class WheelTest(unittest.TestCase):
    compiles = False

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        run(sys.executable, "-m", "venv", "--system-site-packages", cls.folder / "venv")
        cls.python = cls.folder / "venv/bin/python"

    def pip(self, *arguments, **options):
        return run(self.python, "-m", "pip", "--no-cache-dir", "--disable-pip-version-check",
                   *arguments, **options)

    def check_installed(self):
        shown = run(self.python, "-c", PROGRAM.format(model=str(ROOT / "examples/models/fairytale")),
                    cwd=self.folder).splitlines()
        self.assertEqual(shown[0], version())
        self.assertTrue(Path(shown[1]).is_relative_to(self.folder / "venv"), shown[1])
        self.assertGreater(len(shown[2]), 10)
        self.pip("uninstall", "--yes", "nanovllm")
        self.assertFalse(list((self.folder / "venv").rglob("*nanovllm*")))

    def backend(self):
        spec = importlib.util.spec_from_file_location(
            "nanovllm_build", PACKAGE / "build_backend/nanovllm_build.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def test_wheel(self):
        if self.compiles:
            self.skipTest("with a library that was built before")
        wheels = self.folder / "wheels"
        self.pip("wheel", "--no-index", "--no-deps", "--wheel-dir", wheels, PACKAGE)
        wheel, = wheels.iterdir()
        platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
        self.assertEqual(wheel.name, f"nanovllm-{version()}-py3-none-{platform}.whl")
        names = zipfile.ZipFile(wheel).namelist()
        for name in ("nanovllm/__init__.py", "nanovllm/py.typed"):
            self.assertIn(name, names)
        self.assertEqual(len([name for name in names if name.endswith(".so")]), 1)
        self.assertFalse([name for name in names if "__pycache__" in name])
        self.pip("install", "--no-index", "--no-deps", wheel)
        self.check_installed()

    def test_source_distribution(self):
        sources = self.folder / "sources"
        sources.mkdir(exist_ok=True)
        name = self.backend().build_sdist(str(sources))
        self.assertEqual(name, f"nanovllm-{version()}.tar.gz")
        with tarfile.open(sources / name) as sdist:
            names = sdist.getnames()
        stem = f"nanovllm-{version()}"
        for path in ("PKG-INFO", "pyproject.toml", "source/CMakeLists.txt",
                     "source/include/nanovllm/c/nanovllm.h"):
            self.assertIn(f"{stem}/{path}", names)
        own = environment()
        if self.compiles:
            own.pop("NANOVLLM_LIBRARY_FILE", None)
        self.pip("install", "--no-index", "--no-deps", sources / name, env=own)
        self.check_installed()

    def test_without_cmake(self):
        own = environment(PATH="/nowhere")
        own.pop("NANOVLLM_LIBRARY_FILE", None)
        result = subprocess.run([sys.executable, "-c", "import nanovllm_build as b; "
                                 f"b.build_wheel({str(self.folder)!r})"], env=own, text=True,
                                cwd=PACKAGE / "build_backend", capture_output=True)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("there is no cmake", result.stderr)


if __name__ == "__main__":
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        print("skipped: this Python cannot make environments")
        sys.exit(77)
    WheelTest.compiles = "compile" in sys.argv[1:]
    unittest.main(argv=sys.argv[:1])
