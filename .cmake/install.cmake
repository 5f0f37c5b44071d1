# Headers and a package for find_package(nanovllm [COMPONENTS cuda mpi prebuilt]). But for the prebuilt
# libraries, nothing here depends on the machine, so it goes to share/ and serves every architecture.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(_nanovllm_package "${CMAKE_INSTALL_DATADIR}/cmake/nanovllm")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/nanovllm"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h" PATTERN "*.cuh" PATTERN "*.inc")
install(TARGETS nanovllm EXPORT nanovllm-targets
  INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT nanovllm-targets NAMESPACE nanovllm:: DESTINATION "${_nanovllm_package}")
if(NANOVLLM_INSTALL_PREBUILT)
  foreach(_name IN ITEMS prebuilt prebuilt_cuda)
    if(TARGET nanovllm_${_name})
      install(TARGETS nanovllm_${_name} EXPORT nanovllm-${_name}
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
      install(EXPORT nanovllm-${_name} NAMESPACE nanovllm:: DESTINATION "${_nanovllm_package}")
    endif()
  endforeach()
endif()
write_basic_package_version_file("${PROJECT_BINARY_DIR}/nanovllm-config-version.cmake"
  COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES
  "${PROJECT_SOURCE_DIR}/.cmake/nanovllm-config.cmake"
  "${PROJECT_BINARY_DIR}/nanovllm-config-version.cmake"
  DESTINATION "${_nanovllm_package}")
install(FILES "${PROJECT_SOURCE_DIR}/.cmake/dependencies.cmake"
  DESTINATION "${_nanovllm_package}" RENAME nanovllm-dependencies.cmake)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/nanovllm")
