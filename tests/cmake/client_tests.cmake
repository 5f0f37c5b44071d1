# Real clients against the program of examples/server, which programs/server builds and tests first.
#   programs/clients_openai, clients_langchain   OpenAI's package and LangChain
#   programs/clients_agents                      Anthropic's package, and OpenAI's for Responses
#   programs/clients_cohere                      Cohere's package, for reranking
#   programs/clients_lm_eval                     the requests of lm-eval
# and with NANOVLLM_TEST_ALL:
#   programs/clients_router                      two servers behind vllm-router, one of them killed
#   programs/clients_openapi                     Schemathesis, by what /openapi.json says
#   programs/clients_soak                        ten seconds of soak.py, which knows more
#   programs/deploy_files                        what linters say of docs/deploy/
# NANOVLLM_CLIENT_PYTHON is a Python with api/serve/clients/requirements.txt; tests/run.sh makes one.
if(NOT NANOVLLM_TEST_PACKAGING)
  return()
endif()

set(NANOVLLM_CLIENT_PYTHON "" CACHE FILEPATH "A Python with the packages of tests/api/serve/clients")
mark_as_advanced(NANOVLLM_CLIENT_PYTHON)
set(clients_folder "${CMAKE_CURRENT_SOURCE_DIR}/api/serve/clients")

# nanovllm_client_test(NAME PYTHON SCRIPT [ARGUMENT...])
function(nanovllm_client_test name python script)
  if(TARGET serve AND python)
    add_test(NAME programs/${name} COMMAND "${python}" -B "${clients_folder}/${script}"
      --server $<TARGET_FILE:serve> --model "${PROJECT_SOURCE_DIR}/examples/models/fairytale" ${ARGN})
  else()
    add_test(NAME programs/${name} COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/headers/try_compiler.sh"
      "Boost, or Python with the packages of ${script}," "")
  endif()
  set_tests_properties(programs/${name} PROPERTIES LABELS programs SKIP_RETURN_CODE 77 TIMEOUT 300)
endfunction()

nanovllm_client_test(clients_openai "${NANOVLLM_CLIENT_PYTHON}" openai_client_test.py)
nanovllm_client_test(clients_langchain "${NANOVLLM_CLIENT_PYTHON}" second_client_test.py)
nanovllm_client_test(clients_agents "${NANOVLLM_CLIENT_PYTHON}" agents_test.py)
nanovllm_client_test(clients_cohere "${NANOVLLM_CLIENT_PYTHON}" cohere_client_test.py)
find_program(NANOVLLM_PYTHON python3)
mark_as_advanced(NANOVLLM_PYTHON)
nanovllm_client_test(clients_lm_eval "${NANOVLLM_PYTHON}" lm_eval_test.py)
# These watch the clock.
set_tests_properties(programs/clients_openai programs/clients_agents programs/clients_langchain
  PROPERTIES RUN_SERIAL ON)
if(NOT NANOVLLM_TEST_ALL)
  return()
endif()
nanovllm_client_test(clients_router "${NANOVLLM_CLIENT_PYTHON}" router_test.py)
nanovllm_client_test(clients_openapi "${NANOVLLM_CLIENT_PYTHON}" openapi_test.py)
nanovllm_client_test(clients_soak "${NANOVLLM_PYTHON}" soak.py --seconds 10)
set_tests_properties(programs/clients_router programs/clients_soak PROPERTIES RUN_SERIAL ON)

add_test(NAME programs/deploy_files
  COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/deploy/check_deploy_files.sh" "${NANOVLLM_CLIENT_PYTHON}")
set_tests_properties(programs/deploy_files PROPERTIES LABELS programs SKIP_RETURN_CODE 77)
