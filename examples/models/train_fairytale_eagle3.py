"""Makes examples/models/fairytale_eagle3: an EAGLE-3 head of 1.4 million parameters for fairytale.

    python examples/models/train_fairytale_eagle3.py --out examples/models/fairytale_eagle3

It is trained on stories that fairytale writes here, with the residual streams that fairytale has at
their tokens, as it is used: its own outputs are fed back for STEPS tokens (training-time test; Li
et al. 2025, arXiv:2503.01840). The files have speculators' form, docs/speculation_eagle3.md. Of the
vocabulary it drafts the 1,024 tokens that occur most. Seven minutes of one CPU core for the
stories, which --stories FILE keeps, and eight for the rest. Of the openings that are held out it
drafts right, place by place of four, greedy 78%, 62%, 47%, 41% (3.25 tokens a step), and at
temperature 0.7 77%, 61%, 47%, 37% (3.19). torch 2.15, transformers 5.17, safetensors.
"""

import argparse
import json
import time
from collections import Counter

import torch
import transformers
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.qwen3.modeling_qwen3 import (Qwen3MLP, Qwen3RMSNorm,
                                                      Qwen3RotaryEmbedding,
                                                      apply_rotary_pos_emb)

from drafting import (SEED, Stories, add_arguments, measure, stories_for, streams_of, train,
                      trained_on)

LAYERS = [2, 4, 6]  # whose streams the head reads; 6 of 6: what the final norm reads
STEPS = 4
DECAY = 0.8  # the weight of a step's loss by that of the step before
DRAFT_VOCAB = 1024
INTERMEDIATE = 384


class Attention(nn.Module):
    """From 2H columns; with the target's numbers of heads."""

    def __init__(self, config):
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        width, self.size = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(2 * width, self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(2 * width, self.kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(2 * width, self.kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, width, bias=False)
        self.q_norm = Qwen3RMSNorm(self.size, config.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(self.size, config.rms_norm_eps)

    def qkv(self, x, angles):
        """[rows, heads, n, size], keys and values repeated for the heads that share them."""
        q, k, v = (part(x).unflatten(-1, (-1, self.size)) for part in
                   (self.q_proj, self.k_proj, self.v_proj))
        q, k = apply_rotary_pos_emb(self.q_norm(q).transpose(1, 2), self.k_norm(k).transpose(1, 2),
                                    *angles)
        group = self.heads // self.kv_heads
        return (q, k.repeat_interleave(group, 1), v.transpose(1, 2).repeat_interleave(group, 1))

    def forward(self, x, angles, stored):
        """A row is a pair; its query sees the pairs of true streams up to the one that its chain
        began with, and of each later step the one of its own chain. `stored` has (k, v) of the
        steps before, from the first on, and gets those of this one."""
        q, k, v = self.qkv(x, angles)
        stored.append((k, v))
        n, back, scale = x.shape[1], len(stored) - 1, self.size**-0.5
        seen = torch.ones(n, n, dtype=torch.bool).tril(-back)
        scores = [(q @ stored[0][0].transpose(2, 3) * scale).masked_fill(~seen, -1e30)]
        later = [(shifted(a, back - i), shifted(b, back - i))
                 for i, (a, b) in enumerate(stored) if i > 0]
        scores += [(q * a).sum(-1, keepdim=True) * scale for a, _ in later]
        p = torch.cat(scores, dim=-1).softmax(-1)
        out = p[..., :n] @ stored[0][1]
        for i, (_, b) in enumerate(later):
            out = out + p[..., n + i, None] * b
        return self.o_proj(out.transpose(1, 2).flatten(2))


def shifted(x, count):
    """Row t is row t - count of x, [rows, heads, n, size]."""
    return functional.pad(x, (0, 0, count, 0))[:, :, : x.shape[2]] if count else x


class Layer(nn.Module):
    def __init__(self, config, mlp_config):
        super().__init__()
        for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
            setattr(self, name, Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps))
        self.self_attn, self.mlp = Attention(config), Qwen3MLP(mlp_config)

    def forward(self, g, embedded, angles, stored):
        x = torch.cat([self.input_layernorm(embedded), self.hidden_norm(g)], dim=-1)
        h = g + self.self_attn(x, angles, stored)
        return h + self.mlp(self.post_attention_layernorm(h))


class Head(nn.Module):
    def __init__(self, target, target_ids):
        super().__init__()
        config = target.config
        width = config.hidden_size
        mlp_config = type(config)(**config.to_dict() | dict(intermediate_size=INTERMEDIATE))
        self.config, self.embedding = mlp_config, [target.model.embed_tokens]  # not the head's own
        self.fc = nn.Linear(len(LAYERS) * width, width, bias=False)
        self.layers = nn.ModuleList([Layer(config, mlp_config)])
        self.norm = Qwen3RMSNorm(width, config.rms_norm_eps)
        self.lm_head = nn.Linear(width, len(target_ids), bias=False)
        self.register_buffer("d2t", target_ids - torch.arange(len(target_ids)))
        self.rotary = Qwen3RotaryEmbedding(config)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)
        # The target's way from its last stream to its probabilities.
        self.fc.weight.data[:, -width:] += torch.eye(width)
        self.norm.weight.data.copy_(target.model.norm.weight)
        self.lm_head.weight.data.copy_(target.lm_head.weight[target_ids])

    def forward(self, g, tokens, stored):
        """Outputs, [rows, n, H], of pairs of which `tokens` are the second tokens."""
        angles = self.rotary(g, torch.arange(g.shape[1])[None])
        return self.layers[0](g, self.embedding[0](tokens), angles, stored)

    def logits(self, outputs):
        return self.lm_head(self.norm(outputs))


def loss_with(head, target, target_ids):
    def loss_of(tokens, streams, lengths):
        n, width = tokens.shape[1] - 1, head.config.hidden_size
        with torch.no_grad():  # after the second token of each pair
            last = target.model.norm(streams[:, 1:, -width:])
            wanted = functional.linear(last, target.lm_head.weight[target_ids]).softmax(-1)
        g, stored, loss = head.fc(streams[:, :-1]), [], 0.0
        place, total = torch.arange(n), sum(DECAY**i for i in range(STEPS))
        for step in range(STEPS):
            if step > 0:
                g = functional.pad(outputs, (0, 0, 1, 0))[:, :-1]
            outputs = head(g, tokens[:, 1:], stored)
            mask = (place < lengths[:, None] - 2) & (place >= step)
            loss = loss + DECAY**step / total * functional.cross_entropy(
                head.logits(outputs[mask]), wanted[mask])
        return loss
    return loss_of


def drafts_with(head, target):
    """For `measure`: chains of likeliest tokens, from the true streams of the known tokens."""
    seen = {}

    def drafts_of(tokens, n, k, noise):
        if seen.get("tokens") is not tokens:
            streams = streams_of(target, torch.tensor([tokens]), LAYERS)
            seen.update(tokens=tokens, streams=streams)
        given, pairs, stored = torch.tensor([tokens[1:n]]), seen["streams"][:, : n - 1], []
        g = head.fc(pairs)
        outputs = head(g, given, stored)
        (keys, values), = stored
        output = outputs[:, -1:]
        for i in range(k):
            if i > 0:
                output, keys, values = next_output(head, output, draft, n - 2 + i, keys, values)
            best = int(head.logits(output[0, 0]).argmax())
            draft = best + int(head.d2t[best])
            yield draft
    return drafts_of


def next_output(head, g, token, position, keys, values):
    """One pair more, with all keys before it: the output, keys and values."""
    layer = head.layers[0]
    embedded = head.embedding[0](torch.tensor([[token]]))
    x = torch.cat([layer.input_layernorm(embedded), layer.hidden_norm(g)], dim=-1)
    q, k, v = layer.self_attn.qkv(x, head.rotary(g, torch.tensor([[position]])))
    keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
    seen = functional.scaled_dot_product_attention(q, keys, values)
    h = g + layer.self_attn.o_proj(seen.transpose(1, 2).flatten(2))
    return h + layer.mlp(layer.post_attention_layernorm(h)), keys, values


def config_of(head, target, fairytale):
    given = json.loads((fairytale / "config.json").read_text())
    layer = {key: value for key, value in given.items()
             if key not in ("architectures", "bos_token_id", "eos_token_id", "pad_token_id")}
    layer.update(num_hidden_layers=1, layer_types=["full_attention"], tie_word_embeddings=False,
                 intermediate_size=INTERMEDIATE)
    return {
        "architectures": ["Eagle3Speculator"],
        "draft_vocab_size": len(head.d2t),
        "dtype": "bfloat16",
        "eagle_aux_hidden_state_layer_ids": LAYERS,
        "norm_before_residual": False,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": STEPS}],
            "verifier": {"architectures": target.config.architectures,
                         "name_or_path": "examples/models/fairytale"},
        },
        "speculators_model_type": "eagle3",
        "transformer_layer_config": layer,
    }


def save(head, target, fairytale, out):
    out.mkdir(parents=True, exist_ok=True)
    state = {name: (weight if name == "d2t" else weight.bfloat16()).contiguous()
             for name, weight in head.state_dict().items() if not name.startswith("rotary")}
    save_file(state, out / "model.safetensors", {"format": "pt"})
    text = json.dumps(config_of(head, target, fairytale), indent=2, sort_keys=True)
    (out / "config.json").write_text(text + "\n")
    (out / "model.safetensors").chmod(0o644)
    head.load_state_dict({name: weight.float() for name, weight in state.items()}, strict=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser, epochs=2)
    arguments = parser.parse_args()
    begin = time.monotonic()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(SEED)
    transformers.logging.set_verbosity_error()
    tokenizer = AutoTokenizer.from_pretrained(arguments.fairytale)
    target = AutoModelForCausalLM.from_pretrained(arguments.fairytale, dtype=torch.float32).eval()
    target.requires_grad_(False)
    written = trained_on(stories_for(arguments, target, tokenizer), tokenizer)
    counts = Counter(token for story in written for token in story)
    frequent = [token for token, _ in counts.most_common()]  # then those of early merges
    frequent += [token for token in range(target.config.vocab_size) if token not in counts]
    target_ids = torch.tensor(sorted(frequent[:DRAFT_VOCAB]))
    kept = sum(counts[int(token)] for token in target_ids)
    print(f"{counts.total()} tokens, of which the draft's vocabulary has"
          f" {kept / counts.total():.2%}, after {time.monotonic() - begin:.0f} s", flush=True)
    stories = Stories(target, written, LAYERS)
    print(f"the target's streams after {time.monotonic() - begin:.0f} s", flush=True)
    head = Head(target, target_ids)
    train(head.parameters(), stories, arguments.epochs, 1e-3, loss_with(head, target, target_ids))
    save(head.eval(), target, arguments.fairytale, arguments.out)
    print(f"{sum(p.numel() for p in head.parameters())} parameters after"
          f" {time.monotonic() - begin:.0f} s", flush=True)
    measure(target, tokenizer, drafts_with(head, target))


if __name__ == "__main__":
    main()
