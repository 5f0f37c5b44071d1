"""Writes tests/fixtures/prompt_lookup.json: greedy texts that transformers drafts by n-grams.

    python tests/oracle/make_prompt_lookup_fixture.py [--out FILE]

Truth is generate(prompt_lookup_num_tokens=...) of the fairytale model in float32, sdpa attention, on
the CPU, after prompts with words that come again. The same without drafts must give the same tokens.

prompt_lookup.json
    versions
    cases: [{
        prompt         ids
        num_tokens     prompt_lookup_num_tokens: tokens drafted at the most
        max_ngram      max_matching_ngram_size: tokens of the longest suffix that is looked up
        tokens         NUM_TOKENS generated ids; no token ends the text
        num_forwards   how often the model ran, as often as NUM_TOKENS without drafts
    }]

A case in which the two largest scores of some step are nearer than MARGIN is an error: rounding
could turn it.
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
NUM_TOKENS = 160
MARGIN = 2e-4  # ten times what two orders of summation differ by
REFRAIN = "Mirror, mirror on the wall, who in this land is fairest of all?"
PROMPTS = (
    "The fox said to the wolf: come with me. The wolf said to the fox: come with me. The fox",
    f'"{REFRAIN}" The mirror answered. The next day she asked again: "{REFRAIN}" And again: "',
    "The cat ate the mouse. The dog chased the cat. The man called the dog. The cat ate the mouse. "
    "The dog chased",
    "Rapunzel, Rapunzel, let down your hair to me. " * 3,
    "one two three four five six one two three four five six one two",
    "Once upon a time there was a king who had a daughter, and the king",
    "There was once a poor woodcutter who lived with his wife and his two children near a large "
    "forest. The boy was called Hansel and the girl was called Gretel. The woodcutter had little "
    "to eat, and his wife said to the woodcutter: the boy and the girl",
    "and and and and and and",
)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=ROOT / "tests/fixtures/prompt_lookup.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    model.generation_config = transformers.GenerationConfig(pad_token_id=0)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    num_forwards = 0

    def count(*_):
        nonlocal num_forwards
        num_forwards += 1

    model.register_forward_hook(count)
    cases = []
    for text in PROMPTS:
        prompt = tokenizer(text, return_tensors="pt").input_ids
        options = dict(
            attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=NUM_TOKENS
        )
        plain = model.generate(
            prompt, return_dict_in_generate=True, output_scores=True, **options
        )
        best = torch.stack(plain.scores)[:, 0].topk(2).values
        gap = (best[:, 0] - best[:, 1]).min().item()
        assert gap > MARGIN, f"two scores are {gap:.2e} apart: {text}"
        for num_tokens, max_ngram in ((10, 2), (3, 3)):
            num_forwards = 0
            out = model.generate(
                prompt,
                prompt_lookup_num_tokens=num_tokens,
                max_matching_ngram_size=max_ngram,
                **options,
            )
            assert torch.equal(out, plain.sequences), text
            case = {
                "prompt": prompt[0].tolist(),
                "num_tokens": num_tokens,
                "max_ngram": max_ngram,
                "tokens": out[0, prompt.shape[1] :].tolist(),
                "num_forwards": num_forwards,
            }
            assert len(case["tokens"]) == NUM_TOKENS
            cases.append(case)
    versions = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    lines = ",\n  ".join(json.dumps(case, separators=(",", ":")) for case in cases)
    args.out.write_text(f'{{"versions": {json.dumps(versions)}, "cases": [\n  {lines}\n]}}\n')
    print([case["num_forwards"] for case in cases])


if __name__ == "__main__":
    main()
