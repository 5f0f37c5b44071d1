# 'cpu/aarch64': the CPU's kernels and an engine, cross-compiled for aarch64 and run in QEMU, where
# both are installed; see cpu/aarch64/run_test.sh.
if(NOT NANOVLLM_TEST_ALL OR NOT NANOVLLM_TEST_PACKAGING)
  return()
endif()

cmake_host_system_information(RESULT num_cores QUERY NUMBER_OF_LOGICAL_CORES)
add_test(NAME cpu/aarch64 COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/cpu/aarch64/run_test.sh"
  aarch64-linux-gnu-g++ qemu-aarch64 "${CMAKE_CURRENT_BINARY_DIR}/aarch64" ${num_cores})
set_tests_properties(cpu/aarch64 PROPERTIES
  LABELS cpu SKIP_RETURN_CODE 77 PROCESSORS ${num_cores} TIMEOUT 900)
