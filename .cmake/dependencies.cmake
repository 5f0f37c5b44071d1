# What the headers need, each as a target of our own: nanovllm::pcre2, ::utf8proc and ::xxhash. The
# build tree and the installed package share this file.
#
# The targets are imported and global, so that a consumer in any directory can link them and their
# headers count as system headers. Cache entries start with NANOVLLM_; nothing else is set.

function(_nanovllm_add name)
  add_library(nanovllm::${name} INTERFACE IMPORTED GLOBAL)
endfunction()

# Finds HEADER and, where LIBRARY is given, the library, with pkg-config's answer as a hint.
function(_nanovllm_find name module header library)
  string(TOUPPER "NANOVLLM_${name}" prefix)
  if(NOT ${prefix}_INCLUDE_DIR)
    find_package(PkgConfig QUIET)
    if(PkgConfig_FOUND)
      pkg_check_modules(${prefix}_PC QUIET ${module})
    endif()
  endif()
  find_path(${prefix}_INCLUDE_DIR ${header} HINTS ${${prefix}_PC_INCLUDE_DIRS})
  mark_as_advanced(${prefix}_INCLUDE_DIR)
  set(needed ${${prefix}_INCLUDE_DIR})
  if(library)
    find_library(${prefix}_LIBRARY ${library} HINTS ${${prefix}_PC_LIBRARY_DIRS})
    mark_as_advanced(${prefix}_LIBRARY)
    if(NOT ${prefix}_LIBRARY)
      set(needed NOTFOUND)
    endif()
  endif()
  if(needed)
    _nanovllm_add(${name})
    target_include_directories(nanovllm::${name} INTERFACE "${${prefix}_INCLUDE_DIR}")
    if(library)
      target_link_libraries(nanovllm::${name} INTERFACE "${${prefix}_LIBRARY}")
    endif()
  endif()
endfunction()

# Defines the targets that can be had from this machine; MISSING lists the rest by name.
function(nanovllm_find_dependencies missing)
  if(NOT TARGET Threads::Threads)
    find_package(Threads REQUIRED GLOBAL)
  endif()
  if(NOT TARGET nanovllm::pcre2)
    _nanovllm_find(pcre2 libpcre2-8 pcre2.h pcre2-8)
  endif()
  if(NOT TARGET nanovllm::utf8proc)
    _nanovllm_find(utf8proc libutf8proc utf8proc.h utf8proc)
  endif()
  if(NOT TARGET nanovllm::xxhash)
    _nanovllm_find(xxhash libxxhash xxhash.h xxhash)
  endif()
  set(result "")
  foreach(name IN ITEMS pcre2 utf8proc xxhash)
    if(NOT TARGET nanovllm::${name})
      list(APPEND result ${name})
    endif()
  endforeach()
  set(${missing} "${result}" PARENT_SCOPE)
endfunction()

# Defines nanovllm::cuda: nanovllm::nanovllm with the CUDA runtime, cuBLASLt and, where it is
# installed, NCCL. Architectures are the consumer's business. Views and numbers of core/ call
# constexpr functions of the standard library in device code, hence the option for nvcc.
function(nanovllm_define_cuda)
  if(TARGET nanovllm::cuda)
    return()
  endif()
  find_package(CUDAToolkit REQUIRED GLOBAL)
  find_path(NANOVLLM_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(NANOVLLM_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
  mark_as_advanced(NANOVLLM_NCCL_INCLUDE_DIR NANOVLLM_NCCL_LIBRARY)
  _nanovllm_add(cuda)
  target_compile_options(nanovllm::cuda INTERFACE
    "$<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:--expt-relaxed-constexpr>")
  # CMake up to 3.25 does not know that nvcc compiles C++20.
  if("cuda_std_20" IN_LIST CMAKE_CUDA_COMPILE_FEATURES OR CMAKE_VERSION VERSION_GREATER 3.26)
    target_compile_features(nanovllm::cuda INTERFACE cuda_std_20)
  else()
    target_compile_options(nanovllm::cuda INTERFACE
      "$<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-std=c++20>")
  endif()
  target_link_libraries(nanovllm::cuda INTERFACE
    nanovllm::nanovllm CUDA::cudart CUDA::cublasLt)
  if(NANOVLLM_NCCL_INCLUDE_DIR AND NANOVLLM_NCCL_LIBRARY)
    target_include_directories(nanovllm::cuda INTERFACE "${NANOVLLM_NCCL_INCLUDE_DIR}")
    target_link_libraries(nanovllm::cuda INTERFACE "${NANOVLLM_NCCL_LIBRARY}")
  endif()
endfunction()

# Defines nanovllm::mpi: nanovllm::nanovllm with MPI, for nanovllm/mpi.hpp. Without MPI a REQUIRED in
# the arguments is an error; otherwise the target is not defined.
function(nanovllm_define_mpi)
  if(TARGET nanovllm::mpi)
    return()
  endif()
  set(MPI_CXX_SKIP_MPICXX ON)  # the C interface alone
  find_package(MPI ${ARGN} GLOBAL COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    _nanovllm_add(mpi)
    target_link_libraries(nanovllm::mpi INTERFACE nanovllm::nanovllm MPI::MPI_CXX)
  endif()
endfunction()

# Warns, when the project that uses the library has been read, if it is compiled without optimisation:
# no build type, a generator of one configuration, and no -O in its flags.
function(nanovllm_warn_unoptimised)
  get_property(warns GLOBAL PROPERTY _nanovllm_warns_unoptimised)
  if(NOT warns)
    set_property(GLOBAL PROPERTY _nanovllm_warns_unoptimised ON)
    cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL _nanovllm_warn_unoptimised)
  endif()
endfunction()

function(_nanovllm_warn_unoptimised)
  get_property(multi_config GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
  get_directory_property(options COMPILE_OPTIONS)
  if(NOT CMAKE_BUILD_TYPE AND NOT multi_config
      AND NOT "${CMAKE_CXX_FLAGS} ${CMAKE_CUDA_FLAGS};${options}" MATCHES "(^|[ ;:])-O")
    message(WARNING "nanovllm: CMAKE_BUILD_TYPE is not set, so the engines of this project are compiled \
without optimisation and run at about a tenth of their speed. Write\n"
      "  cmake -S ${CMAKE_SOURCE_DIR} -B ${CMAKE_BINARY_DIR} -DCMAKE_BUILD_TYPE=Release\n"
      "or -DCMAKE_BUILD_TYPE=None if your targets have optimisation flags of their own.")
  endif()
endfunction()
