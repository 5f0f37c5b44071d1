#!/usr/bin/env python3
"""The programs `generate` and `serve` with GPT-2: the tokens are those of transformers, which
tests/oracle/make_gpt2_fixtures.py has written to tests/fixtures/parity. And with a checkpoint of a
model that they were not built for.

    python3 gpt2_programs_test.py GENERATE SERVE [unittest arguments]   # from the repository root
"""

import http.client
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import unittest

GENERATE, SERVE = "", ""
MODEL = "examples/models/tiny_gpt2"
FIXTURE = "tests/fixtures/parity/tiny_gpt2"
DEADLINE = 60  # seconds after which something hangs

needs_weights = unittest.skipUnless(os.path.exists(MODEL + "/model.safetensors"),
                                    "no weights; bash examples/models/get.sh gets them")


def expected():
    """Pairs of a prompt and its greedy continuation, in float32."""
    with open(FIXTURE + ".json") as file:
        prompts = json.load(file)["prompts"]
    with open(FIXTURE + ".safetensors", "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    pairs = []
    for i, prompt in enumerate(prompts):
        begin, end = header[f"float32.{i}.greedy_ids"]["data_offsets"]
        bytes_ = data[8 + size + begin:8 + size + end]
        pairs.append((prompt, list(struct.unpack(f"<{len(bytes_) // 4}i", bytes_))))
    return pairs


def llama(folder):
    """A checkpoint of another model, without weights."""
    with open(f"{folder}/config.json", "w") as file:
        json.dump({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, file)
    return folder


@needs_weights
class Generate(unittest.TestCase):
    def run_lines(self, lines, model=MODEL):
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/in.jsonl", "w") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
            done = subprocess.run(
                [GENERATE, "--model", model, "--dtype", "float32", "--num-threads", "2",
                 "--input", f"{folder}/in.jsonl", "--output", f"{folder}/out.jsonl"],
                timeout=DEADLINE, capture_output=True, text=True)
            results = []
            if done.returncode == 0:
                with open(f"{folder}/out.jsonl") as file:
                    results = [json.loads(line) for line in file]
            return done, results

    def test_tokens_are_those_of_transformers(self):
        pairs = expected()
        lines = [{"id": i, "prompt_token_ids": prompt,
                  "sampling": {"temperature": 0, "max_tokens": len(tokens), "ignore_eos": True}}
                 for i, (prompt, tokens) in enumerate(pairs)]
        lines.append({"id": "chat", "messages": [{"role": "user", "content": "Who are you?"}]})
        lines.append({"id": "text", "prompt": "Once upon a time", "sampling": {"max_tokens": 3},
                      "session": "a story"})
        done, results = self.run_lines(lines)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([result.get("token_ids") for result in results[:len(pairs)]],
                         [tokens for _, tokens in pairs])
        self.assertIn("messages need a chat template", results[-2]["error"])
        self.assertEqual(len(results[-1]["token_ids"]), 3)

    def test_results_go_to_standard_output(self):
        lines = [{"id": i, "prompt": "Once", "sampling": {"max_tokens": 2}} for i in range(3)]
        done = subprocess.run(
            [GENERATE, "--model", MODEL, "--dtype", "float32", "--num-threads", "2",
             "--input", "-", "--output", "-"],
            input="".join(json.dumps(line) + "\n" for line in lines),
            timeout=DEADLINE, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        results = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([result["id"] for result in results], [0, 1, 2])
        self.assertFalse(os.path.exists("-"))

    def test_another_model_is_refused_with_what_there_is(self):
        with tempfile.TemporaryDirectory() as folder:
            done, _ = self.run_lines([], llama(folder))
        self.assertEqual(done.returncode, 1)
        for part in ("'model_type' is \"llama\"", "qwen3 (Qwen3ForCausalLM)", "gpt2 ("):
            self.assertIn(part, done.stderr)


@needs_weights
class Serve(unittest.TestCase):
    def test_completions_are_those_of_transformers(self):
        process = subprocess.Popen(
            [SERVE, "--model", MODEL, "--dtype", "float32", "--num-threads", "2", "--port", "0"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            port = int(re.search(rb":(\d+)\n", process.stdout.readline())[1])

            def ask(path, body):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
                connection.request("POST", path, json.dumps(body))
                reply = connection.getresponse()
                body = json.loads(reply.read())
                connection.close()
                return reply.status, body

            for prompt, tokens in expected():
                status, reply = ask("/v1/completions", {
                    "prompt": prompt, "temperature": 0, "max_tokens": len(tokens),
                    "ignore_eos": True, "return_token_ids": True})
                self.assertEqual(status, 200, reply)
                self.assertEqual(reply["choices"][0]["token_ids"], tokens)
            status, reply = ask("/v1/chat/completions",
                                {"messages": [{"role": "user", "content": "Who are you?"}]})
            self.assertEqual(status, 400)
            self.assertIn("messages need a chat template", reply["error"]["message"])
        finally:
            process.terminate()
            process.communicate(timeout=DEADLINE)
        self.assertEqual(process.returncode, 0)

    def test_another_model_is_refused_with_what_there_is(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([SERVE, "--model", llama(folder), "--port", "0"],
                                  timeout=DEADLINE, capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("this program was built for qwen3 (Qwen3ForCausalLM), gpt2 (", done.stderr)


if __name__ == "__main__":
    GENERATE, SERVE = (os.path.abspath(argument) for argument in sys.argv[1:3])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
