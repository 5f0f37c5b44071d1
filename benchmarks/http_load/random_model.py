"""Writes a checkpoint of random bfloat16 weights in a Qwen3 model's shape, for servers to load.

    python3 random_model.py QWEN3_DIR OUTPUT_DIR

QWEN3_DIR has the model's config.json and the files of its tokeniser, which are copied; weights it
needs none of. Made on a GPU where there is one: a 0.6B model takes seconds.
"""

import json
import pathlib
import shutil
import struct
import sys

import torch


def make_tensors(config: dict) -> dict[str, torch.Tensor]:
    """Weights by name: normal with a deviation of 0.02, those of norms around 1. The same in every
    run on a kind of device."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device=device).manual_seed(0)

    def normal(*shape: int, mean: float = 0.0, deviation: float = 0.02) -> torch.Tensor:
        values = torch.randn(*shape, generator=generator, device=device)
        return (mean + deviation * values).to(torch.bfloat16).cpu()

    def norm(size: int) -> torch.Tensor:
        return normal(size, mean=1.0, deviation=0.05)

    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries = config["num_attention_heads"] * head
    keys = config["num_key_value_heads"] * head
    tensors = {
        "model.embed_tokens.weight": normal(config["vocab_size"], hidden),
        "model.norm.weight": norm(hidden),
    }
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = normal(config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        tensors |= {
            prefix + "input_layernorm.weight": norm(hidden),
            prefix + "self_attn.q_proj.weight": normal(queries, hidden),
            prefix + "self_attn.k_proj.weight": normal(keys, hidden),
            prefix + "self_attn.v_proj.weight": normal(keys, hidden),
            prefix + "self_attn.q_norm.weight": norm(head),
            prefix + "self_attn.k_norm.weight": norm(head),
            prefix + "self_attn.o_proj.weight": normal(hidden, queries),
            prefix + "post_attention_layernorm.weight": norm(hidden),
            prefix + "mlp.gate_proj.weight": normal(inner, hidden),
            prefix + "mlp.up_proj.weight": normal(inner, hidden),
            prefix + "mlp.down_proj.weight": normal(hidden, inner),
        }
    return tensors


def write_safetensors(path: pathlib.Path, tensors: dict[str, torch.Tensor]) -> None:
    header, end = {}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + 2 * tensor.numel()
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.view(torch.uint8).numpy().tobytes())


def main() -> None:
    source, output = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    output.mkdir(parents=True, exist_ok=True)
    for path in source.glob("*.json"):
        if "safetensors" not in path.name:
            shutil.copyfile(path, output / path.name)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    write_safetensors(output / "model.safetensors", make_tensors(config))


if __name__ == "__main__":
    main()
