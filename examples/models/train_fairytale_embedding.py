"""Makes examples/models/fairytale_embedding: a model whose vectors find the right tale.

    python examples/models/train_fairytale_embedding.py --out examples/models/fairytale_embedding

It is laid out as Qwen3-Embedding is: a Qwen3 without lm_head, of which the vector of a text is the last
hidden state of the token `<|endoftext|>` that the tokeniser puts behind it, scaled to length 1; queries
have an instruction in front. It begins with the weights of the model in examples/models/fairytale and
learns from pairs that are made of the stories which that model writes here, so it has read nothing
that is not ours to give away. One GPU does all of it in two and a half minutes; `--seconds` divides the time,
`--stories FILE` keeps the stories. The README.md that is written beside the weights has the versions,
the sizes and how often the right passage was found. torch, transformers, tokenizers.
"""

import argparse
import collections
import json
import math
import platform
import random
import re
import shutil
import time

import tokenizers
import torch
import transformers
from torch.nn import functional
from transformers import AutoModel

from stories import add_arguments, body, stories_for

SEED = 1785
END = "<|endoftext|>"
INSTRUCTION = "Given a question, find the passage that answers it"  # examples/search.cpp has it, too
MAX_QUERY, MAX_PASSAGE = 96, 160  # tokens; the instruction is 24 of a query's
BATCH_PAIRS = 384
TEMPERATURE = 0.05
RATE = 3e-4
NUM_HELD_OUT = 512  # stories, at the most
QUESTIONS = ("{}", "{}", "{}?", "a story about {}", "the tale of {}", "Who met {}?",
             "What happened to {}?", "Which tale is about {}?", "Where is {}?", "Why did {}?")


def as_query(text):
    return f"Instruct: {INSTRUCTION}\nQuery:{text}"


class Pairs:
    """Makes pairs of a query and the passage that it is to find, from stories."""

    def __init__(self, stories):
        bodies = [re.split(r"(?<=[.!?])['\"’”]?\s+", text) for text in stories]
        self.stories = [[s for s in sentences if s] for sentences in bodies if len(sentences) >= 4]
        count = collections.Counter(
            word for story in self.stories for word in set(self.words(" ".join(story))))
        self.rarity = {word: math.log(len(self.stories) / n) for word, n in count.items()
                       if 1 < n < len(self.stories) / 5}

    @staticmethod
    def words(text):
        return re.findall(r"[A-Za-z]{3,}", text.lower())

    def keywords(self, passage, draw):
        """A question of one to five words of the passage, rare ones rather than others."""
        known = list(dict.fromkeys(w for w in self.words(passage) if w in self.rarity))
        if not known:
            return passage
        drawn = set(draw.choices(known, [self.rarity[w] for w in known], k=draw.randint(1, 5)))
        between = draw.choice((" ", " and ", ", ", " the ", " of the ", " and the "))
        return draw.choice(QUESTIONS).format(between.join(w for w in known if w in drawn))

    def make(self, story, draw):
        """Of a passage of a few sentences, a question of its words, a sentence that is taken out of it,
        or a sentence with words left out; or, without an instruction, what was told just before."""
        size = min(len(story), draw.randint(3, 9))
        first = draw.randrange(len(story) - size + 1)
        passage, kind = story[first : first + size], draw.random()
        if kind < 0.45:
            return as_query(self.keywords(" ".join(passage), draw)), " ".join(passage)
        if kind < 0.65:
            sentence = draw.choice(passage).split()
            kept = [word for word in sentence if draw.random() < 0.7]
            return as_query(" ".join(kept or sentence)), " ".join(passage)
        if kind < 0.85:
            query = passage.pop(draw.randrange(len(passage)))
            return as_query(query), " ".join(passage)
        cut = draw.randrange(1, len(story))
        return " ".join(story[max(0, cut - 4) : cut]), " ".join(story[cut:])


class Tokens:
    """Batches of ids with the end token behind each text, and where it is."""

    def __init__(self, file, device):
        self.tokenizer, self.device = tokenizers.Tokenizer.from_file(str(file)), device
        self.tokenizer.enable_padding(pad_id=self.tokenizer.token_to_id(END))

    def __call__(self, texts, max_tokens):
        self.tokenizer.enable_truncation(max_tokens)
        rows = self.tokenizer.encode_batch(texts)
        last = [sum(row.attention_mask) - 1 for row in rows]
        return (torch.tensor([row.ids for row in rows], device=self.device),
                torch.tensor(last, device=self.device))


def vectors(model, ids, last):
    """[n, width], of length 1. Padding is after the end token, so that it is not seen."""
    with torch.autocast(ids.device.type, dtype=torch.bfloat16):
        hidden = model(ids, use_cache=False).last_hidden_state
    rows = torch.arange(len(ids), device=ids.device)
    return functional.normalize(hidden[rows, last].float(), dim=-1)


@torch.no_grad()
def measure(model, tokens, pairs):
    """Of the queries, the share whose passage is the nearest of all, and the mean of 1 / its rank."""
    model.eval()
    sides = []
    for texts, longest in zip(zip(*pairs), (MAX_QUERY, MAX_PASSAGE)):
        parts = [texts[i : i + 128] for i in range(0, len(texts), 128)]
        sides.append(torch.cat([vectors(model, *tokens(part, longest)) for part in parts]))
    cosines = sides[0] @ sides[1].T
    ranks = (cosines > cosines.diagonal()[:, None]).sum(dim=1) + 1
    model.train()
    return float((ranks == 1).float().mean()), float((1 / ranks).mean())


def prepare_end(model, tokenizer):
    """The end token is to learn, though it is also padding. It begins as " the": what may follow that
    depends on the text, while behind an end a story begins, whatever came before."""
    model.embed_tokens.padding_idx = None
    the, = tokenizer.encode(" the", add_special_tokens=False).ids
    weight = model.embed_tokens.weight.data
    weight[tokenizer.token_to_id(END)] = weight[the]


def train(model, tokens, pairs, held_out, seconds):
    """As many steps as fit, of the loss InfoNCE (arXiv:1807.03748) in both directions; the other
    passages of a batch are what a query must not find. Returns the number of steps."""
    draw = random.Random(SEED)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors_ = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.01}, {"params": vectors_, "weight_decay": 0.0}],
        betas=(0.9, 0.98), fused=tokens.device.type == "cuda")
    begin, step, shown, order = time.monotonic(), 0, 0.1, []
    while (done := (time.monotonic() - begin) / seconds) < 1:
        rate = RATE * min(1, (step + 1) / 50) * (0.02 + 0.98 * (1 + math.cos(math.pi * done)) / 2)
        for group in optimizer.param_groups:
            group["lr"] = rate
        if len(order) < BATCH_PAIRS:
            order = draw.sample(pairs.stories, len(pairs.stories))
        batch, order = order[:BATCH_PAIRS], order[BATCH_PAIRS:]
        queries, passages = zip(*(pairs.make(story, draw) for story in batch))
        query = vectors(model, *tokens(queries, MAX_QUERY))
        passage = vectors(model, *tokens(passages, MAX_PASSAGE))
        cosines, right = query @ passage.T / TEMPERATURE, torch.arange(len(query), device=query.device)
        loss = (functional.cross_entropy(cosines, right)
                + functional.cross_entropy(cosines.T, right)) / 2
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if done > shown:
            shown += 0.1
            recall, mrr = measure(model, tokens, held_out)
            print(f"step {step}, {done:4.0%}: loss {loss:.3f}, held out: first {recall:.1%},"
                  f" MRR {mrr:.3f}", flush=True)
    return step


def write_tokenizer(source, out):
    """The files of the tokeniser, which puts the end token behind a text."""
    file = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    end = next(token["id"] for token in file["added_tokens"] if token["content"] == END)
    text = {"Sequence": {"id": "A", "type_id": 0}}
    token = {"SpecialToken": {"id": END, "type_id": 0}}
    file["post_processor"] = {
        "type": "TemplateProcessing", "single": [text, token],
        "pair": [text, token, {"Sequence": {"id": "B", "type_id": 1}},
                 {"SpecialToken": {"id": END, "type_id": 1}}],
        "special_tokens": {END: {"id": END, "ids": [end], "tokens": [END]}}}
    (out / "tokenizer.json").write_text(
        json.dumps(file, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    shutil.copyfile(source / "tokenizer_config.json", out / "tokenizer_config.json")


def write_sentence_transformers(width, out):
    """What the package sentence-transformers needs to know."""
    kinds = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    modules = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
               for i, (path, kind) in enumerate(kinds)]
    pooling = {"word_embedding_dimension": width, "pooling_mode_cls_token": False,
               "pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": False,
               "pooling_mode_mean_sqrt_len_tokens": False,
               "pooling_mode_weightedmean_tokens": False, "pooling_mode_lasttoken": True,
               "include_prompt": True}
    settings = {"prompts": {"query": as_query(""), "document": ""}, "default_prompt_name": None,
                "similarity_fn_name": "cosine"}
    (out / "1_Pooling").mkdir(exist_ok=True)
    for name, value in (("modules.json", modules), ("1_Pooling/config.json", pooling),
                        ("config_sentence_transformers.json", settings)):
        (out / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


README = """# fairytale_embedding
An embedding model of {parameters:,} parameters ({num_hidden_layers} layers, vectors of {hidden_size} elements,
{vocab_size} tokens, bfloat16) that finds tales and their passages, laid out as Qwen3-Embedding is: the vector of a
text is the last hidden state of the token `{end}` behind it, scaled to length 1, and a query has
`Instruct: …\\nQuery:` in front.

```console
$ build/examples/search examples/models/fairytale_embedding "Who spins straw into gold?" examples/tales.txt
```

It was made by [train_fairytale_embedding.py](../train_fairytale_embedding.py) in {seconds:.0f} s on one
{device}, {date}. It began with the weights of [fairytale](../fairytale) and has learnt from pairs of a query and a passage,
made of {stories:,} stories that fairytale wrote (temperature 0.85, top_k 80; seed {seed}; sampled text
depends on the GPU, so another run gives another model): questions of a passage's rarer words, a
sentence of it, a sentence taken out of it, and what was told just before. {steps:,} steps of {batch} pairs, InfoNCE
with temperature {temperature}, AdamW. Python {python}, torch {torch}, transformers {transformers},
tokenizers {tokenizers}.

Queries of stories that were held out, among {held_out} passages, one of each story:

| | the right passage is the first | mean reciprocal rank |
|---|---|---|
| fairytale, before training | {before[0]:.1%} | {before[1]:.3f} |
| fairytale_embedding, as it is stored | {after[0]:.1%} | {after[1]:.3f} |
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser, seconds=150)
    arguments = parser.parse_args()
    begin, device, out = time.monotonic(), torch.device(arguments.device), arguments.out
    torch.manual_seed(SEED)
    torch.set_float32_matmul_precision("high")
    transformers.logging.set_verbosity_error()
    out.mkdir(parents=True, exist_ok=True)

    stories = [body(text) for text in stories_for(arguments, begin + 0.5 * arguments.seconds, chats=True)]
    num_held_out = min(NUM_HELD_OUT, len(stories) // 10)
    pairs, draw = Pairs(stories[num_held_out:]), random.Random(SEED)
    others = Pairs(stories[:num_held_out])
    others.rarity = pairs.rarity
    held_out = [others.make(story, draw) for story in others.stories]
    print(f"{len(pairs.stories)} stories after {time.monotonic() - begin:.0f} s", flush=True)

    write_tokenizer(arguments.fairytale, out)
    tokens = Tokens(out / "tokenizer.json", device)
    model = AutoModel.from_pretrained(arguments.fairytale, dtype=torch.float32).to(device).train()
    before = measure(model, tokens, held_out)
    prepare_end(model, tokens.tokenizer)
    print(f"before: first {before[0]:.1%}, MRR {before[1]:.3f}", flush=True)
    steps = train(model, tokens, pairs, held_out,
                  max(1.0, 0.93 * arguments.seconds - (time.monotonic() - begin)))

    model = model.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    model.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    write_sentence_transformers(model.config.hidden_size, out)
    model = AutoModel.from_pretrained(out, dtype=torch.bfloat16).to(device)
    after = measure(model, tokens, held_out)
    (out / "README.md").write_text(README.format(
        **model.config.to_dict(), parameters=sum(p.numel() for p in model.parameters()), end=END,
        seed=SEED, steps=steps, batch=min(BATCH_PAIRS, len(pairs.stories)), before=before, after=after,
        stories=len(pairs.stories), held_out=len(held_out), temperature=TEMPERATURE,
        seconds=time.monotonic() - begin, date=time.strftime("%Y-%m-%d"),
        device=torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        python=platform.python_version(), torch=torch.__version__,
        transformers=transformers.__version__, tokenizers=tokenizers.__version__), encoding="utf-8")
    print(f"first {after[0]:.1%}, MRR {after[1]:.3f} after {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
