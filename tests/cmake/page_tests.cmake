# 'programs/page': the page of examples/server in a headless Chromium, where there is one, against a
# scripted server, and against the program itself where that is built.
if(NOT NANOVLLM_TEST_PACKAGING)
  return()
endif()

find_program(NANOVLLM_PYTHON python3)
mark_as_advanced(NANOVLLM_PYTHON)
if(NANOVLLM_PYTHON)
  set(server "")
  if(TARGET serve)
    set(server $<TARGET_FILE:serve> "${PROJECT_SOURCE_DIR}/examples/models/fairytale")
  endif()
  add_test(NAME programs/page
    COMMAND "${NANOVLLM_PYTHON}" -B "${CMAKE_CURRENT_SOURCE_DIR}/examples/server/page_test.py" ${server})
  set_tests_properties(programs/page PROPERTIES
    LABELS programs SKIP_RETURN_CODE 77 TIMEOUT 300)
endif()
