"""Writes tests/fixtures/eagle3/: small EAGLE-3 heads with random weights, and what speculators
makes of them.

    python tests/oracle/make_eagle3_fixtures.py   # from the repository root

Versions: Python 3.11, torch 2.9.0, transformers 5.17.0, speculators 0.9.0 (pip install
torch==2.9.0 transformers==5.17.0 speculators==0.9.0); float32, one thread, on the CPU.

A folder for each head, in one of the forms in which heads are published:

    config.json            of the form
    model.safetensors      weights in bfloat16, d2t int64, t2d bool, under the form's names
    expected.safetensors   in float32 and int64:
        streams            [n, s * H]   captured streams of the tokens at positions 0 .. n - 1
        tokens             [n]          the tokens at positions 1 .. n
        logits             [n, V]       Eagle3DraftModel.forward, one step, teacher-forced
        drafts             [k]          ids of the target: what a plain loop drafts after the last
                                        pair
        chain_logits       [k, V]       their logits; the first are those of the last pair
        embedding          [vocab, H]   of the target, where the head has none

The plain loop feeds the head's own output, its draft's embedding and the next position back into
its first layer, and keeps the keys and values of all pairs before: what engines do. speculators'
own forward does so for the first draft alone.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from speculators import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import DynamicCache, LlamaConfig, Qwen3Config

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "tests/fixtures/eagle3"
NUM_PAIRS = 37  # three blocks of 16
NUM_DRAFTS = 5

# Sizes of all heads.
SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 40,
    "vocab_size": 61,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}


def make_model(layer, draft_vocab_size, seed, **flags):
    layer._attn_implementation = "eager"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=draft_vocab_size,
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=NUM_DRAFTS)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["Qwen3ForCausalLM"]),
        ),
        **flags,
    )
    model = Eagle3DraftModel(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 2:
                value = noise * (3.0 if "lm_head" in name else 1.5) / parameter.shape[1] ** 0.5
            else:
                value = noise * 0.3 + (0.0 if name.endswith("bias") else 1.0)
            parameter.copy_(value.to(torch.bfloat16).float())
    if draft_vocab_size != SIZES["vocab_size"]:
        ids = torch.randperm(SIZES["vocab_size"], generator=generator)[:draft_vocab_size].sort()[0]
        model.d2t = ids - torch.arange(draft_vocab_size)
        model.t2d = torch.zeros(SIZES["vocab_size"], dtype=torch.bool)
        model.t2d[ids] = True
    return model


def num_streams(model):
    return model.fc.in_features // model.hidden_size


def teacher_forced(model, streams, tokens):
    """Logits of all pairs, by speculators' own forward."""
    logits = []
    hook = model.lm_head.register_forward_hook(lambda _, __, out: logits.append(out[0].detach()))
    n = tokens.shape[0]
    model(
        streams[None],
        tokens[None],
        document_ids=torch.zeros(1, n, dtype=torch.long),
        position_ids=torch.arange(n)[None],
        ttt_steps=1,
    )
    hook.remove()
    return logits[0]


def chain(model, streams, tokens):
    """Drafts after the last pair, and their logits."""
    cache = DynamicCache()
    layer = model.layers[0]

    def run(hidden, ids, positions, mask):
        both = torch.cat([model.embed_tokens(ids)[None], hidden[None]], dim=-1)
        angles = model.rotary_emb(both, positions[None])
        out = layer(
            both,
            attention_mask=mask,
            position_ids=positions[None],
            past_key_values=cache,
            position_embeddings=angles,
        )[0]
        normed = model.norm(out)
        logits = model.lm_head(normed)
        return logits[-1:], (normed if model.config.norm_output else out)[-1:]

    n = tokens.shape[0]
    if model.input_norm is not None:
        streams = model.input_norm(streams)
    if model.fc_norm is not None:
        parts = streams.chunk(num_streams(model), dim=-1)
        streams = torch.cat([norm(part) for norm, part in zip(model.fc_norm, parts)], dim=-1)
    causal = torch.full((n, n), float("-inf")).triu(1)[None, None]
    logits, hidden = run(model.fc(streams), tokens, torch.arange(n), causal)
    drafts, rows = [], []
    for step in range(NUM_DRAFTS):
        rows.append(logits)
        draft = logits.argmax(-1)
        draft = draft + (0 if model.d2t is None else model.d2t[draft])
        drafts.append(draft)
        if step + 1 < NUM_DRAFTS:
            logits, hidden = run(hidden, draft, torch.tensor([n + step]), None)
    return torch.cat(drafts), torch.cat(rows)


def tensors_of(model, rename):
    out = {}
    for name, parameter in model.named_parameters():
        if not name.startswith("verifier_"):
            out[rename(name)] = parameter.detach().to(torch.bfloat16).contiguous()
    if model.d2t is not None:
        out["d2t"], out["t2d"] = model.d2t.clone(), model.t2d.clone()
    return out


def write(name, model, config, seed, rename=lambda name: name, own_embedding=True):
    folder = OUT / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    weights = tensors_of(model, rename)
    embedding = weights["embed_tokens.weight"].float()
    if not own_embedding:
        del weights["embed_tokens.weight"]
    save_file(weights, folder / "model.safetensors")

    generator = torch.Generator().manual_seed(seed + 1)
    width = num_streams(model) * model.hidden_size
    # As residual streams are: a few elements far larger than the others.
    streams = torch.randn(NUM_PAIRS, width, generator=generator)
    streams[:, ::11] *= 8
    tokens = torch.randint(0, SIZES["vocab_size"], (NUM_PAIRS,), generator=generator)
    with torch.no_grad():
        logits = teacher_forced(model, streams, tokens)
        drafts, chain_logits = chain(model, streams, tokens)
    assert torch.allclose(logits[-1], chain_logits[0], atol=1e-4)
    gaps = chain_logits.topk(2).values
    assert (gaps[:, 0] - gaps[:, 1]).min() > 1e-2, "a tie would decide what is drafted"
    expected = {
        "streams": streams,
        "tokens": tokens,
        "logits": logits,
        "drafts": drafts,
        "chain_logits": chain_logits,
    }
    if not own_embedding:
        expected["embedding"] = embedding
    save_file(expected, folder / "expected.safetensors")


def speculators_config(model):
    """As save_pretrained writes it."""
    config = json.loads(model.config.to_json_string())
    config["architectures"] = ["Eagle3Speculator"]
    return config


def flat_config(model, architecture, **more):
    """The form of AngelSlim, SafeAILab and SGLang."""
    layer = model.config.transformer_layer_config
    return {
        "architectures": [architecture],
        "model_type": "llama",
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "rope_theta": layer.rope_parameters["rope_theta"],
        "draft_vocab_size": model.config.draft_vocab_size,
        **SIZES,
        **more,
    }


def midlayer(name):
    return name.replace("layers.0.", "midlayer.")


def main():
    torch.set_num_threads(1)
    shutil.rmtree(OUT, ignore_errors=True)

    def rope(theta):
        return {"rope_type": "default", "rope_theta": theta}

    # RedHatAI's: the normed stream is the residual, and rope_theta is not the target's.
    layer = LlamaConfig(**SIZES, rope_parameters=rope(5e4))
    model = make_model(layer, 40, 8101, norm_before_residual=True)
    write("speculators_llama", model, speculators_config(model), 8101)

    # "3.1": a norm for each stream, and the normed output is fed back; four streams; no d2t.
    layer = Qwen3Config(**SIZES, attention_bias=True, rope_parameters=rope(1e6))
    model = make_model(
        layer, SIZES["vocab_size"], 8102, fc_norm=True, norm_output=True,
        eagle_aux_hidden_state_layer_ids=[1, 3, 2, 6],
    )
    write("speculators_qwen3", model, speculators_config(model), 8102)

    # AngelSlim's: the target's embedding.
    layer = LlamaConfig(**SIZES, rope_parameters=rope(1e4))
    model = make_model(layer, 33, 8113)
    config = flat_config(model, "Eagle3LlamaForCausalLM")
    write("angelslim", model, config, 8113, midlayer, own_embedding=False)

    # SafeAILab's, with a norm before fc as heads of gpt-oss have it, and biases of q, k and v.
    layer = LlamaConfig(**SIZES, attention_bias=True, rope_parameters=rope(1e4))
    model = make_model(layer, 40, 8104, norm_before_fc=True)
    model.layers[0].self_attn.o_proj.bias = None
    ids = {"eagle_aux_hidden_state_layer_ids": [2, 4, 5], "norm_before_fc": True}
    config = flat_config(
        model, "LlamaForCausalLMEagle3", attention_bias=True,
        eagle_config={"use_aux_hidden_state": True, **ids},
    )
    write("safeailab", model, config, 8104, midlayer, own_embedding=False)


if __name__ == "__main__":
    main()
