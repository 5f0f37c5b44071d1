# Consumer projects: each builds README's program, with a policy, a shape and a model of its own in two
# more files and the usual warnings as errors, and runs it on a small model. Those of CMake set nothing and
# link one target of ours. The network is not used. Without NANOVLLM_TEST_ALL there is one, of the installed library.
if(NOT NANOVLLM_TEST_PACKAGING)
  return()
endif()

set(consumers "${CMAKE_CURRENT_BINARY_DIR}/consumer")
set(checkpoint "${PROJECT_SOURCE_DIR}/examples/models/fairytale")

# nanovllm_consumer_test(NAME PROJECT [CMAKE_OPTION...])
function(nanovllm_consumer_test name project)
  add_test(NAME consumer/${name}
    COMMAND "${CMAKE_CTEST_COMMAND}"
      --build-and-test "${CMAKE_CURRENT_SOURCE_DIR}/consumer/${project}" "${consumers}/${name}"
      --build-generator "${CMAKE_GENERATOR}"
      --build-options "-DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}"
        -DFETCHCONTENT_FULLY_DISCONNECTED=ON ${ARGN}
      --test-command "${consumers}/${name}/consumer" "${checkpoint}")
  set_tests_properties(consumer/${name} PROPERTIES LABELS package TIMEOUT 900)
endfunction()

add_test(NAME consumer/install COMMAND "${CMAKE_CURRENT_LIST_DIR}/install.sh"
  "${CMAKE_COMMAND}" "${PROJECT_BINARY_DIR}" "${PROJECT_SOURCE_DIR}" "${consumers}/prefix")
set_tests_properties(consumer/install PROPERTIES LABELS package FIXTURES_SETUP installed_package)
set(installed "-DCMAKE_PREFIX_PATH=${consumers}/prefix")

# The programs of tests/ have the library from the source tree; here it is installed.
add_test(NAME consumer/find_package COMMAND "${CMAKE_CURRENT_LIST_DIR}/installed.sh"
  "${CMAKE_COMMAND}" "${CMAKE_GENERATOR}" "${CMAKE_CXX_COMPILER}" "${PROJECT_SOURCE_DIR}"
  "${consumers}/find_package" "${checkpoint}" "${consumers}/prefix"
  "${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}")
set_tests_properties(consumer/find_package PROPERTIES
  LABELS package TIMEOUT 900 FIXTURES_REQUIRED installed_package)

if(NOT NANOVLLM_TEST_ALL)
  return()
endif()
# What bash tests/run.sh configures by itself, which has fewer targets than this build.
add_test(NAME consumer/default_tests
  COMMAND "${CMAKE_COMMAND}" --preset cpu -DNANOVLLM_TEST_ALL=OFF
    "-DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}" -B "${consumers}/default_tests"
  WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
set_tests_properties(consumer/default_tests PROPERTIES LABELS package TIMEOUT 300)
nanovllm_consumer_test(fetch_content fetch_content "-DNANOVLLM_SOURCE=${PROJECT_SOURCE_DIR}"
  "-DCHECKPOINT=${checkpoint}")
nanovllm_consumer_test(subdirectory subdirectory "-DNANOVLLM_SOURCE=${PROJECT_SOURCE_DIR}")
foreach(mode IN ITEMS header_only separate pkg_config)
  add_test(NAME consumer/plain_${mode} COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/consumer/plain_test.sh" ${mode}
    "${CMAKE_CXX_COMPILER}" "${PROJECT_SOURCE_DIR}" "${consumers}/plain_${mode}" "${checkpoint}"
    "${consumers}/prefix")
  set_tests_properties(consumer/plain_${mode} PROPERTIES
    LABELS package TIMEOUT 900 SKIP_RETURN_CODE 77)
endforeach()
set_tests_properties(consumer/plain_pkg_config PROPERTIES FIXTURES_REQUIRED installed_package)

# What programs cost to compile, as ratios to another that is compiled beside them.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_test(NAME consumer/compile_time
    COMMAND "${CMAKE_COMMAND}" -E env "CXX=${CMAKE_CXX_COMPILER}"
      "${PROJECT_SOURCE_DIR}/benchmarks/compile_time/run.sh" --check)
  cmake_host_system_information(RESULT num_cores QUERY NUMBER_OF_LOGICAL_CORES)
  set_tests_properties(consumer/compile_time PROPERTIES
    LABELS package TIMEOUT 1800 PROCESSORS ${num_cores})
endif()

# A project without a build type is told so.
set(build_type "${CMAKE_CURRENT_LIST_DIR}/build_type.sh" "${CMAKE_COMMAND}" "${CMAKE_CXX_COMPILER}"
  "${PROJECT_SOURCE_DIR}" "${consumers}/build_type")
add_test(NAME consumer/build_type COMMAND ${build_type})
add_test(NAME consumer/build_type_installed COMMAND ${build_type}_installed "${consumers}/prefix")
set_tests_properties(consumer/build_type consumer/build_type_installed PROPERTIES
  LABELS package TIMEOUT 300)
set_tests_properties(consumer/build_type_installed PROPERTIES FIXTURES_REQUIRED installed_package)

if(NANOVLLM_NVCC)
  set(nvcc "-DCMAKE_CUDA_COMPILER=${NANOVLLM_NVCC}")
  nanovllm_consumer_test(cuda_engines cuda "${nvcc}" -DCMAKE_CUDA_ARCHITECTURES=90a
    "-DNANOVLLM_SOURCE=${PROJECT_SOURCE_DIR}")
  nanovllm_consumer_test(cuda_find_package cuda "${nvcc}" "${installed}")
  set_tests_properties(consumer/cuda_find_package PROPERTIES FIXTURES_REQUIRED installed_package)
else()
  add_test(NAME consumer/cuda
    COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/headers/try_compiler.sh" nvcc "")
  set_tests_properties(consumer/cuda PROPERTIES LABELS package SKIP_RETURN_CODE 77)
endif()
