#ifndef NANOVLLM_TESTS_C_OLDER_H
#define NANOVLLM_TESTS_C_OLDER_H
/// nanovllm/c/nanovllm.h as an older version may have been: every struct ends earlier, and there are
/// fewer functions. Not to be changed: programs that were compiled with it go on to run.

#include <stddef.h>
#include <stdint.h>

typedef int32_t nvllm_status;
#define NVLLM_OK 0
#define NVLLM_FINISH_NONE 0
#define NVLLM_FINISH_STOP 1
#define NVLLM_FINISH_LENGTH 2

typedef struct nvllm_engine nvllm_engine;

typedef struct nvllm_engine_config {
  size_t struct_size;
  const char* model;
  const char* device;
  const char* dtype;
} nvllm_engine_config;

typedef struct nvllm_sampling_params {
  size_t struct_size;
  uint64_t seed;
  int32_t has_seed;
  int32_t has_temperature;
  float temperature;
  float top_p;
  int32_t top_k;
  int32_t has_min_p;
  float min_p;
  float repetition_penalty;
  float frequency_penalty;
  float presence_penalty;
  int32_t n;
  int32_t max_tokens;
} nvllm_sampling_params;

typedef struct nvllm_request {
  size_t struct_size;
  const char* text;
  size_t text_size;
  const int32_t* token_ids;
  size_t num_token_ids;
  const char* messages;
  const char* tools;
  int32_t enable_thinking;
  int32_t reserved;
  const nvllm_sampling_params* sampling;
} nvllm_request;

typedef struct nvllm_event {
  size_t struct_size;
  uint64_t id;
  int32_t sample;
  int32_t finish_reason;
  int32_t is_last;
  int32_t has_token;
  int32_t token;
  int32_t has_logprob;
  float logprob;
  int32_t num_top;
  const void* top;
  const char* text;
  size_t text_size;
} nvllm_event;

typedef struct nvllm_stats {
  size_t struct_size;
  int64_t num_waiting;
  int64_t num_running;
  int64_t num_finished;
} nvllm_stats;

typedef int32_t (*nvllm_callback)(void* user, const nvllm_event* event);

nvllm_status nvllm_init_struct(void* structure, size_t size);
#define nvllm_engine_config_init(config) nvllm_init_struct((config), sizeof(*(config)))
#define nvllm_sampling_params_init(params) nvllm_init_struct((params), sizeof(*(params)))
#define nvllm_request_init(request) nvllm_init_struct((request), sizeof(*(request)))
#define nvllm_stats_init(stats) nvllm_init_struct((stats), sizeof(*(stats)))

const char* nvllm_last_error(void);
nvllm_status nvllm_engine_create(const nvllm_engine_config* config, nvllm_engine** engine);
nvllm_status nvllm_engine_destroy(nvllm_engine* engine);
nvllm_status nvllm_submit(nvllm_engine* engine, const nvllm_request* request,
                          nvllm_callback callback, void* user, uint64_t* id);
nvllm_status nvllm_step(nvllm_engine* engine);
nvllm_status nvllm_get_stats(const nvllm_engine* engine, nvllm_stats* stats);

#endif
