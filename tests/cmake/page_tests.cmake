# 'programs/page': the page of examples/server in a headless Chromium, where there is one, against a
# scripted server; nothing is built for it.
find_program(NANOVLLM_PYTHON python3)
mark_as_advanced(NANOVLLM_PYTHON)
if(NANOVLLM_PYTHON)
  add_test(NAME programs/page
    COMMAND "${NANOVLLM_PYTHON}" -B "${CMAKE_CURRENT_SOURCE_DIR}/examples/server/page_test.py")
  set_tests_properties(programs/page PROPERTIES
    LABELS programs SKIP_RETURN_CODE 77 TIMEOUT 300)
endif()
