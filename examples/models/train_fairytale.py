"""Trains examples/models/fairytale on, with tales that come to an end.

    python train_fairytale.py --fairytale examples/models/fairytale --out DIR [--seconds 240]

It begins with the model's weights and reads tales that tales.py writes, a third of them as
conversations. One GPU. torch, transformers, safetensors. Prints tales at the end. DIR can take the
place of the model's folder: only model.safetensors differs.
"""

import argparse
import math
import multiprocessing
import random
import shutil
import time
from pathlib import Path

import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

import tales

LENGTH = 184  # tokens of a conversation; a tale alone has at most 160
THINK = "<think>\n\n</think>\n\n"


def write(job):
    seed, count = job
    rng = random.Random(seed)
    out = []
    for _ in range(count):
        if rng.random() < 1 / 3:
            request, tale = tales.conversation(rng)
            out.append(
                f"<|im_start|>user\n{request}<|im_end|>\n<|im_start|>assistant\n{THINK}{tale}<|im_end|>"
            )
        else:
            out.append(tales.tale(rng) + "<|im_end|>")
    return out


def encode(tokenizer, texts, device):
    ids = torch.full((len(texts), LENGTH), 4091, dtype=torch.int16)
    for i in range(0, len(texts), 10000):
        for j, row in enumerate(tokenizer(texts[i : i + 10000])["input_ids"]):
            if len(row) <= (LENGTH if texts[i + j].startswith("<|im_start|>") else 160):
                ids[i + j, : len(row)] = torch.tensor(row, dtype=torch.int16)
    return ids[ids[:, 0] != 4091].to(device)


def loss_of(model, ids):
    ids = ids.long()
    with torch.autocast(ids.device.type, torch.bfloat16):
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    labels = ids[:, 1:].masked_fill(ids[:, 1:] == 4091, -100)
    return functional.cross_entropy(
        logits.float().flatten(0, 1), labels.flatten(), ignore_index=-100
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fairytale", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--count", type=int, default=400_000, help="tales")
    parser.add_argument("--device", default="cuda")
    a = parser.parse_args()
    begin, device = time.monotonic(), torch.device(a.device)
    torch.manual_seed(1812)
    torch.set_float32_matmul_precision("high")
    tokenizer = AutoTokenizer.from_pretrained(a.fairytale)
    model = AutoModelForCausalLM.from_pretrained(a.fairytale, dtype=torch.float32).to(device)
    tales.WORDS += [
        word
        for token in tokenizer.get_vocab()
        if (word := token.removeprefix("\u0120")) != token
        and len(word) > 3
        and word.islower()
        and word.isalpha()
    ]
    jobs = [(1000 + i, a.count // 64) for i in range(64)]
    with multiprocessing.get_context("fork").Pool() as pool:
        written = [t for part in pool.map(write, jobs) for t in part]
    data = encode(tokenizer, written, device)
    held_out = encode(tokenizer, write((7, 512)), device)
    print(f"{len(data)} of {len(written)} tales, {time.monotonic() - begin:.0f} s", flush=True)

    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01, fused=a.device == "cuda"
    )
    start, step, shown = time.monotonic(), 0, 0.0
    seconds = max(1.0, a.seconds - (start - begin) - 20)
    order = torch.randperm(len(data))
    while (done := (time.monotonic() - start) / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = (
                1e-3 * min(1, (step + 1) / 100) * (0.02 + 0.98 * (1 + math.cos(math.pi * done)) / 2)
            )
        at = step * a.batch % max(1, len(data) - a.batch)
        loss = loss_of(model, data[order[at : at + a.batch].to(device)])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if done >= shown:
            shown += 0.1
            with torch.no_grad():
                print(
                    f"step {step}, {done:4.0%}: held out {loss_of(model, held_out[:128]).item():.3f}",
                    flush=True,
                )

    model = model.to(torch.bfloat16).eval()
    a.out.mkdir(parents=True, exist_ok=True)
    model.config.dtype = torch.bfloat16
    model.save_pretrained(a.out)
    (a.out / "model.safetensors").chmod(0o644)
    for name in (
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
    ):
        shutil.copyfile(a.fairytale / name, a.out / name)
    for prompt in (
        "Once upon a time there was a fox who",
        "Once upon a time there was a king who had",
        "There was once a poor widow",
        "The dragon",
        "Once upon a time",
        "In a town lived a clockmaker",
        "Once there was a cat named Tom",
    ):
        ids = torch.tensor([tokenizer.encode(prompt)] * 4, device=device)
        for row in model.generate(
            ids,
            do_sample=True,
            temperature=0.7,
            min_p=0.1,
            top_k=40,
            max_new_tokens=170,
            pad_token_id=4091,
        ):
            print("--", tokenizer.decode(row, skip_special_tokens=True))
    print(f"{step} steps of {a.batch}, {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
