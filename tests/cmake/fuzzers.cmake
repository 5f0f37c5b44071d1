# tests/fuzz/<name>_fuzzer.cpp is one libFuzzer program. A run of a few seconds over its corpus,
# tests/fuzz/corpus/<name> where there is one, is a CTest entry.
if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "NANOVLLM_FUZZ needs clang++ with libFuzzer; the compiler is "
    "${CMAKE_CXX_COMPILER_ID}. The preset 'cpu-fuzz' chooses it.")
endif()

set(NANOVLLM_FUZZ_SECONDS 5 CACHE STRING "How long CTest runs each fuzzer")
enable_testing()
file(GLOB fuzzers CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/fuzz/*_fuzzer.cpp")
foreach(source IN LISTS fuzzers)
  cmake_path(GET source STEM name)
  string(REPLACE "_fuzzer" "" corpus_name "${name}")
  add_executable(${name} "${source}")
  target_link_libraries(${name} PRIVATE nanovllm::nanovllm nlohmann_json::nlohmann_json)
  target_include_directories(${name} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
  target_compile_options(${name} PRIVATE ${nanovllm_warnings} -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)

  # New inputs go to the first folder, so the committed corpus stays as it is.
  set(found "${CMAKE_CURRENT_BINARY_DIR}/found/${corpus_name}")
  file(MAKE_DIRECTORY "${found}")
  set(folders "${found}")
  if(IS_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}/fuzz/corpus/${corpus_name}")
    list(APPEND folders "${CMAKE_CURRENT_SOURCE_DIR}/fuzz/corpus/${corpus_name}")
  endif()
  add_test(NAME "fuzz/${corpus_name}"
    COMMAND ${name} -max_total_time=${NANOVLLM_FUZZ_SECONDS} -rss_limit_mb=4096 ${folders}
    WORKING_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}")
  set_tests_properties("fuzz/${corpus_name}" PROPERTIES LABELS fuzz)
endforeach()
