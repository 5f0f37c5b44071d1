#!/usr/bin/env python3
"""Compares the tokeniser with Hugging Face `tokenizers` on random strings.

    tokenizer_fuzz.py --tokenizer Qwen3-0.6B/tokenizer.json --count 100000 \\
        --run build/tests/test_io_tokenizer
    tokenizer_fuzz.py --tokenizer examples/models/fairytale/tokenizer.json --count 450 --max-length 24 \\
        --output tests/fixtures/tokenizer_fairytale.json          # rewrites the committed fixture

Writes the reference's ids of random strings and its text of random ids; --run then starts the C++
test with that file (environment variable NANOVLLM_TOKENIZER_ORACLE), which must pass. The second
suite of each file adds tokens with every combination of the flags that added tokens have.

--ignore-merges changes the tokenizer first: `ignore_merges` is true, every third merge is left out,
so that whole words have tokens that no merge leads to, and `truncation` and `padding` are set. The
reference is called as transformers does, which resets both.
Needs `pip install tokenizers`.
"""

import argparse
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

import tokenizers

WORDS = """the quick brown fox once upon a time Hello world don't I'M we'll They'VE it's o'clock 'ſ
naïve café Ångström straße Москва привет Ελλάδα שלום مرحبا नमस्ते क्षि ไทย 你好，世界 日本語テキスト 한국어
tokenizer foo_bar fooBar x=1; if(a<b){return;} https://example.org/a?b=c 3.14159 2026-11-21 1,000,000
½ ² Ⅷ ١٢٣ —‘’“”… € ™ \N{FAMILY} 👨‍👩‍👧 🦙 👍🏽 🇩🇪 ❤️ e\u0301 a\u0323\u0302 \u1100\u1161\u11a8""".split()
SPACES = [" ", "  ", "   ", "\n", "\r\n", "\r", "\t", "\n\n", " \n", "\n ", "\u00a0", "\u3000", "\u2028",
          "\u0085", "\u180e", "\u200b", "\x0b", "\x0c", "\x1c", "\u2003"]
CONTRACTIONS = ["'s", "'T", "'re", "'VE", "'m", "'LL", "'d", "'ſ", "'", "’s", "'rE", "''s"]
MARKS = [chr(c) for c in itertools.chain(range(0x300, 0x370), (0x591, 0x5B0, 0x64B, 0x93C, 0x94D, 0xE38,
         0x1161, 0x11A8, 0x20D0, 0x3099, 0x302A, 0x1ABF, 0x8CA, 0x11930, 0x10F46, 0x1E08F, 0x113C2))]
PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
# Blocks where versions of Unicode differ, or normalisation has work to do.
BLOCKS = [(0x0, 0x7F), (0x80, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x8FF), (0x900, 0xDFF),
          (0xE00, 0x11FF), (0x1680, 0x180F), (0x1A00, 0x1FFF), (0x2000, 0x2BFF), (0x3000, 0x30FF),
          (0x4E00, 0x9FFF), (0xA700, 0xABFF), (0xAC00, 0xD7FF), (0xE000, 0xF8FF), (0xF900, 0xFFFF),
          (0x10000, 0x11FFF), (0x10900, 0x10FFF), (0x11300, 0x113FF), (0x11900, 0x1195F),
          (0x13000, 0x143FF), (0x16100, 0x16DFF), (0x1C000, 0x1D2FF), (0x1E000, 0x1FAFF),
          (0x20000, 0x323FF), (0x2F800, 0x2FA1F), (0xE0000, 0xE01FF), (0xF0000, 0x10FFFF)]
FLAG_TOKENS = ["[[{}]]", "w{}x", " sp{}", "é{}", "e\u0301{}"]


def scalar(rng, low, high):
    while True:
        c = rng.randint(low, high)
        if not 0xD800 <= c <= 0xDFFF:
            return chr(c)


def piece(rng, added):
    kind = rng.randrange(12)
    if kind == 0:
        return "".join(rng.choice(SPACES) for _ in range(rng.randint(1, 4)))
    if kind == 1:
        return rng.choice(CONTRACTIONS)
    if kind == 2:
        return "".join(rng.choice("0123456789٣५") for _ in range(rng.randint(1, 6)))
    if kind == 3:
        return scalar(rng, 0x20, 0x24F) + "".join(rng.choice(MARKS) for _ in range(rng.randint(1, 4)))
    if kind == 4:
        token = rng.choice(added)
        return token if rng.random() < 0.7 else token[: rng.randint(0, len(token))]
    if kind == 5:
        return "".join(rng.choice(PUNCTUATION) for _ in range(rng.randint(1, 5)))
    if kind in (6, 7):
        low, high = rng.choice(BLOCKS)
        return "".join(scalar(rng, low, high) for _ in range(rng.randint(1, 5)))
    if kind == 8:
        return scalar(rng, 0, 0x10FFFF)
    if kind == 9:
        return unicodedata.normalize(rng.choice(["NFD", "NFKD", "NFC"]), rng.choice(WORDS))
    return rng.choice(WORDS) + rng.choice(["", " ", " ", "\n"])


def reference(document):
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(document))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def ignoring_merges(document):
    """The document with whole words that no merge leads to, as a trainer's last call leaves it."""
    merges = [merge for i, merge in enumerate(document["model"]["merges"]) if i % 3 != 2]
    return dict(document, model=dict(document["model"], ignore_merges=True, merges=merges),
                truncation={"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
                padding={"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None,
                         "pad_id": 0, "pad_type_id": 0, "pad_token": "!"})


def suite(document, extra, count, rng, max_length):
    """One suite: ids of `count` random strings, text of count/4 random id lists."""
    document = dict(document, added_tokens=document["added_tokens"] + extra)
    tokenizer = reference(document)
    added = [token["content"] for token in document["added_tokens"]]
    if extra:
        added = added[-len(extra) :] * 3 + added
    vocab_size = tokenizer.get_vocab_size() + 300
    # From 0.23 on the reference decodes a token with normalized=true to its normalised content, and
    # does not skip it as special if that differs; 0.22 and this library take it as the file has it.
    unstable = {t["id"] for t in extra if not unicodedata.is_normalized("NFC", t["content"])}
    decodable = [id for id in range(vocab_size) if id not in unstable]
    encode, decode = [], []
    for _ in range(count):
        text = "".join(piece(rng, added) for _ in range(rng.randint(1, rng.choice([2, 4, max_length]))))
        encode.append([text, tokenizer.encode(text, add_special_tokens=False).ids])
    for i in range(count // 4):
        ids = [rng.choice(decodable[: rng.choice([256, vocab_size])]) for _ in range(rng.randint(0, 12))]
        decode.append([ids, i % 2 == 0, tokenizer.decode(ids, skip_special_tokens=i % 2 == 0)])
    return {"extra_added_tokens": extra, "encode": encode, "decode": decode}


def every_code_point(document):
    """A suite in which each code point meets letters, digits, spaces and combining marks."""
    tokenizer = reference(document)
    scalars = [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    encode = []
    for i in range(0, len(scalars), 32):
        text = "".join(f"x{c}y 1{c} {c}{c}\n{c}'s a{c}\u0301\u0323{c}\u0345|" for c in scalars[i : i + 32])
        encode.append([text, tokenizer.encode(text, add_special_tokens=False).ids])
    return {"extra_added_tokens": [], "encode": encode, "decode": []}


def flagged_tokens(first_id, taken):
    tokens = []
    for bits in range(32):
        content = FLAG_TOKENS[bits % len(FLAG_TOKENS)].format(bits if bits % 3 else "")
        if content in taken:
            content += str(bits)
        taken.add(content)
        tokens.append({"id": first_id + bits, "content": content, "single_word": bool(bits & 1),
                       "lstrip": bool(bits & 2), "rstrip": bool(bits & 4), "normalized": bool(bits & 8),
                       "special": bool(bits & 16)})
    return tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokenizer", required=True, help="a tokenizer.json")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-length", type=int, default=12, help="pieces in a string")
    parser.add_argument("--every-code-point", action="store_true", help="test each of 1,112,064")
    parser.add_argument("--ignore-merges", action="store_true", help="of a tokenizer that is made so")
    parser.add_argument("--output", help="where to keep the reference's answers")
    parser.add_argument("--run", help="the C++ test program")
    arguments = parser.parse_args()

    document = json.loads(pathlib.Path(arguments.tokenizer).read_text(encoding="utf-8"))
    if arguments.ignore_merges:
        document = ignoring_merges(document)
    rng = random.Random(arguments.seed)
    first_id = 1 + max(token["id"] for token in document["added_tokens"])
    with_flags = arguments.count // 4
    suites = [suite(document, [], arguments.count - with_flags, rng, arguments.max_length),
              suite(document, flagged_tokens(first_id, set(document["model"]["vocab"])), with_flags, rng, arguments.max_length)]
    if arguments.every_code_point:
        suites.append(every_code_point(document))
    oracle = {"about": f"Hugging Face tokenizers {tokenizers.__version__}, tests/oracle/tokenizer_fuzz.py, "
                       f"seed {arguments.seed}", "suites": suites}
    with tempfile.TemporaryDirectory() as folder:
        if arguments.run:
            made = pathlib.Path(folder, "tokenizer.json")
            made.write_text(json.dumps(document), encoding="utf-8")
            oracle["tokenizer"] = str(made)
        output = pathlib.Path(arguments.output or os.path.join(folder, "oracle.json"))
        output.write_text(json.dumps(oracle, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
        print(f"{arguments.count:,} strings, {output.stat().st_size:,} bytes")
        if arguments.run:
            environment = dict(os.environ, NANOVLLM_TOKENIZER_ORACLE=str(output))
            sys.exit(subprocess.call([arguments.run], env=environment))


if __name__ == "__main__":
    main()
