# The headers as a consumer's compiler meets them. Nothing here is built by 'all'; the CTest entries
# build what they need.
#   headers/tree           the rules of headers/check_tree.sh, and a test of that check
#   headers/alone          each .hpp compiles by itself, without warnings
#   headers/two-units      every .hpp in two translation units of one program
#   headers/two-libraries  two shared libraries with the engine inside, in one program
#   headers/clang, /nvcc   every .hpp in one translation unit of the other compilers

add_test(NAME headers/tree COMMAND "${CMAKE_CURRENT_LIST_DIR}/../headers/check_tree.sh")
add_test(NAME headers/tree-check
  COMMAND "${CMAKE_CURRENT_LIST_DIR}/../headers/check_tree_test.sh")
set_tests_properties(headers/tree headers/tree-check PROPERTIES LABELS headers)

option(NANOVLLM_TEST_PACKAGING "Test headers and package with compilers and consumer projects" ON)
if(NOT NANOVLLM_TEST_PACKAGING)
  return()
endif()

set(headers_folder "${CMAKE_CURRENT_LIST_DIR}/../headers")
set(generated "${CMAKE_CURRENT_BINARY_DIR}/headers")
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/include"
  "${PROJECT_SOURCE_DIR}/include/*.hpp")

# Written only when it changes, so that a new header does not recompile the others.
function(nanovllm_generate path content)
  file(CONFIGURE OUTPUT "${path}" CONTENT "${content}" @ONLY)
endfunction()

set(alone_sources "")
set(all_includes "")
foreach(header IN LISTS headers)
  string(REGEX REPLACE "\\.hpp$" ".cpp" source "${generated}/alone/${header}")
  nanovllm_generate("${source}" "#include \"${header}\"\n")
  list(APPEND alone_sources "${source}")
  string(APPEND all_includes "#include \"${header}\"\n")
endforeach()
nanovllm_generate("${generated}/all_headers.inc" "${all_includes}")

add_library(headers_alone OBJECT EXCLUDE_FROM_ALL ${alone_sources})
target_link_libraries(headers_alone PRIVATE nanovllm::nanovllm)
# Nothing is run, so the optimiser's time is saved.
target_compile_options(headers_alone PRIVATE ${nanovllm_warnings} -O0)

add_executable(headers_two_units EXCLUDE_FROM_ALL
  "${headers_folder}/unit_one.cpp" "${headers_folder}/unit_two.cpp")
target_include_directories(headers_two_units PRIVATE "${generated}")
target_link_libraries(headers_two_units PRIVATE nanovllm::nanovllm)
target_compile_options(headers_two_units PRIVATE ${nanovllm_warnings})

# Built as a consumer who sets nothing builds them, and again with hidden symbols.
add_custom_target(run_headers_two_units COMMAND headers_two_units)
add_custom_target(run_headers_two_libraries)
foreach(visibility IN ITEMS default hidden)
  foreach(name IN ITEMS left right)
    set(library headers_${visibility}_${name})
    add_library(${library} SHARED EXCLUDE_FROM_ALL "${headers_folder}/library.cpp")
    target_compile_definitions(${library} PRIVATE LIBRARY_NAME=${name})
    target_link_libraries(${library} PRIVATE nanovllm::nanovllm)
    target_compile_options(${library} PRIVATE ${nanovllm_warnings})
    set_target_properties(${library} PROPERTIES CXX_VISIBILITY_PRESET ${visibility})
  endforeach()
  add_executable(headers_${visibility} EXCLUDE_FROM_ALL "${headers_folder}/library_user.cpp")
  target_link_libraries(headers_${visibility} PRIVATE
    headers_${visibility}_left headers_${visibility}_right nanovllm::nanovllm)
  target_compile_options(headers_${visibility} PRIVATE ${nanovllm_warnings})
  add_custom_command(TARGET run_headers_two_libraries POST_BUILD
    COMMAND "${headers_folder}/check_libraries.sh" ${visibility} $<TARGET_FILE:headers_${visibility}>
      $<TARGET_FILE:headers_${visibility}_left> $<TARGET_FILE:headers_${visibility}_right>
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  add_dependencies(run_headers_two_libraries headers_${visibility})
endforeach()

# One build at a time in this build folder, with the machine to itself.
cmake_host_system_information(RESULT num_cores QUERY NUMBER_OF_LOGICAL_CORES)
foreach(target IN ITEMS headers_alone run_headers_two_units run_headers_two_libraries)
  string(REGEX REPLACE "^.*headers_" "headers/" name ${target})
  string(REPLACE "_" "-" name ${name})
  add_test(NAME ${name} COMMAND "${CMAKE_COMMAND}" --build "${PROJECT_BINARY_DIR}"
    --target ${target} --parallel ${num_cores})
  set_tests_properties(${name} PROPERTIES
    LABELS headers RESOURCE_LOCK build PROCESSORS ${num_cores} TIMEOUT 1200)
endforeach()

# Other compilers, when they are there, see every header in one translation unit.
set(include_flags "-I$<JOIN:$<TARGET_PROPERTY:headers_two_units,INCLUDE_DIRECTORIES>,;-I>")
find_program(NANOVLLM_CLANG clang++)
find_program(NANOVLLM_NVCC nvcc HINTS ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
mark_as_advanced(NANOVLLM_CLANG NANOVLLM_NVCC)
add_test(NAME headers/clang
  COMMAND "${headers_folder}/try_compiler.sh" clang++ "${NANOVLLM_CLANG}" -std=c++20 -fsyntax-only
    ${nanovllm_warnings} ${include_flags} "${headers_folder}/unit_one.cpp"
  COMMAND_EXPAND_LISTS)
add_test(NAME headers/nvcc
  COMMAND "${headers_folder}/try_compiler.sh" nvcc "${NANOVLLM_NVCC}" -std=c++20 -arch=sm_90a
    --expt-relaxed-constexpr -Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Werror ${include_flags}
    -x cu -c "${headers_folder}/unit_one.cpp" -o "${generated}/unit_one.cu.o"
  COMMAND_EXPAND_LISTS)
set_tests_properties(headers/clang headers/nvcc PROPERTIES
  LABELS headers SKIP_RETURN_CODE 77 TIMEOUT 600)
