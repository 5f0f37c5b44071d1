"""Writes tests/fixtures/gguf/: files of the package gguf, which is llama.cpp's own.

    python tests/oracle/make_gguf_fixtures.py            # from the repository root
    python tests/oracle/make_gguf_fixtures.py --out DIR  # elsewhere, to compare with diff -r

Versions and how to install them: tests/oracle/README.md.

    blocks.gguf       of each quantised type random blocks, "<type>", and "<type>.values": what the
                      package makes of them, in float32
    qwen3.gguf        a small Qwen3 in float32, F16 and BF16, untied, with YaRN
    qwen3_moe.gguf    the mixture of experts moe_1_of_5 of make_qwen3_moe_fixtures.py, in float32
    gpt2.gguf         a small GPT-2 in float32
    mixed.gguf        a Qwen3 of one layer whose matrices are of the quantised types of Q4_K_M files
    fallback.gguf     one whose rows are no multiple of 256, of the types that stand for those then
    vocab_qwen2.gguf  the vocabulary and the chat template of examples/models/fairytale
    vocab_gpt2.gguf   the vocabulary of examples/models/tiny_gpt2

The weights of the models are not stored elsewhere: those of qwen3.gguf and qwen3_moe.gguf are the
formula of make_qwen3_moe_fixtures.py, those of gpt2.gguf the formula of make_gpt2_fixtures.py, and
tests/with/gguf/gguf_test.cpp computes them as well. Names of tensors and keys are those that llama.cpp's
converter writes.
"""

import argparse
import json
from pathlib import Path

import gguf
import numpy
from gguf import GGMLQuantizationType as Type
from gguf import TokenType

BLOCK_TYPES = (Type.Q8_0, Type.Q4_0, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.Q4_1, Type.Q5_0, Type.Q5_1,
               Type.IQ4_NL, Type.IQ4_XS)

QWEN3 = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, vocab_size=83, rms_norm_eps=1e-6,
             rope_theta=1000000.0, max_position_embeddings=256, yarn_factor=4.0, original=64)
MOE = dict(hidden_size=40, intermediate_size=56, moe_intermediate_size=33, num_experts=5,
           num_experts_per_tok=1, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1,
           head_dim=24, vocab_size=71, rms_norm_eps=1e-6, rope_theta=1000000.0,
           max_position_embeddings=128)
GPT2 = dict(n_embd=24, n_head=3, n_layer=2, n_positions=40, vocab_size=61, n_inner=96)
MIXED = dict(hidden_size=256, intermediate_size=256, num_hidden_layers=1, num_attention_heads=2,
             num_key_value_heads=1, head_dim=64, vocab_size=64, rms_norm_eps=1e-6,
             rope_theta=10000.0, max_position_embeddings=128)
MIXED_TYPES = {"token_embd": Type.Q6_K, "attn_q": Type.Q4_K, "attn_k": Type.Q5_K, "attn_v": Type.Q6_K,
               "attn_output": Type.Q8_0, "ffn_gate": Type.Q4_K, "ffn_up": Type.Q4_0, "ffn_down": Type.Q5_K}
FALLBACK = dict(MIXED, hidden_size=96, intermediate_size=160, head_dim=48)
FALLBACK_TYPES = {"token_embd": Type.Q8_0, "attn_q": Type.Q5_0, "attn_k": Type.Q5_0, "attn_v": Type.Q5_1,
                  "attn_output": Type.Q4_1, "ffn_gate": Type.Q5_0, "ffn_up": Type.Q4_1, "ffn_down": Type.Q5_1}


def fnv1a(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def noise(name, shape, seed):
    """Uniform in [-0.5, 0.5), the same in every language: integers up to the last operations."""
    size = int(numpy.prod(shape))
    with numpy.errstate(over="ignore"):
        x = numpy.arange(1, size + 1, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
        x ^= numpy.uint64(fnv1a(name) ^ seed)
        x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    out = (x >> numpy.uint64(40)).astype(numpy.float32) * numpy.float32(2.0**-24)
    return (out - numpy.float32(0.5)).reshape(shape)


def qwen3_weight(name, shape, seed):
    if name.endswith("norm.weight"):
        return noise(name, shape, seed) + numpy.float32(1)
    factor = 6.0 if ".gate.weight" in name else 3.0 if name.count(".") < 3 else 5.0
    return noise(name, shape, seed) * numpy.float32(factor / numpy.sqrt(numpy.float64(shape[-1])))


def gpt2_weight(name, shape, seed):
    if name.endswith(".bias"):
        return noise(name, shape, seed) * numpy.float32(0.5)
    if "ln_" in name:
        return noise(name, shape, seed) + numpy.float32(1)
    embedding = name.startswith(("wte", "wpe", "lm_head"))
    width = shape[-1] if embedding else shape[0]
    factor = 3.0 if embedding else 5.0 if "c_attn" in name else 4.0
    return noise(name, shape, seed) * numpy.float32(factor / numpy.sqrt(numpy.float64(width)))


def close(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_qwen3_keys(writer, config):
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])


def attention_tensors(config):
    """Name in the file, name in Hugging Face's and shape of a layer's tensors but the MLP."""
    width, dim = config["hidden_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    return (("attn_norm", "input_layernorm", (width,)), ("attn_q", "self_attn.q_proj", (q, width)),
            ("attn_k", "self_attn.k_proj", (kv, width)), ("attn_v", "self_attn.v_proj", (kv, width)),
            ("attn_output", "self_attn.o_proj", (width, q)), ("attn_q_norm", "self_attn.q_norm", (dim,)),
            ("attn_k_norm", "self_attn.k_norm", (dim,)),
            ("ffn_norm", "post_attention_layernorm", (width,)))


def mlp_tensors(width, inner):
    return (("ffn_gate", "mlp.gate_proj", (inner, width)), ("ffn_up", "mlp.up_proj", (inner, width)),
            ("ffn_down", "mlp.down_proj", (width, inner)))


def write_qwen3(path, seed=7301):
    config = QWEN3
    width, vocab = config["hidden_size"], config["vocab_size"]
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    add_qwen3_keys(writer, config)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(config["yarn_factor"])
    writer.add_rope_scaling_orig_ctx_len(config["original"])

    def add(name, hugging_face, shape):
        weight = qwen3_weight(hugging_face + ".weight", shape, seed)
        if name.endswith("attn_q"):  # rounded, so its type must be read
            writer.add_tensor(name + ".weight", weight.astype(numpy.float16))
        elif name.endswith("ffn_up"):
            raw = gguf.quants.quantize(weight, Type.BF16)
            writer.add_tensor(name + ".weight", raw, raw_dtype=Type.BF16)
        else:
            writer.add_tensor(name + ".weight", weight)

    add("output", "lm_head", (vocab, width))
    add("token_embd", "model.embed_tokens", (vocab, width))
    for i in range(config["num_hidden_layers"]):
        for name, hugging_face, shape in attention_tensors(config) + mlp_tensors(
                width, config["intermediate_size"]):
            add(f"blk.{i}.{name}", f"model.layers.{i}.{hugging_face}", shape)
    add("output_norm", "model.norm", (width,))
    close(writer)


def write_moe(path, seed=6102):
    config = MOE
    width, inner, experts = config["hidden_size"], config["moe_intermediate_size"], config["num_experts"]
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    add_qwen3_keys(writer, config)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(inner)
    writer.add_expert_weights_norm(False)

    def weight(hugging_face, shape):
        return qwen3_weight(hugging_face + ".weight", shape, seed)

    writer.add_tensor("token_embd.weight", weight("model.embed_tokens", (config["vocab_size"], width)))
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        for name, hugging_face, shape in attention_tensors(config):
            writer.add_tensor(f"blk.{i}.{name}.weight", weight(layer + hugging_face, shape))
        writer.add_tensor(f"blk.{i}.ffn_gate_inp.weight", weight(layer + "mlp.gate", (experts, width)))
        for name, hugging_face, shape in mlp_tensors(width, inner):
            part = hugging_face.removeprefix("mlp")
            stacked = [weight(f"{layer}mlp.experts.{e}{part}", shape) for e in range(experts)]
            writer.add_tensor(f"blk.{i}.{name}_exps.weight", numpy.stack(stacked))
    writer.add_tensor("output_norm.weight", weight("model.norm", (width,)))
    close(writer)


def write_gpt2(path, seed=7302):
    config = GPT2
    width, inner = config["n_embd"], config["n_inner"]
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(width)
    writer.add_block_count(config["n_layer"])
    writer.add_feed_forward_length(inner)
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(1e-5)

    def add(name, hugging_face, shape):
        tensor = gpt2_weight(hugging_face, shape, seed)
        if "c_" in hugging_face and hugging_face.endswith(".weight"):  # as the converter has it
            tensor = numpy.ascontiguousarray(tensor.T)
        writer.add_tensor(name, tensor)

    add("token_embd.weight", "wte.weight", (config["vocab_size"], width))
    add("position_embd.weight", "wpe.weight", (config["n_positions"], width))
    for i in range(config["n_layer"]):
        for name, hugging_face, size in (("attn_norm", "ln_1", width), ("ffn_norm", "ln_2", width)):
            for end in (".weight", ".bias"):
                add(f"blk.{i}.{name}{end}", f"h.{i}.{hugging_face}{end}", (size,))
        for name, hugging_face, shape in (
                ("attn_qkv", "attn.c_attn", (width, 3 * width)), ("attn_output", "attn.c_proj", (width, width)),
                ("ffn_up", "mlp.c_fc", (width, inner)), ("ffn_down", "mlp.c_proj", (inner, width))):
            add(f"blk.{i}.{name}.weight", f"h.{i}.{hugging_face}.weight", shape)
            add(f"blk.{i}.{name}.bias", f"h.{i}.{hugging_face}.bias", (shape[1],))
    for end in (".weight", ".bias"):
        add("output_norm" + end, "ln_f" + end, (width,))
    close(writer)


def random_blocks(random, kind, rows, columns, halves, offsets=None):
    """Blocks of random bits; the half floats in them are drawn from `halves`, and what Q4_1 and Q5_1
    add to every element from `offsets`, if they are given."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (rows * columns // elements, size), dtype=numpy.uint8)
    places = {Type.Q4_K: (0, 2), Type.Q5_K: (0, 2), Type.Q6_K: (208,), Type.Q4_1: (0, 2),
              Type.Q5_1: (0, 2)}.get(kind, (0,))
    for place in places:
        is_offset = place == 2 and kind in (Type.Q4_1, Type.Q5_1) and offsets is not None
        drawn = random.choice(offsets if is_offset else halves, len(blocks)).astype(numpy.float16)
        blocks[:, place:place + 2] = drawn.view(numpy.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


def write_blocks(path):
    random = numpy.random.default_rng(7303)
    # The largest and the smallest half floats, subnormal ones, zeros of both signs, and common ones.
    halves = numpy.concatenate([
        numpy.array([65504, -65504, 2.0**-24, -(2.0**-24), 2.0**-14, 1023 * 2.0**-24, 0.0, -0.0]),
        random.standard_normal(24) * 0.01])
    writer = gguf.GGUFWriter(path, "blocks")
    for kind in BLOCK_TYPES:
        blocks = random_blocks(random, kind, 6, 256, halves)
        writer.add_tensor(kind.name, blocks, raw_dtype=kind)
        writer.add_tensor(kind.name + ".values", gguf.quants.dequantize(blocks, kind))
    close(writer)


def write_mixed(path, config, types):
    random = numpy.random.default_rng(7304)
    width, vocab = config["hidden_size"], config["vocab_size"]
    # So that weights are about 0.06.
    scales = {Type.Q8_0: 8e-4, Type.Q4_0: 1e-2, Type.Q4_K: 2e-4, Type.Q5_K: 1e-4, Type.Q6_K: 5e-5,
              Type.Q4_1: 1e-2, Type.Q5_0: 5e-3, Type.Q5_1: 5e-3}
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_custom_alignment(64)
    add_qwen3_keys(writer, config)

    def add(name, shape):
        kind = types.get(name.removeprefix("blk.0."))
        if kind is None:
            return writer.add_tensor(name + ".weight", qwen3_weight(name + "_norm.weight", shape, 1))
        halves = random.uniform(0.5, 1, 64) * scales[kind]
        offsets = -halves * (16 if kind == Type.Q5_1 else 8)  # about as many above 0 as below
        blocks = random_blocks(random, kind, *shape, halves, offsets)
        writer.add_tensor(name + ".weight", blocks, raw_dtype=kind)

    add("token_embd", (vocab, width))
    for name, _, shape in attention_tensors(config) + mlp_tensors(width, config["intermediate_size"]):
        add(f"blk.0.{name}", shape)
    add("output_norm", (width,))
    close(writer)


def write_vocabulary(path, model, architecture, pre):
    folder = Path("examples/models") / model
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    ids = dict(tokenizer["model"]["vocab"])
    types = {name: TokenType.NORMAL for name in ids}
    for added in tokenizer["added_tokens"]:
        ids[added["content"]] = added["id"]
        types[added["content"]] = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
    names = sorted(ids, key=ids.get)
    assert [ids[name] for name in names] == list(range(len(names)))
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]

    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    # As many more as the converter adds where the embeddings have more rows than there are tokens.
    writer.add_token_list(names + ["[PAD1]", "[PAD2]"])
    writer.add_token_types([types[name] for name in names] + [TokenType.UNUSED] * 2)
    writer.add_token_merges(merges)
    if model == "fairytale":
        writer.add_eos_token_id(ids["<|im_end|>"])
        writer.add_pad_token_id(ids["<|endoftext|>"])
        writer.add_add_bos_token(False)
        writer.add_chat_template((folder / "chat_template.jinja").read_text())
        writer.add_sampling_temp(0.7)
        writer.add_sampling_top_k(40)
        writer.add_sampling_top_p(0.95)
    else:
        writer.add_eos_token_id(ids["<|endoftext|>"])
        writer.add_bos_token_id(ids["<|endoftext|>"])
    close(writer)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("tests/fixtures/gguf"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    write_blocks(out / "blocks.gguf")
    write_qwen3(out / "qwen3.gguf")
    write_moe(out / "qwen3_moe.gguf")
    write_gpt2(out / "gpt2.gguf")
    write_mixed(out / "mixed.gguf", MIXED, MIXED_TYPES)
    write_mixed(out / "fallback.gguf", FALLBACK, FALLBACK_TYPES)
    write_vocabulary(out / "vocab_qwen2.gguf", "fairytale", "qwen3", "qwen2")
    write_vocabulary(out / "vocab_gpt2.gguf", "tiny_gpt2", "gpt2", "gpt-2")


if __name__ == "__main__":
    main()
