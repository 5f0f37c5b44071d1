# Headers, the compiled libraries, and packages for find_package(nanovllm [COMPONENTS cuda mpi]) and for
# pkg-config. Without the libraries (NANOVLLM_COMPILED=OFF) nothing here depends on the machine.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(_nanovllm_package "${CMAKE_INSTALL_LIBDIR}/cmake/nanovllm")
set(_nanovllm_independent "")
if(NOT NANOVLLM_COMPILED)
  set(_nanovllm_package "${CMAKE_INSTALL_DATADIR}/cmake/nanovllm")
  set(_nanovllm_independent ARCH_INDEPENDENT)
endif()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/nanovllm"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h" PATTERN "*.cuh" PATTERN "*.inc")
install(TARGETS nanovllm_header_only nanovllm nanovllm_grammar nanovllm_serve EXPORT nanovllm-targets
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT nanovllm-targets NAMESPACE nanovllm:: DESTINATION "${_nanovllm_package}")
if(TARGET nanovllm_cuda_engines AND _nanovllm_install_cuda)
  install(TARGETS nanovllm_cuda_engines EXPORT nanovllm-cuda_engines
    ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  install(EXPORT nanovllm-cuda_engines NAMESPACE nanovllm:: DESTINATION "${_nanovllm_package}")
endif()
write_basic_package_version_file("${PROJECT_BINARY_DIR}/nanovllm-config-version.cmake"
  COMPATIBILITY SameMinorVersion ${_nanovllm_independent})
install(FILES
  "${PROJECT_SOURCE_DIR}/.cmake/nanovllm-config.cmake"
  "${PROJECT_BINARY_DIR}/nanovllm-config-version.cmake"
  DESTINATION "${_nanovllm_package}")
install(FILES "${PROJECT_SOURCE_DIR}/.cmake/dependencies.cmake"
  DESTINATION "${_nanovllm_package}" RENAME nanovllm-dependencies.cmake)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/nanovllm")

# nanovllm_install_pkg_config(LIBRARY REQUIRES [FLAG...])
function(nanovllm_install_pkg_config library requires)
  list(JOIN ARGN " " flags)
  cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_INCLUDEDIR
    BASE_DIRECTORY "${CMAKE_INSTALL_FULL_LIBDIR}" OUTPUT_VARIABLE includedir)
  configure_file("${PROJECT_SOURCE_DIR}/.cmake/compiled/pkg_config.in"
    "${PROJECT_BINARY_DIR}/${library}.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/${library}.pc"
    DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
endfunction()
if(NANOVLLM_COMPILED)
  set(_nanovllm_flags -DNANOVLLM_SEPARATE "-DNANOVLLM_SHAPES=${_nanovllm_shape_list}"
    "-DNANOVLLM_POLICIES=${_nanovllm_policy_list}" -DNANOVLLM_LIBRARY)
  nanovllm_install_pkg_config(nanovllm "libpcre2-8 libutf8proc libxxhash" -pthread ${_nanovllm_flags})
  nanovllm_install_pkg_config(nanovllm_grammar nanovllm -DNANOVLLM_GRAMMAR)
  nanovllm_install_pkg_config(nanovllm_serve nanovllm_grammar -DNANOVLLM_SERVE)
endif()
