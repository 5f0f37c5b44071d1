"""Makes examples/models/fairytale_draft: a Qwen3 of 0.9 million parameters that drafts for
fairytale.

    python examples/models/train_fairytale_draft.py --out examples/models/fairytale_draft

It has the same tokenizer and two layers of width 128, and learns fairytale's probabilities on
stories that fairytale writes here, and on half as many tales of tales.py, which fairytale was
trained on. Its embedding begins as the 128 directions in which fairytale's differs most.
Seven minutes of one CPU core for the stories, which --stories FILE keeps, and eight for the rest.
Of the openings that are held out it drafts right, place by place of four, greedy 96%, 91%, 86%, 83%
(4.51 tokens a step), and at temperature 0.7 96%, 93%, 91%, 90% (4.68). torch 2.15, transformers
5.17.
"""

import argparse
import random
import shutil
import time

import torch
import transformers
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

import tales
from drafting import SEED, Stories, add_arguments, draw, measure, stories_for, train, trained_on

WIDTH = 128


def make_draft(target):
    given = {key: value for key, value in target.config.to_dict().items()
             if key not in ("architectures", "model_type", "transformers_version", "layer_types")}
    draft = Qwen3ForCausalLM(Qwen3Config(**given | dict(
        hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=64, intermediate_size=384, dtype="float32"))).float()
    table = target.model.embed_tokens.weight
    directions = torch.linalg.svd(table, full_matrices=False).Vh[:WIDTH]
    draft.model.embed_tokens.weight.data.copy_(table @ directions.T)
    return draft


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser, epochs=5)
    arguments = parser.parse_args()
    begin, out = time.monotonic(), arguments.out
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(SEED)
    transformers.logging.set_verbosity_error()
    tokenizer = AutoTokenizer.from_pretrained(arguments.fairytale)
    target = AutoModelForCausalLM.from_pretrained(arguments.fairytale, dtype=torch.float32).eval()
    target.requires_grad_(False)
    written = trained_on(stories_for(arguments, target, tokenizer), tokenizer)
    rng = random.Random(SEED)
    written += trained_on(
        [tokenizer.encode(tales.tale(rng) + tokenizer.eos_token) for _ in written[::2]], tokenizer)
    print(f"{sum(map(len, written))} tokens after {time.monotonic() - begin:.0f} s", flush=True)
    stories = Stories(target, written, [target.config.num_hidden_layers])
    print(f"the target's streams after {time.monotonic() - begin:.0f} s", flush=True)
    draft = make_draft(target)

    def loss_of(tokens, streams, lengths):
        mask = torch.arange(tokens.shape[1]) < lengths[:, None] - 1
        with torch.no_grad():
            wanted = target.lm_head(target.model.norm(streams[mask])).softmax(-1)
        hidden = draft.model(tokens, use_cache=False).last_hidden_state
        return functional.cross_entropy(draft.lm_head(hidden[mask]), wanted)

    train(draft.parameters(), stories, arguments.epochs, 3e-3, loss_of)
    draft = draft.to(torch.bfloat16).eval()
    draft.config.dtype = torch.bfloat16
    draft.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(arguments.fairytale / name, out / name)
    print(f"{sum(p.numel() for p in draft.parameters())} parameters after"
          f" {time.monotonic() - begin:.0f} s", flush=True)

    draft = draft.float()

    def drafts_of(tokens, n, k, noise):
        given = tokens[:n]
        for _ in range(k):
            logits = draft(torch.tensor([given])).logits[0, -1]
            given = given + [draw(logits, noise[len(given)])]
            yield given[-1]

    measure(target, tokenizer, drafts_of)


if __name__ == "__main__":
    main()
