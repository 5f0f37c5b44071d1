# nanovllm::c, the shared library of include/nanovllm/c/nanovllm.h, and with CUDA also nanovllm::c_cuda,
# the same with engines on GPUs. Only where NANOVLLM_C_LIBRARY is ON. Its engines have all tiers and ranks
# (FullPolicy), and the shapes of NANOVLLM_SHAPES; where that is empty, all that are published. Nothing but the functions of the header is visible, so it goes with any other C++ in a process.

option(NANOVLLM_C_LIBRARY "Define nanovllm::c, the shared library for C" OFF)
if(NOT NANOVLLM_C_LIBRARY)
  return()
endif()

# The names of the header and of the shared library: NVLLM_ABI_VERSION.
file(STRINGS "${PROJECT_SOURCE_DIR}/include/nanovllm/c/nanovllm.h" _nanovllm_abi
  REGEX "^#define NVLLM_ABI_VERSION ")
string(REGEX MATCH "[0-9]+$" _nanovllm_abi "${_nanovllm_abi}")

set(_nanovllm_c_shapes ${NANOVLLM_SHAPES})
if(NOT _nanovllm_c_shapes)
  set(_nanovllm_c_shapes fairytale qwen3_0_6b qwen3_1_7b qwen3_4b qwen3_8b qwen3_14b qwen3_32b qwen3_any
    gpt2_any qwen3_moe_any)
endif()

# nanovllm_add_c_library(NAME LIBRARY DEFINITION...)
function(nanovllm_add_c_library name library)
  set(target nanovllm_${name})
  set(exports "${PROJECT_SOURCE_DIR}/.cmake/c_library/exports.map")
  list(JOIN _nanovllm_c_shapes "," shapes)
  add_library(${target} SHARED "${PROJECT_SOURCE_DIR}/.cmake/c_library/library.cpp")
  add_library(nanovllm::${name} ALIAS ${target})
  target_link_libraries(${target} PRIVATE ${library})
  target_compile_definitions(${target} PRIVATE ${ARGN} "NANOVLLM_C_SHAPES=${shapes}")
  target_include_directories(${target} INTERFACE
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>")
  target_link_options(${target} PRIVATE
    "LINKER:--version-script=${exports}" "LINKER:--gc-sections")
  set_target_properties(${target} PROPERTIES
    VERSION ${PROJECT_VERSION} SOVERSION ${_nanovllm_abi}
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON LINK_DEPENDS "${exports}")
  if(NANOVLLM_INSTALL)
    install(TARGETS ${target} LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
      COMPONENT c NAMELINK_COMPONENT dev)
    set(library ${target})  # in the file
    cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_INCLUDEDIR
      BASE_DIRECTORY "${CMAKE_INSTALL_FULL_LIBDIR}" OUTPUT_VARIABLE includedir)
    configure_file("${PROJECT_SOURCE_DIR}/.cmake/c_library/pkg_config.in"
      "${PROJECT_BINARY_DIR}/${target}.pc" @ONLY)
    install(FILES "${PROJECT_BINARY_DIR}/${target}.pc"
      DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
  endif()
endfunction()

nanovllm_add_c_library(c nanovllm::nanovllm)
if(TARGET nanovllm_cuda_engines AND "CudaFullPolicy" IN_LIST NANOVLLM_POLICIES)
  nanovllm_add_c_library(c_cuda nanovllm_cuda_engines NANOVLLM_C_CUDA)
endif()
