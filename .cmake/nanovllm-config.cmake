# find_package(nanovllm [COMPONENTS cuda mpi prebuilt]) gives nanovllm::nanovllm and, with the
# components, nanovllm::cuda, nanovllm::mpi, and nanovllm::prebuilt where it has been installed too;
# with 'cuda' and 'prebuilt' also nanovllm::prebuilt_cuda. What the headers need is looked up here;
# the consumer names none of it.

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
  endif()
endif()
if("mpi" IN_LIST nanovllm_FIND_COMPONENTS)
  nanovllm_define_mpi(QUIET)
  if(TARGET nanovllm::mpi)
    set(nanovllm_mpi_FOUND TRUE)
  endif()
endif()
if("prebuilt" IN_LIST nanovllm_FIND_COMPONENTS)
  include("${CMAKE_CURRENT_LIST_DIR}/nanovllm-prebuilt.cmake" OPTIONAL
    RESULT_VARIABLE nanovllm_prebuilt_FOUND)
  if(nanovllm_cuda_FOUND)
    include("${CMAKE_CURRENT_LIST_DIR}/nanovllm-prebuilt_cuda.cmake" OPTIONAL)
  endif()
endif()

foreach(_nanovllm_component IN LISTS nanovllm_FIND_COMPONENTS)
  if(nanovllm_FIND_REQUIRED_${_nanovllm_component} AND NOT nanovllm_${_nanovllm_component}_FOUND)
    set(nanovllm_FOUND FALSE)
    set(nanovllm_NOT_FOUND_MESSAGE "nanovllm's component '${_nanovllm_component}' is not to be had: \
the components are 'cuda', which needs the CUDA Toolkit, 'mpi', which needs MPI (on Debian \
libopenmpi-dev), and 'prebuilt', which is installed where NANOVLLM_INSTALL_PREBUILT was on.")
  endif()
endforeach()
