# 'programs/c_*': the shared library for C (NANOVLLM_C_LIBRARY), by programs in C and in Python; the
# entries are those of api/c/run_test.sh. What it does with an engine that is not real is in
# api/c/library_test.cpp, with the other tests.
if(NOT TARGET nanovllm_c OR NOT NANOVLLM_TEST_PACKAGING)
  return()
endif()

find_program(NANOVLLM_CC NAMES cc gcc clang)
find_program(NANOVLLM_PYTHON python3)
mark_as_advanced(NANOVLLM_CC NANOVLLM_PYTHON)
foreach(name IN ITEMS api versions symbols header example ctypes)
  set(tool cc)
  set(path "${NANOVLLM_CC}")
  if(name STREQUAL "ctypes")
    set(tool python3)
    set(path "${NANOVLLM_PYTHON}")
  endif()
  if(path)
    add_test(NAME programs/c_${name}
      COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/api/c/run_test.sh" ${name} "${path}"
        "$<TARGET_FILE:nanovllm_c>" "${CMAKE_CURRENT_BINARY_DIR}/c_${name}"
      WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    set_tests_properties(programs/c_${name} PROPERTIES ENVIRONMENT "CXX=${CMAKE_CXX_COMPILER}")
  else()
    add_test(NAME programs/c_${name}
      COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/headers/try_compiler.sh" "${tool}" "")
  endif()
  set_tests_properties(programs/c_${name} PROPERTIES
    LABELS programs SKIP_RETURN_CODE 77 TIMEOUT 300)
endforeach()

if(NOT NANOVLLM_TEST_ALL)
  return()
endif()

# nanovllm::c_cuda compiles, where the headers of CUDA's runtime are; its engines are not looked at.
find_path(NANOVLLM_CUDART_FOLDER cuda_runtime_api.h
  HINTS ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES include)
mark_as_advanced(NANOVLLM_CUDART_FOLDER)
if(NANOVLLM_CUDART_FOLDER)
  add_test(NAME programs/c_library_cuda
    COMMAND "${CMAKE_CURRENT_LIST_DIR}/check_program.sh" "${CMAKE_CXX_COMPILER}"
      "${PROJECT_SOURCE_DIR}/.cmake/c_library/library.cpp" ${our_flags} ${other_flags}
      "-idirafter${NANOVLLM_CUDART_FOLDER}" -DNANOVLLM_SEPARATE
      -DNANOVLLM_POLICIES=DefaultPolicy,FullPolicy,FullFloat32Policy
      -DNANOVLLM_CUDA_SHAPES=fairytale,qwen3_any -DNANOVLLM_CUDA_POLICIES=CudaPolicy,CudaFullPolicy
      -DNANOVLLM_C_CUDA
      "-DNANOVLLM_C_SHAPES=fairytale,qwen3_any")
else()
  add_test(NAME programs/c_library_cuda COMMAND "${headers_folder}/try_compiler.sh" nvcc "")
endif()
set_tests_properties(programs/c_library_cuda PROPERTIES
  LABELS programs SKIP_RETURN_CODE 77 TIMEOUT 300)
