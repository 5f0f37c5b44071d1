# 'programs/server': the program of examples/server, and what raw sockets make of it.
if(NOT NANOVLLM_TEST_PACKAGING)
  return()
endif()

add_subdirectory("${PROJECT_SOURCE_DIR}/examples/server" "${PROJECT_BINARY_DIR}/examples/server")
set_property(GLOBAL PROPERTY nanovllm_has_server ON)  # also where it has no target, without Boost

find_program(NANOVLLM_PYTHON python3)
mark_as_advanced(NANOVLLM_PYTHON)
if(TARGET serve AND NANOVLLM_PYTHON)
  add_test(NAME programs/server
    COMMAND "${NANOVLLM_PYTHON}" "${CMAKE_CURRENT_SOURCE_DIR}/examples/server/server_protocol_test.py"
      $<TARGET_FILE:serve> "${PROJECT_SOURCE_DIR}/examples/models/fairytale")
else()
  add_test(NAME programs/server
    COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/headers/try_compiler.sh" "python3 or Boost" "")
endif()
set_tests_properties(programs/server PROPERTIES
  LABELS programs SKIP_RETURN_CODE 77 TIMEOUT 600 RUN_SERIAL ON)  # it watches the clock

# The image of examples/server/Dockerfile, as far as that can be told without Docker.
add_test(NAME programs/dockerfile
  COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/examples/server/dockerfile_test.sh" "${PROJECT_SOURCE_DIR}"
    "${CMAKE_CURRENT_BINARY_DIR}/dockerfile" "$<$<TARGET_EXISTS:serve>:$<TARGET_FILE:serve>>")
set_tests_properties(programs/dockerfile PROPERTIES LABELS programs TIMEOUT 120)

# 'programs/gpt2': generate and serve with a model that is not Qwen3. Only with NANOVLLM_TEST_ALL.
if(NOT NANOVLLM_TEST_ALL)
  return()
endif()
if(TARGET serve AND NANOVLLM_PYTHON)
  include("${PROJECT_SOURCE_DIR}/.cmake/cli11.cmake")
  add_executable(generate_any "${CMAKE_CURRENT_SOURCE_DIR}/examples/generate_any.cpp")
  target_include_directories(generate_any PRIVATE "${PROJECT_SOURCE_DIR}/examples")
  target_link_libraries(generate_any PRIVATE nanovllm::serve CLI11::CLI11)
  add_test(NAME programs/gpt2
    COMMAND "${NANOVLLM_PYTHON}" "${CMAKE_CURRENT_SOURCE_DIR}/examples/gpt2_programs_test.py"
      $<TARGET_FILE:generate_any> $<TARGET_FILE:serve>
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
else()
  add_test(NAME programs/gpt2
    COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/headers/try_compiler.sh" "python3 or Boost" "")
endif()
set_tests_properties(programs/gpt2 PROPERTIES
  LABELS programs SKIP_RETURN_CODE 77 TIMEOUT 300)
