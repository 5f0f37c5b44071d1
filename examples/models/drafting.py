"""What the scripts that train drafters of fairytale share: text that the model writes, and what
share of drafted tokens it accepts. torch, transformers."""

import json
import math
import random
from pathlib import Path

import torch

import tales

FAIRYTALE = Path(__file__).parent / "fairytale"
END = 4093  # <|im_end|>
PROMPT_TOKENS = (4, 8, 12, 16)  # of tales.py's tales, in turns
NEW_TOKENS = 160
NUM_MEASURED = 96  # tokens of each tale that acceptance is measured on
SEED = 1812
# What acceptance is measured on. No story that begins with one of these is trained on.
HELD_OUT = (
    "Once upon a time there was a king who had",
    "There was once a poor widow who",
    "In a town lived a clockmaker",
    "Once there was a cat named Tom",
    "Long ago there lived a young dragon",
    "The old wolf was hungry, and",
    "A little girl came to a river",
    "In the middle of the wood stood a mill",
    "Far away, by the sea, a lonely giant",
    "Two sisters went out to gather wood",
    "The merchant had lost",
    "A brave hedgehog set out into the world",
    "Once there were a fox and a raven",
    "The queen looked into the mirror",
    "It was winter, and the shepherd boy",
    "A robber and his dog",
)


def add_arguments(parser, epochs):
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--fairytale", type=Path, default=FAIRYTALE)
    parser.add_argument("--stories", type=Path, metavar="FILE",
                        help="JSON lines: read if there, else sampled and written")
    parser.add_argument("--batches", type=int, default=10, help="of 256 stories to sample")
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--threads", type=int, default=1)


def trained_on(stories, tokenizer):
    """Those that do not begin with what is held out."""
    held_out = [tokenizer.encode(text) for text in HELD_OUT]
    return [s for s in stories if not any(s[: len(begin)] == begin for begin in held_out)]


@torch.no_grad()
def stories_for(arguments, model, tokenizer):
    """Lists of tokens: stories that `model` continues from the first tokens of tales by rules."""
    file = arguments.stories
    if file and file.is_file():
        return [json.loads(line) for line in file.read_text().splitlines()]
    torch.manual_seed(SEED)
    rng, stories = random.Random(SEED), []
    for i in range(arguments.batches):
        length = PROMPT_TOKENS[i % len(PROMPT_TOKENS)]
        prompts = torch.tensor([tokenizer.encode(tales.tale(rng))[:length] for _ in range(256)])
        rows = model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=True,
                              temperature=0.85, top_k=80, top_p=1.0, min_p=0.0,
                              max_new_tokens=NEW_TOKENS)
        for row in rows.tolist():
            row = row[: row.index(END) + 1] if END in row else row
            stories.append(row)
        print(f"{len(stories)} stories", flush=True)
    if file:
        file.write_text("".join(json.dumps(story) + "\n" for story in stories))
    return stories


@torch.no_grad()
def streams_of(model, tokens, layers):
    """[rows, tokens, len(layers) * hidden]: the residual streams that enter these layers; the
    number of layers stands for what the final norm reads."""
    seen, modules = {}, [*model.model.layers, model.model.norm]
    hooks = [modules[i].register_forward_pre_hook(
        lambda _, inputs, i=i: seen.__setitem__(i, inputs[0])) for i in set(layers)]
    model.model(tokens, use_cache=False)
    for hook in hooks:
        hook.remove()
    return torch.cat([seen[i] for i in layers], dim=-1)


class Stories:
    """Stories with the target's streams, in batches of about the same length."""

    def __init__(self, model, stories, layers, batch=16):
        self.stories, self.batch = sorted(stories, key=len), batch
        self.streams = []
        for rows, _ in self.padded(range(0, len(stories), 64), 64):
            streams = streams_of(model, rows, layers).bfloat16()
            first = len(self.streams)
            lengths = (len(story) for story in self.stories[first : first + len(rows)])
            self.streams += [row[:n].clone() for row, n in zip(streams, lengths)]

    def padded(self, starts, count):
        for i in starts:
            part = [torch.tensor(story) for story in self.stories[i : i + count]]
            yield torch.nn.utils.rnn.pad_sequence(part, batch_first=True, padding_value=END), i

    def epoch(self, generator):
        """Tokens [rows, n], streams [rows, n, width] and lengths [rows]."""
        starts = torch.arange(0, len(self.stories), self.batch)
        for rows, i in self.padded(starts[torch.randperm(len(starts), generator=generator)],
                                   self.batch):
            streams = torch.nn.utils.rnn.pad_sequence(
                self.streams[i : i + self.batch], batch_first=True).float()
            yield rows, streams, torch.tensor([len(s) for s in self.stories[i : i + self.batch]])

    def __len__(self):
        return math.ceil(len(self.stories) / self.batch)


def train(parameters, stories, epochs, rate, loss_of):
    """AdamW with a cosine; `loss_of` takes what `Stories.epoch` gives."""
    parameters = list(parameters)
    optimizer = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    generator, most, step = torch.Generator().manual_seed(SEED), epochs * len(stories), 0
    for epoch in range(epochs):
        total = 0.0
        for batch in stories.epoch(generator):
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1, (step + 1) / 50) * (
                    0.02 + 0.98 * (1 + math.cos(math.pi * step / most)) / 2)
            loss = loss_of(*batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            total, step = total + loss.item(), step + 1
        print(f"epoch {epoch + 1}: {total / len(stories):.3f} nats a token", flush=True)


def draw(logits, noise):
    """The likeliest token of a row; with Gumbel noise, [vocabulary], one drawn as
    generation_config.json says: temperature 0.7, top_k 40, top_p 0.95 and min_p 0.1."""
    if noise is None:
        return int(logits.argmax())
    values, ids = (logits.float() / 0.7).topk(40)
    p = values.softmax(-1)
    keep = (p.cumsum(-1) - p < 0.95) & (p >= 0.1 * p[0])
    return int(ids[(p.log() + noise[ids]).masked_fill(~keep, -math.inf).argmax()])


@torch.no_grad()
def measure(model, tokenizer, drafts_of, num_drafts=4):
    """Prints how many of the drafted tokens are what the model draws, place by place: greedy, and
    with the temperature, where the drafter has the same noise. `drafts_of(tokens, n, k, noise)`
    drafts k tokens after the first n of `tokens`, without looking at the others."""
    for name in ("greedy", "temperature 0.7"):
        chains, accepted, drawn = 0, [0] * num_drafts, 0
        for seed, text in enumerate(HELD_OUT):
            tokens = tokenizer.encode(text)
            begin, end = len(tokens), len(tokens) + NUM_MEASURED
            noise = [None] * (end + num_drafts)
            if name != "greedy":
                uniform = torch.rand((len(noise), model.config.vocab_size),
                                     generator=torch.Generator().manual_seed(seed))
                noise = -(-uniform.clamp_min(1e-20).log()).log()
            cache, new = None, tokens
            while len(tokens) < end and tokens[-1] != END:
                out = model(torch.tensor([new]), past_key_values=cache, use_cache=True)
                cache, new = out.past_key_values, [draw(out.logits[0, -1], noise[len(tokens)])]
                tokens = tokens + new
            at = begin + 1  # a step without drafts, after the prompt
            while at < len(tokens):
                k = min(num_drafts, len(tokens) - at)
                right = 0
                for draft in drafts_of(tokens, at, k, noise):
                    if draft != tokens[at + right]:
                        break
                    accepted[right] += 1
                    right += 1
                chains, at = chains + 1, at + right + 1
            drawn += len(tokens) - begin - 1
        shares = ", ".join(f"{n / chains:.0%}" for n in accepted)
        print(f"{name}: of {chains} chains accepted by place {shares}; "
              f"{drawn / chains:.2f} tokens a step", flush=True)
