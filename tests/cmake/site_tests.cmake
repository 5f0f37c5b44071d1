# 'docs/site' builds the site of docs/ as docs/site/build.sh does, which is skipped where pip or apt-get
# cannot install what that needs; 'docs/site-check' looks at what came of it, and whether the build
# notices faults. Only with NANOVLLM_TEST_ALL.
if(NOT NANOVLLM_TEST_PACKAGING OR NOT NANOVLLM_TEST_ALL)
  return()
endif()

add_test(NAME docs/site COMMAND bash "${PROJECT_SOURCE_DIR}/docs/site/build.sh")
add_test(NAME docs/site-check COMMAND bash "${CMAKE_CURRENT_SOURCE_DIR}/docs/site_test.sh")
set_tests_properties(docs/site docs/site-check PROPERTIES LABELS docs SKIP_RETURN_CODE 77 TIMEOUT 900)
set_tests_properties(docs/site-check PROPERTIES DEPENDS docs/site)
