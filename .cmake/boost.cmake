# nanovllm::boost_headers: Boost's headers for examples/server, where this machine has them in 1.81 or
# later. They are not fetched: a release has 130 MB.

if(NOT TARGET nanovllm::boost_headers)
  find_path(NANOVLLM_BOOST_INCLUDE_DIR boost/beast.hpp)
  mark_as_advanced(NANOVLLM_BOOST_INCLUDE_DIR)
  set(_nanovllm_boost 0)
  if(NANOVLLM_BOOST_INCLUDE_DIR)
    file(STRINGS "${NANOVLLM_BOOST_INCLUDE_DIR}/boost/version.hpp" _nanovllm_boost
      REGEX "^#define BOOST_VERSION [0-9]+")
    string(REGEX REPLACE "[^0-9]" "" _nanovllm_boost "${_nanovllm_boost}")
  endif()
  if(_nanovllm_boost GREATER_EQUAL 108100)
    add_library(nanovllm::boost_headers INTERFACE IMPORTED GLOBAL)
    target_include_directories(nanovllm::boost_headers INTERFACE "${NANOVLLM_BOOST_INCLUDE_DIR}")
  endif()
endif()
