# find_package(nanovllm [COMPONENTS cuda]) gives nanovllm::nanovllm and, with the component,
# nanovllm::cuda. What the headers need is looked up here; the consumer names none of it.

include("${CMAKE_CURRENT_LIST_DIR}/nanovllm-dependencies.cmake")
nanovllm_find_dependencies(_nanovllm_missing)
if(_nanovllm_missing)
  list(JOIN _nanovllm_missing ", " _nanovllm_missing)
  set(nanovllm_FOUND FALSE)
  set(nanovllm_NOT_FOUND_MESSAGE "nanovllm needs, and does not find: ${_nanovllm_missing}. \
On Debian: nlohmann-json3-dev, libpcre2-dev, libutf8proc-dev, libxxhash-dev.")
  return()
endif()

include("${CMAKE_CURRENT_LIST_DIR}/nanovllm-targets.cmake")

foreach(_nanovllm_component IN LISTS nanovllm_FIND_COMPONENTS)
  if(_nanovllm_component STREQUAL "cuda")
    find_package(CUDAToolkit QUIET)
    set(nanovllm_cuda_FOUND ${CUDAToolkit_FOUND})
    if(CUDAToolkit_FOUND)
      nanovllm_define_cuda()
    endif()
  endif()
  if(nanovllm_FIND_REQUIRED_${_nanovllm_component} AND NOT nanovllm_${_nanovllm_component}_FOUND)
    set(nanovllm_FOUND FALSE)
    set(nanovllm_NOT_FOUND_MESSAGE "nanovllm's component '${_nanovllm_component}' is not to be had: \
the only component is 'cuda', and it needs the CUDA Toolkit.")
  endif()
endforeach()
