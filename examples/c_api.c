// Streams a continuation of a prompt, in C, by a regular expression if one is given; `c_api --help`.
#include <nanovllm/c/nanovllm.h>

#include <stdio.h>
#include <string.h>

static int32_t print(void* user, const nvllm_event* event) {
  (void)user;
  fputs(event->text, stdout);
  fflush(stdout);
  if (event->error) fprintf(stderr, "\nc_api: %s\n", event->error);
  if (event->finish_reason == NVLLM_FINISH_LENGTH) fputs(" [cut off]", stdout);
  return 0;  // anything else would abort the request
}

static void warn(void* user, const char* text) {
  (void)user;
  fprintf(stderr, "warning: %s\n", text);
}

static int report(const char* what) {
  fprintf(stderr, "c_api: %s: %s\n", what, nvllm_last_error());
  return 1;
}

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "--version") == 0) {
    printf("nanovllm %s\n", nvllm_version());
    return 0;
  }
  if (argc > 4 || (argc > 1 && strncmp(argv[1], "-", 1) == 0)) {
    const int asked = argc == 2 && strcmp(argv[1], "--help") == 0;
    fprintf(asked ? stdout : stderr, "usage: c_api [MODEL_DIR] [\"prompt\"] [REGEX]\n");
    return asked ? 0 : 2;
  }

  nvllm_engine_config config;
  nvllm_engine_config_init(&config);
  config.model = argc > 1 ? argv[1] : "examples/models/fairytale";
  config.on_warning = warn;

  nvllm_sampling_params sampling;
  nvllm_sampling_params_init(&sampling);
  sampling.max_tokens = 160;
  if (argc > 3) sampling.regex = argv[3];  // the form of the text

  nvllm_request request;
  nvllm_request_init(&request);
  request.text = argc > 2 ? argv[2] : "Once upon a time there was a king who had";
  request.sampling = &sampling;

  nvllm_engine* engine = NULL;
  if (nvllm_engine_create(&config, &engine) != NVLLM_OK) return report("cannot make the engine");
  printf("%s", request.text);
  nvllm_status status = nvllm_submit(engine, &request, print, NULL, NULL);
  while (status >= 0 && (status = nvllm_step(engine)) > 0) {
  }
  if (status < 0) report("cannot generate");

  nvllm_stats stats;
  nvllm_stats_init(&stats);
  if (status == 0 && nvllm_get_stats(engine, &stats) == NVLLM_OK)
    printf("\n\n%lld tokens, %.0f tokens per second\n", (long long)stats.num_sampled_tokens,
           (double)stats.num_sampled_tokens /
               (stats.prefill_seconds + stats.decode_seconds + stats.host_seconds));
  nvllm_engine_destroy(engine);
  return status < 0;
}
