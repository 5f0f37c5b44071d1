"""Writes tests/fixtures/fp8: small Qwen3 checkpoints in 8-bit floats, written by transformers and by
compressed-tensors, and what transformers makes of their dequantised weights in float32. Also writes
products of 8-bit floats that torch has computed.

    python tests/oracle/make_fp8_fixtures.py            # from the repository root
    python tests/oracle/make_fp8_fixtures.py --out DIR  # elsewhere, to compare with diff -r

Versions and how to install them: tests/oracle/README.md. No GPU is needed.

Layout
------
    <name>/      a checkpoint: config.json, model.safetensors; no tokenizer
    <name>.json  versions, seed; prompt: ids; log_probs: [position][id], log_softmax of the logits of
                 the prompt; greedy_ids and greedy_log_probs: its continuation, one token at a time

    block        transformers, 128 x 128, scales F32; k and v are not whole blocks and stay as they are
    ue8m0        the same with powers of two as scales
    dynamic      compressed-tensors, FP8_DYNAMIC: a scale a row, BF16
    static       compressed-tensors, FP8: a scale a matrix, F32, and scales of activations
    ct_block     compressed-tensors, FP8_BLOCK: 128 x 128, blocks at the edges are smaller, F32

    products.safetensors
        x             BF16 [m, k]; rows 3 and 21 are zeros, rows 7, 11 and 30 have an outlier
        x_e4m3        [m, k] and x_scale F32 [m, k / 128 rounded up]: x, rounded to 8 bits in groups
                      of 128 columns of a row
        weight        E4M3 [n, k] and weight_scale F32 [n / 128, k / 128, both rounded up]
        y_w8a8        F32 [m, n]: the product of the rounded x and the weight
        y_w8a16       F32 [m, n]: the product of x and the weight
"""

import argparse
import json
from pathlib import Path
from types import SimpleNamespace

import compressed_tensors
import torch
import transformers
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import (QuantizationConfig, apply_quantization_config,
                                             preset_name_to_scheme)
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

NUM_GREEDY = 12


def make_model(seed, hidden, intermediate, heads, kv_heads, head_dim, dtype):
    torch.manual_seed(seed)
    config = transformers.Qwen3Config(
        hidden_size=hidden, intermediate_size=intermediate, vocab_size=97, num_hidden_layers=1,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
        max_position_embeddings=128, tie_word_embeddings=False, initializer_range=0.15)
    model = transformers.Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
            parameter.copy_(parameter.to(torch.bfloat16))
    return model.to(dtype)


def expected(model, values, seed):
    """Of the model with these tensors, in float32."""
    model = transformers.Qwen3ForCausalLM(model.config).eval().float()
    missing, unexpected = model.load_state_dict({k: v.float() for k, v in values.items()}, strict=False)
    assert not missing and not unexpected, (missing, unexpected)
    prompt = torch.randint(0, 97, (24,), generator=torch.Generator().manual_seed(seed + 1000))
    ids = prompt.tolist()
    greedy, greedy_log_probs, log_probs = [], [], None
    with torch.no_grad():
        for _ in range(NUM_GREEDY):
            rows = torch.log_softmax(model(torch.tensor([ids])).logits[0].float(), -1)
            if log_probs is None:
                log_probs = rows
            greedy.append(int(rows[-1].argmax()))
            greedy_log_probs.append(float(rows[-1].max()))
            ids.append(greedy[-1])
    return {"prompt": prompt.tolist(),
            "log_probs": [[round(x, 6) for x in row] for row in log_probs.tolist()],
            "greedy_ids": greedy,
            "greedy_log_probs": [round(x, 6) for x in greedy_log_probs]}


def is_of_a_layer(name, value):
    return value.ndim == 2 and name.startswith("model.layers.")


def write(out, name, config, tensors, seed, result):
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file({k: v.contiguous() for k, v in tensors.items()}, str(folder / "model.safetensors"),
              metadata={"format": "pt"})
    versions = {m.__name__: m.__version__ for m in (torch, transformers, compressed_tensors)}
    (out / f"{name}.json").write_text(
        json.dumps({"versions": versions, "seed": seed, **result}) + "\n")


def by_transformers(out, name, seed, scale_fmt):
    model = make_model(seed, 128, 256, 2, 1, 64, torch.float32)
    block = [128, 128]
    quantizer = SimpleNamespace(
        quantization_config=transformers.FineGrainedFP8Config(weight_block_size=block,
                                                              scale_fmt=scale_fmt),
        pre_quantized=True)
    tensors, values = {}, {}
    for key, value in model.state_dict().items():
        made = Fp8Quantize(quantizer).convert({key: value}) if is_of_a_layer(key, value) else {key: value}
        tensors.update({k: v if v.dtype != torch.float32 or k.endswith("_inv") else v.bfloat16()
                        for k, v in made.items()})
        if len(made) == 1:
            values[key] = value
            continue
        scale = made[key.rsplit(".", 1)[0] + ".weight_scale_inv"]
        back = Fp8Dequantize(quantizer)._dequantize_one(made[key], scale.float())
        values[key] = back.float()
    assert sum(v.dtype == torch.float8_e4m3fn for v in tensors.values()) == 5
    config = model.config.to_dict()
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic",
                                     "fmt": "e4m3", "weight_block_size": block,
                                     **({"scale_fmt": scale_fmt} if scale_fmt != "float" else {})}
    config["architectures"] = ["Qwen3ForCausalLM"]
    write(out, name, config, tensors, seed, expected(model, values, seed))


def by_compressed_tensors(out, name, seed, preset, dtype):
    model = make_model(seed, 136, 200, 3, 1, 48, dtype)
    scheme = preset_name_to_scheme(preset, targets=["Linear"])
    apply_quantization_config(
        model, QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"]))
    originals = {}
    for module_name, module in model.named_modules():
        if getattr(module, "quantization_scheme", None) is None:
            continue
        weight, args = module.weight.data, scheme.weights
        if args.strategy == "channel":
            low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
        elif args.strategy == "tensor":
            low, high = weight.min().reshape(1), weight.max().reshape(1)
        else:
            rows, columns = args.block_structure
            blocks = [[weight[i:i + rows, j:j + columns] for j in range(0, weight.shape[1], columns)]
                      for i in range(0, weight.shape[0], rows)]
            low = torch.stack([torch.stack([b.min() for b in row]) for row in blocks])
            high = torch.stack([torch.stack([b.max() for b in row]) for row in blocks])
        scale, _ = calculate_qparams(low, high, args)
        module.weight_scale.data.copy_(scale)
        if hasattr(module, "input_scale"):
            module.input_scale.data.fill_(0.25)
        originals[module_name] = args
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    tensors = {k: v for k, v in model.state_dict().items()}
    values = {}
    for key, value in tensors.items():
        module_name = key.rsplit(".", 1)[0]
        if module_name not in originals:
            values[key] = value
        elif key.endswith(".weight"):
            assert value.dtype == torch.float8_e4m3fn, (key, value.dtype)
            values[key] = dequantize(value, tensors[module_name + ".weight_scale"].float(),
                                     args=originals[module_name], dtype=torch.float32)
    assert len(originals) == 7
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    compressor.update_config(str(folder))
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["Qwen3ForCausalLM"]
    write(out, name, config, tensors, seed, expected(model, values, seed))


def quantise(x, rows):
    """x as float8_e4m3fn, and a scale for each block of `rows` rows and 128 columns."""
    blocks = [x[:, j:j + 128].split(rows) for j in range(0, x.shape[1], 128)]
    largest = torch.stack([torch.stack([b.abs().max() for b in column]) for column in blocks], 1)
    scale = torch.where(largest > 0, largest / 448, torch.ones_like(largest))
    return (x / spread(scale, rows, x.shape)).to(torch.float8_e4m3fn), scale


def spread(scale, rows, shape):
    """The scale of each element."""
    return scale.repeat_interleave(rows, 0)[:shape[0]].repeat_interleave(128, 1)[:, :shape[1]]


def products(out, seed, m, n, k):
    generator = torch.Generator().manual_seed(seed)
    size = 2.0 ** (torch.arange(m) % 7 - 3)
    x = (torch.randn(m, k, generator=generator) * size[:, None]).bfloat16().float()
    x[3], x[21], x[5, 128:256] = 0, 0, 0
    x[7, 200], x[11, 0], x[30, k - 1] = -300, 448, 4096  # the second: a scale of 1, hence ties
    size = torch.tensor([[0.1, 0.15, 0.02], [0.03, 0.2, 0.12]])
    weight = torch.randn(n, k, generator=generator) * spread(size, 128, (n, k))
    weight, weight_scale = quantise(weight, 128)
    x_e4m3, x_scale = quantise(x, 1)
    y, weight_of_row = torch.zeros(m, n), weight_scale.repeat_interleave(128, 0)[:n]
    for g in range(x_scale.shape[1]):
        columns = slice(128 * g, 128 * g + 128)
        product = x_e4m3[:, columns].float() @ weight[:, columns].float().T
        y += product * x_scale[:, g, None] * weight_of_row[None, :, g]
    y16 = x @ (weight.float() * spread(weight_scale, 128, weight.shape)).T
    save_file({"x": x.bfloat16(), "x_e4m3": x_e4m3, "x_scale": x_scale, "weight": weight,
               "weight_scale": weight_scale, "y_w8a8": y, "y_w8a16": y16},
              str(out / "products.safetensors"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("tests/fixtures/fp8"))
    out = parser.parse_args().out
    torch.set_num_threads(1)
    by_transformers(out, "block", 6101, "float")
    by_transformers(out, "ue8m0", 6102, "ue8m0")
    by_compressed_tensors(out, "dynamic", 6103, "FP8_DYNAMIC", torch.bfloat16)
    by_compressed_tensors(out, "static", 6104, "FP8", torch.float32)
    by_compressed_tensors(out, "ct_block", 6105, "FP8_BLOCK", torch.float32)
    products(out, 6106, 40, 208, 328)


if __name__ == "__main__":
    main()
