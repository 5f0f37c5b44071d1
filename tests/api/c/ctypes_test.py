"""The shared library for C from Python's ctypes, threads included, without any package.

ctypes_test.py LIBRARY MODEL_DIR
"""

import ctypes
import sys
import threading
import time
import unittest
from ctypes import (CFUNCTYPE, POINTER, Structure, byref, c_char, c_char_p, c_double, c_float,
                    c_int32, c_int64, c_size_t, c_uint64, c_void_p, sizeof)

OK, INVALID, UNSUPPORTED, LOAD, REQUEST, BUSY = 0, -1, -2, -4, -5, -8
FINISH_NONE, FINISH_STOP, FINISH_LENGTH, FINISH_ABORT, FINISH_ERROR = range(5)


class Sized(Structure):
    """A struct of the header: all zero but its size, unless said otherwise."""

    def __init__(self, **fields):
        super().__init__(struct_size=sizeof(type(self)), **fields)


class EngineConfig(Sized):
    _fields_ = [("struct_size", c_size_t), ("model", c_char_p), ("device", c_char_p),
                ("dtype", c_char_p), ("disk_kv_path", c_char_p), ("disk_kv_bytes", c_uint64),
                ("host_kv_bytes", c_int64), ("kv_bytes", c_int64), ("kv_blocks", c_int64),
                ("max_model_len", c_int64), ("device_index", c_int32),
                ("tensor_parallel", c_int32), ("num_threads", c_int32), ("max_num_seqs", c_int32),
                ("max_num_batched_tokens", c_int32), ("disable_prefix_caching", c_int32),
                ("seed", c_uint64), ("has_seed", c_int32), ("reserved", c_int32),
                ("step_timeout_seconds", c_double), ("expert_parallel", c_int32),
                ("disable_custom_all_reduce", c_int32), ("on_warning", c_void_p),
                ("warning_user", c_void_p)]


class SamplingParams(Sized):
    _fields_ = [("struct_size", c_size_t), ("seed", c_uint64), ("has_seed", c_int32),
                ("has_temperature", c_int32), ("temperature", c_float), ("top_p", c_float),
                ("top_k", c_int32), ("has_min_p", c_int32), ("min_p", c_float),
                ("repetition_penalty", c_float), ("frequency_penalty", c_float),
                ("presence_penalty", c_float), ("n", c_int32), ("max_tokens", c_int32),
                ("min_tokens", c_int32), ("ignore_eos", c_int32),
                ("keep_special_tokens", c_int32), ("include_stop_str_in_output", c_int32),
                ("has_logprobs", c_int32), ("logprobs", c_int32), ("priority", c_int32),
                ("reserved", c_int32), ("stop", POINTER(c_char_p)), ("num_stop", c_size_t),
                ("stop_token_ids", POINTER(c_int32)), ("num_stop_token_ids", c_size_t),
                ("allowed_token_ids", POINTER(c_int32)), ("num_allowed_token_ids", c_size_t),
                ("bad_words", POINTER(c_char_p)), ("num_bad_words", c_size_t),
                ("logit_bias", c_void_p), ("num_logit_bias", c_size_t)]


class Request(Sized):
    _fields_ = [("struct_size", c_size_t), ("text", c_char_p), ("text_size", c_size_t),
                ("token_ids", POINTER(c_int32)), ("num_token_ids", c_size_t),
                ("messages", c_char_p), ("tools", c_char_p), ("enable_thinking", c_int32),
                ("reserved", c_int32), ("sampling", POINTER(SamplingParams))]


class Event(Structure):
    _fields_ = [("struct_size", c_size_t), ("id", c_uint64), ("sample", c_int32),
                ("finish_reason", c_int32), ("is_last", c_int32), ("has_token", c_int32),
                ("token", c_int32), ("has_logprob", c_int32), ("logprob", c_float),
                ("num_top", c_int32), ("top", c_void_p), ("text", c_char_p),
                ("text_size", c_size_t), ("error", c_char_p), ("num_generated_tokens", c_int32),
                ("num_prompt_tokens", c_int32), ("num_cached_tokens", c_int32),
                ("reserved", c_int32)]


class Stats(Sized):
    _fields_ = ([("struct_size", c_size_t)] +
                [(name, c_int64) for name in
                 ("num_waiting", "num_running", "num_finished", "num_steps", "num_preemptions",
                  "num_prefill_tokens", "num_decode_tokens", "num_sampled_tokens",
                  "num_queried_tokens", "num_hit_tokens", "num_kv_blocks", "num_free_kv_blocks")] +
                [(name, c_double) for name in ("prefill_seconds", "decode_seconds",
                                               "host_seconds")] +
                [(name, c_double * 3) for name in
                 ("queue_seconds", "first_token_seconds", "inter_token_seconds",
                  "end_to_end_seconds")])


class EmbedOptions(Sized):
    _fields_ = [("struct_size", c_size_t), ("dimensions", c_int64),
                ("max_prompt_tokens", c_int64), ("keep_length", c_int32), ("priority", c_int32)]


class Health(Sized):
    _fields_ = [("struct_size", c_size_t), ("state", c_int32), ("reserved", c_int32),
                ("seconds", c_double), ("reason", c_char * 1024)]


Callback = CFUNCTYPE(c_int32, c_void_p, POINTER(Event))
PROMPT = b"Once upon a time there was a king who had"


def load(path):
    """The library, which gives up Python's lock during its calls, as callbacks on other threads
    need it."""
    library = ctypes.CDLL(path)
    library.nvllm_last_error.restype = c_char_p
    library.nvllm_version.restype = c_char_p
    engine = c_void_p
    for name, arguments in {
            "nvllm_engine_create": [POINTER(EngineConfig), POINTER(c_void_p)],
            "nvllm_engine_destroy": [engine],
            "nvllm_submit": [engine, POINTER(Request), Callback, c_void_p, POINTER(c_uint64)],
            "nvllm_abort": [engine, c_uint64],
            "nvllm_step": [engine],
            "nvllm_run": [engine],
            "nvllm_stop": [engine],
            "nvllm_tokenize": [engine, POINTER(Request), POINTER(c_int32), c_size_t,
                               POINTER(c_size_t)],
            "nvllm_embed": [engine, POINTER(POINTER(Request)), c_size_t, POINTER(EmbedOptions),
                            POINTER(c_float), c_size_t, POINTER(c_size_t)],
            "nvllm_get_stats": [engine, POINTER(Stats)],
            "nvllm_get_health": [engine, POINTER(Health)],
    }.items():
        getattr(library, name).argtypes = arguments
    return library


class Generation:
    """What is heard of a request. Keeps its callback alive until the end."""

    def __init__(self, stop_after=None, on_event=None):
        self.text, self.num_events, self.num_tokens = b"", 0, 0
        self.finish_reason, self.is_over = FINISH_NONE, threading.Event()
        self.stop_after, self.on_event = stop_after, on_event
        self.callback = Callback(self.hear)

    def hear(self, _, event):
        event = event.contents
        self.text += event.text
        self.num_events += 1
        self.num_tokens += event.has_token
        if event.finish_reason:
            self.finish_reason = event.finish_reason
        if self.on_event:
            self.on_event(event)
        if event.is_last:
            self.is_over.set()
        return int(self.num_events == self.stop_after)


class LibraryTest(unittest.TestCase):
    def setUp(self):
        self.engine = self.create()
        self.addCleanup(self.destroy)

    def create(self, **fields):
        config = EngineConfig(model=MODEL, device=b"cpu", max_num_seqs=16, kv_blocks=256,
                              num_threads=1, **fields)
        engine = c_void_p()
        self.check(LIBRARY.nvllm_engine_create(byref(config), byref(engine)))
        return engine

    def destroy(self):
        if self.engine:
            self.check(LIBRARY.nvllm_engine_destroy(self.engine))
            self.engine = None

    def check(self, status, expected=OK):
        self.assertEqual(status, expected, LIBRARY.nvllm_last_error())

    def submit(self, generation, text=PROMPT, **sampling):
        params = SamplingParams(**{"has_temperature": 1, "max_tokens": 12, **sampling})
        request = Request(text=text, sampling=ctypes.pointer(params))
        id = c_uint64()
        self.check(LIBRARY.nvllm_submit(self.engine, byref(request), generation.callback, None,
                                        byref(id)))
        return id.value

    def serve(self):
        while LIBRARY.nvllm_step(self.engine) == 1:
            pass

    def generate(self, text=PROMPT, **sampling):
        generation = Generation()
        self.submit(generation, text, **sampling)
        self.serve()
        self.assertTrue(generation.is_over.is_set())
        return generation

    def running(self):
        """A thread in nvllm_run; its status is left in the list."""
        statuses = []
        thread = threading.Thread(target=lambda: statuses.append(LIBRARY.nvllm_run(self.engine)))
        thread.start()
        return thread, statuses

    def stats(self):
        stats = Stats()
        self.check(LIBRARY.nvllm_get_stats(self.engine, byref(stats)))
        return stats

    def test_generates_and_streams(self):
        generation = self.generate(max_tokens=24)
        self.assertGreater(generation.num_events, 2)
        self.assertGreater(len(generation.text.decode()), 0)
        self.assertIn(generation.finish_reason, (FINISH_STOP, FINISH_LENGTH))
        self.assertEqual(generation.text, self.generate(max_tokens=24).text)

    def test_samples_of_strings_and_seeds(self):
        stop = (c_char_p * 1)(b"a")
        generation = self.generate(stop=stop, num_stop=1, max_tokens=50)
        self.assertEqual(generation.finish_reason, FINISH_STOP)
        self.assertNotIn(b"a", generation.text)
        seeded = dict(has_temperature=0, has_seed=1, seed=0)
        self.assertEqual(self.generate(**seeded).text, self.generate(**seeded).text)

    def test_tokenizes(self):
        tokens, count = (c_int32 * 64)(), c_size_t()
        request = Request(text=PROMPT)
        self.check(LIBRARY.nvllm_tokenize(self.engine, byref(request), tokens, 64, byref(count)))
        self.assertGreater(count.value, 1)
        self.assertTrue(all(0 <= token < 4096 for token in tokens[:count.value]))

    def embed(self, texts):
        requests = [Request(text=text) for text in texts]
        inputs = (POINTER(Request) * len(texts))(*[ctypes.pointer(one) for one in requests])
        vectors, dimensions = (c_float * (256 * len(texts)))(), c_size_t()
        self.check(LIBRARY.nvllm_embed(self.engine, inputs, len(texts), None, vectors,
                                       len(vectors), byref(dimensions)))
        self.assertEqual(dimensions.value, 256)
        return [vectors[256 * i:256 * (i + 1)] for i in range(len(texts))]

    def test_embeds_alone_and_while_others_run(self):
        texts = [b"The king died.", b"A queen was born."]
        expected = self.embed(texts)
        self.assertNotEqual(expected[0], expected[1])
        runner, statuses = self.running()
        found = [None] * 4

        def embed(i):
            found[i] = self.embed(texts)

        threads = [threading.Thread(target=embed, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for vectors in found:
            for got, wanted in zip(vectors, expected):
                self.assertTrue(all(abs(a - b) < 1e-3 for a, b in zip(got, wanted)))
        self.check(LIBRARY.nvllm_stop(self.engine))
        runner.join()
        self.assertEqual(statuses, [OK])

    def test_threads_submit_while_one_runs(self):
        expected = self.generate(ignore_eos=1).text
        runner, statuses = self.running()
        generations = [[Generation() for _ in range(8)] for _ in range(8)]

        def submit_all(some):
            for generation in some:
                self.submit(generation, ignore_eos=1)

        threads = [threading.Thread(target=submit_all, args=(some,)) for some in generations]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for some in generations:
            for generation in some:
                self.assertTrue(generation.is_over.wait(60))
                self.assertEqual(generation.text, expected)
        self.check(LIBRARY.nvllm_stop(self.engine))
        runner.join()
        self.assertEqual(statuses, [OK])
        self.assertEqual(self.stats().num_running, 0)

    def test_a_stop_is_not_lost(self):
        self.check(LIBRARY.nvllm_stop(self.engine))
        self.check(LIBRARY.nvllm_run(self.engine))

    def test_aborts(self):
        by_result, by_call = Generation(stop_after=2), Generation()
        self.submit(by_result, max_tokens=400, ignore_eos=1)
        id = self.submit(by_call, max_tokens=400, ignore_eos=1)
        runner, _ = self.running()
        self.assertTrue(by_result.is_over.wait(60))
        self.assertEqual(LIBRARY.nvllm_abort(self.engine, id), 1)
        self.assertTrue(by_call.is_over.wait(60))
        for generation in (by_result, by_call):
            self.assertEqual(generation.finish_reason, FINISH_ABORT)
        self.assertEqual(by_result.num_events, 3)
        self.assertEqual(LIBRARY.nvllm_abort(self.engine, id), 0)
        self.check(LIBRARY.nvllm_stop(self.engine))
        runner.join()

    def test_destroyed_while_another_thread_runs(self):
        begun = threading.Event()
        generation = Generation(on_event=lambda event: begun.set())
        runner, statuses = self.running()
        self.submit(generation, max_tokens=800, ignore_eos=1)
        self.assertTrue(begun.wait(60))
        self.destroy()
        runner.join()
        self.assertEqual(statuses, [OK])
        self.assertTrue(generation.is_over.is_set())
        self.assertEqual(generation.finish_reason, FINISH_ABORT)

    def test_a_callback_cannot_destroy(self):
        statuses = []
        generation = Generation(
            on_event=lambda event: statuses.append(LIBRARY.nvllm_engine_destroy(self.engine)))
        self.submit(generation, max_tokens=3)
        self.serve()
        self.assertTrue(statuses)
        self.assertEqual(set(statuses), {BUSY})

    def test_callbacks_submit(self):
        second = Generation()
        first = Generation(on_event=lambda event: event.is_last and self.submit(second))
        self.submit(first)
        self.serve()
        self.assertTrue(second.is_over.is_set())
        self.assertEqual(first.text, second.text)

    def test_errors_are_kept_for_their_thread(self):
        self.check(LIBRARY.nvllm_step(None), INVALID)
        self.assertIn(b"engine", LIBRARY.nvllm_last_error())
        messages = []
        thread = threading.Thread(target=lambda: messages.append(LIBRARY.nvllm_last_error()))
        thread.start()
        thread.join()
        self.assertEqual(messages, [b""])

    def test_health(self):
        health = Health()
        self.check(LIBRARY.nvllm_get_health(self.engine, byref(health)))
        self.assertEqual((health.state, health.reason), (0, b""))

    def test_wrong_arguments(self):
        engine, generation = c_void_p(), Generation()
        for fields, status in ((dict(model=None), INVALID), (dict(model=b"/nowhere"), LOAD),
                               (dict(device=b"tpu"), INVALID), (dict(reserved=1), UNSUPPORTED)):
            config = EngineConfig(**{"model": MODEL, "device": b"cpu", **fields})
            self.check(LIBRARY.nvllm_engine_create(byref(config), byref(engine)), status)
        self.assertIsNone(engine.value)
        for fields, status in ((dict(), INVALID), (dict(text=b""), REQUEST),
                               (dict(text=b"x", messages=b"[]"), INVALID),
                               (dict(messages=b"{"), REQUEST)):
            request = Request(**fields)
            self.check(LIBRARY.nvllm_submit(self.engine, byref(request), generation.callback, None,
                                            None), status)
        for size in (0, 3, 12, 1 << 20, (1 << 64) - 8):
            request = Request(text=PROMPT)
            request.struct_size = size
            self.check(LIBRARY.nvllm_submit(self.engine, byref(request), generation.callback, None,
                                            None), INVALID)
        request = Request(text=PROMPT)
        self.check(LIBRARY.nvllm_submit(self.engine, byref(request), Callback(), None, None),
                   INVALID)
        self.assertEqual(generation.num_events, 0)

    def test_nothing_is_left_of_engines(self):
        def memory():
            with open("/proc/self/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * 4096

        sizes = []
        for _ in range(8):
            self.destroy()
            self.engine = self.create()
            self.generate(max_tokens=2)
            sizes.append(memory())
        self.assertLess(sizes[-1] - sizes[3], 16 << 20)
        self.destroy()
        time.sleep(0.05)
        self.assertEqual(threading.active_count(), 1)


if __name__ == "__main__":
    LIBRARY, MODEL = load(sys.argv[1]), sys.argv[2].encode()
    unittest.main(argv=sys.argv[:1])
