"""The `openai` package against a running server.

    python3 openai_client_test.py --server PATH_TO_serve --model DIR [TEST...]

The model is examples/models/fairytale or another small one that any text comes from; what it says
is not looked at, but for what must be equal.
"""

import argparse
import asyncio
import json
import re
import sys
import time
import unittest
from typing import Literal

import openai
import pydantic

from server_process import ServerProcess

PROMPT = "Once upon a time there was a fox who"
MESSAGES = [{"role": "user", "content": "Tell me a tale of a fox and a queen."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a town.",
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string", "enum": ["Rome", "Oslo"]},
                           "day": {"type": "integer", "enum": [1, 2, 3]}},
            "required": ["town", "day"],
            "additionalProperties": False,
        },
    },
}
TIME = {"type": "function",
        "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}

options = None
server = None
client = None
model = None


def setUpModule():
    global server, client, model
    server = ServerProcess(options.server, options.model, "--kv-blocks", "2048",
                           "--max-connections", "4096")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=60)
    model = client.models.list().data[0].id


def tearDownModule():
    if server is not None:
        server.kill()


def chat(**fields):
    return client.chat.completions.create(
        **{"model": model, "messages": MESSAGES, "max_completion_tokens": 24, **fields})


def complete(**fields):
    return client.completions.create(
        **{"model": model, "prompt": PROMPT, "max_tokens": 24, **fields})


def tokens_of(text):
    return server.json("POST", "/tokenize", {"model": model, "prompt": text})["tokens"]


def joined(chunks):
    """{choice: text} and {choice: finish_reason} of a stream of either kind."""
    texts, reasons = {}, {}
    for chunk in chunks:
        for choice in chunk.choices:
            delta = getattr(choice, "delta", None)
            piece = choice.text if delta is None else (delta.content or "")
            texts[choice.index] = texts.get(choice.index, "") + piece
            if choice.finish_reason is not None:
                if choice.index in reasons:
                    raise AssertionError(f"choice {choice.index} has two finish reasons")
                reasons[choice.index] = choice.finish_reason
    return texts, reasons


class Models(unittest.TestCase):
    def test_list_and_retrieve(self):
        listed = client.models.list().data
        self.assertEqual([m.object for m in listed], ["model"])
        one = client.models.retrieve(model)
        self.assertEqual(one.id, model)
        self.assertGreater(one.max_model_len, 0)

    def test_unknown(self):
        with self.assertRaises(openai.NotFoundError) as raised:
            client.models.retrieve("no-such-model")
        self.assertEqual(raised.exception.code, "model_not_found")
        with self.assertRaises(openai.NotFoundError) as raised:
            chat(model="no-such-model")
        self.assertEqual(raised.exception.param, "model")


class Chat(unittest.TestCase):
    def test_top_p_of_nothing_is_greedy(self):
        greedy = chat(temperature=0).choices[0].message.content
        self.assertEqual(chat(temperature=2, top_p=0).choices[0].message.content, greedy)

    def test_whole(self):
        reply = chat(temperature=0)
        self.assertRegex(reply.id, r"^chatcmpl-\S+$")
        self.assertEqual(reply.object, "chat.completion")
        self.assertEqual(reply.model, model)
        self.assertLess(abs(reply.created - time.time()), 60)
        self.assertEqual(len(reply.choices), 1)
        choice = reply.choices[0]
        self.assertEqual(choice.index, 0)
        self.assertEqual(choice.message.role, "assistant")
        self.assertTrue(choice.message.content)
        self.assertIsNone(choice.message.tool_calls)
        self.assertIn(choice.finish_reason, ("stop", "length"))
        self.assertEqual(reply.usage.total_tokens,
                         reply.usage.prompt_tokens + reply.usage.completion_tokens)
        self.assertLessEqual(reply.usage.completion_tokens, 24)

    def test_stream_is_the_whole_bit_by_bit(self):
        for fields in ({"temperature": 0}, {"temperature": 0.7, "seed": 7},
                       {"temperature": 1, "seed": 1, "n": 3}):
            with self.subTest(**fields):
                whole = chat(**fields)
                chunks = list(chat(stream=True, **fields))
                texts, reasons = joined(chunks)
                for choice in whole.choices:
                    self.assertEqual(texts[choice.index], choice.message.content)
                    self.assertEqual(reasons[choice.index], choice.finish_reason)
                self.assertEqual(len(texts), len(whole.choices))
                self.assertEqual({c.object for c in chunks}, {"chat.completion.chunk"})
                self.assertEqual(len({c.id for c in chunks}), 1)
                self.assertEqual(len({c.created for c in chunks}), 1)
                self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
                # On busy cores the reader is late and pieces are joined, but not each time.
                self.assertTrue(any(len(list(chat(stream=True, **fields))) > 5 for _ in range(20)))

    def test_usage_of_a_stream(self):
        whole = chat(temperature=0)
        chunks = list(chat(temperature=0, stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual(chunks[-1].usage.prompt_tokens, whole.usage.prompt_tokens)
        self.assertTrue(all(c.usage is None for c in chunks[:-1]))
        self.assertTrue(all(c.choices for c in chunks[:-1]))

        chunks = list(chat(temperature=0, stream=True, extra_body={"stream_options": {
            "include_usage": True, "continuous_usage_stats": True}}))
        counts = [c.usage.completion_tokens for c in chunks]
        self.assertEqual(counts, sorted(counts))
        self.assertEqual(counts[-1], whole.usage.completion_tokens)

    def test_cached_tokens(self):
        messages = [{"role": "user", "content": "A word and another word. " * 20}]
        chat(messages=messages, max_completion_tokens=1)
        usage = chat(messages=messages, max_completion_tokens=1).usage
        self.assertGreater(usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens // 2)

    def test_n(self):
        reply = chat(n=3, temperature=1, seed=5)
        self.assertEqual([c.index for c in reply.choices], [0, 1, 2])
        self.assertGreater(len({c.message.content for c in reply.choices}), 1)

    def test_seed(self):
        texts = [chat(temperature=1, seed=seed).choices[0].message.content
                 for seed in (11, 11, 12, -11)]
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])
        self.assertNotEqual(texts[0], texts[3])

    def test_stop(self):
        text = chat(temperature=0).choices[0].message.content
        words = [w for w in re.findall(r"\w+", text) if len(w) > 3]
        stop = words[len(words) // 2]
        wanted = text[:text.index(stop)]
        for form in (stop, ["no such words", stop]):
            choice = chat(temperature=0, stop=form).choices[0]
            self.assertEqual((choice.message.content, choice.finish_reason), (wanted, "stop"))
            texts, reasons = joined(chat(temperature=0, stop=form, stream=True))
            self.assertEqual((texts[0], reasons[0]), (wanted, "stop"))
        kept = chat(temperature=0, stop=stop, extra_body={"include_stop_str_in_output": True})
        self.assertEqual(kept.choices[0].message.content, wanted + stop)

    def test_limits_on_tokens(self):
        always = {"ignore_eos": True}
        for fields, count in (({"max_completion_tokens": 5}, 5),
                              ({"max_completion_tokens": openai.omit, "max_tokens": 6}, 6),
                              ({"max_completion_tokens": 5, "max_tokens": 9}, 5)):
            reply = chat(extra_body=always, **fields)
            self.assertEqual(reply.usage.completion_tokens, count)
            self.assertEqual(reply.choices[0].finish_reason, "length")

    def test_logprobs(self):
        fields = {"temperature": 0, "logprobs": True, "top_logprobs": 5,
                  "extra_body": {"ignore_eos": True,
                                 "chat_template_kwargs": {"enable_thinking": False}}}
        reply = chat(**fields)
        entries = reply.choices[0].logprobs.content
        self.assertEqual(len(entries), 24)
        self.assertEqual(bytes(b for e in entries for b in e.bytes).decode(errors="replace"),
                         reply.choices[0].message.content)
        for entry in entries:
            self.assertEqual(len(entry.top_logprobs), 5)
            values = [t.logprob for t in entry.top_logprobs]
            self.assertEqual(values, sorted(values, reverse=True))
            self.assertEqual(values[0], entry.logprob)  # greedy: the likeliest was drawn
            self.assertLessEqual(values[0], 0)
        streamed = [e for chunk in chat(stream=True, **fields) for choice in chunk.choices
                    if choice.logprobs for e in choice.logprobs.content]
        self.assertEqual([e.model_dump() for e in streamed], [e.model_dump() for e in entries])
        self.assertIsNone(chat().choices[0].logprobs)

    def test_penalties_and_bias(self):
        plain = chat(temperature=0, max_completion_tokens=64).choices[0].message.content
        for fields in ({"frequency_penalty": 2}, {"presence_penalty": 2},
                       {"extra_body": {"repetition_penalty": 1.5}}):
            with self.subTest(**fields):
                other = chat(temperature=0, max_completion_tokens=64, **fields)
                self.assertNotEqual(other.choices[0].message.content, plain)
        token = tokens_of(" fox")[0]
        text = server.json("POST", "/detokenize", {"model": model, "tokens": [token] * 4})["prompt"]
        forced = complete(temperature=0, max_tokens=4, logit_bias={str(token): 100})
        self.assertEqual(forced.choices[0].text, text)

    def test_extras_of_vllm(self):
        greedy = chat(temperature=0).choices[0].message.content
        self.assertEqual(chat(temperature=1, extra_body={"top_k": 1}).choices[0].message.content,
                         greedy)
        self.assertEqual(chat(temperature=1, extra_body={"min_p": 1.0}).choices[0].message.content,
                         greedy)
        reply = chat(extra_body={"min_tokens": 20, "stop_token_ids": tokens_of(".")[:1]})
        self.assertGreaterEqual(reply.usage.completion_tokens, 20)
        chat(extra_body={"priority": 3, "skip_special_tokens": False})

    def test_thinking_switch(self):
        thinks = chat(max_completion_tokens=1).usage.prompt_tokens
        without = chat(max_completion_tokens=1, extra_body={
            "chat_template_kwargs": {"enable_thinking": False}}).usage.prompt_tokens
        self.assertGreater(without, thinks)  # by the thought that is empty

    def test_continue_final_message(self):
        def go_on(content, **extra):
            return chat(messages=[*MESSAGES, {"role": "assistant", "content": content}],
                        temperature=0, extra_body={"continue_final_message": True, **extra})

        tokens = server.json("POST", "/tokenize", {
            "messages": [*MESSAGES, {"role": "assistant", "content": "There was a "}],
            "continue_final_message": True, "add_generation_prompt": False})["tokens"]
        text = server.json("POST", "/detokenize", {"tokens": tokens})["prompt"]
        self.assertTrue(text.endswith("assistant\nThere was a "), text)
        reply = go_on("There was a ", add_generation_prompt=False)
        self.assertEqual(reply.usage.prompt_tokens, len(tokens))
        self.assertEqual(reply.choices[0].message.content,
                         complete(prompt=text, temperature=0).choices[0].text)
        with self.assertRaises(openai.BadRequestError) as raised:
            go_on("There was a ", add_generation_prompt=True)
        self.assertEqual(raised.exception.param, "add_generation_prompt")
        with self.assertRaises(openai.BadRequestError) as raised:
            chat(extra_body={"continue_final_message": True})
        self.assertEqual(raised.exception.param, "messages")

    def test_reasoning_tokens(self):
        messages = [*MESSAGES, {"role": "assistant", "content": "<think>\nA fox"}]
        fields = {"temperature": 0, "messages": messages, "stop": "</think>",
                  "extra_body": {"continue_final_message": True}}
        reply = chat(**fields)
        self.assertEqual(reply.choices[0].message.content, "")
        self.assertTrue(reply.choices[0].message.reasoning_content)
        self.assertEqual(reply.usage.completion_tokens_details.reasoning_tokens,
                         reply.usage.completion_tokens)
        chunks = list(chat(stream=True, stream_options={"include_usage": True}, **fields))
        self.assertEqual(chunks[-1].usage.completion_tokens_details,
                         reply.usage.completion_tokens_details)

    def test_token_ids(self):
        fields = {"temperature": 0, "n": 2, "extra_body": {"return_token_ids": True}}
        whole = chat(**fields)
        self.assertEqual(len(whole.prompt_token_ids), whole.usage.prompt_tokens)
        chunks = list(chat(stream=True, **fields))
        self.assertEqual([getattr(c, "prompt_token_ids", None) for c in chunks],
                         [whole.prompt_token_ids] + [None] * (len(chunks) - 1))
        for choice in whole.choices:
            self.assertEqual([token for c in chunks for part in c.choices
                              if part.index == choice.index
                              for token in getattr(part, "token_ids", None) or []],
                             choice.token_ids)

    def test_fields_that_are_ignored(self):
        chat(user="somebody", metadata={"a": "b"}, store=False, service_tier="auto",
             extra_body={"no_such_field": {"x": [1, 2]}})

    def test_parts_and_roles(self):
        plain = chat(temperature=0).choices[0].message.content
        parts = [{"type": "text", "text": MESSAGES[0]["content"]}]
        self.assertEqual(chat(temperature=0, messages=[{"role": "user", "content": parts}])
                         .choices[0].message.content, plain)
        texts = [chat(temperature=0, messages=[{"role": role, "content": "Be brief."}, *MESSAGES])
                 .choices[0].message.content for role in ("system", "developer")]
        self.assertEqual(texts[0], texts[1])

    def test_raw_response(self):
        raw = client.chat.completions.with_raw_response.create(
            model=model, messages=MESSAGES, max_completion_tokens=4, temperature=0)
        self.assertEqual(raw.status_code, 200)
        self.assertEqual(raw.headers["content-type"].split(";")[0], "application/json")
        body = json.loads(raw.text)
        message = body["choices"][0]["message"]
        self.assertEqual(raw.parse().choices[0].message.content, message["content"])
        self.assertEqual(message["role"], "assistant")
        for field in ("id", "object", "created", "model", "choices", "usage"):
            self.assertIn(field, body)
        with client.chat.completions.with_streaming_response.create(
                model=model, messages=MESSAGES, max_completion_tokens=4, stream=True) as reply:
            self.assertEqual(reply.headers["content-type"].split(";")[0], "text/event-stream")
            lines = [line for line in reply.iter_lines() if line]
        self.assertTrue(all(line.startswith("data: ") for line in lines))
        self.assertEqual(lines[-1], "data: [DONE]")

    def test_stream_helper(self):
        fields = {"temperature": 0, "max_completion_tokens": 400, "stop": "."}
        with client.chat.completions.stream(model=model, messages=MESSAGES, **fields) as stream:
            for _ in stream:
                pass
            text = stream.get_final_completion().choices[0].message.content
        self.assertEqual(text, chat(**fields).choices[0].message.content)


class Completions(unittest.TestCase):
    def test_whole_and_streamed(self):
        for fields in ({"temperature": 0}, {"temperature": 1, "seed": 3, "n": 2},
                       {"temperature": 0, "prompt": [PROMPT, "A king had"]}):
            with self.subTest(**fields):
                whole = complete(**fields)
                self.assertEqual(whole.object, "text_completion")
                self.assertRegex(whole.id, r"^cmpl-\S+$")
                texts, reasons = joined(complete(stream=True, **fields))
                self.assertEqual(texts, {c.index: c.text for c in whole.choices})
                self.assertEqual(reasons, {c.index: c.finish_reason for c in whole.choices})

    def test_default_length(self):
        reply = complete(max_tokens=openai.omit, extra_body={"ignore_eos": True})
        self.assertEqual(reply.usage.completion_tokens, 16)

    def test_forms_of_prompts(self):
        by_text = complete(temperature=0)
        ids = tokens_of(PROMPT)
        self.assertEqual(complete(temperature=0, prompt=ids).choices[0].text,
                         by_text.choices[0].text)
        other = "A king had"
        pair = complete(temperature=0, prompt=[ids, tokens_of(other)], n=2, seed=1)
        self.assertEqual([c.index for c in pair.choices], [0, 1, 2, 3])
        alone = complete(temperature=0, prompt=other).choices[0].text
        self.assertEqual([c.text for c in pair.choices],
                         [by_text.choices[0].text] * 2 + [alone] * 2)
        self.assertEqual(pair.usage.prompt_tokens, len(ids) + len(tokens_of(other)))

    def test_echo(self):
        plain = complete(temperature=0).choices[0].text
        self.assertEqual(complete(temperature=0, echo=True).choices[0].text, PROMPT + plain)
        self.assertEqual(joined(complete(temperature=0, echo=True, stream=True))[0][0],
                         PROMPT + plain)
        self.assertEqual(complete(echo=True, max_tokens=0).choices[0].text, PROMPT)

    def test_streamed_logprobs_of_an_echo(self):
        fields = {"temperature": 0, "logprobs": 3, "echo": True, "max_tokens": 6, "n": 2,
                  "prompt": [PROMPT * 9, "A king had"]}
        whole = complete(**fields)
        chunks = list(complete(stream=True, **fields))
        for choice in whole.choices:
            parts = [p for c in chunks for p in c.choices if p.index == choice.index]
            self.assertEqual("".join(p.text for p in parts), choice.text)
            for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
                self.assertEqual([x for p in parts if p.logprobs for x in getattr(p.logprobs, name)],
                                 getattr(choice.logprobs, name), name)

    def test_logprobs(self):
        reply = complete(temperature=0, logprobs=3, echo=True, max_tokens=6,
                         extra_body={"ignore_eos": True})
        choice, count = reply.choices[0], reply.usage.prompt_tokens + 6
        scores = choice.logprobs
        self.assertEqual(len(scores.tokens), count)
        self.assertEqual(len(scores.token_logprobs), count)
        self.assertIsNone(scores.token_logprobs[0])
        self.assertTrue(all(value <= 0 for value in scores.token_logprobs[1:]))
        self.assertEqual("".join(scores.tokens), choice.text)
        self.assertEqual(scores.text_offset[0], 0)
        self.assertEqual(scores.text_offset, sorted(scores.text_offset))
        for token, offset in zip(scores.tokens, scores.text_offset):
            self.assertTrue(choice.text.startswith(token, offset))
        self.assertTrue(all(3 <= len(top) <= 4 for top in scores.top_logprobs[1:]))

    def test_best_of(self):
        reply = complete(temperature=1, seed=1, n=2, best_of=4)
        self.assertEqual(len(reply.choices), 2)


class Tokens(unittest.TestCase):
    def test_there_and_back(self):
        for text in (PROMPT, "Grüße, 狐狸! \U0001f98a\n\n  x"):
            reply = server.json("POST", "/tokenize", {"model": model, "prompt": text})
            self.assertEqual(reply["count"], len(reply["tokens"]))
            back = server.json("POST", "/detokenize", {"model": model, "tokens": reply["tokens"]})
            self.assertEqual(back["prompt"], text)

    def test_messages(self):
        reply = server.json("POST", "/tokenize", {"model": model, "messages": MESSAGES})
        self.assertEqual(reply["count"], chat(max_completion_tokens=1).usage.prompt_tokens)


class Forms(unittest.TestCase):
    def test_choice_and_regex(self):
        for extra in ({"guided_choice": ["red", "green"]},
                      {"structured_outputs": {"choice": ["red", "green"]}}):
            self.assertIn(chat(extra_body=extra).choices[0].message.content, ("red", "green"))
        for extra in ({"guided_regex": r"\d{4}-\d{2}"},
                      {"structured_outputs": {"regex": r"\d{4}-\d{2}"}}):
            self.assertRegex(chat(extra_body=extra).choices[0].message.content, r"^\d{4}-\d\d$")
            self.assertRegex(complete(extra_body=extra).choices[0].text, r"^\d{4}-\d\d$")

    def test_a_bad_pattern(self):
        with self.assertRaises(openai.BadRequestError) as raised:
            chat(extra_body={"guided_regex": "("})
        self.assertEqual(raised.exception.param, "guided_regex")


class Animal(pydantic.BaseModel):
    kind: Literal["fox", "wolf"]
    legs: Literal[3, 4]
    is_sly: bool


class Json(unittest.TestCase):
    def test_json_schema(self):
        schema = {"name": "animal", "strict": True, "schema": Animal.model_json_schema()}
        text = chat(max_completion_tokens=900, response_format={
            "type": "json_schema", "json_schema": schema}).choices[0].message.content
        Animal.model_validate_json(text)
        text = chat(max_completion_tokens=900, extra_body={
            "guided_json": Animal.model_json_schema()}).choices[0].message.content
        Animal.model_validate_json(text)

    def test_parse(self):
        reply = client.chat.completions.parse(
            model=model, messages=MESSAGES, max_completion_tokens=900, response_format=Animal)
        self.assertIsInstance(reply.choices[0].message.parsed, Animal)

    def test_json_object(self):
        # A model of tales finds no end of an object by itself.
        bias = {str(token): 100 for text in ("}", '"}') for token in tokens_of(text)[:1]}
        choice = chat(max_completion_tokens=200, logit_bias=bias,
                      response_format={"type": "json_object"}).choices[0]
        self.assertEqual(choice.finish_reason, "stop")
        self.assertIsInstance(json.loads(choice.message.content), dict)

    def test_a_keyword_that_is_not_enforced(self):
        schema = {"type": "array", "items": {"type": "number"}, "uniqueItems": True}
        with self.assertRaises(openai.BadRequestError) as raised:
            chat(extra_body={"guided_json": schema})
        self.assertIn("uniqueItems", raised.exception.message)


class Tools(unittest.TestCase):
    def check_call(self, call, name="get_weather"):
        self.assertEqual((call.type, call.function.name), ("function", name))
        self.assertTrue(call.id)
        arguments = json.loads(call.function.arguments)
        self.assertIn(arguments["town"], ("Rome", "Oslo"))
        self.assertIn(arguments["day"], (1, 2, 3))

    def test_forced_call_that_is_cut_off(self):
        show = {"type": "function", "function": {"name": "show", "parameters": {
            "type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}}}
        named = {"type": "function", "function": {"name": "show"}}
        for limit in (1, 2, 4, 8, 16, 24, 60):
            for choice in ("required", named):
                fields = {"tools": [show], "tool_choice": choice, "temperature": 0,
                          "max_completion_tokens": limit}
                reply = chat(**fields).choices[0]
                self.assertFalse(reply.message.content, f"{limit} tokens")
                chunks = [chunk.choices[0] for chunk in chat(stream=True, **fields)]
                self.assertEqual("".join(chunk.delta.content or "" for chunk in chunks), "")
                self.assertEqual(chunks[-1].finish_reason, reply.finish_reason)
                if reply.finish_reason == "length" and reply.message.tool_calls:
                    self.assertEqual(reply.message.tool_calls[0].function.name, "show")

    def test_auto_and_none(self):
        for choice in ("auto", "none", openai.omit):
            reply = chat(tools=[WEATHER, TIME], tool_choice=choice)
            self.assertIn(reply.choices[0].finish_reason, ("stop", "length", "tool_calls"))

    def test_history_with_calls(self):
        chat(tools=[WEATHER], messages=[
            *MESSAGES,
            {"role": "assistant", "content": "", "tool_calls": [{
                "id": "call_1", "type": "function",
                "function": {"name": "get_weather", "arguments": '{"town": "Rome", "day": 1}'}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "Rain."}])

    def test_allowed(self):
        for name in ("get_weather", "get_time"):
            reply = chat(tools=[WEATHER, TIME], tool_choice={
                "type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
                    {"type": "function", "function": {"name": name}}]}})
            for call in reply.choices[0].message.tool_calls or []:
                self.assertEqual(call.function.name, name)

    def test_required_and_named(self):
        named = {"type": "function", "function": {"name": "get_weather"}}
        allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
        for tools, choice in (([WEATHER], "required"), ([TIME, WEATHER], named),
                              ([TIME, WEATHER], allowed)):
            fields = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False,
                      "temperature": 0.7, "seed": 3, "max_completion_tokens": 200}
            whole = chat(**fields).choices[0]
            self.assertEqual(whole.finish_reason, "tool_calls")
            self.assertIsNone(whole.message.content)
            self.assertEqual(len(whole.message.tool_calls), 1)
            self.check_call(whole.message.tool_calls[0])

            name, arguments, ids, reasons = "", "", [], []
            for chunk in chat(stream=True, **fields):
                for part in chunk.choices:
                    reasons += [part.finish_reason] if part.finish_reason else []
                    for call in part.delta.tool_calls or []:
                        self.assertEqual(call.index, 0)
                        ids += [call.id] if call.id else []
                        name += call.function.name or ""
                        arguments += call.function.arguments or ""
            self.assertEqual((name, arguments), (whole.message.tool_calls[0].function.name,
                                                 whole.message.tool_calls[0].function.arguments))
            self.assertEqual((len(ids), reasons), (1, ["tool_calls"]))

    def test_wrong_choices(self):
        for fields in ({"tool_choice": "required"},
                       {"tools": [WEATHER], "tool_choice": {"type": "function",
                                                            "function": {"name": "other"}}},
                       {"tools": [WEATHER], "tool_choice": "sometimes"}):
            with self.subTest(**fields), self.assertRaises(openai.BadRequestError) as raised:
                chat(**fields)
            self.assertTrue(raised.exception.param.startswith("tool_choice"))


class Errors(unittest.TestCase):
    def test_fields(self):
        wrong = [
            ({"temperature": -1}, "temperature"), ({"temperature": "hot"}, "temperature"),
            ({"top_p": 1.5}, "top_p"), ({"n": 0}, "n"), ({"frequency_penalty": 3}, "frequency_penalty"),
            ({"presence_penalty": -3}, "presence_penalty"), ({"logprobs": True, "top_logprobs": 21},
                                                              "top_logprobs"),
            ({"top_logprobs": 2}, "top_logprobs"), ({"stream_options": {}}, "stream_options"),
            ({"messages": []}, "messages"), ({"messages": "hello"}, "messages"),
            ({"max_completion_tokens": -1}, "max_completion_tokens"),
            ({"logit_bias": {"99999999": 1}}, ""), ({"logit_bias": {"fox": 1}}, "logit_bias"),
            ({"response_format": {"type": "xml"}}, "response_format.type"),
            ({"seed": "x"}, "seed"), ({"stop": 5}, "stop"), ({"extra_body": {"top_k": -2}}, "top_k"),
            ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
            ({"messages": [*MESSAGES, {"role": "king", "content": "x"}]}, "messages[1].role"),
            ({"messages": [{"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": "http://x"}}]}]}, "messages[0].content"),
        ]
        for fields, param in wrong:
            with self.subTest(**fields), self.assertRaises(openai.BadRequestError) as raised:
                chat(**fields)
            error = raised.exception
            self.assertEqual(error.status_code, 400)
            self.assertEqual(error.type, "invalid_request_error")
            self.assertTrue((error.param or "").startswith(param), f"{error.param} for {fields}")
            self.assertTrue(error.body["message"])

    def test_context(self):
        longest = client.models.retrieve(model).max_model_len
        for call in (lambda: chat(messages=[{"role": "user", "content": "word " * 2 * longest}]),
                     lambda: chat(max_completion_tokens=longest),
                     lambda: complete(prompt="word " * 2 * longest),
                     lambda: complete(max_tokens=longest)):
            with self.assertRaises(openai.BadRequestError) as raised:
                call()
            self.assertEqual(raised.exception.code, "context_length_exceeded")
            self.assertIn(str(longest), raised.exception.message)

    def test_bodies(self):
        for body in (b"", b"{", b"[]", b'{"messages": [}', b"\xff\xfe", b"[" * 100000):
            status, _, reply = server.request("POST", "/v1/chat/completions", body)
            self.assertEqual(status, 400, body[:20])
            self.assertEqual(json.loads(reply)["error"]["type"], "invalid_request_error")
        status, _, reply = server.request("POST", "/v1/completions", b'{"prompt":"' + b"x" * (9 << 20))
        self.assertEqual(status, 413)

    def test_paths(self):
        self.assertEqual(server.request("GET", "/v1/nothing")[0], 404)
        status, headers, _ = server.request("GET", "/v1/chat/completions")
        self.assertEqual(status, 405)
        self.assertIn("POST", headers["Allow"])
        with self.assertRaises(openai.NotFoundError):
            client.moderations.create(model=model, input="x")

    def test_embeddings(self):
        texts = ["The king had a daughter.", "x"]
        reply = client.embeddings.create(model=model, input=texts)  # the client asks for base64
        self.assertEqual([item.index for item in reply.data], [0, 1])
        self.assertGreater(reply.usage.prompt_tokens, 1)
        numbers = client.embeddings.create(model=model, input=texts, encoding_format="float")
        for one, other in zip(reply.data, numbers.data):
            self.assertAlmostEqual(sum(x * x for x in one.embedding), 1, places=5)
            for a, b in zip(one.embedding, other.embedding):
                self.assertAlmostEqual(a, b, places=5)

    def test_timeout(self):
        with self.assertRaises(openai.APITimeoutError):
            client.with_options(timeout=0.3).chat.completions.create(
                model=model, messages=MESSAGES, max_completion_tokens=3000, n=4,
                extra_body={"ignore_eos": True})
        self.assertLess(server.wait_until_idle(), 1.0)  # whole, it takes many seconds


class Cancellation(unittest.TestCase):
    def test_a_stream_that_is_closed(self):
        # Whole, it takes 28,000 tokens and many seconds.
        stream = chat(stream=True, n=8, max_completion_tokens=3500,
                      extra_body={"ignore_eos": True})
        for _ in range(12):
            next(stream)
        self.assertGreater(server.num_running(), 0)
        stream.close()
        self.assertLess(server.wait_until_idle(), 1.0)
        generated = server.metric("vllm:generation_tokens_total")
        time.sleep(0.2)
        self.assertEqual(server.metric("vllm:generation_tokens_total"), generated)


class Concurrency(unittest.TestCase):
    def test_a_thousand_streams(self):
        async def one(async_client, i):
            text, reason = "", None
            stream = await async_client.completions.create(
                model=model, prompt=f"Tale number {i % 50}:", max_tokens=8, temperature=0.7,
                seed=i % 50, stream=True)
            async for chunk in stream:
                for choice in chunk.choices:
                    text += choice.text
                    reason = choice.finish_reason or reason
            return text, reason

        async def all_of_them():
            async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="unused",
                                          max_retries=0, timeout=300) as async_client:
                return await asyncio.gather(*(one(async_client, i) for i in range(1000)))

        results = asyncio.run(all_of_them())
        for i, result in enumerate(results):
            self.assertIn(result[1], ("stop", "length"))
            self.assertEqual(result, results[i % 50])  # the same request gets the same answer
        server.wait_until_idle()


class ClosedServer(unittest.TestCase):
    """Another server, with keys and a queue of one."""

    @classmethod
    def setUpClass(cls):
        cls.server = ServerProcess(options.server, options.model, "--kv-blocks", "512",
                                   "--api-key", "first", "--api-key", "second",
                                   "--max-num-seqs", "1", "--max-queue", "1",
                                   "--served-model-name", "tale", "--served-model-name", "alias")

    @classmethod
    def tearDownClass(cls):
        cls.server.kill()

    def client(self, key="first", **fields):
        return openai.OpenAI(base_url=self.server.url + "/v1", api_key=key,
                             **{"max_retries": 0, "timeout": 120, **fields})

    def test_keys(self):
        for key in ("first", "second"):
            self.assertEqual([m.id for m in self.client(key).models.list()], ["tale", "alias"])
        for key in ("third", "firs", "firstsecond"):
            with self.assertRaises(openai.AuthenticationError) as raised:
                self.client("x", default_headers={"Authorization": f"Bearer {key}"}).models.list()
            self.assertEqual(raised.exception.code, "invalid_api_key")
        self.assertEqual(self.server.request("GET", "/health")[0], 200)
        self.assertEqual(self.server.request("GET", "/metrics")[0], 401)
        self.assertNotIn("third", self.server.log())

    def test_names(self):
        for name in ("tale", "alias"):
            self.assertEqual(self.client().completions.create(model=name, prompt="x", max_tokens=1)
                             .object, "text_completion")

    def test_queue(self):
        def begin():
            stream = self.client().completions.create(
                model="tale", prompt=PROMPT, max_tokens=1500, stream=True,
                extra_body={"ignore_eos": True})
            return stream

        first, second = begin(), begin()
        with self.assertRaises(openai.RateLimitError) as raised:
            begin()
        self.assertGreaterEqual(int(raised.exception.response.headers["Retry-After"]), 1)
        self.assertEqual(self.server.request("GET", "/health")[0], 200)
        # A client that tries again comes through once there is room.
        first.close()
        second.close()
        reply = self.client(max_retries=3).completions.create(model="tale", prompt="x", max_tokens=1)
        self.assertEqual(len(reply.choices), 1)


def main():
    global options
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", required=True, help="the program 'serve'")
    parser.add_argument("--model", required=True, help="checkpoint directory")
    options, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
