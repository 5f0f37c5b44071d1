# What is said of the programs of nvcc on a machine without a GPU. Only with NANOVLLM_TEST_ALL; skipped
# where there is no nvcc.
#   headers/cuda-files        every .cu file of the tree, and the samples of README and docs, pass nvcc's
#                             front end, see headers/check_cuda_files.sh; the first time that takes some nine
#                             minutes on two cores, later only what changed
#   headers/cuda-files-check  a test of that check
#   headers/pack-check        what pack/build.sh was to build and is not there is a failure of pack/run.sh
if(NOT NANOVLLM_TEST_PACKAGING OR NOT NANOVLLM_TEST_ALL)
  return()
endif()

add_test(NAME headers/pack-check COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/pack/run_test.sh")
set_tests_properties(headers/pack-check PROPERTIES LABELS headers)

if(NANOVLLM_NVCC)
  set(mpi_flags "")
  if(TARGET nanovllm::mpi)
    get_target_property(mpi_flags MPI::MPI_CXX INTERFACE_INCLUDE_DIRECTORIES)
    list(TRANSFORM mpi_flags PREPEND "-I")
    list(APPEND mpi_flags -DNANOVLLM_MPI -DOMPI_SKIP_MPICXX)
    list(JOIN mpi_flags " " mpi_flags)
  endif()
  list(TRANSFORM checked_pages REPLACE "(.+)" "docs/\\1.md" OUTPUT_VARIABLE pages)
  list(JOIN pages " " pages)
  add_test(NAME headers/cuda-files
    COMMAND "${headers_folder}/check_cuda_files.sh" --mpi "${mpi_flags}"
      --pages "README.md docs/cuda.md ${pages}" "${NANOVLLM_NVCC}" "${PROJECT_SOURCE_DIR}"
      "${CMAKE_CURRENT_BINARY_DIR}/cuda_files" -Iinclude -Itests -Ibenchmarks
      "-I${CMAKE_CURRENT_BINARY_DIR}/programs" ${other_flags_of_nvcc} ${program_flags})
  add_test(NAME headers/cuda-files-check
    COMMAND "${headers_folder}/check_cuda_files_test.sh" "${NANOVLLM_NVCC}")
  cmake_host_system_information(RESULT num_cores QUERY NUMBER_OF_LOGICAL_CORES)
  set_tests_properties(headers/cuda-files PROPERTIES PROCESSORS ${num_cores} TIMEOUT 3600)
else()
  foreach(name IN ITEMS cuda-files cuda-files-check)
    add_test(NAME headers/${name} COMMAND "${headers_folder}/try_compiler.sh" nvcc "")
  endforeach()
endif()
set_tests_properties(headers/cuda-files headers/cuda-files-check PROPERTIES
  LABELS headers SKIP_RETURN_CODE 77)
