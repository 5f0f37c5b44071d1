"""Makes examples/models/tiny_gpt2: a GPT-2 of 3 million parameters that tells fairy tales.

    python examples/models/train_tiny_gpt2.py --out examples/models/tiny_gpt2

Its text is written by the model in examples/models/fairytale, which is sampled here; so the student
has read nothing that is not ours to give away. One GPU does all of it, text, tokeniser and training,
in under three minutes; `--seconds` divides the time. The README.md that is written beside the
weights has the versions, the sizes and the loss of the run. torch, transformers, tokenizers.
"""

import argparse
import math
import platform
import time

import tokenizers
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GPT2Config, GPT2LMHeadModel

from stories import add_arguments, body, stories_for

END = "<|endoftext|>"
SIZES = dict(n_embd=192, n_head=3, n_layer=6, n_positions=512, vocab_size=3072)
SEED = 1859
BATCH_SEQUENCES = 64
EPOCHS = 12  # at the most: what is read more often is learnt by heart


def train_tokenizer(stories):
    """GPT-2's kind: bytes, its pattern for words, no normaliser."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.train_from_iterator(stories[:20000], trainers.BpeTrainer(
        vocab_size=SIZES["vocab_size"], special_tokens=[END], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def encode(tokenizer, stories):
    end = tokenizer.token_to_id(END)
    ids = []
    for encoding in tokenizer.encode_batch(stories):
        ids.append(end)
        ids.extend(encoding.ids)
    return torch.tensor(ids)


def windows(data, count, generator):
    length = SIZES["n_positions"]
    starts = torch.randint(len(data) - length, (count,), generator=generator, device=data.device)
    return data[starts[:, None] + torch.arange(length, device=data.device)]


def loss_of(model, batch, device):
    with torch.autocast(device.type, dtype=torch.bfloat16):
        logits = model(batch).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


@torch.no_grad()
def validation_loss(model, data, device):
    model.eval()
    length = SIZES["n_positions"]
    rows = data[: len(data) // length * length].view(-1, length)[:512]
    losses = [loss_of(model, part, device) * len(part) for part in rows.split(BATCH_SEQUENCES)]
    model.train()
    return float(sum(losses) / len(rows))


def train(model, data, held_out, device, seconds):
    """As many steps as fit; the weights become those with the least loss on what is held out. Returns
    the number of steps up to them."""
    generator = torch.Generator(device).manual_seed(SEED)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.9, 0.97), fused=device.type == "cuda")
    most_steps = EPOCHS * len(data) // (BATCH_SEQUENCES * SIZES["n_positions"])
    begin, step, shown, best = time.monotonic(), 0, 0.0, (math.inf, 0, {})

    def measure():
        loss = validation_loss(model, held_out, device)
        print(f"step {step}, {done:4.0%}: held out {loss:.3f}", flush=True)
        state = {name: weight.clone() for name, weight in model.state_dict().items()}
        return min(best, (loss, step, state), key=lambda entry: entry[0])

    while (done := max((time.monotonic() - begin) / seconds, step / max(1, most_steps))) < 1:
        rate = 3e-3 * min(1, (step + 1) / 100) * (0.02 + 0.98 * (1 + math.cos(math.pi * done)) / 2)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss_of(model, windows(data, BATCH_SEQUENCES, generator), device).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if done > shown:
            shown += 0.05
            best = measure()
    best = measure()
    model.load_state_dict(best[2])
    return best[1]


@torch.no_grad()
def sample(model, tokenizer, device, text):
    torch.manual_seed(SEED)
    ids = torch.tensor([tokenizer.encode(text).ids], device=device)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=0.7,
                         top_k=40, top_p=0.95, min_new_tokens=120, max_new_tokens=160,
                         eos_token_id=tokenizer.token_to_id(END),
                         pad_token_id=tokenizer.token_to_id(END))
    return tokenizer.decode(out[0].tolist())


README = """# tiny_gpt2
A GPT-2 of {parameters:,} parameters ({n_layer} layers, width {n_embd}, {n_head} heads, {n_positions}
positions, {vocab_size} tokens, bfloat16) that tells fairy tales, for tests and for
[docs/kv_cache_primer.md](../../../docs/kv_cache_primer.md).

It was made by [train_tiny_gpt2.py](../train_tiny_gpt2.py) in {seconds:.0f} s on one {gpu}. Everything it has
read was written by the model in [fairytale](../fairytale): {stories:,} stories, {megabytes:.1f} MB, sampled at
temperature 0.85 with top_k 80 (seed {seed}; sampled text depends on the GPU, so another run gives
another model). Byte-level BPE trained on the same text. {steps:,} steps of {tokens:,} tokens, AdamW.
Loss on stories that were held out, of the weights as they are stored: {loss:.3f} nats a token, {bits:.2f} bits a
byte. Python {python}, torch {torch}, transformers {transformers}, tokenizers {tokenizers}.

A sample (temperature 0.7, top_k 40, top_p 0.95):

> {sample}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser, seconds=160)
    arguments = parser.parse_args()
    begin, device = time.monotonic(), torch.device(arguments.device)
    torch.manual_seed(SEED)
    torch.set_float32_matmul_precision("high")
    transformers.logging.set_verbosity_error()
    arguments.out.mkdir(parents=True, exist_ok=True)

    stories = [body(text) for text in stories_for(arguments, begin + 0.5 * arguments.seconds)]
    tokenizer = train_tokenizer(stories)
    num_held_out = max(1, len(stories) // 50)
    held_out_text, stories = stories[:num_held_out], stories[num_held_out:]
    held_out = encode(tokenizer, held_out_text).to(device)
    data = encode(tokenizer, stories).to(device)
    print(f"{len(data)} tokens after {time.monotonic() - begin:.0f} s", flush=True)

    end = tokenizer.token_to_id(END)
    model = GPT2LMHeadModel(GPT2Config(
        **SIZES, bos_token_id=end, eos_token_id=end, resid_pdrop=0.1, embd_pdrop=0.1,
        attn_pdrop=0.0)).to(device).train()
    steps = train(model, data, held_out, device,
                  max(1.0, 0.94 * arguments.seconds - (time.monotonic() - begin)))

    model = model.to(torch.bfloat16).eval()
    model.generation_config.update(do_sample=True, temperature=0.7, top_k=40, top_p=0.95)
    model.save_pretrained(arguments.out)
    tokenizer.save(str(arguments.out / "tokenizer.json"))
    loss = validation_loss(model, held_out, device)
    num_bytes = sum(len(text.encode()) for text in held_out_text)
    text = sample(model, tokenizer, device, "Once upon a time there was")
    (arguments.out / "README.md").write_text(README.format(
        **SIZES, parameters=sum(p.numel() for p in model.parameters()), seed=SEED, steps=steps,
        seconds=time.monotonic() - begin, stories=len(stories),
        megabytes=sum(map(len, stories)) / 1e6, loss=loss,
        bits=loss / math.log(2) * len(held_out) / num_bytes,
        tokens=BATCH_SEQUENCES * SIZES["n_positions"], sample=text.strip().replace("\n", "\n> "),
        gpu=torch.cuda.get_device_name() if device.type == "cuda" else platform.processor(),
        python=platform.python_version(), torch=torch.__version__,
        transformers=transformers.__version__, tokenizers=tokenizers.__version__))
    print(f"loss {loss:.3f} after {time.monotonic() - begin:.0f} s\n{text}")


if __name__ == "__main__":
    main()
