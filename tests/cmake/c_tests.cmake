# 'programs/c_*': the shared library for C (NANOVLLM_C_LIBRARY), by programs in C and in Python; the
# entries are those of c/run_test.sh. What it does with an engine that is not real is in
# c/library_test.cpp, with the other tests.
if(NOT TARGET nanovllm_c)
  return()
endif()

find_program(NANOVLLM_CC NAMES cc gcc clang)
mark_as_advanced(NANOVLLM_CC)
foreach(name IN ITEMS api versions symbols header example ctypes)
  if(NANOVLLM_CC OR name STREQUAL "ctypes")
    add_test(NAME programs/c_${name}
      COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/c/run_test.sh" ${name} "${NANOVLLM_CC}"
        "$<TARGET_FILE:nanovllm_c>" "${CMAKE_CURRENT_BINARY_DIR}/c"
      WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    set_tests_properties(programs/c_${name} PROPERTIES
      LABELS programs TIMEOUT 300 ENVIRONMENT "CXX=${CMAKE_CXX_COMPILER}")
  else()
    add_test(NAME programs/c_${name}
      COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/headers/try_compiler.sh" cc "")
    set_tests_properties(programs/c_${name} PROPERTIES LABELS programs SKIP_RETURN_CODE 77)
  endif()
endforeach()
