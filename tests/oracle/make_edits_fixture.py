"""Writes tests/fixtures/edits.json: greedy generations of the fairytale model with edited logits.

    python tests/oracle/make_edits_fixture.py [--out FILE]

Truth is transformers' generate() in float32: repetition_penalty, sequence_bias (our logit_bias),
bad_words_ids and prefix_allowed_tokens_fn (our allowed_token_ids) are its own logits processors, in
its order. frequency_penalty and presence_penalty, which it does not have, are a processor written
here after the formula of OpenAI's API reference: logit - count * frequency - (count > 0) * presence,
of generated tokens, behind the repetition penalty. Beam searches are made with renormalize_logits:
scores are log-probabilities of the edited logits, as ours are.

edits.json
    versions
    cases: [{name, prompt (ids), settings..., tokens (generated ids)}]

A case in which the two largest scores of some step are nearer than MARGIN is an error: rounding
could turn it.
"""

import argparse
import json
import platform
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor, LogitsProcessorList

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "examples/models/fairytale"
NUM_TOKENS = 64
MARGIN = 1e-3


class CountPenalties(LogitsProcessor):
    def __init__(self, num_prompt, frequency, presence):
        self.num_prompt, self.frequency, self.presence = num_prompt, frequency, presence

    def __call__(self, input_ids, scores):
        counts = torch.zeros_like(scores)
        generated = input_ids[:, self.num_prompt :]
        counts.scatter_add_(1, generated, torch.ones_like(generated, dtype=scores.dtype))
        return scores - counts * self.frequency - (counts > 0) * self.presence


class Margin(LogitsProcessor):
    def __call__(self, input_ids, scores):
        best = scores.topk(2).values[0]
        assert best[0] - best[1] > MARGIN, f"two scores are {best[0] - best[1]:.2e} apart"
        return scores


def make_case(model, tokenizer, name, text, **settings):
    prompt = tokenizer(text, return_tensors="pt").input_ids
    own = LogitsProcessorList()
    options = {}
    if "repetition_penalty" in settings:
        options["repetition_penalty"] = settings["repetition_penalty"]
    if "logit_bias" in settings:
        options["sequence_bias"] = [[[token], bias] for token, bias in settings["logit_bias"]]
    if "bad_words" in settings:  # as the beginning of a text, and behind a space
        ids = [tokenizer(space + w).input_ids for w in settings["bad_words"] for space in ("", " ")]
        assert any(len(word) > 1 for word in ids), "no word has several tokens"
        options["bad_words_ids"] = ids
    if "allowed_token_ids" in settings:
        allowed = settings["allowed_token_ids"]
        options["prefix_allowed_tokens_fn"] = lambda batch, ids: allowed
    if "frequency_penalty" in settings or "presence_penalty" in settings:
        own.append(
            CountPenalties(
                prompt.shape[1],
                settings.get("frequency_penalty", 0.0),
                settings.get("presence_penalty", 0.0),
            )
        )
    num_beams = settings.get("num_beams", 1)
    if num_beams == 1:
        own.append(Margin())
    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        temperature=None,
        top_k=None,
        top_p=None,
        min_new_tokens=NUM_TOKENS,
        max_new_tokens=NUM_TOKENS,
        logits_processor=own,
        pad_token_id=0,
        num_beams=num_beams,
        renormalize_logits=num_beams > 1,
        **options,
    )
    tokens = out[0, prompt.shape[1] :].tolist()
    return {"name": name, "prompt": prompt[0].tolist(), **settings, "tokens": tokens}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=ROOT / "tests/fixtures/edits.json")
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    model.generation_config = transformers.GenerationConfig(
        eos_token_id=model.generation_config.eos_token_id
    )
    tokenizer = AutoTokenizer.from_pretrained(MODEL)

    def case(name, text, **settings):
        return make_case(model, tokenizer, name, text, **settings)

    text = "The king said to the queen that"
    plain = case("plain", text)
    first = plain["tokens"]
    repetition = case("repetition", text, repetition_penalty=1.3)
    cases = [
        plain,
        repetition,
        case("repetition below 1", text, repetition_penalty=0.7),
        case("frequency", text, frequency_penalty=1.2),
        case("presence", text, presence_penalty=1.0),
        case("negative presence", text, presence_penalty=-2.0),
        case(
            "all penalties",
            "The wolf said to the fox that he was hungry.",
            repetition_penalty=1.1,
            frequency_penalty=0.3,
            presence_penalty=0.4,
        ),
        case("bias", text, logit_bias=[[first[0], -5.0], [first[3], -100.0], [first[5], 2.5]]),
        case(
            "bias and penalties",
            text,
            logit_bias=[[first[1], 3.0], [repetition["tokens"][4], -12.0]],
            repetition_penalty=1.2,
            frequency_penalty=0.25,
        ),
        case("bad words", text, bad_words=[tokenizer.decode(first[i : i + 3]) for i in (2, 11)]),
        case("beams, bias", text, num_beams=3, logit_bias=[[first[0], -5.0], [first[5], 2.5]]),
        case("beams, penalties", text, num_beams=4, frequency_penalty=0.7, presence_penalty=0.4),
        case(
            "beams, bad words",
            text,
            num_beams=3,
            presence_penalty=0.5,
            bad_words=[tokenizer.decode(first[i : i + 3]) for i in (2, 11)],
        ),
        case("allowed", text, allowed_token_ids=sorted(set(first) - {first[0]}), repetition_penalty=1.5),
    ]
    for i, entry in enumerate(cases):
        for other in cases[:i]:
            assert entry["tokens"] != other["tokens"], f"{entry['name']} is {other['name']}"
    versions = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    lines = ",\n  ".join(json.dumps(entry) for entry in cases)
    args.out.write_text(f'{{"versions": {json.dumps(versions)}, "cases": [\n  {lines}\n]}}\n')


if __name__ == "__main__":
    main()
