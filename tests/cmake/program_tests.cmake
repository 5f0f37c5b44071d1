# 'programs/<path>': every program of examples/ and benchmarks/, and the fingerprint, compiles, on
# the CPU and with nvcc where there is one; those of nvcc with an engine, which cost most, do so
# together, in 'programs/engines.cu'. Nothing is linked or run, and the engines of nanovllm::prebuilt
# are not compiled again: consumer/ does that. Only with NANOVLLM_TEST_ALL.
if(NOT NANOVLLM_TEST_PACKAGING OR NOT NANOVLLM_TEST_ALL)
  return()
endif()

file(GLOB programs CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}"
  "${PROJECT_SOURCE_DIR}/examples/*.c[pu]*" "${PROJECT_SOURCE_DIR}/examples/server/*.cu"
  "${PROJECT_SOURCE_DIR}/benchmarks/*/*.c[pu]*"
  "${PROJECT_SOURCE_DIR}/tests/oracle/fingerprint/*.c[pu]*")
list(FILTER programs INCLUDE REGEX "\\.(cpp|cu)$")

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

set(engine_programs "")
foreach(program IN LISTS programs)
  # That of the server defines a function of the library's namespace, which cannot be in another one.
  if(program MATCHES "\\.cu$" AND NOT program MATCHES "cuda_ops/|server/")
    list(APPEND engine_programs "${program}")
  endif()
endforeach()
list(REMOVE_ITEM programs ${engine_programs})
if(NANOVLLM_NVCC)
  list(JOIN engine_programs " " engine_programs)
  add_test(NAME "programs/engines.cu"
    COMMAND "${CMAKE_CURRENT_LIST_DIR}/check_cuda_programs.sh" "${NANOVLLM_NVCC}" "${PROJECT_SOURCE_DIR}"
      "${engine_programs}" ${our_flags} ${other_flags_of_nvcc} ${program_flags}
      "-I${PROJECT_SOURCE_DIR}/benchmarks" "-I${CMAKE_CURRENT_BINARY_DIR}/programs"
      -DNANOVLLM_PREBUILT -DNANOVLLM_PREBUILT_CUDA)
else()
  add_test(NAME "programs/engines.cu"
    COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/headers/try_compiler.sh" nvcc "")
endif()
set_tests_properties("programs/engines.cu" PROPERTIES
  LABELS programs SKIP_RETURN_CODE 77 TIMEOUT 600)

foreach(program IN LISTS programs)
  set(compiler "${CMAKE_CXX_COMPILER}")
  set(flags ${our_flags} ${other_flags})
  set(missing "")
  if(program MATCHES "\\.cu$")
    set(compiler "${NANOVLLM_NVCC}")
    set(flags ${our_flags} ${other_flags_of_nvcc})
    if(NOT NANOVLLM_NVCC)
      set(missing nvcc)
    endif()
  elseif(program MATCHES "cpu_ops/|prefix_cache/lookup" AND NOT NANOVLLM_BENCHMARK_INCLUDE_DIR)
    set(missing "Google Benchmark")
  elseif(program MATCHES "http_load\\.cpp" AND NOT TARGET nanovllm::boost_headers)
    set(missing Boost)
  endif()
  if(missing)
    add_test(NAME "programs/${program}"
      COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/headers/try_compiler.sh" "${missing}" "")
  else()
    add_test(NAME "programs/${program}"
      COMMAND "${CMAKE_CURRENT_LIST_DIR}/check_program.sh" "${compiler}"
        "${PROJECT_SOURCE_DIR}/${program}" ${flags} ${program_flags}
        "-I${PROJECT_SOURCE_DIR}/benchmarks" "-I${CMAKE_CURRENT_BINARY_DIR}/programs"
        -DNANOVLLM_PREBUILT -DNANOVLLM_PREBUILT_CUDA)
  endif()
  set_tests_properties("programs/${program}" PROPERTIES
    LABELS programs SKIP_RETURN_CODE 77 TIMEOUT 600)
endforeach()

# What NANOVLLM_EIGHT_BITS adds.
add_test(NAME programs/eight_bits
  COMMAND "${CMAKE_CURRENT_LIST_DIR}/check_program.sh" "${CMAKE_CXX_COMPILER}"
    "${PROJECT_SOURCE_DIR}/examples/generate.cpp" ${our_flags} ${other_flags} ${program_flags}
    -DNANOVLLM_PREBUILT -DNANOVLLM_EIGHT_BITS)
set_tests_properties(programs/eight_bits PROPERTIES LABELS programs TIMEOUT 600)
