# Packages by cpack, of what is installed: Debian's libnanovllm-dev (headers, the compiled libraries, what
# CMake and pkg-config read), libnanovllm-c (the shared library for C; with NANOVLLM_C_LIBRARY) and
# nanovllm-server (the programs; with NANOVLLM_INSTALL_PROGRAMS), and one archive of all. The preset
# 'package' of CMakePresets.json has the settings that they are published with; docs/building.md.

set(CPACK_PACKAGE_NAME nanovllm)
set(CPACK_PACKAGE_VENDOR "the nanovllm authors")
set(CPACK_PACKAGE_CONTACT "the nanovllm authors <nanovllm@users.noreply.github.com>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_PACKAGE_FILE_NAME
  "nanovllm-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_GENERATOR TGZ)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)

set(CPACK_COMPONENTS_ALL dev)
if(NANOVLLM_C_LIBRARY)
  list(APPEND CPACK_COMPONENTS_ALL c)
endif()
if(NANOVLLM_BUILD_EXAMPLES AND NANOVLLM_INSTALL_PROGRAMS)
  list(APPEND CPACK_COMPONENTS_ALL server)
endif()

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_DEV_PACKAGE_NAME libnanovllm-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libpcre2-dev, libutf8proc-dev, libxxhash-dev")
set(CPACK_DEBIAN_DEV_DESCRIPTION "LLM inference of Qwen3 in C++20 and CUDA: headers and libraries")
set(CPACK_DEBIAN_C_PACKAGE_NAME libnanovllm-c)
set(CPACK_DEBIAN_C_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_C_DESCRIPTION "LLM inference of Qwen3: the shared library for C")
set(CPACK_DEBIAN_SERVER_PACKAGE_NAME nanovllm-server)
set(CPACK_DEBIAN_SERVER_PACKAGE_SECTION net)
set(CPACK_DEBIAN_SERVER_DESCRIPTION "LLM inference of Qwen3: an OpenAI server, and programs for a terminal")

include(CPack)
