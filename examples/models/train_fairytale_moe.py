"""Makes examples/models/fairytale_moe: a Qwen3 mixture of experts of 7 million parameters.

    python examples/models/train_fairytale_moe.py --out examples/models/fairytale_moe

It is the sibling of the model in examples/models/fairytale: the same tokeniser, chat template and
vocabulary. It begins with that model's weights, of which each layer's MLP is dealt out to experts,
and learns that model's probabilities on the stories that it writes here; so it has read nothing that
is not ours to give away. A router in each layer learns which experts a token goes to. One GPU does
all of it in three minutes; `--seconds` divides the time, `--stories FILE` keeps the stories. The
README.md that is written beside the weights has the versions, the sizes, the loss and how the tokens
are spread over the experts. torch, transformers, safetensors.
"""

import argparse
import math
import platform
import shutil
import time

import safetensors
import torch
import transformers
from torch.nn import functional
from transformers import (AutoModelForCausalLM, AutoTokenizer, GenerationConfig, Qwen3MoeConfig,
                          Qwen3MoeForCausalLM)
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from stories import add_arguments, stories_for

SEED = 1812
NUM_EXPERTS = 12  # of 64 of the 768 columns of the MLP that they are dealt from
NUM_EXPERTS_PER_TOK = 4
BATCH_SEQUENCES = 128
EPOCHS = 12  # at the most: what is read more often is learnt by heart
BALANCE = 0.01  # weight of the loss that spreads tokens over the experts
RATE = 1e-3


def make_student(teacher):
    """The teacher with experts: expert e has the e-th part of the MLP's columns. A token has k of E
    experts with weights of 1 / k in the mean. The products are enlarged by E / 3, with which the loss
    is the least before training; E would keep the sum's mean, but also make its noise larger."""
    given = {key: value for key, value in teacher.config.to_dict().items()
             if key not in ("architectures", "model_type", "transformers_version", "layer_types")}
    config = Qwen3MoeConfig(**given | dict(
        num_experts=NUM_EXPERTS, num_experts_per_tok=NUM_EXPERTS_PER_TOK, norm_topk_prob=True,
        moe_intermediate_size=teacher.config.intermediate_size // NUM_EXPERTS,
        decoder_sparse_step=1, mlp_only_layers=[], router_aux_loss_coef=BALANCE, dtype="float32"))
    student = Qwen3MoeForCausalLM(config).float()
    weights = teacher.state_dict()
    for name, weight in student.state_dict().items():
        if name in weights:
            weight.copy_(weights[name])
    for layer, dense in zip(student.model.layers, teacher.model.layers):
        experts, shape = layer.mlp.experts, (NUM_EXPERTS, config.moe_intermediate_size, -1)
        gate, up = (getattr(dense.mlp, part).weight.detach().reshape(shape)
                    for part in ("gate_proj", "up_proj"))
        experts.gate_up_proj.data.copy_(torch.cat([gate, up], dim=1))
        down = dense.mlp.down_proj.weight.detach().T.reshape(shape).transpose(1, 2)
        experts.down_proj.data.copy_(down * (NUM_EXPERTS / 3))
        torch.nn.init.normal_(layer.mlp.gate.weight, std=0.02)
    return student


def all_experts(self, hidden, ids, weights):
    """Every expert for every token, times 0 where it was not chosen: the sum that transformers makes,
    and with experts as small as these in a fraction of the time."""
    share = weights.new_zeros(len(hidden), self.num_experts).scatter(1, ids, weights)
    both = functional.linear(hidden, self.gate_up_proj.flatten(0, 1))
    gate, up = both.unflatten(1, (self.num_experts, -1)).chunk(2, dim=2)
    inner = self.act_fn(gate) * up * share[:, :, None]
    return functional.linear(inner.flatten(1), self.down_proj.transpose(0, 1).flatten(1))


class Routes:
    """What the routers of a model say of the tokens of its last forward pass, a layer each."""

    def __init__(self, model):
        self.layers, self.of_pass = len(model.model.layers), []
        for layer in model.model.layers:
            layer.mlp.gate.register_forward_hook(lambda _, __, out: self.of_pass.append(out))

    def take(self, mask):
        """Probabilities and choices, [layers, tokens, experts], of the tokens in `mask`."""
        assert len(self.of_pass) == self.layers
        logits = torch.stack([logits[mask.flatten()] for logits, _, _ in self.of_pass]).float()
        ids = torch.stack([ids[mask.flatten()] for _, _, ids in self.of_pass])
        self.of_pass.clear()
        return logits.softmax(dim=-1), torch.zeros_like(logits).scatter(2, ids, 1.0)


def balance_loss(probabilities, choices):
    """Of each layer, the mean over its experts of share of the tokens times mean probability, scaled
    to be 1 if both are even; that of Switch Transformer (arXiv:2101.03961, equation 4)."""
    shares = choices.mean(dim=1) / NUM_EXPERTS_PER_TOK
    return (shares * probabilities.mean(dim=1)).sum(dim=1).mean() * NUM_EXPERTS


def encode(tokenizer, stories, device):
    """Token ids [stories, longest], filled up with padding, and the number of tokens of each."""
    rows = [torch.tensor(ids) for ids in tokenizer(stories, add_special_tokens=False)["input_ids"]]
    lengths = torch.tensor([len(row) for row in rows], device=device)
    ids = torch.nn.utils.rnn.pad_sequence(
        rows, batch_first=True, padding_value=tokenizer.pad_token_id)
    return ids.to(device), lengths


def batches(ids, lengths, generator=None):
    """Batches without end, of stories about as long as each other: ids [n, t], and a mask [n, t - 1]
    of the tokens that another one follows. Without a generator all stories, once."""
    spread = 0 if generator is None else 48
    while True:
        jitter = torch.randint(spread + 1, lengths.shape, generator=generator, device=ids.device)
        parts = (lengths + jitter).argsort().split(BATCH_SEQUENCES)
        order = torch.randperm(len(parts), generator=generator, device=ids.device).tolist()
        for part in (parts[i] for i in order):
            longest = int(lengths[part].max())
            yield ids[part, :longest], (
                torch.arange(1, longest, device=ids.device) < lengths[part, None])
        if generator is None:
            return


def logits_of(model, ids, mask):
    """Of the tokens in `mask` alone. Padding is behind all of them, so that it is not seen."""
    with torch.autocast(ids.device.type, dtype=torch.bfloat16):
        hidden = model.model(ids[:, :-1], use_cache=False).last_hidden_state
        return model.lm_head(hidden[mask]).float()


@torch.no_grad()
def measure(model, routes, ids, lengths):
    """Mean loss in nats a token, and the share of the tokens that each expert has, [layers, experts]."""
    model.eval()
    total, shares, count = 0.0, 0.0, 0
    for part, mask in batches(ids, lengths):
        loss = functional.cross_entropy(logits_of(model, part, mask), part[:, 1:][mask])
        here = int(mask.sum())
        total, count = total + float(loss) * here, count + here
        if routes:
            shares = shares + routes.take(mask)[1].sum(dim=1)
    model.train()
    return total / count, shares / count if routes else None


def train(model, routes, teacher, data, held_out, seconds):
    """As many steps as fit. The loss is the cross entropy to the teacher's probabilities. The weights
    become those with the least loss on what is held out; returns the number of steps up to them, and
    of tokens."""
    device = data[0].device
    generator = torch.Generator(device).manual_seed(SEED)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.9, 0.98), fused=device.type == "cuda")
    most_steps = max(1, EPOCHS * len(data[1]) // BATCH_SEQUENCES)
    begin, step, tokens, shown, best = time.monotonic(), 0, 0, 0.05, (math.inf, 0, 0, {})
    stream = batches(*data, generator)

    def keep():
        loss, shares = measure(model, routes, *held_out)
        print(f"step {step}, {done:4.0%}: held out {loss:.3f}, experts have {shares.min():.1%} to"
              f" {shares.max():.1%}", flush=True)
        state = {name: weight.clone() for name, weight in model.state_dict().items()}
        return min(best, (loss, step, tokens, state), key=lambda entry: entry[0])

    while (done := max((time.monotonic() - begin) / seconds, step / most_steps)) < 1:
        rate = RATE * min(1, (step + 1) / 50) * (0.02 + 0.98 * (1 + math.cos(math.pi * done)) / 2)
        for group in optimizer.param_groups:
            group["lr"] = rate
        ids, mask = next(stream)
        with torch.no_grad():
            wanted = logits_of(teacher, ids, mask).softmax(dim=-1)
        loss = functional.cross_entropy(logits_of(model, ids, mask), wanted)
        (loss + BALANCE * balance_loss(*routes.take(mask))).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step, tokens = step + 1, tokens + mask.numel()
        if done > shown:
            shown += 0.1
            best = keep()
    best = keep()
    model.load_state_dict(best[3])
    return best[1], best[2]


@torch.no_grad()
def sample(model, tokenizer, device, text):
    torch.manual_seed(SEED)
    ids = torch.tensor([tokenizer.encode(text)], device=device)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), min_new_tokens=100,
                         max_new_tokens=140)
    return tokenizer.decode(out[0], skip_special_tokens=True)


def save(model, tokenizer_from, out):
    """bfloat16, with a matrix for each expert, as published checkpoints have them."""
    model = model.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    model.generation_config = GenerationConfig.from_pretrained(tokenizer_from)
    model.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(tokenizer_from / name, out / name)
    with safetensors.safe_open(out / "model.safetensors", "pt") as file:
        wanted = {f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight"
                  for layer in range(model.config.num_hidden_layers) for expert in range(NUM_EXPERTS)
                  for part in ("gate", "up", "down")}
        if missing := wanted - set(file.keys()):
            raise SystemExit(f"this transformers has not written {sorted(missing)[0]}")


README = """# fairytale_moe
A Qwen3 mixture of experts of {parameters:,} parameters, {active:,} of them for a token ({num_hidden_layers} layers,
width {hidden_size}, {num_attention_heads} heads of {head_dim}, {num_key_value_heads} of keys and values; {experts} experts of {moe_intermediate_size}, {chosen} for a token;
{vocab_size} tokens, bfloat16) that tells fairy tales: the sibling of [fairytale](../fairytale), with its
tokeniser and chat template, for every program that takes a Qwen3 mixture of experts:

```console
$ build/examples/chat examples/models/fairytale_moe
```

It was made by [train_fairytale_moe.py](../train_fairytale_moe.py) in {seconds:.0f} s on one {device}, {date}. It began
with the weights of fairytale, each layer's MLP dealt out to the experts, and was trained to have
fairytale's probabilities on {stories:,} stories and conversations that fairytale wrote
(temperature 0.85, top_k 80; seed {seed}; sampled text depends on the GPU, so another run gives another
model): {steps:,} steps, {tokens:,} tokens, AdamW. Python {python}, torch {torch}, transformers
{transformers}.

| on stories that were held out | nats a token |
|---|---|
| fairytale | {teacher_loss:.3f} |
| fairytale_moe before training | {first_loss:.3f} |
| fairytale_moe as it is stored | {loss:.3f} |

An even spread would give each expert {even:.1%} of the tokens. On stories that were held out:

| layer | most used expert | least used |
|---|---|---|
{spread}

A sample (temperature 0.7, top_k 40, top_p 0.95):

> {sample}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser, seconds=170)
    arguments = parser.parse_args()
    begin, device, out = time.monotonic(), torch.device(arguments.device), arguments.out
    torch.manual_seed(SEED)
    torch.set_float32_matmul_precision("high")
    transformers.logging.set_verbosity_error()
    out.mkdir(parents=True, exist_ok=True)

    stories = stories_for(arguments, begin + 0.45 * arguments.seconds, chats=True)
    tokenizer = AutoTokenizer.from_pretrained(arguments.fairytale)
    num_held_out = max(1, len(stories) // 50)
    held_out = encode(tokenizer, stories[:num_held_out], device)
    data = encode(tokenizer, stories[num_held_out:], device)
    print(f"{int(data[1].sum())} tokens after {time.monotonic() - begin:.0f} s", flush=True)

    teacher = AutoModelForCausalLM.from_pretrained(arguments.fairytale, dtype=torch.float32)
    model = make_student(teacher).to(device).train()
    teacher = teacher.to(device).eval()
    routes, its_forward = Routes(model), Qwen3MoeExperts.forward
    Qwen3MoeExperts.forward = all_experts
    first_loss, teacher_loss = (measure(m, r, *held_out)[0] for m, r in ((model, routes), (teacher, None)))
    teacher.eval()
    print(f"held out: teacher {teacher_loss:.3f}, student {first_loss:.3f}", flush=True)
    steps, tokens = train(model, routes, teacher, data, held_out,
                          max(1.0, 0.9 * arguments.seconds - (time.monotonic() - begin)))
    save(model, arguments.fairytale, out)

    # What is stored, as others run it.
    Qwen3MoeExperts.forward = its_forward
    model = Qwen3MoeForCausalLM.from_pretrained(
        out, dtype=torch.bfloat16, experts_implementation="eager").to(device).eval()
    loss, shares = measure(model, Routes(model), *held_out)
    model.eval()
    for layer in model.model.layers:
        layer.mlp.gate._forward_hooks.clear()
    text = sample(model, tokenizer, device, "Once upon a time there was a king who had")
    parameters = sum(p.numel() for p in model.parameters())
    expert = 3 * model.config.hidden_size * model.config.moe_intermediate_size
    idle = model.config.num_hidden_layers * (NUM_EXPERTS - NUM_EXPERTS_PER_TOK) * expert
    (out / "README.md").write_text(README.format(
        **model.config.to_dict(), experts=NUM_EXPERTS, chosen=NUM_EXPERTS_PER_TOK,
        parameters=parameters, active=parameters - idle, stories=len(stories) - num_held_out,
        seed=SEED, steps=steps, tokens=tokens, loss=loss, first_loss=first_loss,
        teacher_loss=teacher_loss, even=NUM_EXPERTS_PER_TOK / NUM_EXPERTS,
        spread="\n".join(f"| {i} | {row.max():.1%} | {row.min():.1%} |" for i, row in enumerate(shares)),
        sample=text.strip().replace("\n", "\n> "), seconds=time.monotonic() - begin,
        date=time.strftime("%Y-%m-%d"),
        device=torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        python=platform.python_version(), torch=torch.__version__,
        transformers=transformers.__version__), encoding="utf-8")
    print(f"loss {loss:.3f} after {time.monotonic() - begin:.0f} s\n{text}")


if __name__ == "__main__":
    main()
