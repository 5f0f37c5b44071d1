#ifndef NANOVLLM_C_NANOVLLM_H
#define NANOVLLM_C_NANOVLLM_H
/// nanovllm for programs in C, and for every language that can call C: docs/c_api.md.
/// Longer than 400 lines: the interface is one header.
///
/// **Structs.** Each begins with `struct_size`, the size that the caller's header gives it. If
/// all other bytes are zero, every field has its default; if zero is a value that can be wanted, a
/// field `has_…` says that the value is set. `nvllm_engine_config_init(&config)` for instance does
/// what `nvllm_engine_config config = {.struct_size = sizeof config};` does.
///
/// Versions of the library add fields at the end. A struct of an older header, which is shorter,
/// has the defaults for the rest. One of a newer header is accepted if the fields that the library
/// does not know are zero, otherwise NVLLM_ERROR_UNSUPPORTED. Fields `reserved` are zero.
///
/// **Errors.** A function that can fail returns a negative status, and `nvllm_last_error` gives the
/// reason. Outputs through pointers are then unchanged. No C++ exception leaves the library, and a
/// callback must not throw one.
///
/// **Threads.** Any thread and any callback may call every function at any time, except
/// `nvllm_engine_destroy`, see there. Pointers in arguments are read only during the call.
///
/// **Texts** are UTF-8 and end with a zero byte where no size is given.

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define NVLLM_API __attribute__((visibility("default")))
#else
#define NVLLM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

// ---- Versions, statuses ----

/// Programs that were compiled with another number do not work with this library. It is part of the
/// shared library's name: libnanovllm_c.so.0.
#define NVLLM_ABI_VERSION 0

NVLLM_API int32_t nvllm_abi_version(void);  ///< NVLLM_ABI_VERSION of the library
NVLLM_API const char* nvllm_version(void);  ///< the library's version, such as "0.3.0"

/// What a function returns: one of these, or from some functions 1.
typedef int32_t nvllm_status;

#define NVLLM_OK 0
#define NVLLM_ERROR_INVALID (-1)      ///< an argument is NULL, or not a valid struct or value
#define NVLLM_ERROR_UNSUPPORTED (-2)  ///< asks for something that this version of the library lacks
#define NVLLM_ERROR_CONFIG (-3)       ///< a setting, or a field of config.json
#define NVLLM_ERROR_LOAD (-4)         ///< a file of the checkpoint is missing or malformed
#define NVLLM_ERROR_REQUEST (-5)      ///< this request cannot be served; others can
#define NVLLM_ERROR_CUDA (-6)         ///< the driver, a device or a library of CUDA
#define NVLLM_ERROR_MEMORY (-7)       ///< the host's memory
#define NVLLM_ERROR_BUSY (-8)         ///< the engine is being destroyed, or cannot be just now
#define NVLLM_ERROR_INTERNAL (-9)     ///< anything else, such as a step that failed

/// "NVLLM_ERROR_CONFIG" for instance; "unknown" for other numbers.
NVLLM_API const char* nvllm_status_name(nvllm_status status);

/// The message of the last call that failed on this thread, in at most 2,047 bytes; "" if none did.
/// Valid until the next call of the library on this thread, and as long as the thread.
NVLLM_API const char* nvllm_last_error(void);

/// Makes all bytes zero and `struct_size` `size`: for the macros below, and for other languages.
NVLLM_API nvllm_status nvllm_init_struct(void* structure, size_t size);

#define nvllm_engine_config_init(config) nvllm_init_struct((config), sizeof(*(config)))
#define nvllm_sampling_params_init(params) nvllm_init_struct((params), sizeof(*(params)))
#define nvllm_request_init(request) nvllm_init_struct((request), sizeof(*(request)))
#define nvllm_embed_options_init(options) nvllm_init_struct((options), sizeof(*(options)))
#define nvllm_score_options_init(options) nvllm_init_struct((options), sizeof(*(options)))
#define nvllm_stats_init(stats) nvllm_init_struct((stats), sizeof(*(stats)))
#define nvllm_health_init(health) nvllm_init_struct((health), sizeof(*(health)))
#define nvllm_info_init(info) nvllm_init_struct((info), sizeof(*(info)))

/// Whether a struct that the library has written, an event for instance, has `field`: a library
/// that is older than this header leaves newer fields out.
///
/// ```c
/// if (NVLLM_HAS(nvllm_event, event, num_top)) num_top = event->num_top;
/// ```
#define NVLLM_HAS(type, pointer, field) \
  ((pointer)->struct_size >= offsetof(type, field) + sizeof((pointer)->field))

// ---- Engines ----

/// A checkpoint in memory, and the requests that it serves.
typedef struct nvllm_engine nvllm_engine;

/// Called within `nvllm_engine_create`, when all is loaded, for each thing that was found in the
/// checkpoint and is ignored, or missing: a line for people, which is valid during the call.
typedef void (*nvllm_warning_callback)(void* user, const char* text);

typedef struct nvllm_engine_config {
  size_t struct_size;
  const char* model;   ///< directory of a Hugging Face checkpoint, or a GGUF file. Required
  const char* device;  ///< "cpu" or "cuda"; NULL: "cuda" where the library and the machine have it
  const char* dtype;   ///< "bfloat16" or "float32"; NULL: "bfloat16"
  const char* disk_kv_path;  ///< directory for blocks of the prefix cache; needs host_kv_bytes
  uint64_t disk_kv_bytes;    ///< most bytes of all its files; 0: 16 GiB
  int64_t host_kv_bytes;     ///< of the KV cache in host memory, each rank's; 0: none
  int64_t kv_bytes;          ///< of the KV cache, each rank's; 0: see kv_blocks
  int64_t kv_blocks;         ///< the same in blocks, not with kv_bytes; 0: as many as can be useful
  int64_t max_model_len;     ///< most tokens of a sequence; 0: the model's
  int32_t device_index;      ///< CUDA: of the first rank's device
  int32_t tensor_parallel;   ///< ranks, each on a thread and on CUDA on a device; 0: 1
  int32_t num_threads;       ///< CPU threads, at most 4096; 0: all of the machine's
  int32_t max_num_seqs;      ///< most sequences in a step; 0: 256
  int32_t max_num_batched_tokens;  ///< most tokens in a step; 0: the backend's default
  int32_t disable_prefix_caching;  ///< 0 or 1
  /// With has_seed: of requests without their own, which draw by it and by the order in which they
  /// are submitted. Else it is random.
  uint64_t seed;
  int32_t has_seed;  ///< 0 or 1
  int32_t reserved;
  double step_timeout_seconds;        ///< a longer step fails; 0: none, unless a GPU waits 60 s
  int32_t expert_parallel;            ///< 0 or 1: ranks have whole experts, and not a part of each
  int32_t disable_custom_all_reduce;  ///< 0 or 1: NCCL alone adds over ranks
  nvllm_warning_callback on_warning;  ///< NULL: warnings are dropped
  void* warning_user;                 ///< passed to on_warning
  int64_t session_blocks;  ///< most blocks of the KV cache that sessions hold; 0: half of them
  /// Speculative decoding, docs/speculation.md: on if a field of it is set. "ngram", "draft_model"
  /// or "eagle3"; NULL: with a speculative_model "eagle3" if it is such a head, else "draft_model";
  /// without one "ngram".
  const char* speculative_method;
  const char* speculative_model;        ///< a checkpoint, as `model`, or a head
  int64_t speculative_model_kv_blocks;  ///< of a draft model; 0: as many as can be useful
  int32_t num_speculative_tokens;       ///< most tokens drafted for a sequence, at most 63; 0: 5
  int32_t prompt_lookup_max;  ///< of ngram: tokens of the longest suffix looked up, at most 256
  int32_t prompt_lookup_min;  ///< and of the shortest; 0 for one: as the other, for both: 5 and 3
  int32_t disable_adaptive_drafts;  ///< 0 or 1: as many tokens as can be, whatever they cost
} nvllm_engine_config;

/// Loads a checkpoint and sets `*engine`.
NVLLM_API nvllm_status nvllm_engine_create(const nvllm_engine_config* config,
                                           nvllm_engine** engine);

/// Ends the engine. It stops every `nvllm_run`, waits until no thread is in a call on this engine,
/// ends the remaining requests with NVLLM_FINISH_ABORT, calls their callbacks on this thread, and
/// frees the memory. Calls that begin meanwhile return NVLLM_ERROR_BUSY. Afterwards
/// `engine` must not be used. With NULL it does nothing and returns NVLLM_OK.
///
/// A call on the engine cannot wait for its own end: by a callback of the engine, or while another
/// thread destroys it, this returns NVLLM_ERROR_BUSY and does nothing.
NVLLM_API nvllm_status nvllm_engine_destroy(nvllm_engine* engine);

// ---- Requests ----

/// Never changes: arrays are made of it.
typedef struct nvllm_token_bias {
  int32_t token;
  float bias;
} nvllm_token_bias;

#define NVLLM_JSON_SPACE_TIDY 0  ///< nothing, one blank, or one line feed with an indentation
#define NVLLM_JSON_SPACE_NONE 1  ///< no white space
#define NVLLM_JSON_SPACE_ANY 2   ///< up to 8 characters of it in each place

/// How a request is sampled and when it ends. "The checkpoint's" is of generation_config.json.
typedef struct nvllm_sampling_params {
  size_t struct_size;
  uint64_t seed;            ///< with has_seed: same seed, same sample
  int32_t has_seed;         ///< 0 or 1
  int32_t has_temperature;  ///< 0 or 1
  float temperature;        ///< with has_temperature: 0 or more; 0 is greedy. Else the checkpoint's
  float top_p;              ///< in (0, 1]; 0: the checkpoint's
  int32_t top_k;            ///< -1 keeps all; 0: the checkpoint's
  int32_t has_min_p;        ///< 0 or 1
  float min_p;              ///< with has_min_p: in [0, 1]. Else the checkpoint's
  float repetition_penalty;            ///< above 0; 0: the checkpoint's
  float frequency_penalty;             ///< in [-2, 2]
  float presence_penalty;              ///< in [-2, 2]
  int32_t n;                           ///< samples, up to 128; 0: 1
  int32_t max_tokens;                  ///< most generated tokens; 0: 256
  int32_t min_tokens;                  ///< no end before this many
  int32_t ignore_eos;                  ///< 0 or 1: the model's end tokens do not end the text
  int32_t keep_special_tokens;         ///< 0 or 1: special tokens are part of the text
  int32_t include_stop_str_in_output;  ///< 0 or 1: what ended the text stays, be it a token
  int32_t has_logprobs;                ///< 0 or 1: events have log-probabilities
  int32_t logprobs;  ///< with has_logprobs: the number of likeliest tokens, 0 to 20
  int32_t priority;  ///< lower is served earlier, if the scheduling uses it
  int32_t reserved;
  const char* const* stop;  ///< texts that end the generation, at most 64
  size_t num_stop;
  const int32_t* stop_token_ids;  ///< further end tokens
  size_t num_stop_token_ids;
  const int32_t* allowed_token_ids;  ///< if any, no token but these
  size_t num_allowed_token_ids;
  const char* const* bad_words;  ///< texts that must not be generated
  size_t num_bad_words;
  const nvllm_token_bias* logit_bias;  ///< added to logits, in [-100, 100]
  size_t num_logit_bias;
  /// The form of the text, at most one of five; docs/structured_output.md says what each can state.
  /// A form that is refused is an NVLLM_ERROR_REQUEST, whose message names the place in it.
  const char* json_schema;    ///< JSON by this JSON Schema
  const char* regex;          ///< a text that the regular expression matches as a whole
  const char* grammar;        ///< by this grammar, in GBNF's notation; from a trusted author
  const char* const* choice;  ///< one of these texts
  size_t num_choice;
  int32_t json_object;      ///< 0 or 1: any JSON object
  int32_t json_space;       ///< of JSON; NVLLM_JSON_SPACE_TIDY and others
  int32_t after_reasoning;  ///< 0 or 1: the form begins after "</think>"; before it anything goes
  int32_t reserved_2;
} nvllm_sampling_params;

/// A prompt, exactly one of `text`, `token_ids` and `messages`, and how to continue it.
typedef struct nvllm_request {
  size_t struct_size;
  const char* text;  ///< encoded as it is, without a chat template
  size_t text_size;  ///< its bytes; 0: up to the first zero byte
  const int32_t* token_ids;
  size_t num_token_ids;
  /// A conversation, rendered by the checkpoint's chat template: a JSON list of objects with
  /// `role`, `content` and further fields of the template.
  const char* messages;
  const char* tools;        ///< with messages: a JSON list of tools; NULL: none
  int32_t enable_thinking;  ///< with messages: 1 asks for reasoning, -1 against; 0: neither
  int32_t reserved;
  const nvllm_sampling_params* sampling;  ///< NULL: the defaults
  /// The prompt shares cached prefixes only with prompts that have the same salt, 1 to 512 bytes.
  /// NULL: it shares them with all that have none.
  const char* cache_salt;
  int32_t whole;  ///< 0 or 1: events of whole samples; not with has_logprobs
  int32_t reserved_2;
} nvllm_request;

#define NVLLM_FINISH_NONE 0    ///< it has not ended
#define NVLLM_FINISH_STOP 1    ///< an end token, a stop token or a stop string
#define NVLLM_FINISH_LENGTH 2  ///< max_tokens, the model's context or the KV cache
#define NVLLM_FINISH_ABORT 3   ///< it was taken back
#define NVLLM_FINISH_ERROR 4   ///< it could not be served; see `error`

/// Never changes: arrays are made of it.
typedef struct nvllm_token_logprob {
  int32_t token;
  float logprob;
} nvllm_token_logprob;

/// What a callback receives: an event for each token, and one for the end. The texts of all events
/// of a sample, joined, are its text. With `whole` there is one a sample, when all have ended.
typedef struct nvllm_event {
  size_t struct_size;
  uint64_t id;
  int32_t sample;         ///< 0 to n - 1
  int32_t finish_reason;  ///< of the sample, on its last event; else NVLLM_FINISH_NONE
  int32_t is_last;        ///< 1: nothing comes after this, and `user` is not used any more
  int32_t has_token;      ///< 0 if the request ended without a new one
  int32_t token;
  int32_t has_logprob;  ///< 1 if has_logprobs was set and there is a token
  float logprob;        ///< of `token`, by the model
  int32_t num_top;
  const nvllm_token_logprob* top;  ///< the likeliest tokens, best first
  const char* text;                ///< newly released; may be empty. Ends with a zero byte
  size_t text_size;                ///< without that byte
  const char* error;               ///< with NVLLM_FINISH_ERROR: why; else NULL
  int32_t num_generated_tokens;    ///< of the request so far, of all samples
  int32_t num_prompt_tokens;       ///< on the last event; else 0
  int32_t num_cached_tokens;       ///< of these, found in the prefix cache; on the last event
  int32_t reserved;
  const int32_t* token_ids;  ///< of a request with `whole`: all tokens of the sample; else NULL
  size_t num_token_ids;
  /// With NVLLM_FINISH_STOP: of `stop`, the text that ended the sample; else NULL. If there is
  /// neither this nor a stop token, an end token of the model ended it, or its form was complete.
  const char* stop_string;
  int32_t has_stop_token;  ///< 1 if a token of `stop_token_ids` ended it that is no end token
  int32_t stop_token;
} nvllm_event;

/// Called by a thread that is in `nvllm_step`, `nvllm_run` or `nvllm_engine_destroy` on the engine,
/// one call at a time, with pointers that are valid during the call. It may call everything but
/// `nvllm_engine_destroy`. A value other than 0 aborts the request: the callback is then called
/// only for the end.
typedef int32_t (*nvllm_callback)(void* user, const nvllm_event* event);

/// Queues a request and returns at once; `nvllm_step` or `nvllm_run` serves it. `callback` is
/// called until an event has `is_last`, which comes for every request that was queued. The form of
/// a text is compiled first, in up to 0.2 s, unless an earlier request had the same.
/// @param user  passed to the callback.
/// @param id    is set unless NULL. If another thread serves, the callback may be called before.
NVLLM_API nvllm_status nvllm_submit(nvllm_engine* engine, const nvllm_request* request,
                                    nvllm_callback callback, void* user, uint64_t* id);

/// Takes a request back: it ends with NVLLM_FINISH_ABORT in the next step at the latest. Returns 1,
/// or 0 if it had ended or been taken back before.
NVLLM_API nvllm_status nvllm_abort(nvllm_engine* engine, uint64_t id);

// ---- Serving them ----

/// Delivers the results of one step. Returns 1, or 0 if there was nothing to do. If the step fails,
/// its requests end with NVLLM_FINISH_ERROR, and others continue with the next step.
NVLLM_API nvllm_status nvllm_step(nvllm_engine* engine);

/// Serves requests until `nvllm_stop`, and sleeps while there are none. Returns NVLLM_OK, or an
/// error as soon as a step fails; then it may be called again.
NVLLM_API nvllm_status nvllm_run(nvllm_engine* engine);

/// Lets every `nvllm_run` of the engine return after its step, and any later one at once, so it
/// cannot come too early. `nvllm_step` still serves. Not for signal handlers.
NVLLM_API nvllm_status nvllm_stop(nvllm_engine* engine);

/// Makes tensor-parallel ranks that have failed able to compute again, if that can be done.
NVLLM_API nvllm_status nvllm_reset(nvllm_engine* engine);

// ---- Sessions ----

/// A conversation that holds the blocks of the KV cache from one turn to the next, so that a turn
/// computes what is new alone: docs/sessions.md. Turns are served as all requests. A session
/// has one turn at a time, and different sessions are independent of each other. It may outlive its
/// engine; then every function but `nvllm_session_destroy` returns NVLLM_ERROR_BUSY.
typedef struct nvllm_session nvllm_session;

/// Sets `*session` to a new session without a conversation.
NVLLM_API nvllm_status nvllm_session_create(nvllm_engine* engine, nvllm_session** session);

/// Sets `*session` to the conversation in a file of `nvllm_session_save`, with its blocks as far as
/// there is room for them. A file that is altered, or of another model, is an NVLLM_ERROR_LOAD.
NVLLM_API nvllm_status nvllm_session_load(nvllm_engine* engine, const char* path,
                                          nvllm_session** session);

/// Sets `*other` to a session with the same conversation, which shares the blocks. What a turn
/// under way will add is not part of it.
NVLLM_API nvllm_status nvllm_session_fork(const nvllm_session* session, nvllm_session** other);

/// Aborts the turn that is under way, if any, gives back the blocks and frees the memory. No other
/// thread may be in a call on the session. With NULL it does nothing.
NVLLM_API nvllm_status nvllm_session_destroy(nvllm_session* session);

/// Queues a turn as `nvllm_submit` queues a request: the prompt comes after the conversation, and
/// so does the answer if the turn ends by NVLLM_FINISH_STOP or _LENGTH, without the stop. Any other
/// end leaves the conversation as it was. An empty text continues it. A second turn at a time, more
/// than one sample, and messages after texts are NVLLM_ERROR_REQUEST.
NVLLM_API nvllm_status nvllm_session_submit(nvllm_session* session, const nvllm_request* request,
                                            nvllm_callback callback, void* user, uint64_t* id);

/// Puts a prompt after the conversation without a turn: it is computed with the next one. The
/// request's `sampling` is ignored.
NVLLM_API nvllm_status nvllm_session_append(nvllm_session* session, const nvllm_request* prompt);

/// Starts over: no conversation and no blocks. NVLLM_ERROR_REQUEST while a turn is under way.
NVLLM_API nvllm_status nvllm_session_clear(nvllm_session* session);

/// Writes the conversation, and the keys and values that are held of it, to a file. Steps wait
/// meanwhile. NVLLM_ERROR_REQUEST while a turn is under way.
NVLLM_API nvllm_status nvllm_session_save(const nvllm_session* session, const char* path);

/// The conversation's tokens, written as by `nvllm_tokenize`. If it consists of messages, those of
/// the last turn's prompt and answer.
NVLLM_API nvllm_status nvllm_session_tokens(const nvllm_session* session, int32_t* token_ids,
                                            size_t capacity, size_t* count);

/// The conversation's messages: a JSON list, written as by `nvllm_detokenize`. "[]" if it consists
/// of tokens.
NVLLM_API nvllm_status nvllm_session_messages(const nvllm_session* session, char* text,
                                              size_t capacity, size_t* size);

// ---- Embeddings and scores ----

/// How embeddings are made.
typedef struct nvllm_embed_options {
  size_t struct_size;
  int64_t dimensions;         ///< elements to keep, the first ones; 0: all
  int64_t max_prompt_tokens;  ///< of a longer input the last ones are kept; 0: it is refused
  int32_t keep_length;        ///< 0 or 1: vectors are not scaled to length 1
  int32_t priority;           ///< as nvllm_sampling_params has it
} nvllm_embed_options;

/// Embeds inputs: the hidden state of the last token of each. Serves them, in one batch with other
/// requests, and returns when all are done. Writes [num_inputs, dimensions] numbers to `vectors`
/// and the elements of each to `*dimensions`, which may be NULL. If an input cannot be served, the
/// error names the first of them. With `options` NULL they are the defaults.
/// @param inputs    pointers to prompts as `nvllm_submit` takes them; their `sampling` is ignored.
/// @param capacity  numbers that `vectors` has room for; too few are NVLLM_ERROR_INVALID.
NVLLM_API nvllm_status nvllm_embed(nvllm_engine* engine, const nvllm_request* const* inputs,
                                   size_t num_inputs, const nvllm_embed_options* options,
                                   float* vectors, size_t capacity, size_t* dimensions);

/// How documents are scored.
typedef struct nvllm_score_options {
  size_t struct_size;
  const char* instruction;    ///< the task in a sentence; NULL: that of web search
  int64_t max_prompt_tokens;  ///< of a longer prompt the document loses its end; 0: it is refused
  int32_t has_answers;        ///< 0 or 1: `yes` and `no` are set
  int32_t yes;                ///< with has_answers: the token that says that a document answers
  int32_t no;                 ///< the other one. Else the tokens "yes" and "no"
  int32_t priority;           ///< as nvllm_sampling_params has it
} nvllm_score_options;

/// Scores how well each document answers the query, in [0, 1], by the prompt of Qwen3-Reranker: by
/// its answers, or by the checkpoint's head for one label. Serves the documents as `nvllm_embed`
/// its inputs, and writes a number for each to `scores`. With `options` NULL they are the defaults.
NVLLM_API nvllm_status nvllm_score(nvllm_engine* engine, const char* query,
                                   const char* const* documents, size_t num_documents,
                                   const nvllm_score_options* options, float* scores);

// ---- Text and tokens ----

/// The tokens of a request's prompt, as `nvllm_submit` takes them; its `sampling` is ignored.
/// Writes the first `capacity` of them to `token_ids`, which may be NULL if that is 0, and their
/// total number to `*count`.
NVLLM_API nvllm_status nvllm_tokenize(const nvllm_engine* engine, const nvllm_request* request,
                                      int32_t* token_ids, size_t capacity, size_t* count);

/// The text of tokens. Writes as much of it to `text` as fits into `capacity` bytes, in whole
/// characters and with a zero byte at the end, and the size of the whole text, without that byte,
/// to `*size`. `text` may be NULL if `capacity` is 0.
/// @param keep_special_tokens  0 or 1.
NVLLM_API nvllm_status nvllm_detokenize(const nvllm_engine* engine, const int32_t* token_ids,
                                        size_t num_token_ids, int32_t keep_special_tokens,
                                        char* text, size_t capacity, size_t* size);

// ---- What it is, and how it does ----

/// The 50th, 90th and 99th percentile. Never changes.
typedef struct nvllm_percentiles {
  double p50;
  double p90;
  double p99;
} nvllm_percentiles;

/// Counters since the engine was made, and its state between two steps.
typedef struct nvllm_stats {
  size_t struct_size;
  int64_t num_waiting;  ///< requests; one with several samples counts once for each
  int64_t num_running;
  int64_t num_finished;
  int64_t num_steps;
  int64_t num_preemptions;
  int64_t num_prefill_tokens;  ///< computed in prompt chunks
  int64_t num_decode_tokens;   ///< computed one at a time, and drafts after them
  int64_t num_sampled_tokens;  ///< generated
  int64_t num_queried_tokens;  ///< looked up in the prefix cache
  int64_t num_hit_tokens;      ///< of them, found
  int64_t num_kv_blocks;
  int64_t num_free_kv_blocks;
  double prefill_seconds;
  double decode_seconds;
  double host_seconds;                    ///< planning, delivering, callbacks
  nvllm_percentiles queue_seconds;        ///< from submission until first computed
  nvllm_percentiles first_token_seconds;  ///< from submission until the first token
  nvllm_percentiles inter_token_seconds;  ///< between two tokens of a sequence
  nvllm_percentiles end_to_end_seconds;   ///< from submission to the end
  int64_t num_draft_steps;                ///< steps that drafts were asked for
  int64_t num_drafts;                     ///< chains of tokens that were checked
  int64_t num_draft_tokens;               ///< tokens of these chains
  int64_t num_accepted_tokens;            ///< of them, those that the model drew
  int64_t num_failed_drafts;              ///< times that the drafter failed
  int64_t num_draft_positions;  ///< most tokens of a chain: how many of the next are in use
  int64_t num_accepted_tokens_per_pos[64];  ///< accepted ones by their position in the chain
} nvllm_stats;

/// Fills `*stats`, whose `struct_size` the caller has set; it becomes the size of what is filled if
/// the library knows of fewer fields.
NVLLM_API nvllm_status nvllm_get_stats(const nvllm_engine* engine, nvllm_stats* stats);

#define NVLLM_HEALTH_OK 0      ///< the last step succeeded, or there was none
#define NVLLM_HEALTH_HUNG 1    ///< a step is running for longer than step_timeout_seconds
#define NVLLM_HEALTH_FAILED 2  ///< the last step failed; with several ranks, later ones will too

typedef struct nvllm_health {
  size_t struct_size;
  int32_t state;
  int32_t reserved;
  double seconds;     ///< that the oldest step has been running, or since the failure
  char reason[1024];  ///< why it is not ok; cut off if it is longer
} nvllm_health;

/// As `nvllm_get_stats`. Answers while a step hangs, too.
NVLLM_API nvllm_status nvllm_get_health(const nvllm_engine* engine, nvllm_health* health);

typedef struct nvllm_info {
  size_t struct_size;
  int64_t vocab_size;
  int64_t max_total_tokens;   ///< of a sequence, prompt and generated
  int32_t has_tokenizer;      ///< 0 or 1: texts can be prompts
  int32_t has_chat_template;  ///< 0 or 1: messages can
  int64_t hidden_size;        ///< elements of a whole embedding; 0: not known
} nvllm_info;

/// As `nvllm_get_stats`.
NVLLM_API nvllm_status nvllm_get_info(const nvllm_engine* engine, nvllm_info* info);

/// Backend, threads, ranks, KV cache and policy, in lines for people; written as by
/// `nvllm_detokenize`.
NVLLM_API nvllm_status nvllm_describe(const nvllm_engine* engine, char* text, size_t capacity,
                                      size_t* size);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif
