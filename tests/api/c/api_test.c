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
  CHECK_FIELD(nvllm_engine_config, session_blocks, 152);
  CHECK_FIELD(nvllm_engine_config, speculative_method, 160);
  CHECK_FIELD(nvllm_engine_config, num_speculative_tokens, 184);
  CHECK_FIELD(nvllm_engine_config, disable_adaptive_drafts, 196);
  CHECK(sizeof(nvllm_engine_config) >= 200);
  CHECK_FIELD(nvllm_sampling_params, seed, 8);
  CHECK_FIELD(nvllm_sampling_params, temperature, 24);
  CHECK_FIELD(nvllm_sampling_params, max_tokens, 60);
  CHECK_FIELD(nvllm_sampling_params, reserved, 92);
  CHECK_FIELD(nvllm_sampling_params, stop, 96);
  CHECK_FIELD(nvllm_sampling_params, num_logit_bias, 168);
  CHECK_FIELD(nvllm_sampling_params, json_schema, 176);
  CHECK_FIELD(nvllm_sampling_params, num_choice, 208);
  CHECK_FIELD(nvllm_sampling_params, after_reasoning, 224);
  CHECK_FIELD(nvllm_sampling_params, reserved_2, 228);
  CHECK(sizeof(nvllm_sampling_params) >= 232);
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
  CHECK_FIELD(nvllm_event, stop_string, 112);
  CHECK_FIELD(nvllm_event, has_stop_token, 120);
  CHECK_FIELD(nvllm_event, stop_token, 124);
  CHECK(sizeof(nvllm_event) >= 128);
  CHECK_FIELD(nvllm_stats, num_free_kv_blocks, 96);
  CHECK_FIELD(nvllm_stats, end_to_end_seconds, 200);
  CHECK_FIELD(nvllm_stats, num_draft_steps, 224);
  CHECK_FIELD(nvllm_stats, num_accepted_tokens_per_pos, 272);
  CHECK(sizeof(nvllm_stats) >= 784);
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
  int last_token;
  char stop_string[32];
  int has_stop_token, stop_token;
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
  if (event->has_token) heard->last_token = event->token;
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
  CHECK(event->finish_reason == NVLLM_FINISH_STOP ||
        (event->stop_string == NULL && !event->has_stop_token));
  if (event->stop_string) snprintf(heard->stop_string, 32, "%s", event->stop_string);
  heard->has_stop_token = event->has_stop_token;
  heard->stop_token = event->stop_token;
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

static nvllm_engine_config config_of(const char* model) {
  nvllm_engine_config config;
  CHECK(nvllm_engine_config_init(&config) == NVLLM_OK);
  config.model = model;
  config.device = "cpu";
  config.max_num_seqs = 8;
  config.kv_blocks = 64;
  config.num_threads = 1;
  config.has_seed = 1;
  config.seed = 7;
  return config;
}

static nvllm_engine* create(const char* model) {
  const nvllm_engine_config config = config_of(model);
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
  char middle[6] = {0};  // of what comes without it
  memcpy(middle, by_text.text + by_text.size / 2, 5);
  const char* stop[] = {"never said", middle};
  params = greedy(24);
  params.stop = stop;
  params.num_stop = 2;
  const Heard stopped = generate(engine, &request);
  CHECK(stopped.finish_reason == NVLLM_FINISH_STOP && !stopped.has_stop_token);
  CHECK(strcmp(stopped.stop_string, middle) == 0 && strstr(stopped.text, middle) == NULL);
  params.num_stop = 0;
  const int32_t last_of_text = by_text.last_token;
  params.stop_token_ids = &last_of_text;
  params.num_stop_token_ids = 1;
  const Heard by_token = generate(engine, &request);
  CHECK(by_token.finish_reason == NVLLM_FINISH_STOP && by_token.stop_string[0] == 0);
  CHECK(by_token.has_stop_token && by_token.stop_token == last_of_text);
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

// What forms promise, and what is said of one that is refused.
// The text is that of `plain`, an engine without drafts, and drafted tokens were right.
static void check_drafts(nvllm_engine* plain, const nvllm_engine_config* config, int positions) {
  nvllm_sampling_params params = greedy(80);
  params.ignore_eos = 1;
  nvllm_request request = request_of(&params);
  request.text = "The fox ate the grapes. The wolf ate the sheep. The fox ate the grapes. The wolf";
  nvllm_engine* engine = NULL;
  CHECK(nvllm_engine_create(config, &engine) == NVLLM_OK);
  const int32_t few[] = {300, 301};  // of which a text repeats
  for (int i = 0; i < 3; ++i) {
    params.num_allowed_token_ids = i == 0 ? 2 : 0;
    params.allowed_token_ids = few;
    params.temperature = i == 2 ? 0.8f : 0;  // and the seed 0
    params.has_seed = i == 2;
    const Heard expected = generate(plain, &request);
    CHECK(strcmp(generate(engine, &request).text, expected.text) == 0 && expected.num_tokens == 80);
  }
  nvllm_stats stats = {.struct_size = sizeof stats};
  CHECK(nvllm_get_stats(engine, &stats) == NVLLM_OK);
  CHECK(stats.num_draft_steps > 5 && stats.num_drafts > 5 && stats.num_failed_drafts == 0);
  CHECK(stats.num_draft_tokens >= stats.num_drafts);
  CHECK(stats.num_accepted_tokens > 20 && stats.num_accepted_tokens <= stats.num_draft_tokens);
  CHECK(stats.num_draft_positions == positions);
  int64_t sum = 0;
  for (int i = 0; i < positions; ++i) sum += stats.num_accepted_tokens_per_pos[i];
  CHECK(sum == stats.num_accepted_tokens);
  CHECK(nvllm_engine_destroy(engine) == NVLLM_OK);
  CHECK(nvllm_get_stats(plain, &stats) == NVLLM_OK);
  CHECK(stats.num_drafts == 0 && stats.num_draft_positions == 0);
}

static void check_speculation(nvllm_engine* plain, const char* model) {
  nvllm_engine_config config = config_of(model);
  config.num_speculative_tokens = 4;
  config.disable_adaptive_drafts = 1;
  check_drafts(plain, &config, 4);
  config.speculative_method = "ngram";
  config.prompt_lookup_max = config.prompt_lookup_min = 2;
  config.num_speculative_tokens = 63;
  check_drafts(plain, &config, 63);
  config = config_of(model);
  config.disable_adaptive_drafts = 1;
  config.speculative_model = model;
  config.speculative_model_kv_blocks = 32;
  check_drafts(plain, &config, 5);
}

static void check_forms(nvllm_engine* engine) {
  nvllm_sampling_params params = {.struct_size = sizeof params, .has_seed = 1, .seed = 5};
  params.max_tokens = 60;
  nvllm_request request = request_of(&params);
  params.json_schema =
      "{\"type\": \"object\", \"properties\": {\"age\": {\"type\": \"integer\", "
      "\"minimum\": 10, \"maximum\": 99}}, \"required\": [\"age\"]}";
  params.json_space = NVLLM_JSON_SPACE_NONE;
  const Heard by_schema = generate(engine, &request);
  CHECK(by_schema.finish_reason == NVLLM_FINISH_STOP && by_schema.stop_string[0] == 0);
  CHECK(!by_schema.has_stop_token);
  int age = 0, end = 0;
  CHECK(sscanf(by_schema.text, "{\"age\":%d}%n", &age, &end) == 1);
  CHECK(age >= 10 && age <= 99 && end == (int)by_schema.size);
  // Again, as it was compiled before, by a callback of another request.
  CHECK(strcmp(generate(engine, &request).text, by_schema.text) == 0);

  params.json_schema = NULL;
  params.json_space = 0;
  params.regex = "[0-9]{4}-[0-9]{2}";
  CHECK(generate(engine, &request).size == 7);
  params.regex = NULL;
  const char* choice[] = {"wolf", "queen"};
  params.choice = choice;
  params.num_choice = 2;
  const Heard chosen = generate(engine, &request);
  CHECK(strcmp(chosen.text, "wolf") == 0 || strcmp(chosen.text, "queen") == 0);
  params.num_choice = 0;
  params.grammar = "root ::= \"a\" [bc]{2}";
  const Heard by_grammar = generate(engine, &request);
  CHECK(by_grammar.size == 3 && by_grammar.text[0] == 'a');
  params.grammar = NULL;
  params.json_object = 1;
  CHECK(generate(engine, &request).text[0] == '{');

  const nvllm_status refused = NVLLM_ERROR_REQUEST;
  params.regex = "a+";
  CHECK_FAILS(NVLLM_ERROR_INVALID, "only one of", nvllm_submit(engine, &request, hear, NULL, NULL));
  params.json_object = 0;
  params.regex = "a(";
  CHECK_FAILS(refused, "regular expression", nvllm_submit(engine, &request, hear, NULL, NULL));
  params.regex = NULL;
  params.grammar = "root ::= leaf";
  CHECK_FAILS(refused, "leaf", nvllm_submit(engine, &request, hear, NULL, NULL));
  params.grammar = NULL;
  params.json_schema = "{\"type\": ";
  CHECK_FAILS(refused, "JSON", nvllm_submit(engine, &request, hear, NULL, NULL));
  params.json_schema = "{\"properties\": {\"x\": {\"contains\": {}}}}";
  CHECK_FAILS(refused, "'contains' is not supported at /properties/x",
              nvllm_submit(engine, &request, hear, NULL, NULL));
  params.json_schema = NULL;
  params.after_reasoning = 1;
  CHECK_FAILS(NVLLM_ERROR_INVALID, "go with a form",
              nvllm_submit(engine, &request, hear, NULL, NULL));
}

static Heard turn(nvllm_session* session, nvllm_engine* engine, const char* text,
                  const nvllm_sampling_params* params) {
  nvllm_request request = {.struct_size = sizeof request, .text = text, .sampling = params};
  Heard heard = {0};
  uint64_t id = 0;
  CHECK(nvllm_session_submit(session, &request, hear, &heard, &id) == NVLLM_OK && id != 0);
  serve(engine);
  CHECK(heard.num_last == 1);
  return heard;
}

static size_t num_tokens(const nvllm_session* session) {
  size_t count = 0;
  CHECK(nvllm_session_tokens(session, NULL, 0, &count) == NVLLM_OK);
  return count;
}

static void check_sessions(nvllm_engine* engine, const char* model, const char* folder) {
  nvllm_sampling_params params = greedy(20);
  nvllm_session *session = NULL, *fork = NULL, *loaded = NULL;
  CHECK(nvllm_session_create(engine, &session) == NVLLM_OK && num_tokens(session) == 0);
  const Heard first = turn(session, engine, kPrompt, &params);
  const size_t size = num_tokens(session);
  CHECK(size >= (size_t)(first.num_prompt + first.num_generated - 1));
  CHECK(nvllm_session_fork(session, &fork) == NVLLM_OK && num_tokens(fork) == size);

  // A turn is as a request with the whole conversation, and has computed what came before.
  int32_t tokens[256];
  size_t count = 0;
  nvllm_request more = {.struct_size = sizeof more, .text = " Then the wolf", .sampling = &params};
  CHECK(nvllm_session_append(fork, &more) == NVLLM_OK);
  CHECK(nvllm_session_tokens(fork, tokens, 256, &count) == NVLLM_OK && count > size);
  nvllm_request whole = {.struct_size = sizeof whole, .sampling = &params};
  whole.token_ids = tokens;
  whole.num_token_ids = count;
  whole.cache_salt = "computed anew";
  const Heard expected = generate(engine, &whole);
  const Heard second = turn(session, engine, " Then the wolf", &params);
  CHECK(strcmp(second.text, expected.text) == 0 && second.num_prompt == (int)count);
  CHECK(second.num_cached >= (int)size - 1 && expected.num_cached == 0);
  CHECK(strcmp(turn(fork, engine, "", &params).text, second.text) == 0);

  // A file has it, too.
  char path[1024];
  snprintf(path, sizeof path, "%s/conversation.session", folder);
  CHECK(nvllm_session_save(session, path) == NVLLM_OK);
  CHECK(nvllm_session_load(engine, path, &loaded) == NVLLM_OK);
  CHECK(num_tokens(loaded) == num_tokens(session));
  CHECK(strcmp(turn(loaded, engine, " And", &params).text,
               turn(session, engine, " And", &params).text) == 0);
  FILE* file = fopen(path, "r+b");
  CHECK(file != NULL && fseek(file, 100, SEEK_SET) == 0 && fputs("xyz", file) >= 0);
  fclose(file);
  nvllm_session* none = NULL;
  CHECK(nvllm_session_load(engine, path, &none) == NVLLM_ERROR_LOAD && none == NULL);
  CHECK(remove(path) == 0);
  CHECK(nvllm_session_load(engine, path, &none) == NVLLM_ERROR_LOAD);

  // One turn at a time; one that is taken back adds nothing.
  const size_t before = num_tokens(session);
  Heard aborted = {0};
  uint64_t id = 0;
  CHECK(nvllm_session_submit(session, &more, hear, &aborted, &id) == NVLLM_OK);
  const nvllm_status refused = NVLLM_ERROR_REQUEST;
  CHECK_FAILS(refused, "under way", nvllm_session_submit(session, &more, hear, &aborted, NULL));
  CHECK_FAILS(refused, "under way", nvllm_session_clear(session));
  CHECK(nvllm_step(engine) == 1 && nvllm_abort(engine, id) == 1);
  serve(engine);
  CHECK(aborted.num_last == 1 && aborted.finish_reason == NVLLM_FINISH_ABORT);
  CHECK(num_tokens(session) == before);
  more.text = NULL;
  more.messages = "[{\"role\": \"user\", \"content\": \"Who?\"}]";
  CHECK_FAILS(refused, "messages cannot be put after",
              nvllm_session_submit(session, &more, hear, &aborted, NULL));
  params.n = 2;
  more.messages = NULL;
  more.text = "x";
  CHECK_FAILS(refused, "one sample", nvllm_session_submit(session, &more, hear, &aborted, NULL));
  char said[512];
  size_t size_of_text = 0;
  CHECK(nvllm_session_messages(session, said, 512, &size_of_text) == NVLLM_OK);
  CHECK(strcmp(said, "[]") == 0);
  CHECK(nvllm_session_clear(session) == NVLLM_OK && num_tokens(session) == 0);
  more.text = NULL;
  more.messages = "[{\"role\": \"user\", \"content\": \"Who?\"}]";
  CHECK(nvllm_session_append(session, &more) == NVLLM_OK);
  CHECK(nvllm_session_messages(session, said, 512, &size_of_text) == NVLLM_OK);
  CHECK(strcmp(said, more.messages) == 0 && size_of_text == strlen(said));
  more.messages = NULL;
  more.text = "x";
  CHECK(nvllm_session_destroy(session) == NVLLM_OK && nvllm_session_destroy(fork) == NVLLM_OK);

  // Destroyed in a turn, it ends it; and a session may outlive its engine.
  nvllm_engine* other = create(model);
  CHECK(nvllm_session_create(other, &session) == NVLLM_OK);
  CHECK(nvllm_session_create(other, &fork) == NVLLM_OK);
  Heard cut = {0}, ended = {0};
  params = greedy(200);
  CHECK(nvllm_session_submit(session, &more, hear, &cut, NULL) == NVLLM_OK);
  CHECK(nvllm_step(other) == 1 && nvllm_session_destroy(session) == NVLLM_OK);
  serve(other);
  CHECK(cut.num_last == 1 && cut.finish_reason == NVLLM_FINISH_ABORT);
  CHECK(nvllm_session_submit(fork, &more, hear, &ended, NULL) == NVLLM_OK);
  CHECK(nvllm_engine_destroy(other) == NVLLM_OK);
  CHECK(ended.num_last == 1 && ended.finish_reason == NVLLM_FINISH_ABORT);
  CHECK_FAILS(NVLLM_ERROR_BUSY, "destroyed", nvllm_session_tokens(fork, NULL, 0, &count));
  CHECK(nvllm_session_destroy(fork) == NVLLM_OK && nvllm_session_destroy(loaded) == NVLLM_OK);
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
  CHECK_CONFIG(NVLLM_ERROR_LOAD, "the draft model: ", speculative_model, "/nowhere");
  CHECK_CONFIG(invalid, "speculative_model must be", speculative_method, "draft_model");
  CHECK_CONFIG(NVLLM_ERROR_CONFIG, "must be in [0, 63], got -1", num_speculative_tokens, -1);
  CHECK_CONFIG(NVLLM_ERROR_CONFIG, "prompt_lookup_max must be at most 256, got 257",
               prompt_lookup_max, 257);

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
  check_speculation(engine, argv[1]);
  check_forms(engine);
  check_sessions(engine, argv[1], argv[2]);
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
