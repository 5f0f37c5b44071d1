# 'programs/<path>': every program of examples/ and benchmarks/, and the fingerprint, compiles for the
# CPU; those of nvcc are in headers/cuda-files. Nothing is linked or run, and the engines of
# nanovllm::serve are not compiled again: consumer/ does that. Only with NANOVLLM_TEST_ALL.
if(NOT NANOVLLM_TEST_PACKAGING OR NOT NANOVLLM_TEST_ALL)
  return()
endif()

file(GLOB programs CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}"
  "${PROJECT_SOURCE_DIR}/examples/*.cpp" "${PROJECT_SOURCE_DIR}/benchmarks/*/*.cpp"
  "${PROJECT_SOURCE_DIR}/tests/oracle/fingerprint/*.cpp")

include("${PROJECT_SOURCE_DIR}/.cmake/boost.cmake")
include("${PROJECT_SOURCE_DIR}/.cmake/cli11.cmake")
set(program_flags "")
foreach(library IN ITEMS CLI11::CLI11 nlohmann_json::nlohmann_json)
  get_target_property(folders ${library} INTERFACE_INCLUDE_DIRECTORIES)
  list(TRANSFORM folders PREPEND "-isystem" OUTPUT_VARIABLE folders)
  list(APPEND program_flags ${folders})
endforeach()
list(FILTER program_flags EXCLUDE REGEX "^-isystem/usr/include$")  # is searched anyway, and not first
find_path(NANOVLLM_BENCHMARK_INCLUDE_DIR benchmark/benchmark.h)
mark_as_advanced(NANOVLLM_BENCHMARK_INCLUDE_DIR)
file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/programs/commit.hpp" CONTENT
  "#pragma once\ninline constexpr char kCommit[] = \"\";\n")

foreach(program IN LISTS programs)
  set(missing "")
  if(program MATCHES "cpu_ops/|prefix_cache/lookup" AND NOT NANOVLLM_BENCHMARK_INCLUDE_DIR)
    set(missing "Google Benchmark")
  elseif(program MATCHES "http_load\\.cpp" AND NOT TARGET nanovllm::boost_headers)
    set(missing Boost)
  endif()
  if(missing)
    add_test(NAME "programs/${program}"
      COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/headers/try_compiler.sh" "${missing}" "")
  else()
    add_test(NAME "programs/${program}"
      COMMAND "${CMAKE_CURRENT_LIST_DIR}/check_program.sh" "${CMAKE_CXX_COMPILER}"
        "${PROJECT_SOURCE_DIR}/${program}" ${our_flags} ${other_flags} ${program_flags}
        "-I${PROJECT_SOURCE_DIR}/benchmarks" "-I${CMAKE_CURRENT_BINARY_DIR}/programs"
        -DNANOVLLM_SEPARATE -DNANOVLLM_CUDA_SHAPES=fairytale,qwen3_any -DNANOVLLM_CUDA_POLICIES=CudaPolicy,CudaFullPolicy)
  endif()
  set_tests_properties("programs/${program}" PROPERTIES
    LABELS programs SKIP_RETURN_CODE 77 TIMEOUT 600)
endforeach()

# What NANOVLLM_EIGHT_BITS adds.
add_test(NAME programs/eight_bits
  COMMAND "${CMAKE_CURRENT_LIST_DIR}/check_program.sh" "${CMAKE_CXX_COMPILER}"
    "${PROJECT_SOURCE_DIR}/examples/generate.cpp" ${our_flags} ${other_flags} ${program_flags}
    -DNANOVLLM_SEPARATE -DNANOVLLM_EIGHT_BITS)
set_tests_properties(programs/eight_bits PROPERTIES LABELS programs TIMEOUT 600)
