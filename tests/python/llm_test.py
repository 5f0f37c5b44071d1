"""The package on examples/models/fairytale: texts, streams, conversations, errors.

NANOVLLM_TELL is the program of tell.cpp.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import unittest

import nanovllm
from fairytale import MODEL, PROMPTS, FairytaleTest, endless, greedy, make
from nanovllm import RequestError, SamplingParams, StructuredOutputsParams

TOLD = dict(temperature=0.8, top_k=40, top_p=0.95)


def tell(seed, max_tokens, prompts):
    """Tokens and text of each prompt by C++."""
    shown = subprocess.run([os.environ["NANOVLLM_TELL"], str(MODEL), str(seed), str(max_tokens),
                            *prompts], check=True, capture_output=True).stdout.decode()
    found = [one.split("\n", 1) for one in shown.split("\0")[:-1]]
    return [([int(token) for token in ids.split()], text) for ids, text in found]


class GenerateTest(FairytaleTest):
    def test_same_as_cpp(self):
        for seed in (0, 7, 2**64 - 1):
            params = SamplingParams(seed=seed, max_tokens=40, **TOLD)
            outputs = self.llm.generate(PROMPTS, params)
            self.assertEqual([(one["token_ids"], one["text"]) for one in outputs],
                             tell(seed, 40, PROMPTS))
        self.assertNotEqual(tell(0, 40, PROMPTS), tell(7, 40, PROMPTS))

    def test_batch_is_alone(self):
        params = [SamplingParams(seed=i, max_tokens=10 + i, **TOLD) for i in range(8)]
        prompts = [PROMPTS[i % 3] for i in range(8)]
        together = self.llm.generate(prompts, params, use_tqdm=False)
        for prompt, one, output in zip(prompts, params, together):
            alone = self.llm.generate(prompt, one)
            self.assertEqual(len(alone), 1)
            self.assertEqual(alone[0].outputs, output.outputs)
            self.assertEqual(output.prompt, prompt)

    def test_both_forms_of_an_output(self):
        output, = self.llm.generate(PROMPTS[0], greedy())
        completion = output.outputs[0]
        self.assertEqual(output["text"], completion.text)
        self.assertEqual(output["token_ids"], completion.token_ids)
        self.assertEqual(dict(output), {"text": completion.text,
                                        "token_ids": completion.token_ids})
        with self.assertRaises(KeyError):
            output["words"]
        self.assertEqual(completion.finish_reason, "length")
        self.assertTrue(output.finished and completion.finished())
        self.assertIsNone(completion.logprobs)
        self.assertEqual(output.num_prompt_tokens, len(output.prompt_token_ids))
        self.assertIn(completion.text, repr(output))

    def test_forms_of_prompts(self):
        ids = self.llm.get_tokenizer().encode(PROMPTS[0])
        expected = self.llm.generate(PROMPTS[0], greedy())[0].outputs
        for prompt in (ids, tuple(ids), [ids], {"prompt": PROMPTS[0]}, {"prompt_token_ids": ids},
                       [{"prompt_token_ids": ids}], {"prompt": PROMPTS[0], "cache_salt": "a"}):
            output, = self.llm.generate(prompt, greedy())
            self.assertEqual(output.outputs, expected)
            self.assertEqual(output.prompt_token_ids, ids)
        self.assertEqual(self.llm.generate([], greedy()), [])
        try:
            import numpy
        except ImportError:
            return
        self.assertEqual(self.llm.generate(numpy.array(ids), greedy())[0].outputs, expected)

    def test_samples(self):
        params = SamplingParams(n=3, seed=5, max_tokens=12, **TOLD)
        output, = self.llm.generate(PROMPTS[0], params)
        self.assertEqual([one.index for one in output.outputs], [0, 1, 2])
        self.assertEqual(len({one.text for one in output.outputs}), 3)
        params.n = 1
        self.assertEqual(self.llm.generate(PROMPTS[0], params)[0].outputs, output.outputs[:1])

    def test_logprobs(self):
        plain, = self.llm.generate(PROMPTS[0], greedy())
        own, = self.llm.generate(PROMPTS[0], greedy(logprobs=0))
        self.assertEqual([len(position) for position in own.outputs[0].logprobs], [1] * 24)
        output, = self.llm.generate(PROMPTS[0], greedy(logprobs=3))
        completion = output.outputs[0]
        self.assertEqual((completion.text, completion.token_ids), (plain["text"], plain["token_ids"]))
        self.assertEqual(len(completion.logprobs), len(completion.token_ids))
        for token, position in zip(completion.token_ids, completion.logprobs):
            self.assertEqual(len(position), 3)
            self.assertEqual(position[token].rank, 1)  # greedy
            self.assertLess(sum(math.exp(one.logprob) for one in position.values()), 1.0001)
        self.assertEqual("".join(position[token].decoded_token for token, position in
                                 zip(completion.token_ids, completion.logprobs)), completion.text)
        self.assertAlmostEqual(completion.cumulative_logprob,
                               sum(position[token].logprob for token, position in
                                   zip(completion.token_ids, completion.logprobs)), 4)

    def test_what_ends_a_text(self):
        whole = self.llm.generate(PROMPTS[0], greedy(60))[0]["text"]
        word = whole.split()[3]
        output, = self.llm.generate(PROMPTS[0], greedy(60, stop=word))
        self.assertEqual(output["text"], whole[:whole.index(word)])
        self.assertEqual(output.outputs[0].finish_reason, "stop")
        self.assertEqual(output.outputs[0].stop_reason, word)
        output, = self.llm.generate(PROMPTS[0],
                                    greedy(60, stop=["\0x", word][1:],
                                           include_stop_str_in_output=True))
        self.assertTrue(output["text"].endswith(word))
        token = self.llm.generate(PROMPTS[0], greedy(2))[0]["token_ids"][1]
        output, = self.llm.generate(PROMPTS[0], greedy(60, stop_token_ids=[token]))
        self.assertEqual(output["token_ids"][-1], token)
        self.assertEqual(output.outputs[0].finish_reason, "stop")
        self.assertEqual(output.outputs[0].stop_reason, token)
        output, = self.llm.generate(PROMPTS[0], greedy(3, stop=word, stop_token_ids=[9]))
        self.assertEqual((output.outputs[0].finish_reason, output.outputs[0].stop_reason),
                         ("length", None))

    def test_what_ends_each_sample(self):
        params = SamplingParams(seed=3, max_tokens=60, n=4, stop=[" the", " a"], **TOLD)
        whole = self.llm.generate(PROMPTS[0], params)[0].outputs
        self.assertLess({one.stop_reason for one in whole} - {None}, {" the", " a", ""})
        self.assertGreater(len({one.stop_reason for one in whole}), 1)
        ends = {piece.index: (piece.finish_reason, piece.stop_reason)
                for piece in self.llm.stream(PROMPTS[0], params) if piece.finish_reason}
        self.assertEqual(ends, {one.index: (one.finish_reason, one.stop_reason) for one in whole})

    def test_forms(self):
        def text(**form):
            params = SamplingParams(seed=1, max_tokens=80,
                                    structured_outputs=StructuredOutputsParams(**form))
            completion = self.llm.generate(PROMPTS[0], params)[0].outputs[0]
            self.assertEqual((completion.finish_reason, completion.stop_reason), ("stop", None))
            self.assertEqual("".join(map(str, self.llm.stream(PROMPTS[0], params))),
                             completion.text)
            return completion.text

        schema = {"type": "object", "required": ["name", "age"], "properties": {
            "name": {"enum": ["Hans", "Gretel"]}, "age": {"type": "integer", "minimum": 1,
                                                          "maximum": 99}}}
        for given in (schema, json.dumps(schema)):
            found = json.loads(text(json=given))
            self.assertIn(found["name"], ("Hans", "Gretel"))
            self.assertIn(found["age"], range(1, 100))
        self.assertNotRegex(text(json=schema, disable_any_whitespace=True), r"\s")
        self.assertRegex(text(regex=r"[A-Z][a-z]{2,5} \d{4}"), r"^[A-Z][a-z]{2,5} [0-9]{4}$")
        self.assertIn(text(choice=["wolf", "queen", "\u00e4pfel"]), ("wolf", "queen", "\u00e4pfel"))
        self.assertRegex(text(grammar='root ::= "a" [bc]{2}'), "^a[bc]{2}$")
        self.assertRegex(text(grammar='root ::= "</think>" "x"'), "^</think>x$")
        thought = self.llm.generate(PROMPTS[0], greedy(8, structured_outputs=StructuredOutputsParams(
            choice=["wolf"], after_reasoning=True)))[0]["text"]
        self.assertNotEqual(thought, "wolf")

    def test_forms_that_are_refused(self):
        def refuses(words, kind=RequestError, **form):
            with self.assertRaisesRegex(kind, words):
                self.llm.generate(PROMPTS[0], SamplingParams(
                    structured_outputs=StructuredOutputsParams(**form)))

        refuses("'contains' is not supported at /properties/x",
                json={"properties": {"x": {"contains": {}}}})
        refuses("JSON", json="{")
        refuses("regular expression", regex="a(")
        refuses("leaf", grammar="root ::= leaf")
        refuses("exactly one of", ValueError)
        refuses("got json and regex", ValueError, json="{}", regex="a")
        refuses("must be a list of texts", ValueError, choice=[])
        refuses("must be a list of texts", ValueError, choice="wolf")
        refuses("zero bytes", ValueError, regex="a\0")
        refuses("regex must be a str", TypeError, regex=5)
        with self.assertRaisesRegex(TypeError, "StructuredOutputsParams"):
            self.llm.generate(PROMPTS[0], SamplingParams(structured_outputs={"regex": "a"}))
        self.assertEqual(self.llm.stats().num_running, 0)

    def test_edits_of_logits(self):
        first = self.llm.generate(PROMPTS[0], greedy(1))[0]["token_ids"][0]
        for fields in (dict(logit_bias={first: -100.0}),
                       dict(bad_words=[self.llm.get_tokenizer().decode(first).strip()])):
            self.assertNotEqual(self.llm.generate(PROMPTS[0], greedy(1, **fields))[0]["token_ids"],
                                [first])
        only = self.llm.generate(PROMPTS[0], endless(3, allowed_token_ids=[first]))[0]
        self.assertEqual(only["token_ids"], [first] * 3)

    def test_max_tokens_of_the_context(self):
        with make(max_model_len=64) as llm:
            output, = llm.generate(PROMPTS[0], endless(None))
            self.assertEqual(len(output["token_ids"]) + output.num_prompt_tokens,
                             llm.max_model_len)

    def test_progress(self):
        bars = []

        class Bar:
            def __init__(self, total, desc):
                self.total, self.done, self.is_closed = total, 0, False
                bars.append(self)

            def update(self):
                self.done += 1

            def close(self):
                self.is_closed = True

        self.llm.generate(PROMPTS, greedy(), use_tqdm=Bar)
        self.assertEqual([(bar.total, bar.done, bar.is_closed) for bar in bars], [(3, 3, True)])


class StreamTest(FairytaleTest):
    def test_streaming_is_whole(self):
        params = SamplingParams(seed=3, max_tokens=40, n=2, **TOLD)
        whole = self.llm.generate(PROMPTS[0], params)[0].outputs
        pieces = list(self.llm.stream(PROMPTS[0], params))
        for sample in whole:
            own = [piece for piece in pieces if piece.index == sample.index]
            self.assertEqual("".join(map(str, own)), sample.text)
            self.assertEqual([token for piece in own for token in piece.token_ids],
                             sample.token_ids)
            self.assertEqual([piece.finish_reason for piece in own if piece.finish_reason],
                             [sample.finish_reason])
        self.assertGreater(len(pieces), 20)

    def test_logprobs(self):
        for piece in self.llm.stream(PROMPTS[0], greedy(4, logprobs=1)):
            for token, position in zip(piece.token_ids, piece.logprobs or []):
                self.assertEqual(position[token].decoded_token,
                                 self.llm.get_tokenizer().decode(token))

    def test_aborts(self):
        with self.llm.stream(PROMPTS[0], endless()) as stream:
            next(stream)
            self.assertTrue(self.llm.abort(stream.request_id))
            *_, last = stream
        self.assertEqual(last.finish_reason, "abort")
        self.assertFalse(stream.abort())
        with self.llm.stream(PROMPTS[0], endless()) as stream:
            next(stream)
        *_, last = stream
        self.assertEqual(last.finish_reason, "abort")
        for _ in self.llm.stream(PROMPTS[0], endless()):
            break  # which drops it
        self.llm.generate(PROMPTS[0], greedy(2))
        self.assertEqual(self.llm.stats().num_running, 0)


class ChatTest(FairytaleTest):
    MESSAGES = [{"role": "user", "content": "Tell me of a fox."}]

    def test_chat(self):
        output, = self.llm.chat(self.MESSAGES, greedy())
        ids = self.llm.get_tokenizer().apply_chat_template(self.MESSAGES)
        self.assertEqual(output.prompt_token_ids, ids)
        self.assertEqual(self.llm.generate(ids, greedy())[0].outputs, output.outputs)
        two = self.llm.chat([self.MESSAGES, self.MESSAGES], greedy())
        self.assertEqual([one.outputs for one in two], [output.outputs] * 2)
        streamed = self.llm.stream_chat(self.MESSAGES, greedy())
        self.assertEqual("".join(map(str, streamed)), output["text"])
        template = self.llm.get_tokenizer().apply_chat_template
        self.assertIn("Tell me of a fox.", template(self.MESSAGES, tokenize=False))

    def test_options_of_the_template(self):
        tools = [{"type": "function", "function": {"name": "hunt"}}]
        for options in (dict(chat_template_kwargs={"enable_thinking": False}),
                        dict(tools=tools)):
            self.assertTrue(self.llm.chat(self.MESSAGES, greedy(2), **options)[0]["token_ids"])
        with self.assertRaisesRegex(ValueError, "enable_thinking"):
            self.llm.chat(self.MESSAGES, greedy(2), chat_template_kwargs={"thinking": False})
        with self.assertRaises(RequestError):
            self.llm.chat([{"content": "no role"}], greedy(2))

    def test_sessions_of_texts(self):
        with self.llm.session() as session:
            first = session.generate(PROMPTS[0], greedy(40))
            past = first.prompt_token_ids + first["token_ids"]
            self.assertEqual(session.tokens, past)
            other = session.fork()
            second = session.generate(" Then the wolf", greedy(20))
            tokens = past + self.llm.get_tokenizer().encode(" Then the wolf")
            self.assertEqual(second.prompt_token_ids, tokens)
            self.assertGreaterEqual(second.num_cached_tokens, len(past) - 1)
            self.assertEqual(other.tokens, past)
            self.assertEqual(other.generate(" Then the wolf", greedy(20)).outputs, second.outputs)
        with self.assertRaisesRegex(ValueError, "closed"):
            session.generate("x")

    def test_sessions_hold_their_blocks(self):
        with make(num_gpu_blocks_override=40, session_blocks=20, max_model_len=512) as llm:
            session = llm.session()
            session.generate(PROMPTS[0], endless(150))
            size = len(session.tokens)
            self.assertGreater(size, 150)
            unheld, = llm.generate(PROMPTS[1], endless(100))
            for i in range(6):  # which take all other blocks
                llm.generate([[i, *range(400, 600)]], endless(100))
            again, = llm.generate([unheld.prompt_token_ids + unheld["token_ids"]], greedy(1))
            self.assertEqual(again.num_cached_tokens, 0)
            self.assertGreaterEqual(session.generate(" And", greedy(4)).num_cached_tokens, size - 1)
            session.close()
            session.close()
            llm.generate([[9, *range(400, 600)]], endless(100))

    def test_sessions_in_files(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "tale.session")
            with self.llm.session(cache_salt="a") as session:
                session.generate(PROMPTS[0], greedy(20))
                session.save(path)
                loaded = self.llm.load_session(path)
                self.assertEqual(loaded.tokens, session.tokens)
                self.assertEqual(loaded.generate(" And", greedy()).outputs,
                                 session.generate(" And", greedy()).outputs)
            with self.assertRaisesRegex(ValueError, "zero bytes"):
                self.llm.load_session(path + "\0")
            with open(path, "r+b") as file:
                file.seek(200)
                file.write(b"xyz")
            with self.assertRaises(nanovllm.LoadError):
                self.llm.load_session(path)
        with self.assertRaises(nanovllm.LoadError):
            self.llm.load_session(path)

    def test_sessions_and_their_engine(self):
        llm = make()
        session = llm.session()
        session.generate(PROMPTS[0], greedy(4))
        llm.close()
        for call in (lambda: session.generate("x"), session.fork, lambda: session.tokens):
            with self.assertRaises(nanovllm.BusyError):
                call()
        session.close()
        with self.llm.session() as session:
            with self.assertRaisesRegex(RequestError, "one sample"):
                session.generate(PROMPTS[0], greedy(4, n=2))
            session.append(PROMPTS[0])
            self.assertEqual(session.generate("", greedy())["text"],
                             self.llm.generate(PROMPTS[0], greedy())[0]["text"])

    def test_what_a_turn_keeps(self):
        with self.llm.session() as session:
            whole = self.llm.generate(PROMPTS[0], greedy(40))[0]["text"]
            word = whole.split()[5]
            output = session.generate(PROMPTS[0], greedy(40, stop=word))
            decode = self.llm.get_tokenizer().decode
            self.assertEqual(decode(session.tokens).rstrip(),
                             (PROMPTS[0] + output["text"]).rstrip())
        with self.llm.session() as session:
            token = self.llm.generate(PROMPTS[0], greedy(5))[0]["token_ids"][4]
            output = session.generate(PROMPTS[0], greedy(40, stop_token_ids=[token]))
            self.assertEqual(session.tokens, output.prompt_token_ids + output["token_ids"][:-1])

    def test_sessions_of_messages(self):
        with self.llm.session([{"role": "system", "content": "You tell tales."}]) as session:
            answer = session.chat("Who are you?", greedy())
            self.assertEqual([one["role"] for one in session.messages],
                             ["system", "user", "assistant"])
            self.assertEqual(session.messages[-1]["content"], answer["text"])
            session.chat({"role": "user", "content": "And then?"}, greedy())
            self.assertEqual(len(session.messages), 5)
            with self.assertRaisesRegex(ValueError, "messages"):
                session.generate("x")


class SpeculationTest(FairytaleTest):
    REPEATED = "The fox ate the grapes. The wolf ate the sheep. " * 3

    def drafted(self, speculative_config):
        """The statistics of an engine that drafts, whose texts are those without drafts."""
        few = self.llm.get_tokenizer().encode(" wolf fox")  # of which a text repeats
        params = [endless(80), SamplingParams(seed=3, max_tokens=80, ignore_eos=True, **TOLD),
                  endless(80, allowed_token_ids=few)]
        prompts = [self.REPEATED] * 3
        expected = [output.outputs for output in self.llm.generate(prompts, params)]
        with make(speculative_config=speculative_config) as llm:
            self.assertEqual([output.outputs for output in llm.generate(prompts, params)],
                             expected)
            return llm.stats()

    def check_drafts(self, stats, num_speculative_tokens):
        self.assertGreater(stats.num_accepted_tokens, 20)
        self.assertGreaterEqual(stats.num_draft_tokens, stats.num_accepted_tokens)
        self.assertGreaterEqual(stats.num_draft_tokens, stats.num_drafts)
        self.assertGreater(stats.num_drafts, 5)
        self.assertGreater(stats.num_draft_steps, 5)
        self.assertEqual(stats.num_failed_drafts, 0)
        self.assertEqual(len(stats.num_accepted_tokens_per_pos), num_speculative_tokens)
        self.assertEqual(sum(stats.num_accepted_tokens_per_pos), stats.num_accepted_tokens)

    def test_ngram(self):
        fixed = {"method": "ngram", "num_speculative_tokens": 4, "adaptive": False}
        stats = self.drafted(fixed)
        self.check_drafts(stats, 4)
        # Suffixes of no text of this size: nothing is found.
        none = self.drafted({**fixed, "prompt_lookup_max": 256, "prompt_lookup_min": 250})
        self.assertEqual((none.num_drafts, none.num_accepted_tokens_per_pos), (0, (0,) * 4))
        self.assertEqual(len(self.drafted({}).num_accepted_tokens_per_pos), 5)

    def test_draft_model(self):
        config = {"model": str(MODEL), "num_speculative_tokens": 3, "model_kv_blocks": 128,
                  "adaptive": False}
        self.check_drafts(self.drafted(config), 3)

    def test_none(self):
        for config in (None, {"num_speculative_tokens": 0}):
            stats = self.drafted(config)
            self.assertEqual((stats.num_drafts, stats.num_accepted_tokens_per_pos), (0, ()))

    def test_what_cannot_be(self):
        for config, kind, words in (
                (5, TypeError, "must be a dict"),
                ({"metod": "ngram"}, TypeError, "did you mean 'method'"),
                ({"num_speculative_tokens": "4"}, TypeError, "num_speculative_tokens"),
                ({"num_speculative_tokens": -1}, ValueError, "num_speculative_tokens"),
                ({"num_speculative_tokens": 64}, nanovllm.ConfigError, "63.*got 64"),
                ({"prompt_lookup_max": 2, "prompt_lookup_min": 3}, nanovllm.ConfigError,
                 "prompt_lookup_min.*got 3"),
                ({"method": "medusa", "model": "a"}, nanovllm.ConfigError, "medusa"),
                ({"method": "medusa"}, nanovllm.ConfigError, "ngram, draft_model, eagle3.*medusa"),
                ({"method": "draft_model"}, nanovllm.InvalidError, "speculative_model"),
                ({"method": "eagle3", "model": "a", "model_kv_blocks": 9}, nanovllm.InvalidError,
                 "kv_blocks is for .*draft_model.*, got .*eagle3"),
                ({"method": "ngram", "model": "a"}, nanovllm.InvalidError, "ngram"),
                ({"model": "/nowhere"}, nanovllm.LoadError, "draft model.*/nowhere")):
            with self.assertRaisesRegex(kind, words, msg=str(config)):
                make(speculative_config=config)


class ErrorsTest(FairytaleTest):
    def test_engines_that_cannot_be(self):
        with self.assertRaisesRegex(nanovllm.LoadError, "/nowhere"):
            make("/nowhere")
        with self.assertRaisesRegex(nanovllm.InvalidError, "tpu"):
            make(device="tpu")
        with self.assertRaisesRegex(nanovllm.InvalidError, "dtype"):
            make(dtype="float16")
        with self.assertRaisesRegex(nanovllm.ConfigError, "max_model_len"):
            make(max_model_len=10**9)
        with self.assertRaisesRegex(TypeError, "did you mean 'max_model_len'"):
            make(max_model_length=5)
        with self.assertRaisesRegex(ValueError, "model must not have zero bytes"):
            make("/no\0where")
        for settings in (dict(max_num_seqs=0), dict(seed=-1), dict(seed=2**64),
                         dict(disk_kv_path="a\0b"), dict(device="cpu\0"),
                         dict(speculative_config={"model": "a\0b"})):
            with self.assertRaises(ValueError):
                make(**settings)
        with self.assertRaises(TypeError):
            make(max_num_seqs="many")

    def test_settings_of_others_are_accepted(self):
        make(enforce_eager=True, gpu_memory_utilization=0.9, trust_remote_code=True,
             tensor_parallel_size=1, num_kvcache_blocks=-1, dtype="auto", seed=None).close()

    def test_warnings(self):
        with tempfile.TemporaryDirectory() as folder:
            for path in MODEL.iterdir():
                if path.is_file() and path.name != "config.json":
                    os.symlink(path.resolve(), os.path.join(folder, path.name))
            config = (MODEL / "config.json").read_text()
            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
                file.write(config.replace('"dtype": "bfloat16"',
                                          '"dtype": "bfloat16", "torch_dtype": "float32"'))
            heard = []
            make(folder, on_warning=heard.append).close()
        self.assertEqual(len(heard), 1)
        self.assertIn("torch_dtype", heard[0])

    def test_requests_that_cannot_be_served(self):
        before = self.llm.stats().num_finished
        with self.assertRaisesRegex(RequestError, "temperature"):
            self.llm.generate([PROMPTS[0], PROMPTS[1]],
                              [endless(), SamplingParams(temperature=-1)])
        self.assertEqual(self.llm.stats().num_running, 0)
        self.assertGreater(self.llm.stats().num_finished, before)
        with self.assertRaisesRegex(RequestError, "at most"):
            self.llm.generate("x" * 100000)
        with self.assertRaisesRegex(RequestError, "no tokens"):
            self.llm.generate("")
        with self.assertRaisesRegex(RequestError, "no tokens"):
            self.llm.generate({"prompt_token_ids": []})
        with self.assertRaises(RequestError):
            self.llm.generate([[0, 10**6]])
        with self.assertRaises(RequestError):
            next(self.llm.stream(PROMPTS[0], greedy(frequency_penalty=3)))

    def test_wrong_arguments(self):
        for fields, kind in ((dict(max_tokens=0), ValueError), (dict(n=0), ValueError),
                             (dict(top_p=0), ValueError), (dict(seed=-1), ValueError),
                             (dict(max_tokens=1.5), TypeError), (dict(temperature="a"), TypeError),
                             (dict(stop=["a\0b"]), ValueError),
                             (dict(stop_token_ids=["a"]), TypeError)):
            with self.assertRaises(kind, msg=str(fields)):
                self.llm.generate(PROMPTS[0], SamplingParams(**fields))
        with self.assertRaisesRegex(ValueError, "2 prompts, but 1"):
            self.llm.generate(PROMPTS[:2], [greedy()])
        for prompt in (5, None, [None], {"text": "a"}, [["a"]], [[2**40]], [5.5],
                       {"prompt": "a", "cache_salt": "a\0b"}):
            with self.assertRaises((TypeError, ValueError, OverflowError), msg=str(prompt)):
                self.llm.generate(prompt)
        with self.assertRaises(TypeError):
            SamplingParams(best_of=2)

    def test_closed(self):
        llm = make()
        tokenizer = llm.get_tokenizer()
        llm.close()
        llm.close()
        with self.assertRaisesRegex(nanovllm.BusyError, "closed"):
            llm.generate(PROMPTS[0])
        with self.assertRaises(nanovllm.BusyError):
            tokenizer.encode("a")

    def test_what_it_is(self):
        self.assertRegex(nanovllm.__version__, r"^\d+\.\d+\.\d+$")
        self.llm.generate(PROMPTS[0], greedy())
        stats = self.llm.stats()
        self.assertGreater(stats.num_sampled_tokens, 0)
        self.assertGreater(stats.first_token_seconds.p50, 0)
        self.assertEqual(self.llm.health().state, "ok")
        self.assertIn("cpu", self.llm.describe())
        tokenizer = self.llm.get_tokenizer()
        for text in ("A king.", "", "zero \0 byte", "\u00e4\u4e2d"):
            self.assertEqual(tokenizer.decode(tokenizer.encode(text)), text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
