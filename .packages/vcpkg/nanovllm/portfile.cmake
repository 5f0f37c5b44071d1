# An overlay port of the checkout that it lies in:
#
#   vcpkg install nanovllm --overlay-ports=CHECKOUT/.packages/vcpkg
vcpkg_check_linkage(ONLY_STATIC_LIBRARY)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH _ports)
cmake_path(GET _ports PARENT_PATH _packages)
cmake_path(GET _packages PARENT_PATH SOURCE_PATH)

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    -DNANOVLLM_BUILD_TESTS=OFF
    -DNANOVLLM_BUILD_EXAMPLES=OFF
    -DNANOVLLM_CUDA=OFF
    -DFETCHCONTENT_FULLY_DISCONNECTED=ON)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME nanovllm CONFIG_PATH lib/cmake/nanovllm)
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
