# nanovllm::c, the shared library of include/nanovllm/c/nanovllm.h, and with CUDA also nanovllm::c_cuda,
# the same with engines on GPUs. Only where NANOVLLM_C_LIBRARY is ON. The engines are those of
# nanovllm::prebuilt: its shapes (NANOVLLM_PREBUILT_SHAPES) and policies (NANOVLLM_PREBUILT_POLICIES).
# Nothing but the functions of the header is visible, so it goes with any other C++ in a process.

option(NANOVLLM_C_LIBRARY "Define nanovllm::c, the shared library for C" OFF)
if(NOT NANOVLLM_C_LIBRARY)
  return()
endif()

# The names of the header and of the shared library: NVLLM_ABI_VERSION.
file(STRINGS "${PROJECT_SOURCE_DIR}/include/nanovllm/c/nanovllm.h" _nanovllm_abi
  REGEX "^#define NVLLM_ABI_VERSION ")
string(REGEX MATCH "[0-9]+$" _nanovllm_abi "${_nanovllm_abi}")

# nanovllm_add_c_library(NAME PREBUILT DEFINITION...)
function(nanovllm_add_c_library name prebuilt)
  set(target nanovllm_${name})
  set(exports "${PROJECT_SOURCE_DIR}/.cmake/c_library/exports.map")
  list(JOIN _nanovllm_shapes "," shapes)
  add_library(${target} SHARED "${PROJECT_SOURCE_DIR}/.cmake/c_library/library.cpp")
  add_library(nanovllm::${name} ALIAS ${target})
  target_link_libraries(${target} PRIVATE ${prebuilt})
  target_compile_definitions(${target} PRIVATE ${ARGN} "NANOVLLM_C_SHAPES=${shapes}")
  target_include_directories(${target} INTERFACE
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>")
  target_link_options(${target} PRIVATE
    "LINKER:--version-script=${exports}" "LINKER:--gc-sections")
  set_target_properties(${target} PROPERTIES
    VERSION ${PROJECT_VERSION} SOVERSION ${_nanovllm_abi}
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON LINK_DEPENDS "${exports}")
  if(NANOVLLM_INSTALL)
    install(TARGETS ${target} LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
    set(library ${target})
    cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_INCLUDEDIR
      BASE_DIRECTORY "${CMAKE_INSTALL_FULL_LIBDIR}" OUTPUT_VARIABLE includedir)
    configure_file("${PROJECT_SOURCE_DIR}/.cmake/c_library/pkg_config.in"
      "${PROJECT_BINARY_DIR}/${target}.pc" @ONLY)
    install(FILES "${PROJECT_BINARY_DIR}/${target}.pc"
      DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
  endif()
endfunction()

set(_nanovllm_engines "")
foreach(_policy IN LISTS NANOVLLM_PREBUILT_POLICIES)
  if(_policy STREQUAL "FullPolicy")
    list(APPEND _nanovllm_engines NANOVLLM_C_BFLOAT16)
  elseif(_policy STREQUAL "FullFloat32Policy")
    list(APPEND _nanovllm_engines NANOVLLM_C_FLOAT32)
  endif()
endforeach()
nanovllm_add_c_library(c nanovllm_prebuilt ${_nanovllm_engines})
if(TARGET nanovllm_prebuilt_cuda AND "CudaFullPolicy" IN_LIST NANOVLLM_PREBUILT_POLICIES)
  nanovllm_add_c_library(c_cuda nanovllm_prebuilt_cuda ${_nanovllm_engines} NANOVLLM_C_CUDA)
endif()
