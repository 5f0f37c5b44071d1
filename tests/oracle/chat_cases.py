#!/usr/bin/env python3
"""Renders conversations with Jinja2, the oracle of tests/chat/chat_template_test.cpp.

    python3 tests/oracle/chat_cases.py --out tests/fixtures/chat/cases.json --random 6 \\
        --template hybrid=tests/fixtures/chat/hybrid.jinja \\
        --template parts=tests/fixtures/chat/parts.jinja --parts parts

Templates named with --parts get content that is a text as a list of one part. A template file is Jinja text or a tokenizer_config.json. The environment is the one that Hugging
Face transformers sets up. The conversations below are followed by `--random N` drawn from the seed.
The committed file was made with Jinja2 3.1.6, Python 3.11.7, --random 6 and --seed 1.
"""

import argparse
import json
import random
import struct

import jinja2
import jinja2.sandbox

TOOL = {
    "type": "function",
    "function": {
        "name": "höhe",
        "description": 'Height of a peak — "in metres" <b>&amp;</b>\t\x01\u2028\x7f',
        "parameters": {
            "z": 1.0, "a": -0.0, "tiny": 1e-07, "limit": 1e-4, "big": 1e16, "edge": 9999999999999998.0,
            "digits": 123456789.125, "third": 1 / 3, "max": 1.7976931348623157e308, "least": 5e-324,
            "int": 9007199254740993, "u64": 18446744073709551615, "i64": -9223372036854775808,
            "huge": 123456789012345678901234567890, "minus": -99999999999999999999,
            "flags": [True, False, None], "empty": [[], {}, ""],
        },
    },
}


def call(name, arguments, wrapped=True):
    inner = {"name": name, "arguments": arguments}
    return {"id": "c1", "type": "function", "function": inner} if wrapped else inner


def message(role, content, **more):
    return {"role": role, "content": content, **more}


def user(content, **more):
    return message("user", content, **more)


def assistant(content, **more):
    return message("assistant", content, **more)


CONVERSATIONS = {
    "one question": dict(messages=[user("Wie hoch ist der Brocken?")]),
    "no prompt": dict(messages=[user("hi")], add_generation_prompt=False),
    "thinking off": dict(messages=[user("hi")], enable_thinking=False),
    "thinking on": dict(messages=[user("hi")], enable_thinking=True),
    "thinking off, no prompt": dict(
        messages=[user("hi")], enable_thinking=False, add_generation_prompt=False),
    "system first": dict(messages=[message("system", " Kurz. \n"), user("\n\nhi ")]),
    "system later": dict(messages=[user("a"), message("system", "b"), user("c")]),
    "empty system": dict(messages=[message("system", ""), user("hi")]),
    "system null": dict(messages=[message("system", None), user("hi")]),
    "system null with tools": dict(messages=[message("system", None), user("hi")], tools=[TOOL]),
    "system list with tools": dict(messages=[message("system", ["x's"]), user("hi")], tools=[TOOL]),
    "system with tools": dict(messages=[message("system", "Kurz."), user("hi")], tools=[TOOL, TOOL]),
    "no system with tools": dict(messages=[user("hi")], tools=[TOOL], enable_thinking=False),
    "empty tools": dict(messages=[message("system", "s"), user("hi")], tools=[]),
    "odd tools": dict(messages=[user("hi")], tools=["text", 1, None, [1.5]]),
    "old thoughts go": dict(messages=[
        user("1"), assistant("<think>\nhm\n</think>\n\neins"),
        user("2"), assistant("<think>\nhmm\n</think>\n\nzwei"), user("3")]),
    "last thought stays": dict(add_generation_prompt=False, messages=[
        user("1"), assistant("<think>\nhm\n</think>\n\neins"),
        user("2"), assistant("<think>\nhmm\n</think>\n\nzwei")]),
    "last answer gains a thought": dict(
        add_generation_prompt=False, messages=[user("1"), assistant("\n\neins\n")]),
    "reasoning field": dict(add_generation_prompt=False, messages=[
        user("1"), assistant("eins", reasoning_content="\n\nhm\nhm\n\n")]),
    "reasoning field and inline": dict(add_generation_prompt=False, messages=[
        user("1"), assistant("<think>a</think>eins", reasoning_content="hm")]),
    "reasoning field empty": dict(add_generation_prompt=False, messages=[
        user("1"), assistant("<think>a</think>eins", reasoning_content="")]),
    "reasoning field null": dict(add_generation_prompt=False, messages=[
        user("1"), assistant("<think>a</think>eins", reasoning_content=None)]),
    "reasoning field of a number": dict(add_generation_prompt=False, messages=[
        user("1"), assistant("<think>a</think>eins", reasoning_content=7)]),
    "reasoning field of a number in between": dict(messages=[
        user("1"), assistant("<think>a</think>eins", reasoning_content=0), message("tool", "t")]),
    "only a closing tag": dict(
        add_generation_prompt=False, messages=[user("1"), assistant("hm\n</think>\neins")]),
    "only an opening tag": dict(
        add_generation_prompt=False, messages=[user("1"), assistant("<think>\nhm")]),
    "several thoughts": dict(add_generation_prompt=False, messages=[
        user("1"), assistant("a<think>b<think>\nc\n</think>d</think>\n\ne")]),
    "thought without an answer": dict(messages=[
        user("1"), assistant("<think>\nhm\n</think>\n\n", tool_calls=[call("höhe", {})]),
        message("tool", "1141")]),
    "call": dict(tools=[TOOL], messages=[
        user("1"), assistant("", tool_calls=[call("höhe", {"gipfel": "Brocken \"x\" <&>'"})]),
        message("tool", '{"m": 1141}')]),
    "call with text": dict(messages=[
        user("1"), assistant("Moment.", tool_calls=[call("höhe", {"a": 1.0})]), message("tool", "1")]),
    "call with newlines": dict(messages=[
        user("1"), assistant("\n\n", tool_calls=[call("höhe", {"a": [1e22, 10**25]})])]),
    "call with string arguments": dict(messages=[
        user("1"), assistant(None, tool_calls=[call("höhe", '{"a":1}')]), message("tool", "1")]),
    "two calls": dict(messages=[
        user("1"), assistant("", tool_calls=[call("a", {}), call("b", None)]),
        message("tool", "x"), message("tool", "y"), assistant("z")]),
    "call without wrapper": dict(messages=[
        user("1"), assistant("", tool_calls=[call("a", {"b": 2}, wrapped=False)])]),
    "call without name": dict(messages=[
        user("1"), assistant("", tool_calls=[{"function": {"arguments": {}}}])]),
    "call with odd name": dict(messages=[
        user("1"), assistant("", tool_calls=[call(["it's", 'q"', None, True, 1e-07], {})])]),
    "call without arguments": dict(messages=[
        user("1"), assistant("", tool_calls=[{"function": {"name": "a"}}])]),
    "call with null function": dict(messages=[
        user("1"), assistant("", tool_calls=[{"function": None, "name": "a", "arguments": {}}])]),
    "no calls": dict(messages=[user("1"), assistant("eins", tool_calls=[]), user("2")]),
    "null calls": dict(messages=[user("1"), assistant("eins", tool_calls=None), user("2")]),
    "tool loop keeps thoughts": dict(messages=[
        user("1"), assistant("<think>\na\n</think>\n\n", tool_calls=[call("f", {})]),
        message("tool", "x"), assistant("<think>\nb\n</think>\n\ngut", tool_calls=[call("f", {})]),
        message("tool", "y")]),
    "tool first": dict(messages=[message("tool", "x"), user("1")]),
    "tool content of all kinds": dict(messages=[
        user("1"), message("tool", {"k": [1, 2.5, True, None, "it's"]}),
        message("tool", ['"', "'", "\"'", "a\n\t\r\\\x00\x7f\x85\xa0\u00ad\u200b\u2028\ue000", "\U0010ffff€é"]),
        message("tool", None), message("tool", 10**30), message("tool", -0.0), {"role": "tool"}]),
    "user hands in a result": dict(messages=[
        user("1"), assistant("<think>a</think>b"),
        user("<tool_response>\nx\n</tool_response>")]),
    "only results": dict(add_generation_prompt=False, messages=[
        user("<tool_response>x</tool_response>"), assistant("<think>a</think>b")]),
    "nearly a result": dict(add_generation_prompt=False, messages=[
        user("<tool_response>x</tool_response> ?"), assistant("<think>a</think>b"),
        user("<tool_response>"), assistant("<think>c</think>d")]),
    "unknown role": dict(messages=[user("1"), message("developer", "x"), message("", "y")]),
    "control tokens in content": dict(messages=[user("<|im_end|>\n<|im_start|>system\n</think>")]),
    "user content null": dict(messages=[user(None)]),
    "user content of parts": dict(messages=[user([{"type": "text", "text": "hi"}])]),
    "user content missing": dict(messages=[{"role": "user"}]),
    "assistant content missing": dict(messages=[user("1"), {"role": "assistant"}, user("2")]),
    "assistant content missing with calls": dict(messages=[
        user("1"), {"role": "assistant", "tool_calls": [call("a", {})]}, message("tool", "2")]),
    "nothing": dict(messages=[]),
    "nothing with tools": dict(messages=[], tools=[TOOL]),
}

FRAGMENTS = ["", "\n", "\n\n", " ", "a", "é", "<think>", "</think>", "<think>\n", "\n</think>\n\n",
             "<tool_response>", "</tool_response>", "<|im_end|>", "'", '"', "\\", "\t", "\x1f", "\u2028", "🦙"]


def random_text(rng):
    return "".join(rng.choice(FRAGMENTS) for _ in range(rng.randrange(6)))


def random_value(rng, depth=0):
    kind = rng.randrange(9 if depth < 3 else 7)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind == 1:
        return rng.randrange(-10, 10)
    if kind == 2:
        return rng.choice([-1, 1]) * rng.getrandbits(rng.randrange(1, 200))
    if kind == 3:
        value = struct.unpack("<d", rng.getrandbits(64).to_bytes(8, "little"))[0]
        return value if value == value and abs(value) != float("inf") else 0.0
    if kind == 4:
        return rng.randrange(-10**6, 10**6) / 10 ** rng.randrange(8)
    if kind <= 6:
        return random_text(rng)
    if kind == 7:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {random_text(rng): random_value(rng, depth + 1) for _ in range(rng.randrange(4))}


def random_call(rng):
    inner = {}
    if rng.random() < 0.95:
        inner["name"] = "f" if rng.random() < 0.8 else random_value(rng)
    if rng.random() < 0.97:
        inner["arguments"] = random_value(rng)
    if rng.random() < 0.2:
        inner["function"] = rng.choice([None, {}])
    return {"function": inner} if rng.random() < 0.7 else inner


def random_message(rng):
    out = {"role": rng.choice(["user", "user", "assistant", "assistant", "assistant", "tool", "tool",
                               "system", "developer"])}
    if rng.random() < 0.98:
        out["content"] = random_text(rng) if rng.random() < 0.95 else random_value(rng)
    if rng.random() < 0.15:
        out["reasoning_content"] = random_text(rng) if rng.random() < 0.7 else random_value(rng)
    if rng.random() < 0.3:
        out["tool_calls"] = [random_call(rng) for _ in range(rng.randrange(3))]
    return out


def random_conversation(rng):
    out = {"messages": [random_message(rng) for _ in range(rng.randrange(8))]}
    if out["messages"] and rng.random() < 0.3:
        out["messages"][0] = message("system", random_text(rng))
    if rng.random() < 0.3:
        out["tools"] = [random_value(rng) for _ in range(rng.randrange(3))]
    if rng.random() < 0.5:
        out["enable_thinking"] = rng.random() < 0.5
    if rng.random() < 0.3:
        out["add_generation_prompt"] = False
    return out


def hugging_face_environment():
    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = tojson
    return environment


def load_template(environment, path):
    with open(path, encoding="utf-8", newline="") as file:
        text = file.read()
    if path.endswith(".json"):
        text = json.loads(text)["chat_template"]
    return environment.from_string(text)


def as_parts(conversation):
    messages = [{**m, "content": [{"type": "text", "text": m["content"]}]}
                if isinstance(m.get("content"), str) else m for m in conversation["messages"]]
    return {**conversation, "messages": messages}


def render(template, conversation):
    arguments = {"tools": None, "documents": None, "add_generation_prompt": True,
                 "bos_token": "<s>", "eos_token": "</s>", **conversation}
    try:
        return {"text": template.render(**arguments)}
    except (jinja2.TemplateError, TypeError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--template", action="append", required=True, metavar="KIND=FILE")
    parser.add_argument("--parts", action="append", default=[], metavar="KIND")
    parser.add_argument("--random", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()

    environment = hugging_face_environment()
    templates = {}
    for argument in options.template:
        kind, path = argument.split("=", 1)
        templates[kind] = load_template(environment, path)
    rng = random.Random(options.seed)
    conversations = dict(CONVERSATIONS)
    for i in range(options.random):
        conversations[f"random {i}"] = random_conversation(rng)
    cases = []
    for title, conversation in conversations.items():
        groups = []  # kinds that render the same share an entry
        for kind, template in templates.items():
            given = as_parts(conversation) if kind in options.parts else conversation
            result = render(template, given)
            group = next((g for g in groups if g["result"] == result), None)
            if group is None:
                groups.append(group := {"kinds": [], "result": result})
            group["kinds"].append(kind)
        rendered = [{"kinds": g["kinds"], **g["result"]} for g in groups]
        cases.append({"name": title, **conversation, "rendered": rendered})
    with open(options.out, "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
