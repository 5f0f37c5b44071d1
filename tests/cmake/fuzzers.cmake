# tests/fuzz/<name>_fuzzer.cpp is one libFuzzer program. A run over its corpus, tests/fuzz/corpus/<name>
# where there is one, and then over a fixed number of inputs made with a fixed seed is a CTest entry:
# the same inputs every time. tests/fuzz/run.sh looks for new ones.
if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "NANOVLLM_FUZZ needs clang++ with libFuzzer; the compiler is "
    "${CMAKE_CXX_COMPILER_ID}. The preset 'cpu-fuzz' chooses it.")
endif()

set(NANOVLLM_FUZZ_RUNS 20000 CACHE STRING "How many inputs CTest gives each fuzzer")
enable_testing()
file(GLOB fuzzers CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/fuzz/*_fuzzer.cpp")
foreach(source IN LISTS fuzzers)
  cmake_path(GET source STEM name)
  string(REPLACE "_fuzzer" "" corpus_name "${name}")
  add_executable(${name} "${source}")
  target_link_libraries(${name} PRIVATE nanovllm::header_only nlohmann_json::nlohmann_json)
  target_include_directories(${name} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
  target_compile_options(${name} PRIVATE ${nanovllm_warnings} -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)

  set(corpus "")
  if(IS_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}/fuzz/corpus/${corpus_name}")
    set(corpus "${CMAKE_CURRENT_SOURCE_DIR}/fuzz/corpus/${corpus_name}")
  endif()
  add_test(NAME "fuzz/${corpus_name}"
    COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/fuzz/fixed_runs.sh" $<TARGET_FILE:${name}>
      ${NANOVLLM_FUZZ_RUNS} ${corpus}
    WORKING_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}")
  set_tests_properties("fuzz/${corpus_name}" PROPERTIES LABELS fuzz TIMEOUT 600)
endforeach()
