# nanovllm::nanovllm: the library as CMake compiles it, once, from the headers. It is built where a target
# links it; with NANOVLLM_INSTALL always, and installed. More are built for those who link them:
# nanovllm::grammar, constraints on text; nanovllm::serve, the server's protocols with it; and with CUDA
# nanovllm::cuda_engines, which is installed where NANOVLLM_POLICIES names a policy for GPUs. Where
# NANOVLLM_COMPILED is OFF, the first three are nanovllm::header_only.
#
#   NANOVLLM_SHAPES    the shapes whose engines are compiled, on the CPU one engine for each family of
#                      them; those of engine/compiled.hpp if empty, and for GPUs some published sizes
#   NANOVLLM_POLICIES  the policies that they are compiled for; the same, and CudaPolicy

option(NANOVLLM_COMPILED "Compile nanovllm::nanovllm once; OFF: it is header-only" ON)
set(NANOVLLM_SHAPES "" CACHE STRING "Shapes whose engines are compiled; a few if empty")
set(NANOVLLM_POLICIES "" CACHE STRING "Policies that they are compiled for; DefaultPolicy and CudaPolicy if empty")
if(NOT NANOVLLM_COMPILED)
  add_library(nanovllm INTERFACE)
  add_library(nanovllm::nanovllm ALIAS nanovllm)
  target_link_libraries(nanovllm INTERFACE nanovllm_header_only)
  foreach(part IN ITEMS grammar serve)
    add_library(nanovllm_${part} INTERFACE)
    add_library(nanovllm::${part} ALIAS nanovllm_${part})
    target_link_libraries(nanovllm_${part} INTERFACE nanovllm_header_only)
    set_target_properties(nanovllm_${part} PROPERTIES EXPORT_NAME ${part})
  endforeach()
  return()
endif()

# nanovllm_bodies(VARIABLE NAME OWN FOLDER... BELOW FOLDER...): a source with the bodies of the headers in
# the folders OWN. Those that they see are BELOW; these come first, and as declarations alone.
function(nanovllm_bodies variable name)
  cmake_parse_arguments(arg "" "" "OWN;BELOW" ${ARGN})
  set(text "// The bodies of the headers in ${arg_OWN}.\n")
  foreach(bodies IN ITEMS 0 1)
    string(APPEND text "#undef NANOVLLM_BODIES\n#define NANOVLLM_BODIES ${bodies}\n")
    set(folders ${arg_BELOW})
    if(bodies)
      set(folders ${arg_OWN})
    endif()
    foreach(folder IN LISTS folders)
      file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/include"
        "${PROJECT_SOURCE_DIR}/include/nanovllm/${folder}/*.hpp")
      foreach(header IN LISTS headers)
        string(APPEND text "#include \"${header}\"\n")
      endforeach()
    endforeach()
  endforeach()
  set(source "${PROJECT_BINARY_DIR}/nanovllm_compiled/${name}.cpp")
  file(CONFIGURE OUTPUT "${source}" CONTENT "${text}" @ONLY)
  if(NOT cpu IN_LIST arg_OWN)  # -O3 makes kernels faster, and all else only takes longer
    set_source_files_properties("${source}" PROPERTIES COMPILE_OPTIONS "$<$<CONFIG:Release>:-O2>")
  endif()
  set(${variable} ${${variable}} "${source}" PARENT_SCOPE)
endfunction()

# nanovllm_engines(VARIABLE EXTENSION SHAPES POLICY): a source with the engines of one policy.
function(nanovllm_engines variable extension shapes policies)
  set(core "")
  if(policies STREQUAL "DefaultPolicy")
    set(core "#define NANOVLLM_COMPILED_CORE\n")
  endif()
  set(source "${PROJECT_BINARY_DIR}/nanovllm_compiled/engines_${policies}.${extension}")
  configure_file("${PROJECT_SOURCE_DIR}/.cmake/compiled/engines.in" "${source}" @ONLY)
  set(${variable} ${${variable}} "${source}" PARENT_SCOPE)
endfunction()

# nanovllm_add_compiled(NAME LIBRARY INSTALLED SOURCE...)
function(nanovllm_add_compiled name library installed)
  add_library(${name} STATIC EXCLUDE_FROM_ALL ${ARGN})
  target_link_libraries(${name} PUBLIC ${library})
  # A program that is built for its debugger still has a fast engine.
  target_compile_options(${name} PRIVATE
    "$<$<NOT:$<CONFIG:Release,RelWithDebInfo,MinSizeRel,None>>:-O2>"
    # GCC collects its garbage less often: a twentieth less time.
    "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=524288>")
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  if(installed)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL OFF)
  endif()
endfunction()

# nanovllm_define_list(TARGET NAME LIST): a macro that is the list with commas. For nvcc a comma that is not
# escaped ends a macro.
function(nanovllm_define_list target name list)
  list(JOIN list "$<COMMA>" plain)
  list(JOIN list "\\$<COMMA>" escaped)
  target_compile_definitions(${target} PUBLIC
    "$<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:${name}=${plain}>"
    "$<$<COMPILE_LANGUAGE:CUDA>:${name}=${escaped}>")
endfunction()

# The two lists, with commas, and what a program must be told of them.
set(_nanovllm_shapes ${NANOVLLM_SHAPES})
set(_nanovllm_cuda_shapes ${NANOVLLM_SHAPES})
set(_nanovllm_policies ${NANOVLLM_POLICIES})

if(NOT _nanovllm_shapes)
  file(STRINGS "${PROJECT_SOURCE_DIR}/include/nanovllm/engine/compiled.hpp" _nanovllm_shapes
    REGEX "^#define NANOVLLM_SHAPES ")
  string(REGEX REPLACE "^#define NANOVLLM_SHAPES " "" _nanovllm_shapes "${_nanovllm_shapes}")
  string(REPLACE ", " ";" _nanovllm_shapes "${_nanovllm_shapes}")
  set(_nanovllm_cuda_shapes fairytale qwen3_0_6b qwen3_8b qwen3_any gpt2_any)
endif()
set(_nanovllm_cuda_policies ${_nanovllm_policies})
list(FILTER _nanovllm_cuda_policies INCLUDE REGEX "^Cuda")
list(FILTER _nanovllm_policies EXCLUDE REGEX "^Cuda")
set(_nanovllm_install_cuda ${NANOVLLM_INSTALL})  # it takes minutes: only where it is asked for
if(NOT _nanovllm_cuda_policies)
  set(_nanovllm_cuda_policies CudaPolicy)
  set(_nanovllm_install_cuda OFF)
endif()
list(PREPEND _nanovllm_policies DefaultPolicy)
list(REMOVE_DUPLICATES _nanovllm_policies)
list(JOIN _nanovllm_shapes "," _nanovllm_shape_list)
list(JOIN _nanovllm_policies "," _nanovllm_policy_list)

# The wings, a line each: those that models and schedulers are made of, and those of the engine.
set(_nanovllm_wings_of_models
  with/eight_bits
  with/gguf
  with/gpt2
  with/moe
  with/peers
  with/radix
  with/shards
)
set(_nanovllm_wings_of_engines
  with/any
  with/beams
  with/pooling
  with/sessions
  with/speculation
  with/tiers
)
set(_nanovllm_files core io)
set(_nanovllm_models ops kv parallel model sampling sched ${_nanovllm_wings_of_models})
set(_nanovllm_below_engine ${_nanovllm_files} text chat api/chat ${_nanovllm_models})
# What takes longest comes first, so that no core waits for it in the end.
set(_nanovllm_sources "")
nanovllm_bodies(_nanovllm_sources engine
  OWN engine ${_nanovllm_wings_of_engines} BELOW ${_nanovllm_below_engine} cpu)
foreach(_policy IN LISTS _nanovllm_policies)
  nanovllm_engines(_nanovllm_sources cpp "${_nanovllm_shape_list}" ${_policy})
endforeach()
nanovllm_bodies(_nanovllm_sources model OWN ${_nanovllm_models} cpu BELOW ${_nanovllm_files})
nanovllm_bodies(_nanovllm_sources text OWN ${_nanovllm_files} text)
nanovllm_bodies(_nanovllm_sources chat OWN chat api/chat BELOW ${_nanovllm_files})
list(APPEND _nanovllm_sources "${PROJECT_SOURCE_DIR}/.cmake/compiled/kernels.cpp")
nanovllm_add_compiled(nanovllm nanovllm_header_only ${NANOVLLM_INSTALL} ${_nanovllm_sources})
add_library(nanovllm::nanovllm ALIAS nanovllm)
add_library(nanovllm::prebuilt ALIAS nanovllm)  # deprecated: its old name
target_compile_definitions(nanovllm PUBLIC NANOVLLM_SEPARATE)
nanovllm_define_list(nanovllm NANOVLLM_SHAPES "${_nanovllm_shapes}")
nanovllm_define_list(nanovllm NANOVLLM_POLICIES "${_nanovllm_policies}")
target_compile_definitions(nanovllm INTERFACE NANOVLLM_LIBRARY)  # which lacks api/grammar/ and api/serve/

# nanovllm_part(NAME LIBRARY FOLDER BELOW FOLDER...): nanovllm::NAME, the bodies of a folder and what
# LIBRARY has.
function(nanovllm_part name library)
  nanovllm_bodies(sources ${name} OWN ${ARGN})
  nanovllm_add_compiled(nanovllm_${name} ${library} ${NANOVLLM_INSTALL} ${sources})
  add_library(nanovllm::${name} ALIAS nanovllm_${name})
  string(TOUPPER "NANOVLLM_${name}" macro)
  target_compile_definitions(nanovllm_${name} PUBLIC ${macro})
  set_target_properties(nanovllm_${name} PROPERTIES EXPORT_NAME ${name})
endfunction()
nanovllm_part(grammar nanovllm api/grammar BELOW ${_nanovllm_files} text ops model sampling
  ${_nanovllm_wings_of_models})
nanovllm_part(serve nanovllm_grammar api/serve BELOW ${_nanovllm_below_engine} api/grammar engine
  ${_nanovllm_wings_of_engines})

# A consumer has enabled the CUDA language, or there is nothing to compile with. Mixtures of experts need
# an include for their kernels.
if(NANOVLLM_WITH_CUDA AND CMAKE_CUDA_COMPILER_LOADED)
  list(REMOVE_ITEM _nanovllm_cuda_shapes qwen3_moe_any)
  list(JOIN _nanovllm_cuda_shapes "," _nanovllm_cuda_shape_list)
  set(_nanovllm_sources "")
  foreach(_policy IN LISTS _nanovllm_cuda_policies)
    nanovllm_engines(_nanovllm_sources cu "${_nanovllm_cuda_shape_list}" ${_policy})
  endforeach()
  foreach(_list IN ITEMS dense attention sampling other)
    list(APPEND _nanovllm_sources "${PROJECT_SOURCE_DIR}/.cmake/compiled/cuda_${_list}.cu")
  endforeach()
  nanovllm_add_compiled(nanovllm_cuda_engines nanovllm::cuda ${_nanovllm_install_cuda} ${_nanovllm_sources})
  add_library(nanovllm::cuda_engines ALIAS nanovllm_cuda_engines)
  target_compile_definitions(nanovllm_cuda_engines PUBLIC NANOVLLM_CUDA_OPS)
  nanovllm_define_list(nanovllm_cuda_engines NANOVLLM_CUDA_SHAPES "${_nanovllm_cuda_shapes}")
  nanovllm_define_list(nanovllm_cuda_engines NANOVLLM_CUDA_POLICIES "${_nanovllm_cuda_policies}")
  set_target_properties(nanovllm_cuda_engines PROPERTIES EXPORT_NAME cuda_engines)
endif()
