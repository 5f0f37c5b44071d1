"""Writes tests/fixtures/packed: small Qwen3 checkpoints in integers of 4 and 8 bits, packed as AWQ,
GPTQ and compressed-tensors do it, and what transformers makes of their dequantised weights in float32.

    python tests/oracle/make_packed_fixtures.py            # from the repository root
    python tests/oracle/make_packed_fixtures.py --out DIR  # elsewhere, to compare with diff -r

Versions and how to install them: tests/oracle/README.md. No GPU is needed.

Layout
------
    <name>/      a checkpoint: config.json, model.safetensors; no tokenizer
    <name>.json  versions, seed; prompt: ids; log_probs: [position][id], log_softmax of the logits of
                 the prompt; greedy_ids and greedy_log_probs: its continuation, one token at a time;
                 matrices: of each packed matrix, shape, and sha256 of its dequantised elements as
                 little-endian float32 in rows; transformers: of the files that transformers reads by itself on a CPU in
                 float32, how far its log_probs are from these at the most

    awq          zeros, groups of 32, F16; packed here by the order of AutoAWQ
    awq_moe      the same of a mixture of experts, whose routers are not packed; groups of 16
    gptq         symmetric, groups of 32, with g_idx; packed here by the order of AutoGPTQ, which
                 stores zeros less one, and with biases of zeros, as AutoGPTQ writes them
    gptq_v2      zeros as they are, groups of 128, F16
    gptq_8bit    zeros less one, 8 bits, one group a row
    ct           compressed-tensors, W4A16: symmetric, groups of 128, BF16
    ct_asym      compressed-tensors, W4A16_ASYM with groups of 32
    ct_8bit      compressed-tensors, W8A16: symmetric, one scale a row
"""

import argparse
import hashlib
import json
import tempfile
from pathlib import Path

import compressed_tensors
import numpy
import torch
import transformers
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import (QuantizationArgs, QuantizationConfig, QuantizationScheme,
                                             apply_quantization_config)
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file

NUM_GREEDY = 12
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def make_model(seed, hidden, dtype=torch.float32, experts=0):
    torch.manual_seed(seed)
    shape = dict(
        hidden_size=hidden, intermediate_size=2 * hidden, vocab_size=97, num_hidden_layers=1,
        num_attention_heads=hidden // 32, num_key_value_heads=2, head_dim=32,
        max_position_embeddings=128, tie_word_embeddings=False, initializer_range=0.15)
    if experts:
        config = transformers.Qwen3MoeConfig(
            num_experts=experts, num_experts_per_tok=2, moe_intermediate_size=hidden // 2,
            norm_topk_prob=True, **shape)
        model = transformers.Qwen3MoeForCausalLM(config).eval()
    else:
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**shape)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
            parameter.copy_(parameter.to(torch.bfloat16))
    return model.to(dtype)


def stored(model):
    """The tensors and the config of the model as transformers saves them."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return (load_file(f"{folder}/model.safetensors"),
                json.loads((Path(folder) / "config.json").read_text()))


def log_probs_of(folder, prompt, dtype):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, experts_implementation="eager").eval()
    greedy, greedy_log_probs, log_probs, ids = [], [], None, list(prompt)
    with torch.no_grad():
        for _ in range(NUM_GREEDY):
            rows = torch.log_softmax(model(torch.tensor([ids])).logits[0].float(), -1)
            if log_probs is None:
                log_probs = rows
            greedy.append(int(rows[-1].argmax()))
            greedy_log_probs.append(float(rows[-1].max()))
            ids.append(greedy[-1])
    return log_probs, greedy, greedy_log_probs


def write(out, name, config, tensors, values, packed, seed, by_itself=False):
    """`values` are all tensors in float32, `packed` the names of those that are packed. `by_itself`:
    transformers reads the checkpoint without help, too."""
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file({k: v.contiguous() for k, v in tensors.items()}, str(folder / "model.safetensors"),
              metadata={"format": "pt"})
    prompt = torch.randint(0, 97, (24,), generator=torch.Generator().manual_seed(seed + 1000)).tolist()
    result = {"prompt": prompt}
    with tempfile.TemporaryDirectory() as exact:
        plain = {k: v for k, v in config.items() if k != "quantization_config"}
        (Path(exact) / "config.json").write_text(json.dumps(plain))
        save_file({k: v.float().contiguous() for k, v in values.items()}, f"{exact}/model.safetensors",
                  metadata={"format": "pt"})
        log_probs, greedy, greedy_log_probs = log_probs_of(exact, prompt, torch.float32)
    result["log_probs"] = [[round(x, 6) for x in row] for row in log_probs.tolist()]
    result["greedy_ids"] = greedy
    result["greedy_log_probs"] = [round(x, 6) for x in greedy_log_probs]
    result["matrices"] = {
        k: {"shape": list(values[k].shape),
            "sha256": hashlib.sha256(values[k].float().contiguous().numpy().tobytes()).hexdigest()}
        for k in packed}
    if by_itself:
        own, _, _ = log_probs_of(str(folder), prompt, torch.float32)
        result["transformers"] = float((own - log_probs).abs().max())
    versions = {m.__name__: m.__version__ for m in (torch, transformers, compressed_tensors)}
    (out / f"{name}.json").write_text(json.dumps({"versions": versions, "seed": seed, **result}) + "\n")
    print(name, sum(f.stat().st_size for f in folder.iterdir()), result.get("transformers"))


def quantise(weight, bits, group, symmetric, dtype):
    """weight [N, K]: codes [N, K], zeros and scales [N, K / group], and the float32 they stand for."""
    rows, columns = weight.shape
    groups = weight.float().reshape(rows, columns // group, group)
    most = 2 ** bits - 1
    low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
    if symmetric:
        high = torch.maximum(high, -low)
        low = -high
    scales = ((high - low) / most).clamp(min=1e-5).to(dtype)
    zeros = torch.full_like(low, (most + 1) // 2) if symmetric else (-low / scales.float()).round()
    zeros = zeros.clamp(0, most)
    codes = ((groups / scales.float()[..., None]).round() + zeros[..., None]).clamp(0, most)
    values = ((codes - zeros[..., None]) * scales.float()[..., None]).reshape(rows, columns)
    return codes.reshape(rows, columns).int(), zeros.int(), scales, values


def pack(codes, bits, order=None):
    """Packs the last dimension: element order[i] of a word at its bits i · bits."""
    per_word = 32 // bits
    words = codes.numpy().astype(numpy.uint32).reshape(*codes.shape[:-1], -1, per_word)
    out = numpy.zeros(words.shape[:-1], numpy.uint32)
    for i, element in enumerate(order or range(per_word)):
        out |= words[..., element] << numpy.uint32(bits * i)
    return torch.from_numpy(out.view(numpy.int32).copy())


def is_packed(key, value):
    return value.ndim == 2 and "_proj" in key


def by_hand(out, name, seed, hidden, quantization, experts=0):
    tensors, values, packed = {}, {}, []
    model_tensors, config = stored(make_model(seed, hidden, experts=experts))
    is_awq, bits = quantization["quant_method"] == "awq", quantization["bits"]
    for key, value in model_tensors.items():
        if not is_packed(key, value):
            tensors[key], values[key] = value.bfloat16(), value
            continue
        group = quantization["group_size"] if quantization["group_size"] > 0 else value.shape[1]
        symmetric = quantization.get("sym", False) and not is_awq
        codes, zeros, scales, values[key] = quantise(value, bits, group, symmetric, torch.float16)
        packed.append(key)
        module = key.removesuffix(".weight")
        tensors[module + ".scales"] = scales.T
        if is_awq:
            tensors[module + ".qweight"] = pack(codes.T, bits, AWQ_ORDER)
            tensors[module + ".qzeros"] = pack(zeros.T, bits, AWQ_ORDER)
            continue
        less = 0 if quantization["checkpoint_format"] == "gptq_v2" else 1
        tensors[module + ".qweight"] = pack(codes, bits).T
        tensors[module + ".qzeros"] = pack((zeros.T - less) & (2 ** bits - 1), bits)
        tensors[module + ".g_idx"] = (torch.arange(value.shape[1]) // group).int()
        if symmetric:
            tensors[module + ".bias"] = torch.zeros(value.shape[0], dtype=torch.float16)
    config["quantization_config"] = quantization
    write(out, name, config, tensors, values, packed, seed)


def by_compressed_tensors(out, name, seed, hidden, arguments, dtype):
    model = make_model(seed, hidden, dtype)
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**arguments))
    apply_quantization_config(
        model, QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"]))
    values = {k: v for k, v in stored(make_model(seed, hidden, dtype))[0].items()}
    packed = []
    for module_name, module in model.named_modules():
        if getattr(module, "quantization_scheme", None) is None:
            continue
        weight, args = module.weight.data, scheme.weights
        group = args.group_size if args.strategy == "group" else weight.shape[1]
        groups = weight.reshape(weight.shape[0], -1, group)
        scale, zero = calculate_qparams(groups.amin(2), groups.amax(2), args)
        module.weight_scale.data.copy_(scale)
        zero = zero.float()
        if hasattr(module, "weight_zero_point"):
            module.weight_zero_point.data.copy_(zero)
        # By hand, in float32; the codes are those of compressed-tensors, which rounds in `dtype`.
        codes = ((groups / scale[..., None]) + zero.to(dtype)[..., None]).round()
        half = 2 ** (args.num_bits - 1)
        codes = codes.clamp(-half, half - 1).float()
        value = (codes - zero[..., None]) * scale.float()[..., None] + 0.0  # no -0
        values[module_name + ".weight"] = value.reshape(weight.shape)
        packed.append(module_name + ".weight")
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    tensors = dict(model.state_dict())
    assert len(packed) == 7
    for key in packed:  # compressed-tensors reads what it has written as what is expected
        module = key.removesuffix(".weight")
        own = {k.rsplit(".", 1)[1]: v for k, v in tensors.items() if k.startswith(module + ".")}
        back = PackedQuantizationCompressor.decompress(own, scheme)["weight"]
        assert torch.equal(back, values[key].to(dtype)), key
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    compressor.update_config(str(folder))
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["Qwen3ForCausalLM"]
    # transformers 5.24 does not unpack zeros: it refuses their shape.
    write(out, name, config, tensors, values, packed, seed, by_itself=arguments["symmetric"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("tests/fixtures/packed"))
    out = parser.parse_args().out
    torch.set_num_threads(1)
    awq = {"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemm"}
    by_hand(out, "awq", 6201, 64, {**awq, "group_size": 32, "modules_to_not_convert": None})
    by_hand(out, "awq_moe", 6202, 64, {**awq, "group_size": 16, "modules_to_not_convert": ["gate"]},
            experts=4)
    gptq = {"quant_method": "gptq", "desc_act": False, "lm_head": False, "pack_dtype": "int32"}
    by_hand(out, "gptq", 6203, 64,
            {**gptq, "bits": 4, "group_size": 32, "sym": True, "checkpoint_format": "gptq"})
    by_hand(out, "gptq_v2", 6204, 128,
            {**gptq, "bits": 4, "group_size": 128, "sym": False, "checkpoint_format": "gptq_v2"})
    by_hand(out, "gptq_8bit", 6205, 64,
            {**gptq, "bits": 8, "group_size": -1, "sym": False, "checkpoint_format": "gptq"})
    group = {"num_bits": 4, "type": "int", "strategy": "group", "dynamic": False}
    by_compressed_tensors(out, "ct", 6206, 128, {**group, "group_size": 128, "symmetric": True},
                          torch.bfloat16)
    by_compressed_tensors(out, "ct_asym", 6207, 64, {**group, "group_size": 32, "symmetric": False},
                          torch.float32)
    by_compressed_tensors(out, "ct_8bit", 6208, 64,
                          {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
                          torch.float32)


if __name__ == "__main__":
    main()
