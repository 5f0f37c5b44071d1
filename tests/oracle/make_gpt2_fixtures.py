"""Writes tests/fixtures/parity/gpt2_*: what Hugging Face makes of small GPT-2 models.

    python tests/oracle/make_gpt2_fixtures.py            # from the repository root
    python tests/oracle/make_gpt2_fixtures.py --out DIR  # elsewhere, to compare with diff -r

Versions and how to install them: tests/oracle/README.md. Layout and meaning of <name>.json and
<name>.safetensors: make_parity_fixtures.py. <name> is one of CHECKPOINTS below, or `tiny_gpt2`, whose
checkpoint is examples/models/tiny_gpt2.

The weights of the others are not stored: they are a formula (`formula_weights`), which
tests/engine/gpt2_checkpoint.hpp computes as well, bit by bit. <name>.json has the "config" and, under
"seeds", the seed of the formula.
"""

import argparse
import os
import tempfile
from pathlib import Path

import numpy
import torch
import transformers
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

import make_parity_fixtures as parity

# Odd shapes on purpose: odd numbers of heads, head_dim 64, 96 and 8, prime vocabularies.
CHECKPOINTS = {
    "gpt2_heads3_dim64": {
        "seed": 5101,
        "config": dict(n_embd=192, n_head=3, n_layer=3, n_inner=None, n_positions=128,
                       vocab_size=131, layer_norm_epsilon=1e-5),
    },
    "gpt2_heads5_dim96": {
        "seed": 5102,
        "config": dict(n_embd=480, n_head=5, n_layer=2, n_inner=712, n_positions=114,
                       vocab_size=97, layer_norm_epsilon=1e-6, tie_word_embeddings=False),
    },
    "gpt2_heads25_dim8": {
        "seed": 5103,
        "config": dict(n_embd=200, n_head=25, n_layer=2, n_inner=None, n_positions=120,
                       vocab_size=89, layer_norm_epsilon=1e-5),
    },
}

# What GPT-2's pattern for words divides in its own way: contractions, spaces, digits, other scripts.
TEXTS = (
    "Once upon a time there was a fox.", "I'll say what they've done, we'd said; he's 'tis it'S",
    "  two spaces,\ttabs\n\nand lines \n", "1234 56,789.0 3rd", "Zwölf Boxkämpfer jagen Viktor",
    "\u4f60\u597d\uff0c\u4e16\u754c! \u041f\u0440\u0438\u0432\u0435\u0442", "\U0001f98a\u200d fox\u00a0\u2003x",
    "<|endoftext|>The end.<|endoftext|>", "__init__(self):  # ---", "e\u0301 \u00e9",
)


def fnv1a(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def formula_weight(name, shape, seed):
    """Noise that is the same in every language: integers alone until the last float32 operations.
    `name` is the tensor's without "transformer."."""
    size = int(numpy.prod(shape))
    with numpy.errstate(over="ignore"):
        x = numpy.arange(1, size + 1, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
        x ^= numpy.uint64(fnv1a(name) ^ seed)
        x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    noise = (x >> numpy.uint64(40)).astype(numpy.float32) * numpy.float32(2.0**-24) - numpy.float32(0.5)
    if name.endswith(".bias"):
        noise *= numpy.float32(0.5)
    elif ".ln_" in "." + name:
        noise += numpy.float32(1)
    else:
        embedding = name.startswith(("wte", "wpe", "lm_head"))
        width = shape[1] if embedding else shape[0]
        factor = 3.0 if embedding else 5.0 if "c_attn" in name else 4.0
        noise *= numpy.float32(factor / numpy.sqrt(numpy.float64(width)))
    return torch.from_numpy(noise.reshape(shape))


def make_checkpoint(directory, spec):
    model = GPT2LMHeadModel(GPT2Config(**spec["config"], bos_token_id=0, eos_token_id=0))
    for name, weight in model.named_parameters():
        weight.data.copy_(
            formula_weight(name.removeprefix("transformer."), tuple(weight.shape), spec["seed"]))
    model.save_pretrained(directory)


def load(directory, dtype, attention):
    model = GPT2LMHeadModel.from_pretrained(directory, dtype=dtype, attn_implementation=attention)
    assert model.dtype == dtype
    return model.eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=parity.ROOT / "tests/fixtures/parity")
    parser.add_argument("--tiny", type=Path, default=parity.ROOT / "examples/models/tiny_gpt2")
    parser.add_argument("names", nargs="*", help="all where none is named")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    os.umask(0o022)

    for name, spec in CHECKPOINTS.items():
        if arguments.names and name not in arguments.names:
            continue
        with tempfile.TemporaryDirectory() as directory:
            make_checkpoint(directory, spec)
            prompts = parity.random_prompts(spec["seed"], spec["config"]["vocab_size"])
            everywhere = [list(range(len(prompt))) for prompt in prompts]
            seeds = {"weights": spec["seed"], "prompts": spec["seed"] + 1000}
            config = {"model_type": "gpt2", "activation_function": "gelu_new", **spec["config"]}
            parity.write_expected(arguments.out, name, directory, prompts, everywhere, seeds,
                                  load=load, more={"config": config})

    if not arguments.names or "tiny_gpt2" in arguments.names:
        prompts = parity.text_prompts(arguments.tiny)
        some = [sorted({0, len(prompt) // 2, len(prompt) - 1}) for prompt in prompts]
        tokenizer = AutoTokenizer.from_pretrained(arguments.tiny)
        texts = [[text, tokenizer.encode(text, add_special_tokens=False)] for text in TEXTS]
        parity.write_expected(arguments.out, "tiny_gpt2", arguments.tiny, prompts, some, {},
                              load=load, more={"texts": texts})


if __name__ == "__main__":
    main()
