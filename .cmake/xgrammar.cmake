# nanovllm::xgrammar: XGrammar for grammar/xgrammar_source.hpp, beside nanovllm::nanovllm. Only where
# it is asked for:
#
#   NANOVLLM_XGRAMMAR_SOURCE_DIR  a folder with its sources (a release, or a clone with its submodule
#                                 dlpack)
#   NANOVLLM_XGRAMMAR             ON without such a folder fetches the release below
#
# Its own build system does not run: it sets flags and build types for everyone. The library is built
# when a target links it. 90 s on one core.

set(NANOVLLM_XGRAMMAR_SOURCE_DIR "" CACHE PATH "Sources of XGrammar 0.2.8; empty: see NANOVLLM_XGRAMMAR")
option(NANOVLLM_XGRAMMAR "Define nanovllm::xgrammar, fetched unless there is a source folder" OFF)

if(NOT NANOVLLM_XGRAMMAR AND NOT NANOVLLM_XGRAMMAR_SOURCE_DIR)
  return()
endif()

set(_nanovllm_xgrammar "${NANOVLLM_XGRAMMAR_SOURCE_DIR}")
if(NOT _nanovllm_xgrammar)
  include(FetchContent)
  FetchContent_Declare(nanovllm_xgrammar
    GIT_REPOSITORY https://github.com/mlc-ai/xgrammar.git
    GIT_TAG v0.2.8
    GIT_SHALLOW ON
    GIT_SUBMODULES 3rdparty/dlpack
    SOURCE_SUBDIR sources-only)
  FetchContent_MakeAvailable(nanovllm_xgrammar)
  set(_nanovllm_xgrammar "${nanovllm_xgrammar_SOURCE_DIR}")
endif()
foreach(_file IN ITEMS include/xgrammar/xgrammar.h 3rdparty/dlpack/include/dlpack/dlpack.h
    3rdparty/picojson/picojson.h)
  if(NOT EXISTS "${_nanovllm_xgrammar}/${_file}")
    message(FATAL_ERROR "nanovllm: '${_nanovllm_xgrammar}' has no ${_file}, and so is no folder of XGrammar's sources")
  endif()
endforeach()

file(GLOB_RECURSE _nanovllm_sources "${_nanovllm_xgrammar}/cpp/*.cc")
list(FILTER _nanovllm_sources EXCLUDE REGEX "/cpp/tvm_ffi/")
add_library(nanovllm_xgrammar STATIC EXCLUDE_FROM_ALL
  ${_nanovllm_sources} "${PROJECT_SOURCE_DIR}/.cmake/xgrammar/logging.cpp")
add_library(nanovllm::xgrammar ALIAS nanovllm_xgrammar)
target_include_directories(nanovllm_xgrammar SYSTEM PUBLIC
  "${_nanovllm_xgrammar}/include" "${_nanovllm_xgrammar}/3rdparty/dlpack/include")
target_include_directories(nanovllm_xgrammar SYSTEM PRIVATE
  "${_nanovllm_xgrammar}/cpp" "${_nanovllm_xgrammar}/3rdparty/picojson")
target_compile_definitions(nanovllm_xgrammar PRIVATE
  XGRAMMAR_LOG_CUSTOMIZE=1 XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
# Masks are worked out between two steps: fast, in a program that is built for its debugger as well.
target_compile_options(nanovllm_xgrammar PRIVATE
  -w "$<$<NOT:$<CONFIG:Release,RelWithDebInfo,MinSizeRel,None>>:-O2>")
# INTERFACE, because nanovllm::nanovllm asks for C++20, which these sources are not written for.
target_link_libraries(nanovllm_xgrammar PRIVATE Threads::Threads INTERFACE nanovllm::nanovllm)
set_target_properties(nanovllm_xgrammar PROPERTIES
  CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON POSITION_INDEPENDENT_CODE ON
  CXX_VISIBILITY_PRESET hidden)
