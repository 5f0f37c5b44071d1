"""Writes tests/fixtures/prompt_logprobs.json: how likely the fairytale model finds given prompts.

    python tests/oracle/make_prompt_logprobs_fixture.py [--out FILE]

Truth is transformers' forward pass in float32 over the whole prompt, and log_softmax of its logits
in float64.

prompt_logprobs.json
    versions
    cases: [{prompt (ids), logprobs, top: [[[id, logprob] x NUM_TOP]]}]

`logprobs` and `top` have an entry for every token of the prompt but the first: the log-probability
of that token behind those before it, and what was likeliest there, best first.
"""

import argparse
import json
import platform
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "examples/models/fairytale"
NUM_TOP = 8

STORY = (
    "Once upon a time there was a king who had a daughter, and she was so beautiful that the sun "
    "itself, which has seen so much, was astonished whenever it shone in her face. Close by the "
    "castle lay a great dark forest, and under an old tree in the forest was a well. When the day "
    "was very warm, she went out into the forest and sat down by the side of the cool water."
)


def make_case(model, prompt):
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0]
    scores = torch.log_softmax(logits.double(), dim=-1)[:-1]
    own = scores.gather(1, torch.tensor(prompt[1:], dtype=torch.long)[:, None])[:, 0]
    best = scores.topk(NUM_TOP)
    top = [
        [[token, round(score, 6)] for token, score in zip(tokens, values)]
        for tokens, values in zip(best.indices.tolist(), best.values.tolist())
    ]
    return {"prompt": prompt, "logprobs": [round(x, 6) for x in own.tolist()], "top": top}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=ROOT / "tests/fixtures/prompt_logprobs.json")
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    story = tokenizer(STORY).input_ids
    words = torch.randint(
        model.config.vocab_size, (45,), generator=torch.Generator().manual_seed(11)
    ).tolist()
    wolf = tokenizer("The wolf said to the fox that he was hungry.").input_ids
    prompts = [story, wolf, words, story[:17], story[16:33], wolf[:2], wolf[:1]]
    cases = [make_case(model, prompt) for prompt in prompts]
    versions = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    lines = ",\n  ".join(json.dumps(entry) for entry in cases)
    args.out.write_text(f'{{"versions": {json.dumps(versions)}, "cases": [\n  {lines}\n]}}\n')


if __name__ == "__main__":
    main()
