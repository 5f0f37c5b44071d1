# 'programs/progress': the bars of quickstart and generate on a terminal, where these are built.
if(NOT NANOVLLM_TEST_PACKAGING OR NOT NANOVLLM_BUILD_EXAMPLES)
  return()
endif()

find_program(NANOVLLM_PYTHON python3)
mark_as_advanced(NANOVLLM_PYTHON)
if(NANOVLLM_PYTHON)
  add_test(NAME programs/progress
    COMMAND "${NANOVLLM_PYTHON}" -B "${CMAKE_CURRENT_SOURCE_DIR}/examples/progress_test.py"
      $<TARGET_FILE:quickstart> $<TARGET_FILE:generate>
      "${PROJECT_SOURCE_DIR}/examples/models/fairytale")
  set_tests_properties(programs/progress PROPERTIES LABELS programs TIMEOUT 300)
endif()
