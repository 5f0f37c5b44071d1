"""Writes tests/fixtures/ngrams.json: what vLLM's n-gram proposer drafts after random texts.

    pip download vllm==0.33.0 --no-deps
    python tests/oracle/make_ngram_fixtures.py vllm-0.33.0-*.whl [--out FILE]

Truth is _find_longest_matched_ngram_and_propose_tokens of vllm/v1/spec_decode/ngram_proposer.py,
taken out of the wheel and run: it needs numpy and numba alone, so the modules that the file imports
for its class are empty here.

Its rule: the longest suffix of prompt_lookup_min to prompt_lookup_max tokens that came before, at
its earliest place; the draft is what followed, at the most num_speculative_tokens, not beyond
max_model_len, nor beyond the end of the text.

ngrams.json
    versions, seed
    cases: [{
        min, max, count, max_model_len
        tokens      the text
        draft       ids; empty if there is none
    }]
"""

import argparse
import json
import platform
import random
import sys
import types
import zipfile
from pathlib import Path

import numba
import numpy

ROOT = Path(__file__).resolve().parents[2]
SEED = 4700
FILE = "vllm/v1/spec_decode/ngram_proposer.py"
FUNCTION = "_find_longest_matched_ngram_and_propose_tokens"
NUM_CASES = 480


def proposer_of(wheel):
    for name, member in (("torch", "Tensor"), ("vllm", "config"), ("vllm.config", "VllmConfig")):
        module = types.ModuleType(name)
        setattr(module, member, object)
        sys.modules[name] = module
    scope = {"__name__": "ngram_proposer"}
    exec(compile(zipfile.ZipFile(wheel).read(FILE), FILE, "exec"), scope)
    return scope[FUNCTION]


def random_text(rng, size):
    """Random tokens, some of them copied from earlier in the text, and mostly the last ones."""
    vocabulary = [rng.randrange(151936) for _ in range(rng.choice((2, 5, 30, 400)))]
    tokens = rng.choices(vocabulary, k=rng.randrange(1, 9))

    def copy():
        first = max(0, len(tokens) - 10) if rng.random() < 0.3 else 0
        begin = rng.randrange(first, len(tokens))
        return tokens[begin : begin + rng.randrange(1, 9)]

    while len(tokens) < size:
        tokens += copy() if rng.random() < 0.3 else rng.choices(vocabulary, k=rng.randrange(1, 9))
    tokens = tokens[:size]
    return tokens + copy() if rng.random() < 0.9 else tokens


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "tests/fixtures/ngrams.json")
    args = parser.parse_args()
    propose = proposer_of(args.wheel)
    rng = random.Random(SEED)
    cases = []
    for _ in range(NUM_CASES):
        low = rng.choice((1, 1, 2, 2, 3, 4))
        case = {
            "min": low,
            "max": low + rng.randrange(5),
            "count": rng.randrange(1, 9),
            "max_model_len": 4096,
            "tokens": random_text(rng, rng.choice((1, 3, 7, 20, 20, 45, 45, 70))),
        }
        if rng.random() < 0.15:
            case["max_model_len"] = len(case["tokens"]) + rng.randrange(5)
        draft = propose(
            numpy.array(case["tokens"], dtype=numpy.int32),
            case["min"],
            case["max"],
            case["max_model_len"],
            case["count"],
        )
        case["draft"] = draft.tolist()
        cases.append(case)
    fixture = {
        "versions": {
            "python": platform.python_version(),
            "numba": numba.__version__,
            "numpy": numpy.__version__,
            "vllm": args.wheel.name.split("-")[1],
        },
        "seed": SEED,
    }
    lines = ",\n  ".join(json.dumps(case, separators=(",", ":")) for case in cases)
    args.out.write_text(f'{json.dumps(fixture)[:-1]}, "cases": [\n  {lines}\n]}}\n')
    print(f"{len(cases)} cases, {sum(bool(case['draft']) for case in cases)} with drafts")


if __name__ == "__main__":
    main()
