# Holds the library to its promise: a project that uses it finds none of its own settings changed,
# no cache entry of a foreign name, and no target beyond the library's.
#   nothing_set_before()  ...use the library...  nothing_set_after()

macro(nothing_set_before)
  foreach(_kind IN ITEMS VARIABLES CACHE_VARIABLES)
    get_cmake_property(_before_${_kind} ${_kind})
  endforeach()
  # CMake 4 complains when these two are so much as read.
  list(FILTER _before_VARIABLES EXCLUDE REGEX "_DEPRECATED$")
  foreach(_name IN LISTS _before_VARIABLES)
    set("_value_before_${_name}" "${${_name}}")
  endforeach()
  foreach(_property IN ITEMS COMPILE_OPTIONS COMPILE_DEFINITIONS INCLUDE_DIRECTORIES LINK_OPTIONS)
    get_directory_property(_before_${_property} ${_property})
  endforeach()
endmacro()

macro(nothing_set_after)
  # What CMake itself writes down while it looks for packages and compilers.
  set(_allowed "^(NANOVLLM_|pkgcfg_lib_NANOVLLM_|nanovllm_|_nanovllm|FETCHCONTENT_|CMAKE_HAVE_|CMAKE_INSTALL_|CMAKE_C_|PKG_CONFIG_|\
CUDAToolkit|CUDA_|CMAKE_CUDA_COMPILER$|.*_DIR$|FIND_PACKAGE_MESSAGE_|_)")
  get_cmake_property(_after CACHE_VARIABLES)
  list(REMOVE_ITEM _after ${_before_CACHE_VARIABLES})
  foreach(_name IN LISTS _after)
    get_property(_type CACHE ${_name} PROPERTY TYPE)
    if(NOT _name MATCHES "${_allowed}" AND NOT _type MATCHES "INTERNAL|STATIC")
      message(SEND_ERROR "the library put '${_name}' into the cache of its user")
    endif()
  endforeach()
  foreach(_name IN LISTS _before_VARIABLES ITEMS CMAKE_BUILD_TYPE CMAKE_CXX_STANDARD
      CMAKE_CXX_FLAGS CMAKE_CUDA_ARCHITECTURES BUILD_SHARED_LIBS BUILD_TESTING)
    if(_name MATCHES "^(CMAKE_|BUILD_)" AND NOT _name MATCHES "^CMAKE_(ARG|MATCH_|CURRENT_)"
       AND NOT "${${_name}}" STREQUAL "${_value_before_${_name}}")
      message(SEND_ERROR "the library changed '${_name}' of its user "
        "from '${_value_before_${_name}}' to '${${_name}}'")
    endif()
  endforeach()
  foreach(_property IN ITEMS COMPILE_OPTIONS COMPILE_DEFINITIONS INCLUDE_DIRECTORIES LINK_OPTIONS)
    get_directory_property(_now ${_property})
    if(NOT "${_now}" STREQUAL "${_before_${_property}}")
      message(SEND_ERROR "the library changed ${_property} of its user to '${_now}'")
    endif()
  endforeach()
  foreach(_target IN ITEMS test quickstart generate)
    if(TARGET ${_target})
      message(SEND_ERROR "the library brought its target '${_target}' along")
    endif()
  endforeach()
endmacro()
