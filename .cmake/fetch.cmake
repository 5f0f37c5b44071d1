# Pinned releases of whatever this machine lacks. Only sources are taken: no build system of theirs
# runs, since some of them set global variables such as BUILD_SHARED_LIBS for everyone.

include(FetchContent)

# Downloads NAME and reports its source folder in nanovllm_<NAME>_SOURCE_DIR. The subfolder that
# does not exist keeps FetchContent from running the release's own CMakeLists.txt.
macro(nanovllm_fetch_source name url sha256)
  FetchContent_Declare(nanovllm_${name}
    URL "${url}"
    URL_HASH SHA256=${sha256}
    DOWNLOAD_EXTRACT_TIMESTAMP FALSE
    SOURCE_SUBDIR sources-only)
  FetchContent_MakeAvailable(nanovllm_${name})
endmacro()

function(nanovllm_fetch_dependencies)
  list(JOIN ARGN ", " names)
  message(STATUS "nanovllm: not found here and therefore fetched: ${names}")
  foreach(name IN LISTS ARGN)
    if(name STREQUAL "xxhash")
      nanovllm_fetch_source(xxhash
        https://github.com/Cyan4973/xxHash/archive/refs/tags/v0.8.2.tar.gz
        baee0c6afd4f03165de7a4e67988d16f0f2b257b51d0e3cb91909302a26a79c4)
      add_subdirectory("${PROJECT_SOURCE_DIR}/.cmake/xxhash" "${PROJECT_BINARY_DIR}/xxhash"
        EXCLUDE_FROM_ALL)
    elseif(name STREQUAL "pcre2")
      nanovllm_fetch_source(pcre2
        https://github.com/PCRE2Project/pcre2/releases/download/pcre2-10.44/pcre2-10.44.tar.bz2
        d34f02e113cf7193a1ebf2770d3ac527088d485d4e047ed10e5d217c6ef5de96)
      add_subdirectory("${PROJECT_SOURCE_DIR}/.cmake/pcre2" "${PROJECT_BINARY_DIR}/pcre2"
        EXCLUDE_FROM_ALL)
    elseif(name STREQUAL "utf8proc")
      nanovllm_fetch_source(utf8proc
        https://github.com/JuliaStrings/utf8proc/archive/refs/tags/v2.9.0.tar.gz
        18c1626e9fc5a2e192311e36b3010bfc698078f692888940f1fa150547abb0c1)
      add_subdirectory("${PROJECT_SOURCE_DIR}/.cmake/utf8proc" "${PROJECT_BINARY_DIR}/utf8proc"
        EXCLUDE_FROM_ALL)
    endif()
  endforeach()
endfunction()
