#!/usr/bin/env python3
"""Sets this library's tokeniser beside Hugging Face `tokenizers`, one thread, the same documents.

    make_text.py prose.txt
    compare.py build/benchmarks/tokenizer/bench_tokenizer Qwen3-0.6B/tokenizer.json prose.txt

Both cut the text into documents that end at the first line end after --document bytes. Seconds
are processor time, the runs of the two alternate, and the best of each counts, so that other work
on the machine disturbs the comparison little.
"encode" is the reference's ordinary call, "encode fast" the one that leaves out offsets
(encode_batch_fast of one document). Needs `pip install tokenizers`.
"""

import argparse
import json
import os
import subprocess
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tokenizers  # noqa: E402


def documents(path, size):
    data = open(path, "rb").read()
    out = []
    while data:
        end = data.find(b"\n", size) + 1 if len(data) > size else 0
        end = end or len(data)
        out.append(data[:end].decode("utf-8"))
        data = data[end:]
    return out


def seconds(run):
    start = time.process_time()
    result = run()
    return time.process_time() - start, result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", help="bench_tokenizer")
    parser.add_argument("tokenizer", help="a tokenizer.json")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--document", type=int, default=16384)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    load, reference = min((seconds(lambda: tokenizers.Tokenizer.from_file(arguments.tokenizer))
                           for _ in range(arguments.repeats)), key=lambda pair: pair[0])
    for path in arguments.texts:
        texts = documents(path, arguments.document)
        size = sum(len(text.encode()) for text in texts) / 1e6
        slow = fast = 0.0
        ours = {}
        for _ in range(arguments.repeats):
            took, tokens = seconds(lambda: sum(len(reference.encode(text, add_special_tokens=False).ids)
                                               for text in texts))
            slow = max(slow, size / took)
            took, _ = seconds(lambda: [reference.encode_batch_fast([text], add_special_tokens=False)[0].ids
                                       for text in texts])
            fast = max(fast, size / took)
            run = json.loads(subprocess.check_output(
                [arguments.program, arguments.tokenizer, path, "--document", str(arguments.document),
                 "--repeats", "2", "--json"]))
            for key, value in run.items():
                best = min if key in ("load_seconds", "push_ns") else max
                ours[key] = best(ours.get(key, value), value)
        assert ours["tokens"] == tokens, f"{ours['tokens']} tokens here, {tokens} there"
        result = {"text": os.path.basename(path), "megabytes": size, "tokens": tokens,
                  "nanovllm": ours, "tokenizers": {"version": tokenizers.__version__, "load_seconds": load,
                                                   "encode_mb_per_s": slow, "encode_fast_mb_per_s": fast}}
        if arguments.json:
            print(json.dumps(result))
            continue
        print(f"{result['text']}: {size:.2f} MB, {tokens:,} tokens")
        print(f"  load    {ours['load_seconds']:8.3f} s       tokenizers {load:8.3f} s")
        print(f"  encode  {ours['encode_mb_per_s']:8.2f} MB/s    tokenizers {slow:8.2f} MB/s, fast {fast:.2f} MB/s"
              f"    {ours['encode_mb_per_s'] / slow:.1f}x, {ours['encode_mb_per_s'] / fast:.1f}x")
        print(f"  decode  {ours['decode_mb_per_s']:8.1f} MB/s    stream {ours['push_ns']:.1f} ns a token")


if __name__ == "__main__":
    main()
