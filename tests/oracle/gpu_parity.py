#!/usr/bin/env python3
"""Compares `generate_cuda` with Hugging Face transformers on the same GPU and the same weights.

    python3 tests/oracle/gpu_parity.py GENERATE_CUDA --shape 0.6b|8b|tiny | --model DIR
        [--dtype bfloat16|float32] [--tp N] [--json FILE]

With --shape, a checkpoint with random weights of that shape is written to a temporary folder
first. Both programs decode 64 tokens greedily; transformers is then fed generate_cuda's tokens,
so that one mismatch does not hide the rest. Compared are, at the first token (prefill) and at the
63 others (decode), the log-probabilities of generate_cuda's 20 most likely tokens, and whether the
most likely token is the same; where it is not, transformers' own gap between the two is the size of
the tie. With --yardstick, transformers' attention implementations sdpa and eager are compared with
each other in the same way, and both programs with transformers in float32: how far bfloat16 is from
the truth on these weights, whoever computes. Prints one line of JSON. Needs torch and transformers
(5.17 was used).
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

SHAPES = {  # hidden, layers, heads, kv heads, intermediate, tied
    "0.6b": (1024, 28, 16, 8, 3072, True),
    "8b": (4096, 36, 32, 8, 12288, False),
    "tiny": (256, 3, 8, 4, 512, True),
}
LENGTHS = [1, 5, 17, 64, 65, 128, 300, 777, 1024, 2000]
NUM_TOKENS = 64
NUM_TOP = 20


def make_checkpoint(shape, folder):
    hidden, layers, heads, kv_heads, intermediate, tied = SHAPES[shape]
    config = Qwen3Config(
        vocab_size=151936, hidden_size=hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=128,
        intermediate_size=intermediate, tie_word_embeddings=tied, max_position_embeddings=40960,
        rms_norm_eps=1e-6, rope_theta=1e6, initializer_range=0.02, bos_token_id=None,
        eos_token_id=None, pad_token_id=None)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Qwen3ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder, max_shard_size="5GB")
    del model
    torch.cuda.empty_cache()


def run_ours(options, folder, vocab):
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(0, vocab, (n,), generator=generator).tolist() for n in LENGTHS]
    with tempfile.TemporaryDirectory() as work:
        requests, results = os.path.join(work, "in.jsonl"), os.path.join(work, "out.jsonl")
        with open(requests, "w") as file:
            for i, prompt in enumerate(prompts):
                sampling = {"temperature": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True,
                            "logprobs": NUM_TOP}
                file.write(json.dumps({"id": str(i), "prompt_token_ids": prompt,
                                       "sampling": sampling}) + "\n")
        begin = time.time()
        subprocess.run([options.program, "--model", folder, "--input", requests, "--output",
                        results, "--device", "cuda", "--dtype", options.dtype, "--tp",
                        str(options.tp), "--max-model-len", "4096"], check=True,
                       stderr=subprocess.DEVNULL)
        seconds = time.time() - begin
        with open(results) as file:
            return prompts, [json.loads(line) for line in file], seconds


class Difference:
    def __init__(self):
        self.sum, self.count, self.largest = 0.0, 0, 0.0

    def add(self, a, b):
        d = (a - b).abs()
        self.sum += d.sum().item()
        self.count += d.numel()
        self.largest = max(self.largest, d.max().item())

    def json(self):
        return {"mean_abs": self.sum / max(1, self.count), "max_abs": self.largest,
                "count": self.count}


def compare(options, folder):
    with open(os.path.join(folder, "config.json")) as file:
        vocab = json.load(file)["vocab_size"]
    prompts, outputs, seconds = run_ours(options, folder, vocab)
    torch.backends.cuda.matmul.allow_tf32 = False
    for output in outputs:
        if "error" in output:
            sys.exit(f"generate_cuda: {output['error']}")
        assert len(output["token_ids"]) == NUM_TOKENS

    def theirs(dtype, attention):
        """Log-probabilities at all drawn tokens, one [NUM_TOKENS, vocab] a prompt, on the host."""
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation=attention).cuda().eval()
        out = []
        for prompt, output in zip(prompts, outputs):
            with torch.no_grad():
                ids = torch.tensor([prompt + output["token_ids"][:-1]], device="cuda")
                logits = model(ids).logits[0, len(prompt) - 1:].float()
            out.append(torch.log_softmax(logits, -1).cpu())
        del model
        torch.cuda.empty_cache()
        return out

    def ours_against(reference):
        prefill, decode = Difference(), Difference()
        mismatches, widest = 0, 0.0
        for output, expected in zip(outputs, reference):
            for i, entry in enumerate(output["logprobs"]):
                index = torch.tensor([token for token, _ in entry["top"]])
                (prefill if i == 0 else decode).add(
                    torch.tensor([logprob for _, logprob in entry["top"]]), expected[i, index])
                token = output["token_ids"][i]
                if expected[i].argmax().item() != token:
                    mismatches += 1
                    widest = max(widest, (expected[i].max() - expected[i, token]).item())
        return {"prefill": prefill.json(), "decode": decode.json(),
                "greedy_steps": NUM_TOKENS * len(outputs), "greedy_mismatches": mismatches,
                "widest_mismatch_gap": widest}

    def difference(one, other):
        """At the same tokens as `ours_against`."""
        out = Difference()
        for output, a, b in zip(outputs, one, other):
            for i, entry in enumerate(output["logprobs"]):
                index = torch.tensor([token for token, _ in entry["top"]])
                out.add(a[i, index], b[i, index])
        return out.json()

    dtype = getattr(torch, options.dtype)
    sdpa = theirs(dtype, "sdpa")
    result = {**ours_against(sdpa), "generate_seconds": seconds}
    if options.yardstick:
        truth = theirs(torch.float32, "sdpa")
        result["transformers_sdpa_eager"] = difference(sdpa, theirs(dtype, "eager"))
        result["transformers_to_float32"] = difference(sdpa, truth)
        against = ours_against(truth)
        result["ours_to_float32"] = {"prefill": against["prefill"], "decode": against["decode"]}
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--model")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--keep", help="write the random checkpoint here, or take it from here")
    parser.add_argument("--yardstick", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = options.model or options.keep or folder
        if options.shape and not os.path.exists(os.path.join(folder, "config.json")):
            make_checkpoint(options.shape, folder)
        result = {"shape": options.shape or os.path.basename(options.model),
                  "dtype": options.dtype, "tp": options.tp,
                  "gpu": torch.cuda.get_device_name(), **compare(options, folder)}
    print(json.dumps(result))
    if options.json:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=2)


main()
