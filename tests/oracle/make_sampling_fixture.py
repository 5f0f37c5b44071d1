"""Writes tests/fixtures/sampling.json: which tokens temperature, top-k, top-p and min-p leave.

    python tests/oracle/make_sampling_fixture.py [--out FILE]

Truth is the chain of logits processors that transformers' generate() builds, in its order:
temperature -> top_k -> top_p -> min_p. A processor whose setting is neutral (temperature 1, top_k
0 or -1, top_p 1, min_p 0) is left out, as generate() does.

sampling.json
    versions, seed
    cases: [{
        name
        logits                 multiples of 1/64: exact in float32, and in JSON
        temperature, top_k, top_p, min_p
        allowed                the ids left, ascending
        log_probs              theirs, renormalised (float64 log_softmax of the float32 scores)
        boundary_tie           true: the top-p cut runs between equal logits. Which of the equals
                               stay is the sort's choice; their number, the multiset of logits
                               left and the sorted log_probs are not. Compare those.
    }]

Ties at the k-th value of top-k all stay. No case lies within MARGIN of a top-p or min-p threshold,
so float32 rounding cannot move a token across.
"""

import argparse
import json
import platform
from pathlib import Path

import torch
import transformers
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper
from transformers import TopPLogitsWarper

ROOT = Path(__file__).resolve().parents[2]
SEED = 4200
MARGIN = 1e-5


def processors(temperature, top_k, top_p, min_p):
    if temperature != 1.0:
        yield TemperatureLogitsWarper(temperature)
    if top_k > 0:
        yield TopKLogitsWarper(top_k)
    if top_p < 1.0:
        yield TopPLogitsWarper(top_p)
    if min_p > 0.0:
        yield MinPLogitsWarper(min_p)


def check_margin(processor, scores):
    """A token's fate must not hang on rounding."""
    probs = torch.softmax(scores.double(), dim=-1)[0]
    if isinstance(processor, TopPLogitsWarper):
        cumulative = probs.sort().values.cumsum(0)
        distance = (cumulative - (1 - processor.top_p)).abs().min()
    elif isinstance(processor, MinPLogitsWarper):
        distance = (probs[probs > 0] / probs.max() - processor.min_p).abs().min()
    else:
        return
    assert distance > MARGIN, f"{type(processor).__name__}: {distance:.2e} from the threshold"


def cuts_tie(before, after):
    """True if equal scores were partly kept and partly removed."""
    kept = after > -torch.inf
    removed = ~kept & (before > -torch.inf)
    return bool(torch.isin(before[kept], before[removed]).any())


def make_case(name, logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    scores = torch.tensor([logits], dtype=torch.float32)
    boundary_tie = False
    for processor in processors(temperature, top_k, top_p, min_p):
        check_margin(processor, scores)
        before, scores = scores, processor(None, scores)
        boundary_tie |= cuts_tie(before, scores)
    allowed = (scores[0] > -torch.inf).nonzero().flatten()
    return {
        "name": name,
        "logits": logits,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "allowed": allowed.tolist(),
        "log_probs": [
            float(f"{x:.9g}") for x in torch.log_softmax(scores[0][allowed].double(), 0).tolist()
        ],
        "boundary_tie": boundary_tie,
    }


def make_cases():
    generator = torch.Generator().manual_seed(SEED)

    def spread(size, deviation):  # multiples of 1/64
        values = deviation * torch.randn(size, generator=generator)
        return ((values * 64).round() / 64).tolist()

    def coarse(size):  # many ties: multiples of 1/2
        return ((torch.randn(size, generator=generator) * 4).round() / 2).tolist()

    flat = [1.25] * 12
    peaked = [0.0] * 40
    peaked[17] = 30.0
    staircase = [-0.5 * i for i in range(16)]
    two_peaks = [-8.0, 5.0, -7.0, 5.0, -9.0, -6.5, -8.5, -7.5]
    negative = [x - 200.0 for x in spread(50, 2.0)]
    huge = [x * 64 for x in spread(24, 3.0)]

    yield make_case("nothing set keeps all", spread(8, 2.0))
    yield make_case("temperature below one", spread(20, 2.0), temperature=0.5)
    yield make_case("temperature above one", spread(20, 2.0), temperature=1.75)
    yield make_case("tiny temperature", spread(33, 2.0), temperature=0.015625)
    yield make_case("temperature on large logits", huge, temperature=12.5)

    yield make_case("top_k 1", spread(64, 2.0), top_k=1)
    yield make_case("top_k 5", spread(64, 2.0), top_k=5)
    yield make_case("top_k -1 keeps all", spread(9, 2.0), top_k=-1)
    yield make_case("top_k of the size", spread(31, 2.0), top_k=31)
    yield make_case("top_k of one less than the size", spread(31, 2.0), top_k=30)
    yield make_case("top_k beyond the size", spread(31, 2.0), top_k=1000)
    yield make_case("top_k 1 with a tied maximum keeps both", two_peaks, top_k=1)
    yield make_case("top_k with ties at the cut", coarse(48), top_k=7)
    yield make_case("top_k on flat logits keeps all", flat, top_k=3)

    yield make_case("top_p 0.9", spread(100, 2.0), top_p=0.9)
    yield make_case("top_p 0.5", spread(257, 2.0), top_p=0.5)
    yield make_case("top_p below the largest probability", peaked, top_p=0.3)
    yield make_case("tiny top_p keeps the maximum", spread(300, 1.0), top_p=0.001)
    yield make_case("top_p near one", spread(300, 1.5), top_p=0.9875)
    yield make_case("top_p on a staircase", staircase, top_p=0.8)
    yield make_case("top_p cuts flat logits", flat, top_p=0.55)
    yield make_case("top_p cuts a tie", coarse(48), top_p=0.75)
    yield make_case("top_p on very negative logits", negative, top_p=0.85)

    yield make_case("min_p 0.1", spread(100, 2.0), min_p=0.1)
    yield make_case("min_p 0.01", spread(129, 2.0), min_p=0.01)
    yield make_case("min_p near one keeps the tied maxima", two_peaks, min_p=0.9990234375)
    yield make_case("min_p with ties", coarse(65), min_p=0.05)
    yield make_case("min_p on flat logits keeps all", flat, min_p=0.5)

    yield make_case("temperature then top_p", spread(128, 2.5), temperature=0.6, top_p=0.95)
    yield make_case("temperature then min_p", spread(128, 2.5), temperature=1.5, min_p=0.08)
    yield make_case("top_k then top_p renormalised", spread(200, 1.0), top_k=20, top_p=0.8)
    yield make_case("top_k then min_p", spread(200, 1.0), top_k=40, min_p=0.3)
    yield make_case("all four", spread(300, 2.5), 0.7, 40, 0.95, 0.05)
    yield make_case("all four, hot", spread(300, 2.5), 2.0, 100, 0.9, 0.02)
    yield make_case("all four with ties", coarse(211), 0.8, 25, 0.92, 0.03)
    yield make_case("the settings that Qwen3 advises", spread(300, 1.5), 0.6, 20, 0.95, 0.0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "tests/fixtures/sampling.json")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    fixture = {
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "seed": SEED,
    }
    cases = ",\n  ".join(json.dumps(case) for case in make_cases())
    head = json.dumps(fixture)[:-1]
    out.write_text(f'{head},\n "cases": [\n  {cases}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
