#!/usr/bin/env python3
"""What lm-eval's `local-completions` and `local-chat-completions` send (lm_eval 0.4.13), and what they
make of the replies, against a running server. Needs the standard library alone.

    python3 lm_eval_test.py --server PATH_TO_serve --model DIR [TEST...]
"""

import argparse
import sys
import unittest

from server_process import ServerProcess

TEXT = "Once upon a time there was a king who had a daughter, and she went into the woods."
END = "<|im_end|>"

options = None
server = None


def setUpModule():
    global server
    server = ServerProcess(options.server, options.model, "--kv-blocks", "512",
                           "--served-model-name", "tale")


def tearDownModule():
    if server is not None:
        server.kill()


def tokens_of(text):
    """As its remote tokenizer asks."""
    return server.json("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]


def complete(**fields):
    return server.json("POST", "/v1/completions", {"model": "tale", "seed": 1234, **fields})


def score_request(prompts, **fields):
    """The request for log-likelihoods."""
    return complete(**{"prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1,
                       "echo": True, **fields})


def loglikelihoods(reply, context_lengths, num_generated=1):
    """(sum over the continuation, whether it is greedy) of each choice."""
    found = []
    choices = sorted(reply["choices"], key=lambda choice: choice["index"])
    for choice, begin in zip(choices, context_lengths, strict=True):
        logprobs = choice["logprobs"]
        end = len(logprobs["token_logprobs"]) - num_generated
        tokens, tops = logprobs["token_logprobs"][begin:end], logprobs["top_logprobs"][begin:end]
        greedy = all(token == max(top.values()) for token, top in zip(tokens, tops))
        found.append((sum(tokens), greedy))
    return found


class Completions(unittest.TestCase):
    def assert_close(self, found, expected):
        for (one, one_greedy), (other, other_greedy) in zip(found, expected, strict=True):
            self.assertAlmostEqual(one, other, delta=0.05)
            self.assertEqual(one_greedy, other_greedy)

    def test_loglikelihoods_in_batches(self):
        prompts = [tokens_of(TEXT), tokens_of("The wolf said"), tokens_of("A")]
        contexts = [10, 2, 1]
        reply = score_request(prompts)
        for choice in reply["choices"]:
            logprobs = choice["logprobs"]
            prompt = prompts[choice["index"]]
            self.assertEqual(len(logprobs["token_logprobs"]), len(prompt) + 1)
            self.assertEqual(len(logprobs["top_logprobs"]), len(prompt) + 1)
            self.assertIsNone(logprobs["token_logprobs"][0])
            self.assertTrue(choice["text"].startswith(
                server.json("POST", "/detokenize", {"tokens": prompt})["prompt"]))
        batched = loglikelihoods(reply, contexts)
        alone = [loglikelihoods(score_request([prompt]), [context])[0]
                 for prompt, context in zip(prompts, contexts)]
        self.assert_close(batched, alone)
        none_generated = score_request(prompts, max_tokens=0)
        self.assert_close(loglikelihoods(none_generated, contexts, 0), alone)
        as_texts = score_request([TEXT, "The wolf said", "A"])
        self.assert_close(loglikelihoods(as_texts, contexts), alone)

    def test_loglikelihoods_add_up(self):
        prompt = tokens_of(TEXT)
        whole = loglikelihoods(score_request([prompt]), [5])[0][0]
        for middle in (6, 11, len(prompt) - 1):
            first, second = loglikelihoods(score_request([prompt[:middle], prompt]), [5, middle])
            self.assertAlmostEqual(first[0] + second[0], whole, delta=0.05)

    def test_greedy_continuations(self):
        prompt = tokens_of(TEXT)
        chosen = complete(prompt=[prompt], max_tokens=8, temperature=0, ignore_eos=True,
                          return_token_ids=True)["choices"][0]["token_ids"]
        other = chosen[:-1] + [chosen[-1] + 1 if chosen[-1] + 1 < 4000 else 5]
        found = loglikelihoods(score_request([prompt + chosen, prompt + other]), [len(prompt)] * 2)
        self.assertEqual([greedy for _, greedy in found], [True, False])
        self.assertGreater(found[0][0], found[1][0])

    def test_the_token_that_is_left_out(self):
        # It is the last one, also where the model ends the text with it.
        prompt = tokens_of(TEXT)
        end, = tokens_of(END)
        expected = loglikelihoods(score_request([prompt], max_tokens=0), [5], 0)
        for fields in ({}, {"logit_bias": {str(end): 100}}, {"stop": [" "]},
                       {"stop_token_ids": [end], "logit_bias": {str(end): 100}}):
            reply = score_request([prompt], **fields)
            self.assertEqual(len(reply["choices"][0]["logprobs"]["token_logprobs"]),
                             len(prompt) + 1, fields)
            self.assert_close(loglikelihoods(reply, [5]), expected)

    def test_rolling_loglikelihoods(self):
        # Behind the end token, as there is no other to begin with.
        end, = tokens_of(END)
        text = tokens_of(TEXT)
        found = loglikelihoods(score_request([[end] + text]), [1])[0]
        self.assertLess(found[0], 0)
        parts = loglikelihoods(score_request([[end] + text[:9], text]), [1, 9])
        self.assertLess(parts[0][0], 0)

    def test_generation_until(self):
        prompts = [tokens_of(TEXT), tokens_of("The wolf said")]
        fields = {"max_tokens": 48, "temperature": 0}
        whole = [choice["text"] for choice in complete(
            prompt=prompts, stop=[END], **fields)["choices"]]
        stop = [".", "\n\n", END]
        reply = complete(prompt=prompts, stop=stop, **fields)
        for choice, text in zip(sorted(reply["choices"], key=lambda c: c["index"]), whole):
            expected = min((text.split(mark)[0] for mark in stop), key=len)
            self.assertEqual(choice["text"], expected)
        for i, prompt in enumerate(prompts):
            alone = complete(prompt=[prompt], stop=stop, **fields)["choices"][0]
            self.assertEqual(alone["text"], reply["choices"][i]["text"])
        self.assertEqual(complete(prompt=prompts, stop=[], **fields)["usage"]["prompt_tokens"],
                         sum(map(len, prompts)))

    def test_samples_have_a_seed(self):
        fields = {"prompt": [tokens_of(TEXT)], "max_tokens": 24, "temperature": 0.9, "top_p": 0.95,
                  "stop": [END]}
        first, again, other = (complete(**fields, seed=seed)["choices"][0]["text"]
                               for seed in (1, 1, 2))
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)


class Chats(unittest.TestCase):
    def test_generation_until(self):
        fields = {"model": "tale", "messages": [{"role": "system", "content": "You tell tales."},
                                                {"role": "user", "content": "Of a fox."}],
                  "max_tokens": 48, "temperature": 0, "seed": 1234}
        whole = server.json("POST", "/v1/chat/completions", {**fields, "stop": []})
        text = whole["choices"][0]["message"]["content"]
        stop = [".", ",", "Q:"]
        cut = server.json("POST", "/v1/chat/completions", {**fields, "stop": stop})
        self.assertEqual(cut["choices"][0]["message"]["content"],
                         min((text.split(mark)[0] for mark in stop), key=len))
        self.assertEqual(cut["choices"][0]["index"], 0)


class Support(unittest.TestCase):
    def test_no_remote_tokenizer(self):
        # It asks for this one first, and takes its own tokenizer where there is none.
        self.assertEqual(server.request("GET", "/tokenizer_info")[0], 404)

    def test_texts_come_back(self):
        for text in (TEXT, "", END, " a\n\n\tb ", "König 🦊"):
            tokens = tokens_of(text)
            self.assertEqual(
                server.json("POST", "/detokenize", {"tokens": tokens})["prompt"], text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", required=True)
    options, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
