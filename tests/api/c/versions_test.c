// One program, compiled with an older, this and a newer version of the header (HEADER), against this
// version of the library. Where the header is the newer one, NEWER is defined, and its structs have
// fields `added` that the library knows nothing of. versions_test MODEL_DIR prints what is generated,
// which must not depend on the header.
#include HEADER

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                   \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      fprintf(stderr, "%s:%d: not so: %s\n  the last error is '%s'\n", __FILE__, __LINE__, \
              #condition, nvllm_last_error());                                             \
      exit(1);                                                                             \
    }                                                                                      \
  } while (0)

// A struct of the caller's and what lies behind it, which is not the library's to write.
typedef struct {
  nvllm_stats stats;
  unsigned char behind[64];
} Guarded;

static int is_over = 0;

static int32_t print(void* user, const nvllm_event* event) {
  CHECK(user == &is_over && !is_over);
  printf("%s", event->text);
  is_over = event->is_last;
#ifdef NEWER
  CHECK(!NVLLM_HAS(nvllm_event, event, added));
  CHECK(NVLLM_HAS(nvllm_event, event, num_cached_tokens));
#endif
  return 0;
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  nvllm_engine_config config;
  CHECK(nvllm_engine_config_init(&config) == NVLLM_OK);
  config.model = argv[1];
  nvllm_engine* engine = NULL;
#ifdef NEWER
  config.added = 1;
  CHECK(nvllm_engine_create(&config, &engine) == NVLLM_ERROR_UNSUPPORTED);
  CHECK(strstr(nvllm_last_error(), "nvllm_engine_config") != NULL && engine == NULL);
  config.added = 0;
#endif
  CHECK(nvllm_engine_create(&config, &engine) == NVLLM_OK);

  nvllm_sampling_params params;
  CHECK(nvllm_sampling_params_init(&params) == NVLLM_OK);
  params.has_temperature = 1;
  params.max_tokens = 20;
  nvllm_request request;
  CHECK(nvllm_request_init(&request) == NVLLM_OK);
  request.text = "Once upon a time";
  request.sampling = &params;
#ifdef NEWER
  params.added = 1;
  CHECK(nvllm_submit(engine, &request, print, &is_over, NULL) == NVLLM_ERROR_UNSUPPORTED);
  params.added = 0;
  request.added = -1;
  CHECK(nvllm_submit(engine, &request, print, &is_over, NULL) == NVLLM_ERROR_UNSUPPORTED);
  request.added = 0;
#endif
  CHECK(nvllm_submit(engine, &request, print, &is_over, NULL) == NVLLM_OK);
  while (nvllm_step(engine) == 1) {
  }
  CHECK(is_over);
  printf("\n");

  Guarded guarded;
  memset(&guarded, 0xAB, sizeof guarded);
  guarded.stats.struct_size = sizeof guarded.stats;
  CHECK(nvllm_get_stats(engine, &guarded.stats) == NVLLM_OK);
  CHECK(guarded.stats.num_finished == 1 && guarded.stats.num_running == 0);
  for (size_t i = 0; i < sizeof guarded.behind; ++i) CHECK(guarded.behind[i] == 0xAB);
#ifdef NEWER
  CHECK(!NVLLM_HAS(nvllm_stats, &guarded.stats, added) && guarded.stats.added == 0);
  CHECK(NVLLM_HAS(nvllm_stats, &guarded.stats, end_to_end_seconds));
#else
  CHECK(guarded.stats.struct_size == sizeof guarded.stats);
#endif
  CHECK(nvllm_engine_destroy(engine) == NVLLM_OK);
  return 0;
}
