"""Writes tests/fixtures/parity: small Qwen3 checkpoints and what Hugging Face makes of them.

    python tests/oracle/make_parity_fixtures.py            # from the repository root
    python tests/oracle/make_parity_fixtures.py --out DIR  # elsewhere, to compare with diff -r

Versions and how to install them: tests/oracle/README.md.

Layout
------
    <name>/               a checkpoint as save_pretrained writes it (bfloat16, no tokenizer)
    <name>.json           prompts and provenance
    <name>.safetensors    expected results

<name> is one of CHECKPOINTS below, or `fairytale`, whose checkpoint is examples/models/fairytale.

<name>.json
    model, versions, seeds     provenance
    attention                  "sdpa", the default: the implementation behind every expected tensor
    prompts                    [[token id, ...], ...], prompt p of the tensor names below
    vocab_size, num_greedy, num_top
    full_positions             per prompt, the positions whose whole vocabulary is stored
    agreement                  largest and mean |difference| of log-probabilities over full_positions
                               of all prompts and all ids, between dtypes and attention
                               implementations: how far two correct implementations lie apart
    min_greedy_gap             per dtype and prompt

<name>.safetensors, for each dtype d of "float32", "bfloat16" and each prompt p = 0, 1, ...;
L = length of the prompt, V = vocab_size, F = len(full_positions[p]), K = num_top = 8,
G = num_greedy = 64:
    d.p.log_probs              F32 [F, V]  row i is position full_positions[p][i]
    d.p.top_ids                I32 [L, K]  most likely ids, descending, the lower id first on ties
    d.p.top_log_probs          F32 [L, K]  theirs
    d.p.next_log_probs         F32 [L]     of the id that follows: prompt[i + 1]; at the last
                                           position the first greedy id
    d.p.greedy_ids             I32 [G]     greedy continuation; end tokens do not end it
    d.p.greedy_log_probs       F32 [G]     theirs
    d.p.greedy_second_ids      I32 [G]     the runner-up at each step
    d.p.greedy_gaps            F32 [G]     log_prob(greedy id) - log_prob(runner-up), >= 0

Position i of a prompt predicts id i + 1. Log-probabilities are log_softmax of the logits, taken in
float32. float32: the stored bfloat16 weights widened, all arithmetic in float32. bfloat16: weights
and activations bfloat16, logits included, so exact ties between logits occur: argmax takes the
lower id, and greedy_gaps says 0. A greedy comparison must stop, or be forced back to greedy_ids,
at the first step whose gap is within the tolerance. The prompt runs as one forward pass, then one
token a step through the KV cache.
"""

import argparse
import json
import os
import platform
import shutil
from pathlib import Path

import numpy
import safetensors
import tokenizers
import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoTokenizer, DynamicCache, Qwen3Config, Qwen3ForCausalLM

ROOT = Path(__file__).resolve().parents[2]
ATTENTION = "sdpa"
OTHER_ATTENTION = "eager"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PROMPT_LENGTHS = (1, 17, 33, 50)
NUM_GREEDY = 64
NUM_TOP = 8

YARN_DEFAULT = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_BETAS = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 48,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
}

# Odd shapes on purpose: heads * head_dim differs from hidden everywhere, the vocabularies are
# prime, and `group1_tied_yarn` is divisible by 2 and nothing better.
CHECKPOINTS = {
    "group4_untied_sharded": {
        "seed": 4101,
        "logit_scale": 0.7,
        "shards": 2,
        "spelling": "5.x",
        "config": dict(
            hidden_size=56, intermediate_size=104, vocab_size=331, num_hidden_layers=2,
            num_attention_heads=8, num_key_value_heads=2, head_dim=64, rms_norm_eps=1e-6,
            tie_word_embeddings=False, max_position_embeddings=256,
            rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        ),
    },
    "group1_tied_yarn": {
        "seed": 4102,
        "logit_scale": 0.4,
        "shards": 1,
        "spelling": "5.x",
        "config": dict(
            hidden_size=70, intermediate_size=98, vocab_size=307, num_hidden_layers=3,
            num_attention_heads=3, num_key_value_heads=3, head_dim=64, rms_norm_eps=1e-5,
            tie_word_embeddings=True, max_position_embeddings=128,
            rope_parameters={"rope_theta": 10000.0, **YARN_DEFAULT},
        ),
    },
    "group8_untied_yarn_4x": {
        "seed": 4103,
        "logit_scale": 0.7,
        "shards": 1,
        "spelling": "4.x",
        "config": dict(
            hidden_size=40, intermediate_size=88, vocab_size=257, num_hidden_layers=2,
            num_attention_heads=8, num_key_value_heads=1, head_dim=128, rms_norm_eps=1e-6,
            tie_word_embeddings=False, max_position_embeddings=192,
            bos_token_id=1, eos_token_id=2,
            rope_parameters={"rope_theta": 10000.0, **YARN_BETAS},
        ),
    },
}

FAIRYTALE_TEXTS = (
    "Once",
    "The old miller had three sons, and when he died he left them nothing but his mill, his donkey"
    " and a grey cat.",
    "There was once a clockmaker who lived at the edge of a dark forest with his two daughters."
    " Every evening they wound the clocks together, and every morning one of the clocks had"
    " stopped, and nobody knew why it was so.",
    "A long time ago, when the moon still spoke to the sea, a fisherman's boy found a silver key"
    " in the belly of a pike. He showed it to his mother, who told him to throw it back, and he"
    " showed it to the king, who offered him half the kingdom for it, but the boy shook his head"
    " and went home to think about what it might open.",
)


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def fill_weights(model, seed, logit_scale):
    """Weights that show mistakes: norm weights differ per channel and attention is peaked by the
    query and key norms. The logits have a standard deviation of about `logit_scale`, which also
    scales what bfloat16 does to the log-probabilities."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(shape, low, high):
        return low + (high - low) * torch.rand(shape, generator=generator)

    for name, weight in sorted(model.named_parameters()):
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            value = uniform(weight.shape, 0.8, 2.2)
        elif name.endswith("norm.weight"):
            value = uniform(weight.shape, 0.5, 1.5)
        elif name.endswith(("embed_tokens.weight", "lm_head.weight")):
            value = logit_scale * weight.shape[1] ** -0.5 * torch.randn(weight.shape, generator=generator)
        else:
            value = 1.3 * weight.shape[1] ** -0.5 * torch.randn(weight.shape, generator=generator)
        weight.data.copy_(value)


def respell_config_as_4x(path):
    """Rewrites config.json in the keys that transformers 4.51 wrote."""
    config = json.loads(path.read_text(encoding="utf-8"))
    rope = config.pop("rope_parameters")
    config.pop("layer_types")
    config["torch_dtype"] = config.pop("dtype")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    config["max_window_layers"] = config["num_hidden_layers"]
    config["transformers_version"] = "4.51.0"
    write_json(path, dict(sorted(config.items())))


def make_checkpoint(directory, spec):
    """Saves the checkpoint and proves that what was saved loads as what was meant."""
    model = Qwen3ForCausalLM(Qwen3Config(**spec["config"]))
    fill_weights(model, spec["seed"], spec["logit_scale"])
    model = model.to(torch.bfloat16)
    shard_size = "100MB" if spec["shards"] == 1 else "260KB"
    model.save_pretrained(directory, max_shard_size=shard_size)
    (directory / "generation_config.json").unlink(missing_ok=True)
    if spec["spelling"] == "4.x":
        respell_config_as_4x(directory / "config.json")

    assert len(list(directory.glob("*.safetensors"))) == spec["shards"]
    loaded = load(directory, torch.bfloat16, ATTENTION)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, loaded.state_dict()[name]), name
    for key, value in spec["config"]["rope_parameters"].items():
        assert loaded.config.rope_parameters[key] == value, key


def load(directory, dtype, attention):
    model = Qwen3ForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation=attention)
    # The frequencies are a buffer: they must not have been rounded with the weights.
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    assert model.dtype == dtype
    return model.eval()


def random_prompts(seed, vocab_size):
    generator = torch.Generator().manual_seed(seed + 1000)
    return [
        torch.randint(vocab_size, (length,), generator=generator).tolist()
        for length in PROMPT_LENGTHS
    ]


def text_prompts(directory):
    tokenizer = AutoTokenizer.from_pretrained(directory)
    prompts = []
    for text, length in zip(FAIRYTALE_TEXTS, PROMPT_LENGTHS, strict=True):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert len(ids) >= length, f"{len(ids)} tokens, expected {length} or more: {text}"
        prompts.append(ids[:length])
    return prompts


def log_probs_of(logits):
    return torch.log_softmax(logits.float(), dim=-1)


def ranked(values, count):
    """The `count` largest of the last axis, descending, the lower index first on ties."""
    order = torch.argsort(values, dim=-1, descending=True, stable=True)[..., :count]
    return order, torch.gather(values, -1, order)


def run_prompt(model, prompt):
    """Log-probabilities [L, V] of the prompt and [G, V] of the greedy steps, and the greedy ids."""
    cache = DynamicCache(config=model.config)
    logits = model(torch.tensor([prompt]), past_key_values=cache, use_cache=True).logits[0]
    prompt_log_probs = log_probs_of(logits)
    steps, ids = [logits[-1]], []
    while True:
        ids.append(int(ranked(steps[-1].float(), 1)[0]))
        if len(ids) == NUM_GREEDY:
            return prompt_log_probs, log_probs_of(torch.stack(steps)), ids
        token = torch.tensor([[ids[-1]]])
        steps.append(model(token, past_key_values=cache, use_cache=True).logits[0, -1])


def expected_tensors(prefix, prompt, positions, result):
    prompt_log_probs, greedy_log_probs, greedy_ids = result
    following = torch.tensor(prompt[1:] + greedy_ids[:1])
    top_ids, top_log_probs = ranked(prompt_log_probs, NUM_TOP)
    best_ids, best = ranked(greedy_log_probs, 2)
    # Logits may differ where their float32 log-probabilities round to the same value.
    chosen = torch.tensor(greedy_ids)
    second = torch.where(best_ids[:, 0] == chosen, best_ids[:, 1], best_ids[:, 0])
    tensors = {
        "log_probs": prompt_log_probs[positions],
        "top_ids": top_ids.int(),
        "top_log_probs": top_log_probs,
        "next_log_probs": prompt_log_probs[torch.arange(len(prompt)), following],
        "greedy_ids": chosen.int(),
        "greedy_log_probs": greedy_log_probs[torch.arange(NUM_GREEDY), chosen],
        "greedy_second_ids": second.int(),
        "greedy_gaps": best[:, 0] - best[:, 1],
    }
    return {f"{prefix}.{key}": value.contiguous() for key, value in tensors.items()}


def distance(a, b, positions):
    difference = torch.cat(
        [(x - y)[rows].abs().flatten() for x, y, rows in zip(a, b, positions, strict=True)]
    )
    return {"max_abs": difference.max().item(), "mean_abs": difference.mean().item()}


def check_against_generate(model, prompt, result):
    """The cached loop above must be what generate() does, up to the first exact tie."""
    generated = model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False, min_new_tokens=0, max_new_tokens=NUM_GREEDY, eos_token_id=None,
        pad_token_id=0,
    )[0, len(prompt):].tolist()
    _, greedy_log_probs, greedy_ids = result
    for step, (ours, theirs) in enumerate(zip(greedy_ids, generated, strict=True)):
        if ours != theirs:
            tie = greedy_log_probs[step, ours] == greedy_log_probs[step, theirs]
            assert tie, f"step {step}: {ours} here, {theirs} from generate()"
            return


@torch.no_grad()
def write_expected(out, name, directory, prompts, full_positions, seeds, load=load, more={}):
    """`load(directory, dtype, attention)` gives the model; `more` goes into <name>.json."""
    tensors, prompt_log_probs, gaps = {}, {}, {}
    for dtype_name, dtype in DTYPES.items():
        model = load(directory, dtype, ATTENTION)
        results = [run_prompt(model, prompt) for prompt in prompts]
        for p, (prompt, result) in enumerate(zip(prompts, results, strict=True)):
            check_against_generate(model, prompt, result)
            tensors |= expected_tensors(f"{dtype_name}.{p}", prompt, full_positions[p], result)
        prompt_log_probs[dtype_name] = [result[0] for result in results]
        gaps[dtype_name] = [
            tensors[f"{dtype_name}.{p}.greedy_gaps"].min().item() for p in range(len(prompts))
        ]
        other = load(directory, dtype, OTHER_ATTENTION)
        prompt_log_probs[f"{dtype_name} {OTHER_ATTENTION}"] = [
            log_probs_of(other(torch.tensor([prompt])).logits[0]) for prompt in prompts
        ]
    # Whoever computes float32 correctly must find these very tokens.
    noise = max(
        (a - b).abs().max().item()
        for a, b in zip(prompt_log_probs["float32"], prompt_log_probs["float32 eager"], strict=True)
    )
    assert min(gaps["float32"]) > 10 * noise, f"gap {min(gaps['float32'])}, noise {noise}"
    pairs = [("float32", "float32 eager"), ("bfloat16", "bfloat16 eager"), ("float32", "bfloat16")]
    save_file(tensors, out / f"{name}.safetensors")
    write_json(out / f"{name}.json", {
        "model": name,
        "versions": versions(),
        "seeds": seeds,
        "attention": ATTENTION,
        "vocab_size": model.config.vocab_size,
        "num_greedy": NUM_GREEDY,
        "num_top": NUM_TOP,
        "prompts": prompts,
        "full_positions": full_positions,
        "agreement": {
            f"{a} / {b}": distance(prompt_log_probs[a], prompt_log_probs[b], full_positions)
            for a, b in pairs
        },
        "min_greedy_gap": gaps,
    } | more)


def versions():
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "safetensors": safetensors.__version__,
        "numpy": numpy.__version__,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "tests/fixtures/parity")
    parser.add_argument("--fairytale", type=Path, default=ROOT / "examples/models/fairytale")
    arguments = parser.parse_args()
    if not (arguments.fairytale / "config.json").is_file():
        parser.error(f"no checkpoint in {arguments.fairytale}: name it with --fairytale")

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    os.umask(0o022)

    for name, spec in CHECKPOINTS.items():
        directory = arguments.out / name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        make_checkpoint(directory, spec)
        prompts = random_prompts(spec["seed"], spec["config"]["vocab_size"])
        everywhere = [list(range(len(prompt))) for prompt in prompts]
        seeds = {"weights": spec["seed"], "prompts": spec["seed"] + 1000}
        write_expected(arguments.out, name, directory, prompts, everywhere, seeds)

    prompts = text_prompts(arguments.fairytale)
    some = [sorted({0, len(prompt) // 2, len(prompt) - 1}) for prompt in prompts]
    write_expected(arguments.out, "fairytale", arguments.fairytale, prompts, some, {})


if __name__ == "__main__":
    main()
