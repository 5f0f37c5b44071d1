# CLI11::CLI11 for examples and benchmarks, from this machine or else fetched.
if(NOT TARGET CLI11::CLI11)
  find_package(CLI11 QUIET)
endif()
if(NOT TARGET CLI11::CLI11)
  include("${CMAKE_CURRENT_LIST_DIR}/fetch.cmake")
  nanovllm_fetch_source(cli11
    https://github.com/CLIUtils/CLI11/archive/refs/tags/v2.4.2.tar.gz
    f2d893a65c3b1324c50d4e682c0cdc021dd0477ae2c048544f39eed6654b699a)
  add_library(CLI11::CLI11 INTERFACE IMPORTED)
  target_include_directories(CLI11::CLI11 INTERFACE "${nanovllm_cli11_SOURCE_DIR}/include")
endif()
