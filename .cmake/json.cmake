# nlohmann_json::nlohmann_json for tests and benchmarks, from this machine or else fetched.
if(NOT TARGET nlohmann_json::nlohmann_json)
  find_package(nlohmann_json 3.10 QUIET CONFIG)
endif()
if(NOT TARGET nlohmann_json::nlohmann_json)
  include("${CMAKE_CURRENT_LIST_DIR}/fetch.cmake")
  nanovllm_fetch_source(json
    https://github.com/nlohmann/json/releases/download/v3.11.3/json.tar.xz
    d6c65aca6b1ed68e7a182f4757257b107ae403032760ed6ef121c9d55e81757d)
  add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED)
  target_include_directories(nlohmann_json::nlohmann_json INTERFACE
    "${nanovllm_json_SOURCE_DIR}/include")
endif()
