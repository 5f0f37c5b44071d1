# The headers as a consumer's compiler meets them. Nothing here is built by 'all'; the CTest entries
# build what they need. Without NANOVLLM_TEST_ALL there are tree, links, coverage, includes, reading,
# words, types and wrong-policies.
#   headers/tree           the rules of headers/check_tree.sh; tree-check is a test of that check
#   headers/words          what the house says of wings, headers/check_words.sh; words-check tests that
#                          check
#   headers/types          the picture of the house's types in docs/architecture.md
#   headers/links          links and paths in the pages; links-check is a test of that check
#   headers/coverage       each header of 100 lines has a test of its name, or a line in
#                          headers/covered_by.txt; coverage-check tests that check
#   headers/format         clang-format 14 has nothing to change; format-check tests that check
#   headers/reading        the sources that docs/reading.md links: the sum of their lines, and the types that
#                          they name and do not define; reading-check
#                          is a test of that check
#   headers/subject-check  the subjects of commits that check_subject.sh takes and refuses
#   headers/tidy           clang-tidy has nothing to say of any .hpp with .clang-tidy
#   headers/alone          each .hpp compiles by itself, without warnings
#   headers/includes       each .hpp includes what it uses of the standard library
#   headers/two-units      every .hpp in two translation units of one program
#   headers/two-libraries  two shared libraries with the engine inside, in one program
#   headers/clang, /nvcc   every .hpp in one translation unit of the other compilers; of nvcc, what it
#                          makes of them for its host compiler too, parentheses apart
#   headers/docs_*         the policies, programs and models that pages in docs/ write
#   headers/samples        the samples in the headers' own comments
#   headers/wrong-policies-*  what the compilers say of types that are not what a policy's slot wants, and
#                          of names that are almost a slot's
#   headers/wording        what the compiler says of models that are none
#   headers/march-*        the CPU's kernels, where -march rules out some of them
#   headers/cuda-alone     each .cuh compiles by itself for sm_90a, without warnings
#   headers/hot-kernels    no kernel of a step spills registers or has its wgmma serialised
#   headers/without-wing   the tree without one wing, chosen by the commit's hash, compiles and generates
#                          text: headers/without_wing.sh, which 'all' makes do so for every wing
#   headers/cuda-files     every .cu file of the tree, see cuda_tests.cmake

set(headers_folder "${CMAKE_CURRENT_SOURCE_DIR}/headers")
foreach(name IN ITEMS tree links coverage includes reading words types)
  set(argument "")
  if(name STREQUAL "reading")
    set(argument 2000)
  endif()
  add_test(NAME headers/${name} COMMAND "${headers_folder}/check_${name}.sh" ${argument})
  set_tests_properties(headers/${name} PROPERTIES LABELS headers SKIP_RETURN_CODE 77)
endforeach()
set(generated "${CMAKE_CURRENT_BINARY_DIR}/headers")
# For a compiler that is called by hand; warnings in other libraries are not ours.
set(other_folders "")
foreach(name IN ITEMS pcre2 utf8proc xxhash)
  get_target_property(folder nanovllm::${name} INTERFACE_INCLUDE_DIRECTORIES)
  list(APPEND other_folders ${folder})
endforeach()
list(REMOVE_DUPLICATES other_folders)
set(our_flags "-I${PROJECT_SOURCE_DIR}/include" "-I${generated}")
list(TRANSFORM other_folders PREPEND "-idirafter" OUTPUT_VARIABLE other_flags)
list(TRANSFORM other_folders PREPEND "-I" OUTPUT_VARIABLE other_flags_of_nvcc)

find_program(NANOVLLM_CLANG clang++)
mark_as_advanced(NANOVLLM_CLANG)
set(policies_compilers "${CMAKE_CXX_COMPILER}")
if(NANOVLLM_CLANG)
  list(APPEND policies_compilers "${NANOVLLM_CLANG}")
endif()
if(NOT NANOVLLM_TEST_PACKAGING)
  set(policies_compilers "")
endif()
foreach(compiler IN LISTS policies_compilers)
  get_filename_component(name "${compiler}" NAME)
  add_test(NAME headers/wrong-policies-${name} COMMAND "${headers_folder}/check_wrong_policies.sh"
    "${compiler}" ${our_flags} ${other_flags} -DNANOVLLM_SEPARATE)
  set_tests_properties(headers/wrong-policies-${name} PROPERTIES LABELS headers TIMEOUT 120)
endforeach()
if(NOT NANOVLLM_TEST_ALL)
  return()
endif()

add_test(NAME headers/format COMMAND "${headers_folder}/check_format.sh")
set_tests_properties(headers/format PROPERTIES LABELS headers SKIP_RETURN_CODE 77)
foreach(name IN ITEMS tree links coverage format includes reading subject words)
  add_test(NAME headers/${name}-check COMMAND "${headers_folder}/check_${name}_test.sh")
  set_tests_properties(headers/${name}-check PROPERTIES LABELS headers SKIP_RETURN_CODE 77)
endforeach()

if(NOT NANOVLLM_TEST_PACKAGING)
  return()
endif()

list(JOIN other_flags " " flags_of_others)
add_test(NAME headers/without-wing COMMAND "${headers_folder}/without_wing.sh")
set_tests_properties(headers/without-wing PROPERTIES LABELS headers TIMEOUT 900
  ENVIRONMENT "CXX=${CMAKE_CXX_COMPILER};NANOVLLM_FLAGS=${flags_of_others}")

file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/include"
  "${PROJECT_SOURCE_DIR}/include/*.hpp")
# These targets are compiled more than they are run, so the optimiser's time is saved.
set(header_options ${nanovllm_warnings} -O0)

# Written only when it changes, so that a new header does not recompile the others.
function(nanovllm_generate path content)
  file(CONFIGURE OUTPUT "${path}" CONTENT "${content}" @ONLY)
endfunction()

list(REMOVE_ITEM headers nanovllm/implementation.hpp)  # for a library alone; consumer/ compiles it

# What needs MPI is checked alone, where there is MPI.
set(mpi_headers ${headers})
list(FILTER mpi_headers INCLUDE REGEX "^nanovllm/(with/)?mpi(/|\\.hpp)")
list(REMOVE_ITEM headers ${mpi_headers})

set(all_includes "")
foreach(header IN LISTS headers)
  string(APPEND all_includes "#include \"${header}\"\n")
endforeach()
nanovllm_generate("${generated}/all_headers.inc" "${all_includes}")

add_executable(headers_two_units EXCLUDE_FROM_ALL
  "${headers_folder}/unit_one.cpp" "${headers_folder}/unit_two.cpp")
target_include_directories(headers_two_units PRIVATE "${generated}")
target_link_libraries(headers_two_units PRIVATE nanovllm::header_only)
target_compile_options(headers_two_units PRIVATE ${header_options})
add_custom_target(run_headers_two_units COMMAND headers_two_units)

# A file with one include each; only its syntax and types are checked. Of the bodies at the ends of
# headers it sees those of this header alone: the others' take more time than all the rest. So does
# the standard library, which GCC reads once, precompiled; headers/includes shows that each header
# includes what it uses of that.
set(alone_flags -std=c++20 -fsyntax-only ${nanovllm_warnings})
set(precompiled_std "")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(std_includes "")
  foreach(header IN LISTS headers)
    file(STRINGS "${PROJECT_SOURCE_DIR}/include/${header}" lines REGEX "^#include <[a-z_]+>")
    list(APPEND std_includes ${lines})
  endforeach()
  list(REMOVE_DUPLICATES std_includes)
  list(JOIN std_includes "\n" std_includes)
  set(std_header "${generated}/std.hpp")
  nanovllm_generate("${std_header}" "${std_includes}\n")
  set(precompiled_std "${std_header}.gch")
  add_custom_command(OUTPUT "${precompiled_std}"
    COMMAND "${CMAKE_CXX_COMPILER}" -std=c++20 ${nanovllm_warnings} -x c++-header "${std_header}"
      -o "${precompiled_std}"
    DEPENDS "${std_header}" COMMENT "Precompiling the standard library" VERBATIM)
  list(APPEND alone_flags -include "${std_header}")
endif()
if(TARGET nanovllm::mpi)
  list(APPEND headers ${mpi_headers})
  get_target_property(mpi_flags MPI::MPI_CXX INTERFACE_INCLUDE_DIRECTORIES)
  list(TRANSFORM mpi_flags PREPEND "-idirafter")
  list(APPEND alone_flags ${mpi_flags})
endif()
set(checked "")
foreach(header IN LISTS headers)
  string(REGEX REPLACE "\\.hpp$" "" stem "${generated}/alone/${header}")
  nanovllm_generate("${stem}.cpp" "#include \"${header}\"\n")
  add_custom_command(OUTPUT "${stem}.ok"
    COMMAND "${CMAKE_CXX_COMPILER}" ${alone_flags} ${our_flags} ${other_flags}
      "-DNANOVLLM_BODIES=(__INCLUDE_LEVEL__==1)" -MD -MF "${stem}.d" -MT "${stem}.ok" "${stem}.cpp"
    COMMAND "${CMAKE_COMMAND}" -E touch "${stem}.ok"
    DEPENDS "${stem}.cpp" "${precompiled_std}" DEPFILE "${stem}.d" COMMENT "Checking ${header} alone"
    VERBATIM)
  list(APPEND checked "${stem}.ok")
endforeach()
add_custom_target(headers_alone DEPENDS ${checked})

# Both libraries get the same object file; 'default' is what a consumer who sets nothing builds.
add_custom_target(run_headers_two_libraries)
foreach(visibility IN ITEMS default hidden)
  set(prefix headers_${visibility})
  add_library(${prefix}_engine OBJECT EXCLUDE_FROM_ALL "${headers_folder}/library_engine.cpp")
  target_link_libraries(${prefix}_engine PUBLIC nanovllm::header_only)
  foreach(name IN ITEMS left right)
    add_library(${prefix}_${name} SHARED EXCLUDE_FROM_ALL "${headers_folder}/library_${name}.cpp")
    target_link_libraries(${prefix}_${name} PRIVATE ${prefix}_engine)
  endforeach()
  add_executable(${prefix}_program EXCLUDE_FROM_ALL "${headers_folder}/library_user.cpp")
  target_link_libraries(${prefix}_program PRIVATE
    ${prefix}_left ${prefix}_right nanovllm::header_only)
  foreach(target IN ITEMS engine left right program)
    target_compile_options(${prefix}_${target} PRIVATE ${header_options})
    set_target_properties(${prefix}_${target} PROPERTIES
      POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET ${visibility})
  endforeach()
  add_custom_command(TARGET run_headers_two_libraries POST_BUILD
    COMMAND "${headers_folder}/check_libraries.sh" ${visibility} $<TARGET_FILE:${prefix}_program>
      $<TARGET_FILE:${prefix}_left> $<TARGET_FILE:${prefix}_right>
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  add_dependencies(run_headers_two_libraries ${prefix}_program)
endforeach()

find_program(NANOVLLM_NVCC nvcc HINTS ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
find_path(NANOVLLM_NCCL_FOLDER nccl.h HINTS ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES include)
find_program(NANOVLLM_CLANG_TIDY NAMES clang-tidy-14 clang-tidy)
mark_as_advanced(NANOVLLM_CLANG_TIDY NANOVLLM_NVCC NANOVLLM_NCCL_FOLDER)

# What check_cuda.sh looks at: a .cu file with one include for each .cuh, and the hot kernels.
set(cuda_targets "")
if(NANOVLLM_NVCC)
  set(check_cuda "${headers_folder}/check_cuda.sh")
  function(nanovllm_check_cuda mode output source comment)
    add_custom_command(OUTPUT "${output}"
      COMMAND "${check_cuda}" ${mode} "${NANOVLLM_NVCC}" "${source}" "${output}"
        ${our_flags} ${other_flags_of_nvcc}
      DEPENDS "${source}" "${check_cuda}" DEPFILE "${output}.d" COMMENT "${comment}" VERBATIM)
  endfunction()

  file(GLOB_RECURSE cuda_headers CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/include"
    "${PROJECT_SOURCE_DIR}/include/*.cuh")
  set(checked "")
  foreach(header IN LISTS cuda_headers)
    file(STRINGS "${PROJECT_SOURCE_DIR}/include/${header}" nccl_lines REGEX "include <nccl.h>")
    if(nccl_lines AND NOT NANOVLLM_NCCL_FOLDER)
      message(STATUS "nanovllm: headers/cuda-alone leaves out ${header}, because there is no NCCL")
      continue()
    endif()
    string(REGEX REPLACE "\\.cuh$" "" stem "${generated}/alone/${header}")
    nanovllm_generate("${stem}.cu" "#include \"${header}\"\n")
    nanovllm_check_cuda(alone "${stem}.cu.ok" "${stem}.cu" "Checking ${header} alone")
    list(APPEND checked "${stem}.cu.ok")
  endforeach()
  add_custom_target(headers_cuda_alone DEPENDS ${checked})
  nanovllm_check_cuda(hot "${generated}/hot_kernels.o" "${headers_folder}/hot_kernels.cu"
    "Checking the hot kernels")
  add_custom_target(headers_hot_kernels DEPENDS "${generated}/hot_kernels.o")
  set(cuda_targets headers_cuda_alone headers_hot_kernels)
else()
  foreach(name IN ITEMS cuda-alone hot-kernels)
    add_test(NAME headers/${name} COMMAND "${headers_folder}/try_compiler.sh" nvcc "")
    set_tests_properties(headers/${name} PROPERTIES LABELS headers SKIP_RETURN_CODE 77)
  endforeach()
endif()

# One build at a time in this build folder, with the machine to itself.
cmake_host_system_information(RESULT num_cores QUERY NUMBER_OF_LOGICAL_CORES)
foreach(target IN ITEMS
    headers_alone run_headers_two_units run_headers_two_libraries ${cuda_targets})
  string(REGEX REPLACE "^.*headers_" "headers/" name ${target})
  string(REPLACE "_" "-" name ${name})
  add_test(NAME ${name} COMMAND "${CMAKE_COMMAND}" --build "${PROJECT_BINARY_DIR}"
    --target ${target} --parallel ${num_cores})
  set_tests_properties(${name} PROPERTIES
    LABELS headers RESOURCE_LOCK build PROCESSORS ${num_cores} TIMEOUT 1200)
endforeach()

# Other compilers, when they are there, see every header in one translation unit; clang++ an engine.
add_test(NAME headers/clang
  COMMAND "${headers_folder}/try_compiler.sh" clang++ "${NANOVLLM_CLANG}" -std=c++20 -fsyntax-only
    ${nanovllm_warnings} ${our_flags} ${other_flags} "${headers_folder}/engine.cpp")
add_test(NAME headers/tidy
  COMMAND "${headers_folder}/try_compiler.sh" clang-tidy "${NANOVLLM_CLANG_TIDY}" --quiet
    "--config-file=${PROJECT_SOURCE_DIR}/.clang-tidy" "${headers_folder}/unit_one.cpp"
    -- -std=c++20 ${our_flags} ${other_flags})
add_test(NAME headers/nvcc
  COMMAND "${headers_folder}/try_compiler.sh" nvcc "${NANOVLLM_NVCC}" -std=c++20 -arch=sm_90a
    --expt-relaxed-constexpr --fdevice-syntax-only -Werror=all-warnings
    -Xcompiler=-Wall,-Wextra,-Wno-parentheses,-Werror,-fsyntax-only
    ${our_flags} ${other_flags_of_nvcc}
    -x cu -c "${headers_folder}/unit_one.cpp" -o "${generated}/unit_one.o")
set_tests_properties(headers/clang headers/tidy headers/nvcc PROPERTIES
  LABELS headers SKIP_RETURN_CODE 77 TIMEOUT 1200)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  foreach(level IN ITEMS v3 v4)
    add_test(NAME headers/march-${level}
      COMMAND "${CMAKE_CXX_COMPILER}" -std=c++20 -march=x86-64-${level} -fsyntax-only
        ${nanovllm_warnings} ${our_flags} ${other_flags} -DNANOVLLM_SEPARATE
        -DNANOVLLM_BODIES=1 "${PROJECT_SOURCE_DIR}/.cmake/compiled/kernels.cpp")
    set_tests_properties(headers/march-${level} PROPERTIES LABELS headers TIMEOUT 600)
  endforeach()
endif()

set(checked_pages README how_it_works/block_tables how_it_works/radix_tree how_it_works/steps policies
  sessions speculation logits_processors structured_output chat_parsers serving adding_a_model quantization)
foreach(page IN LISTS checked_pages)
  add_test(NAME headers/docs_${page} COMMAND "${headers_folder}/check_docs.sh"
    "${CMAKE_CXX_COMPILER}" "${PROJECT_SOURCE_DIR}/docs/${page}.md" ${our_flags} ${other_flags}
    -DNANOVLLM_SEPARATE)
  set_tests_properties(headers/docs_${page} PROPERTIES LABELS headers TIMEOUT 600)
endforeach()

add_test(NAME headers/README COMMAND "${headers_folder}/check_readme.sh" "${CMAKE_CXX_COMPILER}"
  "${PROJECT_SOURCE_DIR}/README.md" ${our_flags} ${other_flags} -DNANOVLLM_SEPARATE)
set_tests_properties(headers/README PROPERTIES LABELS headers TIMEOUT 600)

find_program(NANOVLLM_CC NAMES cc gcc clang)
mark_as_advanced(NANOVLLM_CC)
add_test(NAME headers/samples COMMAND "${headers_folder}/check_samples.sh" "${CMAKE_CXX_COMPILER}"
  "$<$<BOOL:${NANOVLLM_CC}>:${NANOVLLM_CC}>" "${PROJECT_SOURCE_DIR}/include" ${our_flags} ${other_flags}
  -DNANOVLLM_SEPARATE)
set_tests_properties(headers/samples PROPERTIES LABELS headers TIMEOUT 600)

add_test(NAME headers/wording COMMAND "${headers_folder}/check_wording.sh" "${CMAKE_CXX_COMPILER}"
  ${our_flags} ${other_flags} -DNANOVLLM_SEPARATE)
set_tests_properties(headers/wording PROPERTIES LABELS headers TIMEOUT 600)
