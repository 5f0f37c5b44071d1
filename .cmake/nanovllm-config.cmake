# find_package(nanovllm [COMPONENTS cuda mpi]) gives nanovllm::nanovllm, nanovllm::grammar,
# nanovllm::serve and nanovllm::header_only and, with the components, nanovllm::mpi, nanovllm::cuda and,
# where it has been installed, nanovllm::cuda_engines. What the headers need is looked up here; the consumer names none
# of it.

include("${CMAKE_CURRENT_LIST_DIR}/nanovllm-dependencies.cmake")
nanovllm_find_dependencies(_nanovllm_missing)
if(_nanovllm_missing)
  list(JOIN _nanovllm_missing ", " _nanovllm_missing)
  set(nanovllm_FOUND FALSE)
  set(nanovllm_NOT_FOUND_MESSAGE "nanovllm needs, and does not find: ${_nanovllm_missing}. \
On Debian: libpcre2-dev, libutf8proc-dev, libxxhash-dev.")
  return()
endif()

include("${CMAKE_CURRENT_LIST_DIR}/nanovllm-targets.cmake")
nanovllm_warn_unoptimised()

if("cuda" IN_LIST nanovllm_FIND_COMPONENTS)
  find_package(CUDAToolkit QUIET)
  set(nanovllm_cuda_FOUND ${CUDAToolkit_FOUND})
  if(CUDAToolkit_FOUND)
    nanovllm_define_cuda()
    include("${CMAKE_CURRENT_LIST_DIR}/nanovllm-cuda_engines.cmake" OPTIONAL)
  endif()
endif()
if("mpi" IN_LIST nanovllm_FIND_COMPONENTS)
  nanovllm_define_mpi(QUIET)
  if(TARGET nanovllm::mpi)
    set(nanovllm_mpi_FOUND TRUE)
  endif()
endif()
set(nanovllm_prebuilt_FOUND TRUE)  # deprecated: the old name of what nanovllm::nanovllm is now
if("prebuilt" IN_LIST nanovllm_FIND_COMPONENTS AND NOT TARGET nanovllm::prebuilt)
  add_library(nanovllm::prebuilt ALIAS nanovllm::nanovllm)
endif()

foreach(_nanovllm_component IN LISTS nanovllm_FIND_COMPONENTS)
  if(nanovllm_FIND_REQUIRED_${_nanovllm_component} AND NOT nanovllm_${_nanovllm_component}_FOUND)
    set(nanovllm_FOUND FALSE)
    set(nanovllm_NOT_FOUND_MESSAGE "nanovllm's component '${_nanovllm_component}' is not to be had: \
the components are 'cuda', which needs the CUDA Toolkit, and 'mpi', which needs MPI (on Debian \
libopenmpi-dev).")
  endif()
endforeach()
