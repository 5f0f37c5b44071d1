"""Conan 2: `conan create .packages/conan` in a checkout; a program then says
find_package(nanovllm) and links nanovllm::nanovllm, as with any installation."""

import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain
from conan.tools.files import copy, load

required_conan_version = ">=2.0"


class NanovllmConan(ConanFile):
    name = "nanovllm"
    description = "LLM inference of Qwen3 for C++20 and CUDA programs"
    license = "MIT"
    topics = ("llm", "inference", "qwen3", "cuda", "header-only")
    package_type = "static-library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"with_server_programs": [True, False]}
    default_options = {"with_server_programs": False}

    @property
    def _root(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        text = load(self, os.path.join(self._root, "include", "nanovllm", "version.hpp"))
        self.version = ".".join(
            re.search(rf"NANOVLLM_VERSION_{part} (\d+)", text).group(1)
            for part in ("MAJOR", "MINOR", "PATCH"))

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", ".cmake/*", "include/*", "examples/*.cpp",
                        "examples/*.hpp", "examples/CMakeLists.txt", "examples/server/*"):
            copy(self, pattern, self._root, self.export_sources_folder)

    def requirements(self):
        for package in ("pcre2/[>=10.40 <11]", "utf8proc/[>=2.7 <3]", "xxhash/[>=0.8.1 <1]"):
            self.requires(package, transitive_headers=True, transitive_libs=True)
        if self.options.with_server_programs:
            self.requires("boost/[>=1.81 <2]")
            self.requires("cli11/[>=2.1 <3]")
            self.requires("openssl/[>=3 <4]")

    def validate(self):
        check_min_cppstd(self, 20)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["NANOVLLM_BUILD_TESTS"] = False
        toolchain.cache_variables["NANOVLLM_BUILD_EXAMPLES"] = bool(self.options.with_server_programs)
        toolchain.cache_variables["NANOVLLM_INSTALL_PROGRAMS"] = bool(self.options.with_server_programs)
        toolchain.cache_variables["NANOVLLM_CUDA"] = "OFF"  # .cu files of a program need no library
        toolchain.cache_variables["FETCHCONTENT_FULLY_DISCONNECTED"] = True
        toolchain.generate()
        CMakeDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        # The package's own nanovllm-config.cmake has all targets.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("lib", "cmake", "nanovllm")]
        self.cpp_info.libs = ["nanovllm_serve", "nanovllm_grammar", "nanovllm"]
