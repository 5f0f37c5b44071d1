"""Writes tests/fixtures/parity/moe_*: what Hugging Face makes of small Qwen3 mixtures of experts.

    python tests/oracle/make_qwen3_moe_fixtures.py            # from the repository root
    python tests/oracle/make_qwen3_moe_fixtures.py --out DIR  # elsewhere, to compare with diff -r

Versions and how to install them: tests/oracle/README.md. Layout and meaning of <name>.json and
<name>.safetensors: make_parity_fixtures.py; here with fewer prompts and greedy tokens. Experts run by
the implementation "eager" in both dtypes.

The weights are not stored: they are a formula (`formula_weights`), which
tests/with/moe/parity/qwen3_moe_checkpoint.hpp computes as well, bit by bit. <name>.json has the
"config", under "seeds" the seed of the formula, and "experts": of each prompt and each layer with
experts, in their order, the ids that float32 has chosen for each token, the likeliest first, as
"3 5,0 5" for two tokens; "least_gap" says by how much, at the least, a chosen logit exceeds one that
is not chosen.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

import numpy
import torch
import transformers
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

import make_parity_fixtures as parity

parity.NUM_GREEDY = 16
PROMPT_LENGTHS = (1, 33, 50)

COMMON = dict(max_position_embeddings=128, rms_norm_eps=1e-6,
              rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})

# Odd shapes on purpose: 4 to 60 experts, 1 to all of them, layers without experts ahead, between and
# behind, both settings of norm_topk_prob, both spellings of config.json.
CHECKPOINTS = {
    "moe_4_of_4": {
        "seed": 6101,
        "config": dict(COMMON, hidden_size=48, intermediate_size=40, moe_intermediate_size=36,
                       num_experts=4, num_experts_per_tok=4, norm_topk_prob=True,
                       num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                       head_dim=16, vocab_size=67),
    },
    "moe_1_of_5": {
        "seed": 6102,
        "config": dict(COMMON, hidden_size=40, intermediate_size=56, moe_intermediate_size=33,
                       num_experts=5, num_experts_per_tok=1, norm_topk_prob=False,
                       num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1,
                       head_dim=24, vocab_size=71, tie_word_embeddings=True),
    },
    "moe_2_of_8_step": {
        "seed": 6103,
        "config": dict(COMMON, hidden_size=56, intermediate_size=64, moe_intermediate_size=24,
                       num_experts=8, num_experts_per_tok=2, norm_topk_prob=True,
                       decoder_sparse_step=2, num_hidden_layers=4, num_attention_heads=4,
                       num_key_value_heads=4, head_dim=16, vocab_size=61),
    },
    "moe_8_of_60": {
        "seed": 6104,
        "config": dict(COMMON, hidden_size=64, intermediate_size=32, moe_intermediate_size=16,
                       num_experts=60, num_experts_per_tok=8, norm_topk_prob=True,
                       num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2,
                       head_dim=16, vocab_size=73),
        "spelling": "4.x",
    },
    "moe_3_of_16_first": {
        "seed": 6105,
        "config": dict(COMMON, hidden_size=48, intermediate_size=72, moe_intermediate_size=20,
                       num_experts=16, num_experts_per_tok=3, norm_topk_prob=False,
                       mlp_only_layers=[0], num_hidden_layers=3, num_attention_heads=2,
                       num_key_value_heads=1, head_dim=32, vocab_size=79),
    },
    "moe_6_of_24_mixed": {
        "seed": 6106,
        "config": dict(COMMON, hidden_size=40, intermediate_size=48, moe_intermediate_size=28,
                       num_experts=24, num_experts_per_tok=6, norm_topk_prob=False,
                       decoder_sparse_step=2, mlp_only_layers=[3], num_hidden_layers=6,
                       num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=83),
        "spelling": "4.x",
    },
}


def fnv1a(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def formula_weight(name, shape, seed):
    """Noise that is the same in every language: integers alone until the last float32 operations.
    `name` is that of the tensor in a file, with a matrix for each expert."""
    size = int(numpy.prod(shape))
    with numpy.errstate(over="ignore"):
        x = numpy.arange(1, size + 1, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
        x ^= numpy.uint64(fnv1a(name) ^ seed)
        x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    noise = (x >> numpy.uint64(40)).astype(numpy.float32) * numpy.float32(2.0**-24) - numpy.float32(0.5)
    if name.endswith("norm.weight"):
        noise += numpy.float32(1)
    else:
        factor = 6.0 if ".gate.weight" in name else 3.0 if len(name.split(".")) < 4 else 5.0
        noise *= numpy.float32(factor / numpy.sqrt(numpy.float64(shape[1])))
    return torch.from_numpy(noise.reshape(shape))


def fill_weights(model, seed):
    """In memory the experts of a layer are stacked, and their gate and up rows are one tensor."""
    width = model.config.moe_intermediate_size
    for name, weight in model.named_parameters():
        prefix, _, kind = name.rpartition(".")
        if not prefix.endswith("mlp.experts"):
            weight.data.copy_(formula_weight(name, tuple(weight.shape), seed))
            continue
        for e in range(weight.shape[0]):
            expert = f"{prefix}.{e}."
            if kind == "gate_up_proj":
                shape = (width, weight.shape[2])
                parts = [formula_weight(f"{expert}{part}_proj.weight", shape, seed)
                         for part in ("gate", "up")]
                weight.data[e].copy_(torch.cat(parts))
            else:
                weight.data[e].copy_(
                    formula_weight(f"{expert}down_proj.weight", tuple(weight.shape[1:]), seed))


def make_checkpoint(directory, spec):
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**spec["config"]))
    fill_weights(model, spec["seed"])
    model.save_pretrained(directory)
    (Path(directory) / "generation_config.json").unlink(missing_ok=True)
    config = json.loads((Path(directory) / "config.json").read_text())
    if spec.get("spelling") == "4.x":
        rope = config.pop("rope_parameters")
        config.pop("layer_types", None)
        config["num_experts"] = config.pop("num_local_experts")
        config["rope_theta"] = rope["rope_theta"]
        config["torch_dtype"] = config.pop("dtype")
    else:
        assert "num_experts" not in config and "num_local_experts" in config
    return config


def load(directory, dtype, attention):
    model = Qwen3MoeForCausalLM.from_pretrained(
        directory, dtype=dtype, attn_implementation=attention, experts_implementation="eager")
    assert model.config._experts_implementation == "eager"
    assert model.dtype == dtype
    return model.eval()


@torch.no_grad()
def chosen_experts(directory, prompts):
    """Texts of the chosen ids, [prompt][layer], and the least gap to a logit that is not chosen."""
    model = load(directory, torch.float32, parity.ATTENTION)
    out, least_gap = [], float("inf")
    for prompt in prompts:
        seen = []
        hooks = [layer.mlp.gate.register_forward_hook(lambda _, __, result: seen.append(result))
                 for layer in model.model.layers if hasattr(layer.mlp, "gate")]
        model(torch.tensor([prompt]))
        for hook in hooks:
            hook.remove()
        texts = []
        for logits, _, ids in seen:
            texts.append(",".join(" ".join(str(i) for i in row) for row in ids.tolist()))
            ranked, k = logits.sort(descending=True).values, ids.shape[-1]
            gaps = ranked[:, :-1] - ranked[:, 1:]
            # The order within the chosen counts as well: it is compared.
            least_gap = min(least_gap, gaps[:, :k].min().item())
        out.append(texts)
    return out, least_gap


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=parity.ROOT / "tests/fixtures/parity")
    parser.add_argument("names", nargs="*", help="all where none is named")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    os.umask(0o022)

    for name, spec in CHECKPOINTS.items():
        if arguments.names and name not in arguments.names:
            continue
        with tempfile.TemporaryDirectory() as directory:
            config = make_checkpoint(directory, spec)
            generator = torch.Generator().manual_seed(spec["seed"] + 1000)
            prompts = [torch.randint(spec["config"]["vocab_size"], (length,), generator=generator).tolist()
                       for length in PROMPT_LENGTHS]
            experts, least_gap = chosen_experts(directory, prompts)
            print(name, "least gap", least_gap)
            assert least_gap > 2e-5, least_gap
            positions = [sorted({0, len(prompt) // 2, len(prompt) - 1}) for prompt in prompts]
            seeds = {"weights": spec["seed"], "prompts": spec["seed"] + 1000}
            parity.write_expected(arguments.out, name, directory, prompts, positions, seeds, load=load,
                                  more={"config": config, "experts": experts, "least_gap": least_gap})


if __name__ == "__main__":
    main()
