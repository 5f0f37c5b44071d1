# 'python/*': the package of .python/ over the shared library for C (NANOVLLM_C_LIBRARY).
#   python/llm, /threads, /vectors   the package on examples/models/fairytale; texts are those of tell.cpp
#   python/nano_vllm_calls           a program with the calls that programs for nano-vllm make
#   python/example                   examples/python/tales.py, and the programs of docs/python.md
#   python/wheel                     the wheel and the source distribution in a fresh environment
#   python/types                     what mypy says of the package
# and with NANOVLLM_TEST_ALL:
#   python/compile                   the source distribution is compiled while it is installed
if(NOT TARGET nanovllm_c OR NOT NANOVLLM_TEST_PACKAGING)
  return()
endif()

find_program(NANOVLLM_PYTHON python3)
mark_as_advanced(NANOVLLM_PYTHON)
set(python "${NANOVLLM_CLIENT_PYTHON}")
if(NOT python)
  set(python "${NANOVLLM_PYTHON}")
endif()
set(python_folder "${CMAKE_CURRENT_SOURCE_DIR}/python")

if(python)
  execute_process(COMMAND "${python}" -c "import sys; sys.exit(sys.version_info < (3, 10))"
    RESULT_VARIABLE is_older OUTPUT_QUIET ERROR_QUIET)
  if(is_older)
    set(python "")
  endif()
endif()

add_executable(python_tell "${python_folder}/tell.cpp")
target_link_libraries(python_tell PRIVATE nanovllm::nanovllm)
target_compile_options(python_tell PRIVATE ${nanovllm_warnings})

# nanovllm_python_test(NAME SCRIPT [ARGUMENT...])
function(nanovllm_python_test name script)
  if(python)
    add_test(NAME python/${name} COMMAND "${python}" -B "${script}" ${ARGN}
      WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    set(variables "PYTHONPATH=${PROJECT_SOURCE_DIR}/.python:${python_folder}"
      "PYTHONDONTWRITEBYTECODE=1" "NANOVLLM_LIBRARY=$<TARGET_FILE:nanovllm_c>"
      "NANOVLLM_LIBRARY_FILE=$<TARGET_FILE:nanovllm_c>" "NANOVLLM_TELL=$<TARGET_FILE:python_tell>")
    set_tests_properties(python/${name} PROPERTIES ENVIRONMENT "${variables}")
  else()
    add_test(NAME python/${name}
      COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/headers/try_compiler.sh" "Python 3.10" "")
  endif()
  set_tests_properties(python/${name} PROPERTIES LABELS programs SKIP_RETURN_CODE 77 TIMEOUT 300)
endfunction()

foreach(name IN ITEMS llm threads vectors wheel types example)
  nanovllm_python_test(${name} "${python_folder}/${name}_test.py")
endforeach()
nanovllm_python_test(nano_vllm_calls "${python_folder}/nano_vllm_calls.py" examples/models/fairytale)
if(NOT NANOVLLM_TEST_ALL)
  return()
endif()

nanovllm_python_test(compile "${python_folder}/wheel_test.py" compile)
if(python)
  # What is compiled is not measured, so the optimiser's time is saved.
  set_property(TEST python/compile APPEND PROPERTY ENVIRONMENT "NANOVLLM_SHAPES=qwen3_any"
    "CMAKE_ARGS=-DCMAKE_CXX_FLAGS_RELEASE=-O0")
  set_tests_properties(python/compile PROPERTIES TIMEOUT 1800)
endif()
