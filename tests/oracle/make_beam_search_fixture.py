"""Writes tests/fixtures/beam_search.json: what transformers' beam search finds.

    python tests/oracle/make_beam_search_fixture.py [--out FILE]

Truth is generate(num_beams=W, do_sample=False) in float32, sdpa attention, on the CPU. Models and
prompts are those of make_parity_fixtures.py, which must have run before.

Cases with edits are made with renormalize_logits=True: candidates and scores are log-probabilities
of the edited logits. All of them have min_tokens, which is then one of the edits. logit_bias is
transformers' sequence_bias; the two penalties are the processor of make_edits_fixture.py.

beam_search.json
    versions, seed
    num_left_out           cases in which float64 arithmetic finds other tokens: nearly tied
    cases: [{
        model, prompt      name of the checkpoint; index in tests/fixtures/parity/<model>.json
        beam_width, max_tokens, min_tokens, length_penalty
        early_stopping     false, true or "never"
        end_tokens         ids that end a beam: null for those of the checkpoint
        logit_bias, frequency_penalty, presence_penalty    of cases with edits
        sequences          generated ids of all beam_width results, best first, end tokens included
        scores             their sequences_scores; null for beam_width 1, which is greedy decoding
    }]

End tokens are taken from what the same search finds without any, so that beams do end: early, late
and several at a time.
"""

import argparse
import json
import platform
import random
from pathlib import Path

import torch
import transformers
from make_edits_fixture import CountPenalties
from transformers import LogitsProcessorList, Qwen3ForCausalLM

ROOT = Path(__file__).resolve().parents[2]
PARITY = ROOT / "tests/fixtures/parity"
MODELS = {
    "fairytale": ROOT / "examples/models/fairytale",
    "group4_untied_sharded": PARITY / "group4_untied_sharded",
    "group8_untied_yarn_4x": PARITY / "group8_untied_yarn_4x",
}
SEED = 4300
WIDTHS = (1, 2, 3, 4, 8)
LENGTH_PENALTIES = (0.0, 0.5, 1.0, 2.0, -1.0)
EARLY_STOPPING = (False, True, "never")
CASES_PER_MODEL = 60
EDITED_PER_MODEL = 16
TOLERANCE = 1e-4


def search(model, prompt, case, ends):
    """Generated ids and scores of all results, best first."""
    width = case["beam_width"]
    options = dict(
        max_new_tokens=case["max_tokens"],
        do_sample=False,
        num_beams=width,
        num_return_sequences=width,
        eos_token_id=ends or None,
        pad_token_id=0,
        temperature=None,
        top_k=None,
        top_p=None,
        return_dict_in_generate=True,
        output_scores=True,
    )
    if case["min_tokens"] > 0:
        options["min_new_tokens"] = case["min_tokens"]
    if "logit_bias" in case:
        options["renormalize_logits"] = True
        options["logits_processor"] = LogitsProcessorList(
            [CountPenalties(len(prompt), case["frequency_penalty"], case["presence_penalty"])])
        if case["logit_bias"]:
            options["sequence_bias"] = [[[token], bias] for token, bias in case["logit_bias"]]
    if width > 1:
        options["length_penalty"] = case["length_penalty"]
        options["early_stopping"] = case["early_stopping"]
    ids = torch.tensor([prompt])
    model.generation_config.eos_token_id = None
    out = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    generated = out.sequences[:, len(prompt):].tolist()
    if width == 1:
        return generated, None
    lengths = (out.beam_indices >= 0).sum(dim=1).tolist()
    return [g[:n] for g, n in zip(generated, lengths)], out.sequences_scores.tolist()


def pick_ends(rng, sequences, kind):
    """Ids that beams come upon."""
    flat = [s[rng.randrange(len(s) // 4, len(s))] for s in sequences]
    return sorted(set(rng.choice(flat) for _ in range(kind)))


def make_edited(rng, model, prompts, name, i):
    """A case with min_tokens, end tokens before and behind it, a bias, penalties or both."""
    case = {
        "model": name,
        "prompt": rng.randrange(len(prompts)),
        "beam_width": rng.choice(WIDTHS[1:]),
        "max_tokens": rng.choice((7, 16, 24)),
        "min_tokens": 0,
        "length_penalty": rng.choice(LENGTH_PENALTIES),
        "early_stopping": rng.choice(EARLY_STOPPING),
        "end_tokens": [],
        "logit_bias": [],
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
    }
    prompt = prompts[case["prompt"]]
    flat = [token for s in search(model, prompt, case, [])[0] for token in s]
    if i % 4 != 0:
        case["logit_bias"] = [[t, rng.choice((-6.0, -2.0, 1.5))] for t in sorted(set(
            rng.choice(flat) for _ in range(3)))]
    if i % 2 == 0:
        case["frequency_penalty"] = rng.choice((0.3, 0.7))
        case["presence_penalty"] = rng.choice((0.0, 0.5))
    free, _ = search(model, prompt, case, [])
    half = len(free[0]) // 2
    early = rng.choice(free[0][:half])
    case["end_tokens"] = sorted({early, *(rng.choice(s[half:]) for s in free[:2])})
    case["min_tokens"] = rng.randrange(2, case["max_tokens"])
    return case


def add(cases, case, single, double, prompt, ends):
    """Adds the case with what its search finds. Returns whether float64 finds the same."""
    sequences, scores = search(single, prompt, case, ends)
    others, other_scores = search(double, prompt, case, ends)
    close = scores is None or all(
        abs(a - b) < TOLERANCE * max(1, abs(a)) for a, b in zip(scores, other_scores))
    if sequences != others or not close:
        return False
    case["sequences"], case["scores"] = sequences, scores
    cases.append(case)
    return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=ROOT / "tests/fixtures/beam_search.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rng, edit_rng = random.Random(SEED), random.Random(SEED + 1)
    cases, num_left_out = [], 0
    for name, path in MODELS.items():
        single = Qwen3ForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        double = Qwen3ForCausalLM.from_pretrained(path, dtype=torch.float64).eval()
        own_ends = single.generation_config.eos_token_id
        prompts = json.loads((PARITY / f"{name}.json").read_text())["prompts"]
        for i in range(CASES_PER_MODEL):
            case = {
                "model": name,
                "prompt": rng.randrange(len(prompts)),
                "beam_width": rng.choice(WIDTHS),
                "max_tokens": rng.choice((1, 2, 7, 16, 24)),
                "min_tokens": 0,
                "length_penalty": rng.choice(LENGTH_PENALTIES),
                "early_stopping": rng.choice(EARLY_STOPPING),
            }
            prompt = prompts[case["prompt"]]
            kind = i % 5
            case["end_tokens"] = []
            if kind == 4 and name == "fairytale":
                case["end_tokens"] = None
            elif kind > 0:
                free, _ = search(single, prompt, case, [])
                case["end_tokens"] = pick_ends(rng, free, min(kind, 3))
                if rng.random() < 0.3:
                    case["min_tokens"] = rng.randrange(1, case["max_tokens"] + 1)
            ends = own_ends if case["end_tokens"] is None else case["end_tokens"]
            num_left_out += not add(cases, case, single, double, prompt, ends)
        for i in range(EDITED_PER_MODEL):
            case = make_edited(edit_rng, single, prompts, name, i)
            prompt = prompts[case["prompt"]]
            num_left_out += not add(cases, case, single, double, prompt, case["end_tokens"])
    fixture = {
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "seed": SEED,
        "num_left_out": num_left_out,
    }
    lines = ",\n  ".join(json.dumps(case, separators=(",", ":")) for case in cases)
    head = json.dumps(fixture)[:-1]
    args.out.write_text(f'{head}, "cases": [\n  {lines}\n]}}\n')
    inside = sum(any(len(s) < c["max_tokens"] for s in c["sequences"]) for c in cases)
    print(f"{len(cases)} cases, {inside} with ends inside, {num_left_out} left out")


if __name__ == "__main__":
    main()
