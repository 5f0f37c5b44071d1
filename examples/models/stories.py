"""What the scripts beside it train with: stories that the model in fairytale writes.

A story is a text with the model's special tokens in it: "Once upon a time … end.<|im_end|>", or a
conversation of a request and its answer. One that did not come to an end was cut at its last sentence
and has no `<|im_end|>` behind it. `body` is the text alone. torch, transformers.
"""

import json
import random
import re
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

FAIRYTALE = Path(__file__).parent / "fairytale"
STORY_TOKENS = 360
PROMPT_TOKENS = (4, 8)  # of openings, in turns
MIN_BODY = 80  # characters

WHO = ("a king", "a queen", "a miller", "a fisherman", "a woodcutter", "a poor widow", "a tailor",
       "an old soldier", "a princess", "a shepherd boy", "a fox", "a wolf", "two brothers",
       "three sisters", "a little girl", "a giant", "a witch", "a dwarf", "a hare", "a blacksmith")
OPENINGS = (
    [f"Once upon a time there was {who}" if who[0] == "a" else f"Once upon a time there were {who}"
     for who in WHO]
    + [f"There was once {who}" if who[0] == "a" else f"There were once {who}" for who in WHO]
    + [f"Long ago, beyond the mountains, lived {who}" for who in WHO]
    + ["A long time ago there", "In the old times, when", "Far away, by the sea,",
       "One winter's day", "It happened one night that", "When the king heard this",
       "The youngest son went", "Deep in the dark forest", "There lived in a", "In a certain village",
       "A certain father had two", "The wolf said to the", "In the days of the", "Early one morning the"])
REQUESTS = [form.format(who) for who in WHO
            for form in ("Tell me of {}.", "Tell me a story about {}.", "Write a fairy tale about {}.",
                         "Do you know a tale of {}?", "What happened to {}?")]


def prompts_of(tokenizer, chats):
    """Lists of prompts, each of one length, so that a batch needs no padding and no mask, without
    which attention is several times faster: openings cut to PROMPT_TOKENS, and with `chats` requests
    of the most frequent lengths after each."""
    lists = []
    for length in PROMPT_TOKENS:
        openings = {tuple(tokenizer.encode(text)[:length]) for text in OPENINGS}
        lists.append(sorted(ids for ids in openings if len(ids) == length))
    if not chats:
        return lists
    lengths = {}
    for request in REQUESTS:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": request}], tokenize=False, add_generation_prompt=True,
            enable_thinking=False)
        ids = tuple(tokenizer.encode(text, add_special_tokens=False))
        lengths.setdefault(len(ids), []).append(ids)
    frequent = sorted(lengths.values(), key=len, reverse=True)
    return [prompts for pair in zip(lists, frequent) for prompts in pair]


@torch.no_grad()
def write_stories(directory, device, batch, deadline, chats=False):
    """Stories of the fairytale model until the deadline."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).to(device).eval()
    ends = model.generation_config.eos_token_id
    ends = set(ends if isinstance(ends, list) else [ends])
    lists = prompts_of(tokenizer, chats)
    stories, longest = [], 0.0
    while not stories or time.monotonic() + longest < deadline:
        begin = time.monotonic()
        inputs = [lists[0][i % len(lists[0])] for i in range(batch)]
        lists.append(lists.pop(0))
        out = model.generate(torch.tensor(inputs, device=device), do_sample=True, temperature=0.85,
                             top_k=80, top_p=1.0, max_new_tokens=STORY_TOKENS,
                             pad_token_id=min(ends))
        rows = []
        for row in out.tolist():
            end = next((i for i in range(len(inputs[0]), len(row)) if row[i] in ends), None)
            rows.append((row if end is None else row[:end], end is not None))
        for text, (_, ended) in zip(tokenizer.batch_decode([ids for ids, _ in rows]), rows):
            text = text.strip()
            if not ended:
                text = text[: max(text.rfind(mark) for mark in ".!?") + 1]
            if len(body(text)) > MIN_BODY:
                stories.append(text + tokenizer.eos_token * ended)
        longest = max(longest, time.monotonic() - begin)
        print(f"{len(stories)} stories, {longest:.1f} s a batch", flush=True)
    random.Random(0).shuffle(stories)
    return stories


def body(story):
    """A story without special tokens and, in a conversation, without its request."""
    return re.sub(r"<\|\w+\|>|</?think>", "", story.rpartition("<|im_start|>assistant\n")[2]).strip()


def add_arguments(parser, seconds):
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--fairytale", type=Path, default=FAIRYTALE)
    parser.add_argument("--seconds", type=float, default=seconds, help="for all of it")
    parser.add_argument("--batch", type=int, default=4096, help="stories sampled at a time")
    parser.add_argument("--stories", type=Path, metavar="FILE",
                        help="JSON lines: read if there, else sampled and written")
    parser.add_argument("--device", default="cuda")


def stories_for(arguments, deadline, chats=False):
    """Those in the file --stories if there is one, else new ones. Conversations are left out of a
    file that has some where none are wanted."""
    file = arguments.stories
    if file and file.is_file():
        stories = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        if chats and not any("<|im_start|>" in story for story in stories):
            raise SystemExit(f"{file} has no conversations: it was written for a model without them")
        return [story for story in stories if chats or "<|im_start|>" not in story]
    stories = write_stories(
        arguments.fairytale, torch.device(arguments.device), arguments.batch, deadline, chats)
    if file:
        file.write_text("".join(json.dumps(story, ensure_ascii=False) + "\n" for story in stories),
                        encoding="utf-8")
    return stories
