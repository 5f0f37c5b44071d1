// Every function of nanovllm/c/nanovllm.h from C99: used as it is meant to be, and misused.
// api_test MODEL_DIR WARNED_MODEL_DIR
#include <nanovllm/c/nanovllm.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int num_checks = 0;

#define CHECK(condition)                                                                   \
  do {                                                                                     \
    ++num_checks;                                                                          \
    if (!(condition)) {                                                                    \
      fprintf(stderr, "%s:%d: not so: %s\n  the last error is '%s'\n", __FILE__, __LINE__, \
              #condition, nvllm_last_error());                                             \
      exit(1);                                                                             \
    }                                                                                      \
  } while (0)

// `call` fails with `status` and says `words`.
#define CHECK_FAILS(status, words, call)              \
  do {                                                \
    CHECK((call) == (status));                        \
    CHECK(strstr(nvllm_last_error(), words) != NULL); \
  } while (0)

// The layout of the structs on machines of 64 bits. What is here must never change.
#define CHECK_FIELD(type, field, offset) CHECK(offsetof(type, field) == (offset))

static void check_layout(void) {
  if (sizeof(void*) != 8) return;
  CHECK_FIELD(nvllm_engine_config, model, 8);
  CHECK_FIELD(nvllm_engine_config, disk_kv_bytes, 40);
  CHECK_FIELD(nvllm_engine_config, device_index, 80);
  CHECK_FIELD(nvllm_engine_config, seed, 104);
  CHECK_FIELD(nvllm_engine_config, step_timeout_seconds, 120);
  CHECK_FIELD(nvllm_engine_config, expert_parallel, 128);
  CHECK_FIELD(nvllm_engine_config, disable_custom_all_reduce, 132);
  CHECK_FIELD(nvllm_engine_config, on_warning, 136);
  CHECK_FIELD(nvllm_engine_config, warning_user, 144);
  CHECK(sizeof(nvllm_engine_config) >= 152);
  CHECK_FIELD(nvllm_sampling_params, seed, 8);
  CHECK_FIELD(nvllm_sampling_params, temperature, 24);
  CHECK_FIELD(nvllm_sampling_params, max_tokens, 60);
  CHECK_FIELD(nvllm_sampling_params, reserved, 92);
  CHECK_FIELD(nvllm_sampling_params, stop, 96);
  CHECK_FIELD(nvllm_sampling_params, num_logit_bias, 168);
  CHECK(sizeof(nvllm_sampling_params) >= 176);
  CHECK_FIELD(nvllm_request, text, 8);
  CHECK_FIELD(nvllm_request, enable_thinking, 56);
  CHECK_FIELD(nvllm_request, sampling, 64);
  CHECK_FIELD(nvllm_request, cache_salt, 72);
  CHECK_FIELD(nvllm_request, whole, 80);
  CHECK_FIELD(nvllm_request, reserved_2, 84);
  CHECK(sizeof(nvllm_request) >= 88);
  CHECK_FIELD(nvllm_event, id, 8);
  CHECK_FIELD(nvllm_event, token, 32);
  CHECK_FIELD(nvllm_event, top, 48);
  CHECK_FIELD(nvllm_event, error, 72);
  CHECK_FIELD(nvllm_event, reserved, 92);
  CHECK_FIELD(nvllm_event, token_ids, 96);
  CHECK_FIELD(nvllm_event, num_token_ids, 104);
  CHECK(sizeof(nvllm_event) >= 112);
  CHECK_FIELD(nvllm_stats, num_free_kv_blocks, 96);
  CHECK_FIELD(nvllm_stats, end_to_end_seconds, 200);
  CHECK(sizeof(nvllm_stats) >= 224);
  CHECK_FIELD(nvllm_health, reason, 24);
  CHECK(sizeof(nvllm_health) >= 1048);
  CHECK_FIELD(nvllm_info, has_chat_template, 28);
  CHECK_FIELD(nvllm_info, hidden_size, 32);
  CHECK(sizeof(nvllm_info) >= 40);
  CHECK_FIELD(nvllm_embed_options, dimensions, 8);
  CHECK_FIELD(nvllm_embed_options, keep_length, 24);
  CHECK_FIELD(nvllm_embed_options, priority, 28);
  CHECK(sizeof(nvllm_embed_options) >= 32);
  CHECK_FIELD(nvllm_score_options, instruction, 8);
  CHECK_FIELD(nvllm_score_options, has_answers, 24);
  CHECK_FIELD(nvllm_score_options, priority, 36);
  CHECK(sizeof(nvllm_score_options) >= 40);
  CHECK(sizeof(nvllm_token_bias) == 8 && sizeof(nvllm_token_logprob) == 8);
  CHECK(sizeof(nvllm_percentiles) == 24);
}

// What a request's callback has heard.
typedef struct {
  char text[4096];
  size_t size;
  int num_events;
  int num_tokens;
  int num_last;
  int finish_reason;
  int num_generated, num_prompt, num_cached;
  int num_logprobs;
  char error[256];
  int stop_after;  // events; 0: never
} Heard;

static int32_t hear(void* user, const nvllm_event* event) {
  Heard* heard = user;
  CHECK(event->struct_size == sizeof(nvllm_event));
  CHECK(heard->num_last == 0);
  CHECK(strlen(event->text) == event->text_size);
  CHECK(heard->size + event->text_size < sizeof heard->text);
  memcpy(heard->text + heard->size, event->text, event->text_size + 1);
  heard->size += event->text_size;
  heard->num_tokens += event->has_token;
  heard->num_last += event->is_last;
  heard->num_generated = event->num_generated_tokens;
  heard->num_prompt = event->num_prompt_tokens;
  heard->num_cached = event->num_cached_tokens;
  if (event->finish_reason != NVLLM_FINISH_NONE) heard->finish_reason = event->finish_reason;
  if (event->has_logprob) {
    ++heard->num_logprobs;
    CHECK(event->logprob <= 0 && event->num_top == 2);
    CHECK(event->top[0].logprob >= event->top[1].logprob);
  }
  if (event->error) strncpy(heard->error, event->error, sizeof heard->error - 1);
  return ++heard->num_events == heard->stop_after;
}

static void serve(nvllm_engine* engine) {
  nvllm_status status;
  while ((status = nvllm_step(engine)) == 1) {
  }
  CHECK(status == 0);
}

static Heard generate(nvllm_engine* engine, const nvllm_request* request) {
  Heard heard = {0};
  CHECK(nvllm_submit(engine, request, hear, &heard, NULL) == NVLLM_OK);
  serve(engine);
  CHECK(heard.num_last == 1);
  return heard;
}

static nvllm_engine* create(const char* model) {
  nvllm_engine_config config;
  CHECK(nvllm_engine_config_init(&config) == NVLLM_OK);
  config.model = model;
  config.device = "cpu";
  config.max_num_seqs = 8;
  config.kv_blocks = 64;
  config.num_threads = 1;
  config.has_seed = 1;
  config.seed = 7;
  nvllm_engine* engine = NULL;
  CHECK(nvllm_engine_create(&config, &engine) == NVLLM_OK && engine != NULL);
  return engine;
}

static nvllm_sampling_params greedy(int max_tokens) {
  nvllm_sampling_params params = {.struct_size = sizeof params};
  params.has_temperature = 1;  // and temperature 0
  params.max_tokens = max_tokens;
  return params;
}

static const char kPrompt[] = "Once upon a time there was a king who had";

static nvllm_request request_of(const nvllm_sampling_params* params) {
  nvllm_request request = {.struct_size = sizeof request, .text = kPrompt, .sampling = params};
  return request;
}

static void check_versions(void) {
  CHECK(nvllm_abi_version() == NVLLM_ABI_VERSION);
  CHECK(strchr(nvllm_version(), '.') != NULL);
  CHECK(strcmp(nvllm_status_name(NVLLM_ERROR_BUSY), "NVLLM_ERROR_BUSY") == 0);
  CHECK(strcmp(nvllm_status_name(12345), "unknown") == 0);
  CHECK(strcmp(nvllm_last_error(), "") == 0);
}

static void check_generation(nvllm_engine* engine) {
  nvllm_sampling_params params = greedy(24);
  nvllm_request request = request_of(&params);
  const Heard by_text = generate(engine, &request);
  CHECK(by_text.size > 0 && by_text.num_tokens == by_text.num_generated);
  CHECK(by_text.num_prompt > 1 && by_text.num_tokens <= 24);
  CHECK(by_text.finish_reason == NVLLM_FINISH_STOP || by_text.finish_reason == NVLLM_FINISH_LENGTH);

  // The same by tokens, and with a size instead of a zero byte.
  int32_t tokens[64];
  size_t count = 0;
  CHECK(nvllm_tokenize(engine, &request, tokens, 64, &count) == NVLLM_OK);
  CHECK((int)count == by_text.num_prompt);
  nvllm_request by_id = {.struct_size = sizeof by_id, .sampling = &params};
  by_id.token_ids = tokens;
  by_id.num_token_ids = count;
  CHECK(strcmp(generate(engine, &by_id).text, by_text.text) == 0);
  char longer[128];
  snprintf(longer, sizeof longer, "%s nothing", kPrompt);
  nvllm_request sized = request;
  sized.text = longer;
  sized.text_size = strlen(kPrompt);
  CHECK(strcmp(generate(engine, &sized).text, by_text.text) == 0);

  // A salt finds what was computed with it, and nothing else.
  nvllm_request salted = by_id;
  int32_t many[64];
  for (size_t i = 0; i < 64; ++i) many[i] = tokens[i % count];
  salted.token_ids = many;
  salted.num_token_ids = 64;
  salted.cache_salt = "alice";
  const Heard first = generate(engine, &salted), again = generate(engine, &salted);
  CHECK(first.num_cached == 0 && again.num_cached >= 32);
  salted.cache_salt = "bob";
  CHECK(generate(engine, &salted).num_cached == 0);
  salted.cache_salt = NULL;
  const Heard unsalted = generate(engine, &salted);
  CHECK(unsalted.num_cached < 32 && strcmp(unsalted.text, first.text) == 0);

  // Tokens and back; too little room gives the beginning.
  char text[128];
  size_t size = 0;
  CHECK(nvllm_detokenize(engine, tokens, count, 0, text, sizeof text, &size) == NVLLM_OK);
  CHECK(strcmp(text, kPrompt) == 0 && size == strlen(kPrompt));
  CHECK(nvllm_detokenize(engine, tokens, count, 0, text, 5, &size) == NVLLM_OK);
  CHECK(strcmp(text, "Once") == 0 && size == strlen(kPrompt));
  CHECK(nvllm_detokenize(engine, tokens, count, 0, NULL, 0, &size) == NVLLM_OK);
  CHECK(nvllm_tokenize(engine, &request, NULL, 0, &count) == NVLLM_OK);
  CHECK((int)count == by_text.num_prompt);

  // A conversation, with tools and without.
  nvllm_request chat = {.struct_size = sizeof chat, .sampling = &params};
  chat.messages = "[{\"role\": \"user\", \"content\": \"Tell me of a fox.\"}]";
  const Heard answer = generate(engine, &chat);
  chat.enable_thinking = -1;
  const Heard without = generate(engine, &chat);
  CHECK(answer.num_prompt > 0 && without.num_prompt > 0);
  chat.tools = "[{\"type\": \"function\", \"function\": {\"name\": \"hunt\"}}]";
  CHECK(generate(engine, &chat).num_prompt >= without.num_prompt);  // as the template has it

  // Log-probabilities, samples, a stop string, a bias, tokens that alone may come.
  params.has_logprobs = 1;
  params.logprobs = 2;
  const Heard scored = generate(engine, &request);
  CHECK(scored.num_logprobs == scored.num_tokens);
  params = greedy(4);
  params.n = 3;
  params.ignore_eos = 1;
  CHECK(generate(engine, &request).num_tokens == 12);
  const char* stop[] = {"daughter", "king"};
  params = greedy(24);
  params.stop = stop;
  params.num_stop = 2;
  CHECK(generate(engine, &request).finish_reason == NVLLM_FINISH_STOP);
  const int32_t only[] = {258};
  params = greedy(4);
  params.allowed_token_ids = only;
  params.num_allowed_token_ids = 1;
  params.ignore_eos = 1;
  CHECK(nvllm_detokenize(engine, only, 1, 0, text, sizeof text, &size) == NVLLM_OK);
  CHECK(strncmp(generate(engine, &request).text, text, size) == 0);
  const nvllm_token_bias bias[] = {{258, -100.0f}};
  params = greedy(4);
  params.logit_bias = bias;
  params.num_logit_bias = 1;
  CHECK(strcmp(generate(engine, &request).text, by_text.text) != 0);

  // The same seed, the same sample.
  nvllm_sampling_params seeded = {.struct_size = sizeof seeded, .max_tokens = 16};
  seeded.has_seed = 1;
  request.sampling = &seeded;
  CHECK(strcmp(generate(engine, &request).text, generate(engine, &request).text) == 0);
}

// What a callback has heard of the samples of a request with `whole`.
typedef struct {
  char texts[4][2048];
  size_t num_tokens[4];
  int num_events, num_last, num_generated, num_prompt;
  int finish_reasons[4];
} HeardWhole;

static int32_t hear_whole(void* user, const nvllm_event* event) {
  HeardWhole* heard = user;
  CHECK(event->sample == heard->num_events && heard->num_events < 4);
  CHECK(heard->num_last == 0 && !event->has_token && !event->has_logprob);
  CHECK(strlen(event->text) == event->text_size && event->text_size < sizeof heard->texts[0]);
  memcpy(heard->texts[event->sample], event->text, event->text_size + 1);
  CHECK(event->finish_reason != NVLLM_FINISH_NONE && event->error == NULL);
  CHECK(event->token_ids != NULL || event->num_token_ids == 0);
  heard->num_tokens[event->sample] = event->num_token_ids;
  heard->finish_reasons[event->sample] = event->finish_reason;
  heard->num_generated = event->num_generated_tokens;
  heard->num_prompt = event->num_prompt_tokens;
  heard->num_last += event->is_last;
  ++heard->num_events;
  return 1;  // too late to abort anything
}

// One event for each sample has what the events of tokens have together.
static void check_whole(nvllm_engine* engine) {
  nvllm_sampling_params params = {.struct_size = sizeof params, .has_seed = 1, .seed = 3};
  params.max_tokens = 20;
  nvllm_request request = request_of(&params);
  const Heard pieces = generate(engine, &request);
  params.n = 3;
  request.whole = 1;
  HeardWhole whole = {0};
  CHECK(nvllm_submit(engine, &request, hear_whole, &whole, NULL) == NVLLM_OK);
  serve(engine);
  CHECK(whole.num_events == 3 && whole.num_last == 1);
  CHECK(strcmp(whole.texts[0], pieces.text) == 0 && pieces.size > 0);
  CHECK((int)whole.num_tokens[0] == pieces.num_tokens);
  CHECK(whole.finish_reasons[0] == pieces.finish_reason && whole.num_prompt == pieces.num_prompt);
  CHECK(whole.num_generated ==
        (int)(whole.num_tokens[0] + whole.num_tokens[1] + whole.num_tokens[2]));
  CHECK(strcmp(whole.texts[1], whole.texts[2]) != 0);

  // Taken back, it ends with the tokens that it had.
  HeardWhole aborted = {0};
  uint64_t id = 0;
  params = greedy(200);
  params.ignore_eos = 1;
  CHECK(nvllm_submit(engine, &request, hear_whole, &aborted, &id) == NVLLM_OK);
  for (int i = 0; i < 6; ++i) CHECK(nvllm_step(engine) == 1);
  CHECK(nvllm_abort(engine, id) == 1);
  serve(engine);
  CHECK(aborted.num_events == 1 && aborted.num_last == 1);
  CHECK(aborted.finish_reasons[0] == NVLLM_FINISH_ABORT);
  CHECK(aborted.num_tokens[0] > 0 && aborted.num_tokens[0] < 200 && aborted.texts[0][0] != 0);

  const nvllm_status invalid = NVLLM_ERROR_INVALID;
  params.has_logprobs = 1;
  CHECK_FAILS(invalid, "whole and has_logprobs",
              nvllm_submit(engine, &request, hear_whole, &whole, NULL));
  params.has_logprobs = 0;
  request.whole = 2;
  CHECK_FAILS(invalid, "whole must be 0 or 1",
              nvllm_submit(engine, &request, hear_whole, &whole, NULL));
  request.whole = 1;
  request.reserved_2 = 1;
  CHECK_FAILS(NVLLM_ERROR_UNSUPPORTED, "reserved_2",
              nvllm_submit(engine, &request, hear_whole, &whole, NULL));
  CHECK(whole.num_events == 3);
}

static double dot(const float* a, const float* b, size_t size) {
  double sum = 0;
  for (size_t i = 0; i < size; ++i) sum += (double)a[i] * b[i];
  return sum;
}

static int is_near(double a, double b) { return a - b < 1e-3 && b - a < 1e-3; }

// Embeddings and scores, as they are meant to be.
static void check_pooling(nvllm_engine* engine) {
  nvllm_request first = {.struct_size = sizeof first, .text = "The king died."};
  const int32_t ids[] = {5, 6, 7};
  nvllm_request second = {.struct_size = sizeof second, .token_ids = ids, .num_token_ids = 3};
  const nvllm_request* inputs[] = {&first, &second, &first};
  static float vectors[3 * 256], few[3 * 64];
  size_t size = 0;
  CHECK(nvllm_embed(engine, inputs, 3, NULL, vectors, 3 * 256, &size) == NVLLM_OK);
  CHECK(size == 256);
  for (int i = 0; i < 3; ++i) CHECK(is_near(dot(vectors + 256 * i, vectors + 256 * i, 256), 1));
  CHECK(is_near(dot(vectors, vectors + 512, 256), 1));  // the same text
  CHECK(dot(vectors, vectors + 256, 256) < 0.99);

  // The first elements, as they are and scaled; the last tokens of an input.
  nvllm_embed_options options;
  CHECK(nvllm_embed_options_init(&options) == NVLLM_OK);
  options.keep_length = 1;
  options.dimensions = 64;
  CHECK(nvllm_embed(engine, inputs, 3, &options, few, 3 * 64, &size) == NVLLM_OK && size == 64);
  const double scale = few[0] / vectors[0];
  for (int i = 0; i < 64; ++i) CHECK(is_near(few[i] / scale, vectors[i]));
  options.keep_length = 0;
  options.dimensions = 0;
  options.max_prompt_tokens = 2;
  CHECK(nvllm_embed(engine, inputs + 1, 1, &options, vectors, 256, NULL) == NVLLM_OK);
  nvllm_request last = {.struct_size = sizeof last, .token_ids = ids + 1, .num_token_ids = 2};
  const nvllm_request* short_input[] = {&last};
  CHECK(nvllm_embed(engine, short_input, 1, NULL, vectors + 256, 256, NULL) == NVLLM_OK);
  CHECK(is_near(dot(vectors, vectors + 256, 256), 1));
  CHECK(nvllm_embed(engine, NULL, 0, NULL, NULL, 0, NULL) == NVLLM_OK);

  const char* documents[] = {"The king gave him a key.", "A clock had stopped.", ""};
  nvllm_score_options scoring;
  CHECK(nvllm_score_options_init(&scoring) == NVLLM_OK);
  scoring.has_answers = 1;
  scoring.yes = 300;
  scoring.no = 301;
  float scores[3] = {-1, -1, -1}, one = -1, swapped = -1;
  CHECK(nvllm_score(engine, "Who?", documents, 3, &scoring, scores) == NVLLM_OK);
  for (int i = 0; i < 3; ++i) CHECK(scores[i] >= 0 && scores[i] <= 1);
  CHECK(nvllm_score(engine, "Who?", documents + 1, 1, &scoring, &one) == NVLLM_OK);
  CHECK(is_near(one, scores[1]));
  scoring.yes = 301;
  scoring.no = 300;
  CHECK(nvllm_score(engine, "Who?", documents + 1, 1, &scoring, &swapped) == NVLLM_OK);
  CHECK(is_near(one + swapped, 1));
  scoring.instruction = "Find a lie";
  CHECK(nvllm_score(engine, "Who?", documents + 1, 1, &scoring, &one) == NVLLM_OK);
  CHECK(one != swapped);
}

static void check_pooling_misuse(nvllm_engine* engine) {
  const nvllm_status invalid = NVLLM_ERROR_INVALID, refused = NVLLM_ERROR_REQUEST;
  nvllm_request text = {.struct_size = sizeof text, .text = "Once"};
  const nvllm_request* inputs[] = {&text, NULL};
  const char* documents[] = {"a", NULL};
  nvllm_embed_options options = {.struct_size = sizeof options};
  nvllm_score_options scoring = {.struct_size = sizeof scoring, .has_answers = 1, .yes = 1};
  float numbers[256] = {7};
  size_t size = 77;
  CHECK(nvllm_embed(NULL, inputs, 1, NULL, numbers, 256, &size) == invalid);
  CHECK_FAILS(invalid, "inputs is NULL", nvllm_embed(engine, NULL, 1, NULL, numbers, 256, &size));
  CHECK_FAILS(invalid, "entry 1 of inputs is NULL",
              nvllm_embed(engine, inputs, 2, NULL, numbers, 256, &size));
  CHECK_FAILS(invalid, "vectors is NULL", nvllm_embed(engine, inputs, 1, NULL, NULL, 256, &size));
  CHECK_FAILS(invalid, "room for 1 times 256 numbers, got 255",
              nvllm_embed(engine, inputs, 1, NULL, numbers, 255, &size));
  options.dimensions = -1;
  CHECK_FAILS(invalid, "dimensions must be 0 or more, got -1",
              nvllm_embed(engine, inputs, 1, &options, numbers, 256, &size));
  options.dimensions = 257;
  CHECK_FAILS(refused, "embed: input 0: pooler: dimensions must be at most 256, got 257",
              nvllm_embed(engine, inputs, 1, &options, numbers, 256, &size));
  options.dimensions = 0;
  options.keep_length = 2;
  CHECK_FAILS(invalid, "keep_length",
              nvllm_embed(engine, inputs, 1, &options, numbers, 256, &size));
  options.struct_size = 12;
  CHECK_FAILS(invalid, "struct_size",
              nvllm_embed(engine, inputs, 1, &options, numbers, 256, &size));
  text.text = "";
  CHECK_FAILS(refused, "embed: input 0: the prompt has no tokens",
              nvllm_embed(engine, inputs, 1, NULL, numbers, 256, &size));
  text.text = NULL;
  CHECK_FAILS(invalid, "exactly one", nvllm_embed(engine, inputs, 1, NULL, numbers, 256, &size));

  CHECK(nvllm_score(NULL, "Who?", documents, 1, &scoring, numbers) == invalid);
  CHECK_FAILS(invalid, "query must not be NULL",
              nvllm_score(engine, NULL, documents, 1, &scoring, numbers));
  CHECK_FAILS(invalid, "entry 1 of documents is NULL",
              nvllm_score(engine, "Who?", documents, 2, &scoring, numbers));
  CHECK_FAILS(invalid, "scores is NULL", nvllm_score(engine, "Who?", documents, 1, &scoring, NULL));
  CHECK_FAILS(refused, "the tokeniser has no token 'yes'",
              nvllm_score(engine, "Who?", documents, 1, NULL, numbers));
  scoring.yes = -1;
  CHECK_FAILS(refused, "token id -1 in logprob_token_ids",
              nvllm_score(engine, "Who?", documents, 1, &scoring, numbers));
  scoring.has_answers = 2;
  CHECK_FAILS(invalid, "has_answers", nvllm_score(engine, "Who?", documents, 1, &scoring, numbers));
  CHECK(size == 77 && numbers[0] == 7);  // nothing was handed out
}

typedef struct {
  nvllm_engine* engine;
  Heard second;
  int has_submitted;
} Chain;

// Submits a request from within a callback, and asks for what a callback may ask for.
static int32_t chain(void* user, const nvllm_event* event) {
  Chain* links = user;
  if (links->has_submitted) return 0;
  links->has_submitted = 1;
  nvllm_sampling_params params = greedy(4);
  nvllm_request request = request_of(&params);
  CHECK(nvllm_submit(links->engine, &request, hear, &links->second, NULL) == NVLLM_OK);
  const nvllm_request* inputs[] = {&request};  // served within this call
  float vector[256] = {0};
  CHECK(nvllm_embed(links->engine, inputs, 1, NULL, vector, 256, NULL) == NVLLM_OK);
  CHECK(is_near(dot(vector, vector, 256), 1));
  nvllm_stats stats;
  nvllm_stats_init(&stats);
  CHECK(nvllm_get_stats(links->engine, &stats) == NVLLM_OK);
  CHECK_FAILS(NVLLM_ERROR_BUSY, "own callbacks", nvllm_engine_destroy(links->engine));
  CHECK(nvllm_abort(links->engine, event->id) == 1);
  return 0;
}

static void check_aborts(nvllm_engine* engine) {
  nvllm_sampling_params params = greedy(1000);
  params.ignore_eos = 1;
  nvllm_request request = request_of(&params);

  Heard heard = {0};
  uint64_t id = 0;
  CHECK(nvllm_submit(engine, &request, hear, &heard, &id) == NVLLM_OK && id != 0);
  for (int i = 0; i < 5; ++i) CHECK(nvllm_step(engine) == 1);
  CHECK(nvllm_abort(engine, id) == 1);
  CHECK(nvllm_abort(engine, id) == 0);
  CHECK(nvllm_abort(engine, 123456789) == 0);
  serve(engine);
  CHECK(heard.num_last == 1 && heard.finish_reason == NVLLM_FINISH_ABORT);

  // By what the callback returns: nothing but the end comes after it.
  Heard stopping = {0};
  stopping.stop_after = 3;
  CHECK(nvllm_submit(engine, &request, hear, &stopping, NULL) == NVLLM_OK);
  serve(engine);
  CHECK(stopping.num_events == 4 && stopping.num_last == 1 && stopping.num_tokens == 3);
  CHECK(stopping.finish_reason == NVLLM_FINISH_ABORT);

  Chain links = {0};
  links.engine = engine;
  CHECK(nvllm_submit(engine, &request, chain, &links, NULL) == NVLLM_OK);
  serve(engine);
  CHECK(links.second.num_last == 1 && links.second.num_tokens > 0);
}

static void check_state(nvllm_engine* engine) {
  nvllm_stats stats;
  nvllm_stats_init(&stats);
  CHECK(nvllm_get_stats(engine, &stats) == NVLLM_OK);
  CHECK(stats.struct_size == sizeof stats && stats.num_running == 0 && stats.num_waiting == 0);
  CHECK(stats.num_finished > 5 && stats.num_kv_blocks == 64 && stats.num_free_kv_blocks == 64);
  CHECK(stats.num_sampled_tokens > 24 && stats.end_to_end_seconds.p99 > 0);
  nvllm_health health;
  nvllm_health_init(&health);
  CHECK(nvllm_get_health(engine, &health) == NVLLM_OK);
  CHECK(health.state == NVLLM_HEALTH_OK && strcmp(health.reason, "") == 0);
  nvllm_info info;
  nvllm_info_init(&info);
  CHECK(nvllm_get_info(engine, &info) == NVLLM_OK);
  CHECK(info.vocab_size == 4096 && info.max_total_tokens > 100);
  CHECK(info.has_tokenizer == 1 && info.has_chat_template == 1);
  CHECK(info.hidden_size == 256);
  char text[4096];
  size_t size = 0;
  CHECK(nvllm_describe(engine, text, sizeof text, &size) == NVLLM_OK && size == strlen(text));
  CHECK(nvllm_reset(engine) == NVLLM_OK);
  CHECK(nvllm_stop(engine) == NVLLM_OK);
  CHECK(nvllm_run(engine) == NVLLM_OK);  // at once
  CHECK(nvllm_step(engine) == 0);
}

// A size that is no struct's: too small, not whole words, garbage.
static const size_t kBadSizes[] = {0, 1, 4, 7, 31, 1001, 5000, (size_t)-1, (size_t)-8};
enum { kNumBadSizes = sizeof kBadSizes / sizeof kBadSizes[0] };

static void check_misuse(nvllm_engine* engine, const char* model) {
  const nvllm_status invalid = NVLLM_ERROR_INVALID;
  int32_t tokens[8];
  char text[8];
  size_t size = 77;
  uint64_t id = 77;
  nvllm_engine* other = NULL;
  nvllm_engine_config config = {.struct_size = sizeof config, .model = model};
  nvllm_sampling_params params = greedy(4);
  nvllm_request request = request_of(&params);
  nvllm_stats stats = {.struct_size = sizeof stats};
  nvllm_health health = {.struct_size = sizeof health};
  nvllm_info info = {.struct_size = sizeof info};
  Heard heard = {0};

  CHECK(nvllm_engine_destroy(NULL) == NVLLM_OK);
  CHECK(nvllm_init_struct(NULL, 8) == invalid);
  CHECK(nvllm_init_struct(&stats, 4) == invalid);
  CHECK(nvllm_init_struct(&stats, (size_t)-1) == invalid);
  CHECK_FAILS(invalid, "nvllm_engine_config must not be NULL", nvllm_engine_create(NULL, &other));
  CHECK_FAILS(invalid, "engine must not be NULL", nvllm_engine_create(&config, NULL));
  CHECK(nvllm_submit(NULL, &request, hear, &heard, &id) == invalid);
  CHECK(nvllm_submit(engine, NULL, hear, &heard, &id) == invalid);
  CHECK_FAILS(invalid, "callback", nvllm_submit(engine, &request, NULL, &heard, &id));
  CHECK(nvllm_abort(NULL, 1) == invalid);
  CHECK(nvllm_step(NULL) == invalid);
  CHECK(nvllm_run(NULL) == invalid);
  CHECK(nvllm_stop(NULL) == invalid);
  CHECK(nvllm_reset(NULL) == invalid);
  CHECK(nvllm_tokenize(NULL, &request, tokens, 8, &size) == invalid);
  CHECK(nvllm_tokenize(engine, NULL, tokens, 8, &size) == invalid);
  CHECK(nvllm_tokenize(engine, &request, NULL, 8, &size) == invalid);
  CHECK(nvllm_tokenize(engine, &request, tokens, 8, NULL) == invalid);
  CHECK(nvllm_detokenize(NULL, tokens, 1, 0, text, 8, &size) == invalid);
  CHECK(nvllm_detokenize(engine, NULL, 1, 0, text, 8, &size) == invalid);
  CHECK(nvllm_detokenize(engine, tokens, 0, 2, text, 8, &size) == invalid);
  CHECK(nvllm_detokenize(engine, tokens, 0, 0, NULL, 8, &size) == invalid);
  CHECK(nvllm_detokenize(engine, tokens, 0, 0, text, 8, NULL) == invalid);
  CHECK(nvllm_get_stats(NULL, &stats) == invalid);
  CHECK(nvllm_get_stats(engine, NULL) == invalid);
  CHECK(nvllm_get_health(NULL, &health) == invalid);
  CHECK(nvllm_get_health(engine, NULL) == invalid);
  CHECK(nvllm_get_info(NULL, &info) == invalid);
  CHECK(nvllm_get_info(engine, NULL) == invalid);
  CHECK(nvllm_describe(NULL, text, 8, &size) == invalid);
  CHECK(nvllm_describe(engine, NULL, 8, &size) == invalid);
  CHECK(nvllm_describe(engine, text, 8, NULL) == invalid);

  for (int i = 0; i < kNumBadSizes; ++i) {
    config.struct_size = request.struct_size = stats.struct_size = kBadSizes[i];
    health.struct_size = info.struct_size = kBadSizes[i];
    CHECK_FAILS(invalid, "struct_size", nvllm_engine_create(&config, &other));
    CHECK_FAILS(invalid, "struct_size", nvllm_submit(engine, &request, hear, &heard, &id));
    CHECK_FAILS(invalid, "struct_size", nvllm_tokenize(engine, &request, tokens, 8, &size));
    CHECK_FAILS(invalid, "struct_size", nvllm_get_stats(engine, &stats));
    CHECK_FAILS(invalid, "struct_size", nvllm_get_health(engine, &health));
    CHECK_FAILS(invalid, "struct_size", nvllm_get_info(engine, &info));
    request = request_of(&params);
    params.struct_size = kBadSizes[i];
    CHECK_FAILS(invalid, "struct_size", nvllm_submit(engine, &request, hear, &heard, &id));
    params = greedy(4);
  }
  CHECK(size == 77 && id == 77 && other == NULL);  // nothing was handed out
}

static void check_refusals(nvllm_engine* engine, const char* model) {
  const nvllm_status invalid = NVLLM_ERROR_INVALID;
  Heard heard = {0};
  nvllm_engine* other = NULL;
#define CHECK_CONFIG(status, words, field, value)                                \
  do {                                                                           \
    nvllm_engine_config config = {.struct_size = sizeof config, .model = model}; \
    config.field = value;                                                        \
    CHECK_FAILS(status, words, nvllm_engine_create(&config, &other));            \
    CHECK(other == NULL);                                                        \
  } while (0)
  CHECK_CONFIG(invalid, "model", model, NULL);
  CHECK_CONFIG(NVLLM_ERROR_LOAD, "/nowhere", model, "/nowhere");
  CHECK_CONFIG(invalid, "device", device, "tpu");
  CHECK_CONFIG(invalid, "dtype", dtype, "int4");
  CHECK_CONFIG(NVLLM_ERROR_UNSUPPORTED, "cuda", device, "cuda");
  CHECK_CONFIG(NVLLM_ERROR_UNSUPPORTED, "reserved", reserved, 1);
  CHECK_CONFIG(invalid, "has_seed", has_seed, 2);
  CHECK_CONFIG(NVLLM_ERROR_CONFIG, "max_num_seqs", max_num_seqs, -1);
  CHECK_CONFIG(NVLLM_ERROR_CONFIG, "num_threads", num_threads, -1);
  CHECK_CONFIG(NVLLM_ERROR_CONFIG, "num_threads", num_threads, 100000);
  CHECK_CONFIG(NVLLM_ERROR_CONFIG, "tensor_parallel", tensor_parallel, 3);
  CHECK_CONFIG(invalid, "expert_parallel must be 0 or 1, got 2", expert_parallel, 2);
  CHECK_CONFIG(invalid, "disable_custom_all_reduce", disable_custom_all_reduce, -1);
  CHECK_CONFIG(NVLLM_ERROR_CONFIG, "expert_parallel is set, but this model has no experts",
               expert_parallel, 1);
  CHECK_CONFIG(NVLLM_ERROR_CONFIG, "", kv_bytes, 1);

#define CHECK_REQUEST(status, words, field, value)                                  \
  do {                                                                              \
    nvllm_sampling_params params = greedy(4);                                       \
    nvllm_request request = request_of(&params);                                    \
    (void)params;                                                                   \
    field = value;                                                                  \
    CHECK_FAILS(status, words, nvllm_submit(engine, &request, hear, &heard, NULL)); \
  } while (0)
  const int32_t wrong_token = 1 << 20;
  CHECK_REQUEST(invalid, "exactly one", request.text, NULL);
  CHECK_REQUEST(invalid, "exactly one", request.token_ids, &wrong_token);
  CHECK_REQUEST(NVLLM_ERROR_REQUEST, "no tokens", request.text, "");
  CHECK_REQUEST(invalid, "messages alone", request.tools, "[]");
  CHECK_REQUEST(invalid, "enable_thinking", request.enable_thinking, 2);
  CHECK_REQUEST(NVLLM_ERROR_UNSUPPORTED, "reserved", request.reserved, 1);
  CHECK_REQUEST(NVLLM_ERROR_REQUEST, "max_tokens", params.max_tokens, -1);
  CHECK_REQUEST(NVLLM_ERROR_REQUEST, "temperature", params.temperature, -1.0f);
  CHECK_REQUEST(NVLLM_ERROR_REQUEST, "top_p", params.top_p, 2.0f);
  CHECK_REQUEST(invalid, "ignore_eos", params.ignore_eos, 7);
  CHECK_REQUEST(invalid, "stop", params.num_stop, 1);
  CHECK_REQUEST(invalid, "stop_token_ids", params.num_stop_token_ids, (size_t)-1);
  CHECK_REQUEST(invalid, "logit_bias", params.num_logit_bias, 1);
  const char* stop[] = {"a", NULL};
  nvllm_sampling_params params = greedy(4);
  params.stop = stop;
  params.num_stop = 2;
  nvllm_request request = request_of(&params);
  CHECK_FAILS(invalid, "entry 1 of stop", nvllm_submit(engine, &request, hear, &heard, NULL));
  params.num_stop = (size_t)-1;
  CHECK_FAILS(invalid, "at most", nvllm_submit(engine, &request, hear, &heard, NULL));
  char longer[600];
  memset(longer, 'x', sizeof longer);
  longer[599] = '\0';
  nvllm_request salted = request_of(NULL);
  salted.cache_salt = "";
  CHECK_FAILS(invalid, "cache_salt must be NULL or not empty",
              nvllm_submit(engine, &salted, hear, &heard, NULL));
  salted.cache_salt = longer;
  CHECK_FAILS(NVLLM_ERROR_REQUEST, "cache_salt must have at most 512 bytes, got 599",
              nvllm_submit(engine, &salted, hear, &heard, NULL));
  nvllm_request chat = {.struct_size = sizeof chat, .messages = "[{\"role\": 1}]"};
  CHECK(nvllm_submit(engine, &chat, hear, &heard, NULL) == NVLLM_ERROR_REQUEST);
  chat.messages = "not JSON";
  CHECK_FAILS(NVLLM_ERROR_REQUEST, "messages is not valid JSON",
              nvllm_submit(engine, &chat, hear, &heard, NULL));
  nvllm_request tokens = {.struct_size = sizeof tokens, .token_ids = &wrong_token};
  tokens.num_token_ids = 1;
  CHECK_FAILS(NVLLM_ERROR_REQUEST, "vocab_size", nvllm_submit(engine, &tokens, hear, &heard, NULL));
  CHECK(heard.num_events == 0);
}

static void note_warning(void* user, const char* text) {
  char* const noted = user;
  CHECK(strlen(noted) + strlen(text) < 1000);
  strcat(noted, text);
}

// `model` is loaded with a warning of its torch_dtype.
static void check_warnings(const char* model) {
  char noted[1000] = "";
  nvllm_engine_config config = {.struct_size = sizeof config, .model = model, .device = "cpu"};
  config.num_threads = 1;
  config.kv_blocks = 64;
  nvllm_engine* engine = NULL;
  for (int i = 0; i < 2; ++i) {
    CHECK(nvllm_engine_create(&config, &engine) == NVLLM_OK);
    CHECK(nvllm_engine_destroy(engine) == NVLLM_OK);
    CHECK((strstr(noted, "torch_dtype") != NULL) == (i == 1));
    config.on_warning = note_warning;
    config.warning_user = noted;
  }
}

int main(int argc, char** argv) {
  CHECK(argc == 3);
  check_layout();
  check_versions();
  nvllm_engine* engine = create(argv[1]);
  check_generation(engine);
  check_whole(engine);
  check_pooling(engine);
  check_pooling_misuse(engine);
  check_aborts(engine);
  check_state(engine);
  check_misuse(engine, argv[1]);
  check_refusals(engine, argv[1]);
  check_warnings(argv[2]);

  // The engine's end is the end of what it has; another one does not mind.
  nvllm_engine* other = create(argv[1]);
  nvllm_sampling_params params = greedy(1000);
  nvllm_request request = request_of(&params);
  Heard heard = {0};
  CHECK(nvllm_submit(engine, &request, hear, &heard, NULL) == NVLLM_OK);
  CHECK(nvllm_step(engine) == 1);
  CHECK(nvllm_engine_destroy(engine) == NVLLM_OK);
  CHECK(heard.num_last == 1 && heard.finish_reason == NVLLM_FINISH_ABORT);
  params.max_tokens = 4;
  CHECK(generate(other, &request).num_tokens > 0);
  CHECK(nvllm_engine_destroy(other) == NVLLM_OK);
  printf("%d checks\n", num_checks);
  return 0;
}
