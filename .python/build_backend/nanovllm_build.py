"""Builds the package: the shared library of nanovllm/c/nanovllm.h by CMake, and a wheel around it.

It needs no package of Python. Environment variables:

    NANOVLLM_CUDA=1         the library for GPUs too, if there is nvcc
    CUDAARCHS               architectures of GPUs; otherwise 90a, that of Hopper
    NANOVLLM_SHAPES         the shapes whose engines are compiled, separated by ';'
    NANOVLLM_BUILD_DIR      the build folder, kept; otherwise a temporary one
    NANOVLLM_LIBRARY_FILE   a library that was built before; nothing is compiled
    CMAKE_ARGS              further arguments for CMake
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

HERE = Path(__file__).resolve().parent.parent
Settings = Optional[Mapping[str, Any]]


def source_folder() -> Path:
    """The folder with CMakeLists.txt: around this one, or within it in a source distribution."""
    inside = HERE / "source"
    return inside if inside.is_dir() else HERE.parent


def version() -> str:
    """What include/nanovllm/version.hpp states."""
    text = (source_folder() / "include/nanovllm/version.hpp").read_text()
    parts = []
    for part in ("MAJOR", "MINOR", "PATCH"):
        found = re.search(rf"NANOVLLM_VERSION_{part} (\d+)", text)
        if found is None:
            raise RuntimeError(f"version.hpp has no NANOVLLM_VERSION_{part}")
        parts.append(found[1])
    return ".".join(parts)


def project() -> dict[str, str]:
    """Fields of pyproject.toml that are one text each."""
    text = (HERE / "pyproject.toml").read_text()
    return {name: value for name, value in re.findall(r'^([a-z-]+) = "(.*)"$', text, re.MULTILINE)}


def metadata() -> str:
    fields = project()
    requires = re.search(r"^dependencies = \[(.*)\]$", (HERE / "pyproject.toml").read_text(),
                         re.MULTILINE)
    lines = ["Metadata-Version: 2.1", f"Name: {fields['name']}", f"Version: {version()}",
             f"Summary: {fields['description']}", f"Requires-Python: {fields['requires-python']}",
             "License: MIT"]
    for name in re.findall(r'"([^"]+)"', requires[1] if requires else ""):
        lines.append(f"Requires-Dist: {name}")
    lines.append("Description-Content-Type: text/markdown")
    return "\n".join(lines) + "\n\n" + (HERE / "README.md").read_text()


def tag() -> str:
    return "py3-none-" + re.sub(r"[-.]", "_", sysconfig.get_platform())


def needed_program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(f"nanovllm is compiled while it is installed, and there is no {name}; "
                           "docs/python.md lists what is needed")
    return found


def find_nvcc() -> Optional[str]:
    usual = "/usr/local/cuda/bin/nvcc"
    return os.environ.get("CUDACXX") or shutil.which("nvcc") or (
        usual if os.access(usual, os.X_OK) else None)


def compile_library(folder: Path) -> list[Path]:
    """Compiles in `folder`, and returns the libraries."""
    nvcc = find_nvcc() if os.environ.get("NANOVLLM_CUDA", "0") not in ("", "0") else None
    targets = ["nanovllm_c"]
    arguments = ["-DCMAKE_BUILD_TYPE=Release", "-DNANOVLLM_C_LIBRARY=ON",
                 "-DNANOVLLM_BUILD_TESTS=OFF", "-DNANOVLLM_BUILD_EXAMPLES=OFF",
                 f"-DNANOVLLM_CUDA={'ON' if nvcc else 'OFF'}"]
    policies = ["DefaultPolicy", "FullPolicy", "FullFloat32Policy"]
    if nvcc:
        targets.append("nanovllm_c_cuda")
        policies.append("CudaFullPolicy")
        arguments.append(f"-DCMAKE_CUDA_COMPILER={nvcc}")
        if "CUDAARCHS" not in os.environ:
            arguments.append("-DCMAKE_CUDA_ARCHITECTURES=90a")
    arguments.append(f"-DNANOVLLM_POLICIES={';'.join(policies)}")
    if shapes := os.environ.get("NANOVLLM_SHAPES"):
        arguments.append(f"-DNANOVLLM_SHAPES={shapes}")
    if shutil.which("ninja"):
        arguments += ["-G", "Ninja"]
    cmake = needed_program("cmake")
    run([cmake, "-S", str(source_folder()), "-B", str(folder), *arguments,
         *shlex.split(os.environ.get("CMAKE_ARGS", ""))])
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
    run([cmake, "--build", str(folder), "--parallel", jobs, "--target", *targets])
    return [(folder / f"lib{target}.so").resolve(strict=True) for target in targets]


def run(command: list[str]) -> None:
    # A frontend may read standard output.
    subprocess.run(command, check=True, stdout=sys.stderr)


def libraries(folder: Path) -> Iterator[tuple[str, Path]]:
    """The names that libraries have in the package, and where they are."""
    given = os.environ.get("NANOVLLM_LIBRARY_FILE")
    for path in [Path(given).resolve(strict=True)] if given else compile_library(folder):
        yield path.name.partition(".so")[0] + ".so", path


class Wheel:
    """A wheel that is written."""

    def __init__(self, path: Path) -> None:
        self._zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self._records: list[str] = []

    def add(self, name: str, content: bytes, mode: int = 0o644) -> None:
        info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
        info.external_attr = (0o100000 | mode) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        self._zip.writestr(info, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self._records.append(f"{name},sha256={digest},{len(content)}")

    def close(self, info_folder: str) -> None:
        name = f"{info_folder}/RECORD"
        self._zip.writestr(name, "\n".join([*self._records, f"{name},,"]) + "\n")
        self._zip.close()


def build_wheel(wheel_directory: str, config_settings: Settings = None,
                metadata_directory: Optional[str] = None) -> str:
    info_folder = f"nanovllm-{version()}.dist-info"
    name = f"nanovllm-{version()}-{tag()}.whl"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(os.environ.get("NANOVLLM_BUILD_DIR") or temporary)
        built = list(libraries(folder))
        wheel = Wheel(Path(wheel_directory) / name)
        for path in sorted((HERE / "nanovllm").iterdir()):
            if path.suffix == ".py" or path.name == "py.typed":
                wheel.add(f"nanovllm/{path.name}", path.read_bytes())
        for library, path in built:
            wheel.add(f"nanovllm/{library}", path.read_bytes(), 0o755)
    wheel.add(f"{info_folder}/METADATA", metadata().encode())
    wheel.add(f"{info_folder}/WHEEL", (
        "Wheel-Version: 1.0\nGenerator: nanovllm_build\nRoot-Is-Purelib: false\n"
        f"Tag: {tag()}\n").encode())
    licence = source_folder() / "LICENSE"
    wheel.add(f"{info_folder}/LICENSE", licence.read_bytes())
    wheel.close(info_folder)
    return name


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """The package, and in `source` all that CMake needs."""
    stem = f"nanovllm-{version()}"
    source = source_folder()
    with tarfile.open(Path(sdist_directory) / f"{stem}.tar.gz", "w:gz") as sdist:
        def add(path: Path, name: str) -> None:
            sdist.add(path, f"{stem}/{name}", filter=lambda item: (
                None if "__pycache__" in item.name else item))

        for name in ("pyproject.toml", "README.md", "nanovllm", "build_backend"):
            add(HERE / name, name)
        for name in ("CMakeLists.txt", "LICENSE", ".cmake", "include"):
            add(source / name, f"source/{name}")
        with tempfile.NamedTemporaryFile("w") as info:
            info.write(metadata())
            info.flush()
            sdist.add(info.name, f"{stem}/PKG-INFO")
    return f"{stem}.tar.gz"
