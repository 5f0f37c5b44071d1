#!/usr/bin/env python3
"""Compares the interpreter of chat templates with Jinja2, on every template of the folders given.

    g++ -std=c++20 -O2 -Iinclude tests/oracle/render_jinja.cpp -lutf8proc -o /tmp/render_jinja
    python3 tests/oracle/jinja_templates.py --program /tmp/render_jinja FOLDER...

A template is a file *.jinja, or a string that unsloth's chat_templates.py assigns to a name that
ends in _template. Each renders the conversations below, with and without a prompt for an answer and
with enable_thinking true, false and unset, in the environment of Hugging Face transformers. The
texts must be equal; where Jinja2 raises, the program must refuse. Last run with Jinja2 3.1.6,
transformers 5.24.0 and Python 3.11.7 on the templates of llama-cpp-python 0.3.36, unsloth 2026.10.9,
TRL 1.16.0 and axolotl 0.19.0.
"""

import argparse
import ast
import glob
import json
import os
import subprocess
import sys

from transformers.utils.chat_template_utils import _compile_jinja_template

TOOLS = [
    {"type": "function", "function": {
        "name": "weather", "description": "How warm is it — \"in °C\" <now> & 'here'?\nSecond line.",
        "parameters": {"type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "The town"},
            "days": {"type": "integer", "minimum": 1, "maximum": 14, "default": 3},
            "unit": {"type": "string", "enum": ["C", "F"]}}},
        "return": {"type": "object", "properties": {"t": {"type": "number"}}}}},
    {"type": "function", "function": {
        "name": "book", "description": "Books a table",
        "parameters": {"type": "object", "properties": {
            "who": {"type": "array", "items": {"type": "object", "properties": {
                "name": {"type": ["string", "null"]}, "age": {"type": "number"}}}},
            "when": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            "opts": {"type": "object", "additionalProperties": {"type": "boolean"}}},
            "required": ["who", "when"]}}},
]


def message(role, content, **more):
    return {"role": role, "content": content, **more}


def user(content):
    return message("user", content)


def assistant(content, **more):
    return message("assistant", content, **more)


def call(name, arguments, number=1):
    return {"id": f"call{number:05d}", "type": "function",
            "function": {"name": name, "arguments": arguments}}


def tool(content, number=1, **more):
    return message("tool", content, tool_call_id=f"call{number:05d}", **more)


def text_part(text):
    return {"type": "text", "text": text}


WARM = call("weather", {"city": "Köln", "days": 2})
BOOK = call("book", {"who": [{"name": "Ada", "age": 3.5}, {"name": None, "age": 1e-7}],
                     "when": "18:00", "opts": {"quiet": True, "dog": False}}, 2)
SYSTEM = message("system", "Be brief. You are a helpful assistant.")

CONVERSATIONS = {
    "one question": [user("Hello")],
    "system": [SYSTEM, user("Hello")],
    "several turns": [user("a"), assistant("b"), user("c"), assistant("d"), user("e")],
    "system and turns": [SYSTEM, user("a"), assistant("b"), user("c")],
    "ends with an answer": [user("a"), assistant("b")],
    "white space": [SYSTEM, user("  a \n"), assistant("\n\n b\t"), user("\n")],
    "unicode": [user("Grüße 🦙 — 你好\u00a0\u2028x"), assistant("naïve ß"), user("é\u0301 \"'<&>\\n")],
    "empty texts": [message("system", ""), user(""), assistant(""), user("")],
    "thought in content": [user("a"), assistant("<think>\nhm\n</think>\n\nb"), user("c")],
    "thought, then last": [user("a"), assistant("<think>hm</think>b")],
    "reasoning": [user("a"), assistant("b", reasoning_content="\nhm\n"), user("c"),
                  assistant("d", reasoning_content="well")],
    "empty reasoning": [user("a"), assistant("b", reasoning_content=""), user("c")],
    "a call": [user("a"), assistant("", tool_calls=[WARM])],
    "call and result": [user("a"), assistant("", tool_calls=[WARM]), tool('{"t": 3}')],
    "call with text": [SYSTEM, user("a"), assistant("Let me see.", tool_calls=[WARM]), tool("3"),
                       assistant("3 degrees"), user("c")],
    "two calls": [user("a"), assistant("", tool_calls=[WARM, BOOK]), tool("3"), tool("done", 2),
                  assistant("ok"), user("more")],
    "call of an answer with null": [user("a"), assistant(None, tool_calls=[BOOK]), tool("x", 2)],
    "call with reasoning": [user("a"), assistant("", reasoning_content="call it",
                                                 tool_calls=[WARM]), tool("3", name="weather")],
    "text arguments": [user("a"), assistant("", tool_calls=[call("weather", '{"city": "Ulm"}')]),
                       tool("3")],
    "no arguments": [user("a"), assistant("", tool_calls=[call("weather", {})]), tool("")],
    "bare calls": [user("a"), assistant("", tool_calls=[WARM["function"]]), tool("3")],
    "result without id": [user("a"), assistant("", tool_calls=[WARM]), message("tool", "3")],
    "result as object": [user("a"), assistant("", tool_calls=[WARM]), tool({"t": [1, 2.5, None]})],
    "parts": [message("system", [text_part("Be")]), user([text_part("a"), text_part("b")]),
              assistant([text_part("c")]), user([text_part("d")])],
    "image": [user([{"type": "image"}, text_part("What is it?")])],
    "empty parts": [user([]), assistant([]), user([text_part("")])],
    "developer": [message("developer", "Be brief."), user("a")],
    "system later": [user("a"), assistant("b"), message("system", "Now be long."), user("c")],
    "two of the user": [user("a"), user("b")],
    "begins with the assistant": [assistant("a"), user("b")],
    "other role": [user("a"), message("critic", "b"), user("c")],
    "no content": [user("a"), {"role": "assistant"}, user("c")],
    "nothing": [],
}

# One of these goes with each conversation: kwargs and special tokens that templates look at.
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
OPTIONS = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": False},
    {"add_generation_prompt": True, "enable_thinking": True},
    {"add_generation_prompt": True, "enable_thinking": False},
    {"add_generation_prompt": True, "tools": TOOLS},
    {"add_generation_prompt": False, "tools": TOOLS, "enable_thinking": False},
    {"add_generation_prompt": True, "tools": TOOLS[:1], "reasoning_effort": "high",
     "thinking": True, "documents": [{"title": "T", "text": "words"}]},
]


def read_templates(folder):
    for path in sorted(glob.glob(os.path.join(folder, "**", "*.jinja"), recursive=True)):
        with open(path, encoding="utf-8", newline="") as file:
            yield path, file.read()
    for path in sorted(glob.glob(os.path.join(folder, "**", "chat_templates.py"), recursive=True)):
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read())
        names = {}
        for node in tree.body:
            if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)):
                continue
            name = node.targets[0].id
            try:  # constants, and sums and replacements of such
                names[name] = eval(compile(ast.Expression(node.value), path, "eval"), dict(names))
            except Exception:
                continue
            text = names[name]
            if name.endswith("_template") and isinstance(text, str) and "{%" in text:
                yield f"{path}:{name}", text


def expected(template, variables):
    try:
        return {"text": _compile_jinja_template(template).render(**json.loads(json.dumps(variables)))}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--verbose", action="store_true", help="also the texts that differ")
    parser.add_argument("folders", nargs="+")
    options = parser.parse_args()
    program = subprocess.Popen([options.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    counts = {"equal": 0, "refused by both": 0, "differ": 0, "refused here": 0, "refused there": 0}
    num_templates = num_wrong = 0
    for folder in options.folders:
        for path, template in read_templates(folder):
            num_templates += 1
            wrong = []
            for title, messages in CONVERSATIONS.items():
                for option in OPTIONS:
                    variables = {"messages": messages, "tools": None, "documents": None, **TOKENS,
                                 **option}
                    want = expected(template, variables)
                    line = json.dumps({"template": template, "variables": variables})
                    program.stdin.write(line.encode() + b"\n")
                    program.stdin.flush()
                    got = json.loads(program.stdout.readline())
                    result = ("refused here" if "text" in want else "refused by both") \
                        if "error" in got else "refused there" if "error" in want else \
                        "equal" if got == want else "differ"
                    counts[result] += 1
                    if result not in ("equal", "refused by both"):
                        wrong.append((result, title, option, want, got))
            if wrong:
                num_wrong += 1
                result, title, option, want, got = wrong[0]
                print(f"{path}: {len(wrong)} wrong; {result}: {title}, {option}")
                print(f"  expected {str(want)[:300]}\n  got      {str(got)[:300]}")
                if options.verbose:
                    for other in wrong[1:]:
                        print(f"  {other[0]}: {other[1]}, {other[2]}")
    print(f"{num_templates} templates, {num_wrong} of them wrong: {counts}")
    sys.exit(1 if num_wrong else 0)


if __name__ == "__main__":
    main()
