# nanovllm::prebuilt and, with CUDA, nanovllm::prebuilt_cuda: nanovllm::nanovllm and nanovllm::cuda
# with the engines of include/nanovllm/engine/prebuilt.hpp and prebuilt_full.hpp compiled, one source file each. They are built
# when a target links them; with NANOVLLM_INSTALL_PREBUILT always, and installed. An engine of a shape
# that NANOVLLM_PREBUILT_SHAPES leaves out is missed by the linker.

file(READ "${PROJECT_SOURCE_DIR}/include/nanovllm/engine/prebuilt.hpp" _nanovllm_shapes)
string(REGEX MATCH "PREBUILT_CPU_SHAPE\\(use\\) use[^#]*" _nanovllm_cpu_shapes "${_nanovllm_shapes}")
foreach(_list IN ITEMS _nanovllm_shapes _nanovllm_cpu_shapes)  # all; those without kernels of CUDA
  string(REGEX MATCHALL "use\\([a-z0-9_]+\\)" ${_list} "${${_list}}")
  list(TRANSFORM ${_list} REPLACE "use\\((.+)\\)" "\\1")
endforeach()
set(NANOVLLM_PREBUILT_SHAPES "" CACHE STRING "Shapes of nanovllm::prebuilt, of shapes.hpp; all if empty")
if(NANOVLLM_PREBUILT_SHAPES)
  set(_nanovllm_shapes ${NANOVLLM_PREBUILT_SHAPES})
endif()
set(NANOVLLM_PREBUILT_POLICIES
  DefaultPolicy Float32Policy FullPolicy FullFloat32Policy CudaPolicy CudaFullPolicy CACHE STRING
  "Policies of nanovllm::prebuilt and nanovllm::prebuilt_cuda")

# nanovllm_prebuilt_sources(VARIABLE TARGET EXTENSION POLICY...): one source for each shape and policy.
function(nanovllm_prebuilt_sources variable target extension)
  set(sources "")
  foreach(policy IN LISTS ARGN)
    if(NOT policy IN_LIST NANOVLLM_PREBUILT_POLICIES)
      continue()
    endif()
    foreach(shape IN LISTS _nanovllm_shapes)
      if(extension STREQUAL "cu" AND shape IN_LIST _nanovllm_cpu_shapes)
        continue()
      endif()
      set(source "${PROJECT_BINARY_DIR}/nanovllm_prebuilt/${shape}_${policy}.${extension}")
      configure_file("${PROJECT_SOURCE_DIR}/.cmake/prebuilt/engine.in" "${source}" @ONLY)
      list(APPEND sources "${source}")
    endforeach()
  endforeach()
  set(${variable} "${sources}" PARENT_SCOPE)
endfunction()

# nanovllm_add_prebuilt(NAME LIBRARY DEFINITIONS SOURCE...)
function(nanovllm_add_prebuilt name library definitions)
  add_library(nanovllm_${name} STATIC EXCLUDE_FROM_ALL ${ARGN})
  add_library(nanovllm::${name} ALIAS nanovllm_${name})
  target_link_libraries(nanovllm_${name} PUBLIC ${library})
  target_compile_definitions(nanovllm_${name} PUBLIC ${definitions})
  # A program that is built for its debugger still has a fast engine.
  target_compile_options(nanovllm_${name} PRIVATE
    "$<$<NOT:$<CONFIG:Release,RelWithDebInfo,MinSizeRel,None>>:-O2>")
  set_target_properties(nanovllm_${name} PROPERTIES
    EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON)
  if(NANOVLLM_INSTALL_PREBUILT)
    set_target_properties(nanovllm_${name} PROPERTIES EXCLUDE_FROM_ALL OFF)
  endif()
endfunction()

nanovllm_prebuilt_sources(_nanovllm_sources prebuilt cpp
  DefaultPolicy Float32Policy FullPolicy FullFloat32Policy)
set(_nanovllm_definitions NANOVLLM_PREBUILT)
if("qwen3_moe_any" IN_LIST _nanovllm_shapes)
  list(APPEND _nanovllm_definitions NANOVLLM_PREBUILT_EXPERTS)
endif()
nanovllm_add_prebuilt(prebuilt nanovllm::nanovllm "${_nanovllm_definitions}"
  ${_nanovllm_sources} "${PROJECT_SOURCE_DIR}/.cmake/prebuilt/bodies.cpp"
  "${PROJECT_SOURCE_DIR}/.cmake/prebuilt/templates.cpp")

# A consumer has enabled the CUDA language, or there is nothing to compile with.
if(NANOVLLM_WITH_CUDA AND CMAKE_CUDA_COMPILER_LOADED)
  nanovllm_prebuilt_sources(_nanovllm_sources prebuilt_cuda cu CudaPolicy CudaFullPolicy)
  nanovllm_add_prebuilt(prebuilt_cuda nanovllm::cuda NANOVLLM_PREBUILT_CUDA
    ${_nanovllm_sources} "${PROJECT_SOURCE_DIR}/.cmake/prebuilt/bodies_cuda.cpp")
  target_link_libraries(nanovllm_prebuilt_cuda PUBLIC nanovllm_prebuilt)
endif()
