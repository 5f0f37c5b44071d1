"""The packages `anthropic` and `openai` (its Responses) against a running server.

    python3 agents_test.py --server PATH_TO_serve --model DIR [TEST...]

The model is examples/models/fairytale, which calls no tools by itself: tool_choice forces calls, and
the schema bounds their arguments.
"""

import argparse
import asyncio
import inspect
import json
import sys
import unittest

import anthropic
import openai

from server_process import ServerProcess

PROMPT = "Tell me a tale of a fox and a queen."
SCHEMA = {"type": "object",
          "properties": {"town": {"type": "string", "enum": ["Rome", "Oslo"]},
                         "day": {"type": "integer", "enum": [1, 2, 3]}},
          "required": ["town", "day"], "additionalProperties": False}
WEATHER = {"name": "get_weather", "description": "The weather in a town.", "input_schema": SCHEMA}
FUNCTION = {"type": "function", "name": "get_weather", "description": "The weather in a town.",
            "parameters": SCHEMA, "strict": False}
THINKING = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}")
TALE = {"type": "object", "properties": {"animal": {"enum": ["fox", "wolf"]}},
        "required": ["animal"], "additionalProperties": False}

options = None
server = None
claude = None
client = None
model = None


def setUpModule():
    global server, claude, client, model
    server = ServerProcess(options.server, options.model, "--kv-blocks", "2048",
                           "--enable-responses-store")
    claude = anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0, timeout=60)
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=60)
    model = client.models.list().data[0].id


def tearDownModule():
    if server is not None:
        server.kill()


def settings(method, fields):
    """`fields` for a method of a client: those that it does not know go into extra_body."""
    known = inspect.signature(method).parameters
    own = {name: value for name, value in fields.items() if name in known}
    more = {name: value for name, value in fields.items() if name not in known}
    return {**own, **({"extra_body": more} if more else {})}


def message_fields(**fields):
    return settings(claude.messages.create, {
        "model": model, "max_tokens": 24, "temperature": 0,
        "messages": [{"role": "user", "content": PROMPT}], **fields})


def response_fields(**fields):
    return settings(client.responses.create, {
        "model": model, "max_output_tokens": 24, "temperature": 0, "input": PROMPT, **fields})


def message(**fields):
    return claude.messages.create(**message_fields(**fields))


def response(**fields):
    return client.responses.create(**response_fields(**fields))


def without_names(value):
    """Without what differs from one answer to the next."""
    if isinstance(value, list):
        return [without_names(element) for element in value]
    if isinstance(value, dict):
        return {name: without_names(element) for name, element in value.items()
                if name not in ("id", "call_id", "signature", "created_at", "completed_at",
                                "parsed_output", "parsed", "parsed_arguments", "usage",
                                "stop_details")}
    return value


class OneAnswer(unittest.TestCase):
    def test_of_three_protocols(self):
        for fields in ({}, {"seed": 7, "temperature": 0.7}, {"seed": 1, "temperature": 1.2}):
            chat = client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": PROMPT}],
                max_completion_tokens=24, **{"temperature": 0, **fields}).choices[0].message.content
            self.assertTrue(chat)
            self.assertEqual(message(**fields).content[0].text, chat)
            self.assertEqual(response(**fields).output_text, chat)

    def test_of_a_conversation(self):
        chat = client.chat.completions.create(
            model=model, max_completion_tokens=24, temperature=0,
            messages=[{"role": "system", "content": "You tell tales."},
                      {"role": "user", "content": "Who?"},
                      {"role": "assistant", "content": "A fox."},
                      {"role": "user", "content": PROMPT}]).choices[0].message.content
        turns = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "A fox."},
                 {"role": "user", "content": PROMPT}]
        self.assertEqual(message(system="You tell tales.", messages=turns).content[0].text, chat)
        self.assertEqual(response(instructions="You tell tales.", input=turns).output_text, chat)


class Messages(unittest.TestCase):
    def test_whole(self):
        reply = message()
        self.assertEqual((reply.type, reply.role, reply.model), ("message", "assistant", model))
        self.assertEqual([block.type for block in reply.content], ["text"])
        self.assertEqual((reply.stop_reason, reply.stop_sequence), ("max_tokens", None))
        self.assertEqual(reply.usage.output_tokens, 24)

    def test_stream_is_the_whole(self):
        tools = {"tools": [WEATHER], "max_tokens": 200,
                 "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
        for fields in ({}, {"stop_sequences": ["the"]}, {"max_tokens": 300}, tools,
                       {"thinking": {"type": "disabled"}}):
            with self.subTest(**fields):
                whole = message(**fields)
                with claude.messages.stream(**message_fields(**fields)) as stream:
                    kinds = {event.type for event in stream}
                    streamed = stream.get_final_message()
                self.assertIn("message_stop", kinds)
                self.assertEqual(without_names(streamed.to_dict()), without_names(whole.to_dict()))
                self.assertEqual(streamed.usage.output_tokens, whole.usage.output_tokens)
                read = [usage.input_tokens + usage.cache_read_input_tokens
                        for usage in (whole.usage, streamed.usage)]
                self.assertEqual(read[0], read[1])

    def test_stop_sequence(self):
        whole = message(max_tokens=100).content[0].text
        word = next(word for word in whole.split() if len(word) > 3)
        reply = message(max_tokens=100, stop_sequences=[word])
        self.assertEqual((reply.stop_reason, reply.stop_sequence), ("stop_sequence", word))
        self.assertEqual(reply.content[0].text, whole[:whole.index(word)])

    def test_prefix_cache_in_spite_of_a_header(self):
        system = "You tell tales of animals. " * 40
        def ask(header):
            return message(system=[
                {"type": "text", "text": f"x-anthropic-billing-header: cch={header};"},
                {"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}]).usage
        first, second = ask("1a2b3"), ask("99999")
        self.assertGreater(second.cache_read_input_tokens, 100)
        self.assertEqual(second.input_tokens + second.cache_read_input_tokens,
                         first.input_tokens + first.cache_read_input_tokens)

    def test_count_tokens(self):
        fields = {"messages": [{"role": "user", "content": PROMPT}], "system": "You tell tales."}
        counted = claude.messages.count_tokens(model=model, **fields).input_tokens
        usage = message(**fields).usage
        self.assertEqual(counted, usage.input_tokens + usage.cache_read_input_tokens)

    def test_form(self):
        reply = message(max_tokens=60, output_config={
            "format": {"type": "json_schema", "schema": TALE}})
        self.assertIn(json.loads(reply.content[0].text)["animal"], ("fox", "wolf"))

    def test_agent(self):
        """Three calls, each with its result in the next request."""
        for streamed in (False, True):
            turns = [{"role": "user", "content": PROMPT}]
            for day in range(3):
                fields = message_fields(messages=turns, tools=[WEATHER], max_tokens=200,
                                        temperature=0.9, seed=day,
                                        tool_choice={"type": "tool", "name": "get_weather"})
                if streamed:
                    with claude.messages.stream(**fields) as stream:
                        reply = stream.get_final_message()
                else:
                    reply = claude.messages.create(**fields)
                self.assertEqual(reply.stop_reason, "tool_use")
                call = reply.content[-1]
                self.assertEqual((call.type, call.name), ("tool_use", "get_weather"))
                self.assertIn(call.input["town"], ("Rome", "Oslo"))
                self.assertIn(call.input["day"], (1, 2, 3))
                turns.append({"role": "assistant", "content": reply.content})
                turns.append({"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": call.id, "content": f"Rain {day}.",
                     "is_error": day == 1}]})
            reply = message(messages=turns, tools=[WEATHER], tool_choice={"type": "none"})
            self.assertTrue(reply.content[0].text)
            self.assertGreater(reply.usage.cache_read_input_tokens, 0)

    def test_errors(self):
        for fields, says in (({"max_tokens": 0}, "max_tokens must be an integer"),
                             ({"messages": []}, "messages must not be empty"),
                             ({"temperature": -1}, "temperature must be"),
                             ({"tool_choice": {"type": "any"}}, "tool_choice needs tools"),
                             ({"max_tokens": 1 << 20}, "'max_tokens' is too large"),
                             ({"messages": [{"role": "user", "content": [
                                 {"type": "image", "source": {"type": "url", "url": "x"}}]}]},
                              "messages[0].content[0].type must be 'text'")):
            with self.subTest(**fields), self.assertRaises(anthropic.BadRequestError) as raised:
                message(**fields)
            self.assertEqual(raised.exception.body["error"]["type"], "invalid_request_error")
            self.assertIn(says, raised.exception.body["error"]["message"])
        with self.assertRaises(anthropic.NotFoundError):
            message(model="no-such-model")
        status, _, body = server.request("POST", "/v1/messages", b'{"x":"' + b"x" * (9 << 20))
        self.assertEqual((status, json.loads(body)["error"]["type"]), (413, "request_too_large"))

    def test_a_stream_that_is_closed(self):
        with claude.messages.stream(**message_fields(max_tokens=3500, ignore_eos=True)) as stream:
            for _ in range(8):
                next(stream)
            self.assertGreater(server.num_running(), 0)
        self.assertLess(server.wait_until_idle(), 1.0)


class Responses(unittest.TestCase):
    def test_whole(self):
        reply = response()
        self.assertEqual((reply.object, reply.model), ("response", model))
        self.assertEqual((reply.status, reply.incomplete_details.reason),
                         ("incomplete", "max_output_tokens"))
        self.assertEqual([item.type for item in reply.output], ["message"])
        self.assertEqual(reply.usage.output_tokens, 24)
        self.assertEqual(reply.usage.total_tokens, reply.usage.input_tokens + 24)
        self.assertEqual(response(max_output_tokens=600).status, "completed")

    def test_stream_is_the_whole(self):
        tools = {"tools": [FUNCTION], "tool_choice": "required", "max_output_tokens": 200}
        for fields in ({}, {"max_output_tokens": 600}, {"top_logprobs": 2}, tools):
            with self.subTest(**fields):
                whole = response(**fields)
                events = list(response(stream=True, **fields))
                self.assertEqual([event.sequence_number for event in events],
                                 list(range(len(events))))
                self.assertEqual(events[-1].type, f"response.{whole.status}")
                self.assertEqual(without_names(events[-1].response.to_dict()),
                                 without_names(whole.to_dict()))
                text = "".join(event.delta for event in events
                               if event.type == "response.output_text.delta")
                self.assertEqual(text, whole.output_text)

    def test_stream_of_the_package(self):
        with client.responses.stream(model=model, input=PROMPT, temperature=0,
                                     max_output_tokens=600) as stream:
            final = stream.get_final_response()
        self.assertEqual(final.output_text, response(max_output_tokens=600).output_text)

    def test_form(self):
        reply = response(max_output_tokens=60, text={
            "format": {"type": "json_schema", "name": "tale", "schema": TALE, "strict": True}})
        self.assertIn(json.loads(reply.output_text)["animal"], ("fox", "wolf"))

    def run_agent(self, streamed, keeps):
        items = [{"role": "user", "content": PROMPT}]
        previous = None
        for day in range(3):
            fields = response_fields(
                input=items, tools=[FUNCTION], max_output_tokens=200, seed=day, temperature=0.9,
                store=keeps, tool_choice={"type": "function", "name": "get_weather"},
                **({"previous_response_id": previous} if previous else {}))
            if streamed:
                with client.responses.stream(**fields) as stream:
                    reply = stream.get_final_response()
            else:
                reply = client.responses.create(**fields)
            call = reply.output[-1]
            self.assertEqual((call.type, call.name, call.status),
                             ("function_call", "get_weather", "completed"))
            arguments = json.loads(call.arguments)
            self.assertIn(arguments["town"], ("Rome", "Oslo"))
            result = {"type": "function_call_output", "call_id": call.call_id,
                      "output": f"Rain {day}."}
            if keeps:
                items, previous = [result], reply.id
            else:
                items = [*items, *(item.to_dict() for item in reply.output), result]
        return response(input=items, tools=[FUNCTION], tool_choice="none",
                        **({"previous_response_id": previous} if previous else {}))

    def test_agent(self):
        """Three calls, each with its result in the next request."""
        replies = [self.run_agent(streamed, keeps)
                   for streamed in (False, True) for keeps in (False, True)]
        self.assertTrue(replies[0].output_text)
        self.assertEqual(len({reply.output_text for reply in replies}), 1)
        self.assertGreater(replies[-1].usage.input_tokens_details.cached_tokens, 0)

    def test_store(self):
        reply = response()
        self.assertTrue(reply.store)
        self.assertEqual(client.responses.retrieve(reply.id).to_dict(), reply.to_dict())
        with self.assertRaises(openai.BadRequestError):
            client.responses.cancel(reply.id)
        client.responses.delete(reply.id)
        for ask in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
            with self.assertRaises(openai.NotFoundError):
                ask(reply.id)
        with self.assertRaises(openai.NotFoundError):
            response(previous_response_id=reply.id)
        with self.assertRaises(openai.NotFoundError):
            client.responses.retrieve(response(store=False).id)

    def test_errors(self):
        for fields, param in (({"max_output_tokens": 0}, "max_output_tokens"),
                              ({"input": []}, "input"), ({"background": True}, "background"),
                              ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
                              ({"input": [{"role": "user", "content": [
                                  {"type": "input_image", "image_url": "x"}]}]},
                               "input[0].content[0].type")):
            with self.subTest(**fields), self.assertRaises(openai.BadRequestError) as raised:
                response(**fields)
            self.assertEqual(raised.exception.param, param)

    def test_a_stream_that_is_closed(self):
        stream = response(stream=True, max_output_tokens=3500, ignore_eos=True)
        for _ in range(8):
            next(stream)
        self.assertGreater(server.num_running(), 0)
        stream.close()
        self.assertLess(server.wait_until_idle(), 1.0)


class Thoughts(unittest.TestCase):
    """A server whose chat template begins a thought, which is not allowed to end."""

    ENDLESS = {"bad_words": ["</think>"]}

    @classmethod
    def setUpClass(cls):
        cls.server = ServerProcess(options.server, options.model, "--kv-blocks", "512",
                                   "--chat-template", THINKING)

    @classmethod
    def tearDownClass(cls):
        cls.server.kill()

    def test_messages(self):
        thinker = anthropic.Anthropic(base_url=self.server.url, api_key="unused", max_retries=0)
        fields = message_fields(thinking={"type": "enabled", "budget_tokens": 1024}, **self.ENDLESS)
        whole = thinker.messages.create(**fields)
        with thinker.messages.stream(**fields) as stream:
            streamed = stream.get_final_message()
        for reply in (whole, streamed):
            self.assertEqual([block.type for block in reply.content], ["thinking"])
            self.assertTrue(reply.content[0].signature)
        self.assertTrue(whole.content[0].thinking)
        self.assertEqual(streamed.content[0].thinking, whole.content[0].thinking)
        turns = [{"role": "user", "content": PROMPT},
                 {"role": "assistant", "content": whole.content}, {"role": "user", "content": "So?"}]
        self.assertTrue(thinker.messages.create(**{**fields, "messages": turns}).content)

    def test_responses(self):
        thinker = openai.OpenAI(base_url=self.server.url + "/v1", api_key="unused", max_retries=0)
        whole = thinker.responses.create(**response_fields(**self.ENDLESS))
        events = list(thinker.responses.create(stream=True, **response_fields(**self.ENDLESS)))
        self.assertEqual([item.type for item in whole.output], ["reasoning"])
        self.assertEqual(whole.usage.output_tokens_details.reasoning_tokens, 24)
        text = "".join(event.delta for event in events
                       if event.type == "response.reasoning_text.delta")
        self.assertTrue(text)
        self.assertEqual(text, whole.output[0].content[0].text)
        self.assertEqual(without_names(events[-1].response.to_dict()),
                         without_names(whole.to_dict()))
        items = [{"role": "user", "content": PROMPT}, whole.output[0].to_dict(),
                 {"role": "user", "content": "So?"}]
        self.assertTrue(thinker.responses.create(**response_fields(input=items)).output)


class Concurrency(unittest.TestCase):
    def test_agents_at_once(self):
        async def ask(asynchronous, i):
            async with asynchronous.messages.stream(
                    **message_fields(temperature=0.8, seed=i % 5)) as stream:
                return (await stream.get_final_message()).content[0].text

        async def all_of_them():
            async with anthropic.AsyncAnthropic(base_url=server.url, api_key="unused",
                                                max_retries=0, timeout=60) as asynchronous:
                return await asyncio.gather(*(ask(asynchronous, i) for i in range(60)))

        texts = asyncio.run(all_of_them())
        self.assertEqual(texts, [texts[i % 5] for i in range(60)])


class ClosedServer(unittest.TestCase):
    """Another server, with a key, a queue of one and no store."""

    @classmethod
    def setUpClass(cls):
        cls.server = ServerProcess(options.server, options.model, "--kv-blocks", "512",
                                   "--api-key", "secret", "--max-num-seqs", "1", "--max-queue", "1",
                                   "--check-invariants-at-exit")

    @classmethod
    def tearDownClass(cls):
        cls.server.kill()

    def claude(self, **fields):
        return anthropic.Anthropic(base_url=self.server.url, max_retries=0, timeout=60, **fields)

    def test_keys(self):
        fields = {"model": model, "max_tokens": 2, "messages": [{"role": "user", "content": "x"}]}
        for key in ({"api_key": "secret"}, {"auth_token": "secret", "api_key": None}):
            self.assertTrue(self.claude(**key).messages.create(**fields).content)
        for key in ("wrong", "secre", "secretsecret"):
            with self.assertRaises(anthropic.AuthenticationError) as raised:
                self.claude(api_key=key).messages.create(**fields)
            self.assertEqual(raised.exception.body["error"]["type"], "authentication_error")

    def test_queue(self):
        def begin():
            return self.claude(api_key="secret").messages.create(
                stream=True, **message_fields(max_tokens=1500, ignore_eos=True))

        first, second = begin(), begin()
        with self.assertRaises(anthropic.RateLimitError) as raised:
            begin()
        self.assertEqual(raised.exception.body["error"]["type"], "rate_limit_error")
        first.close()
        second.close()

    def test_no_store(self):
        asker = openai.OpenAI(base_url=self.server.url + "/v1", api_key="secret", max_retries=3,
                              timeout=60)
        reply = asker.responses.create(model=model, input="x", max_output_tokens=2)
        self.assertFalse(reply.store)
        with self.assertRaises(openai.BadRequestError) as raised:
            asker.responses.create(model=model, input="x", previous_response_id=reply.id)
        self.assertEqual(raised.exception.param, "previous_response_id")
        with self.assertRaises(openai.NotFoundError):
            asker.responses.retrieve(reply.id)


def main():
    global options
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", required=True, help="the program 'serve'")
    parser.add_argument("--model", required=True, help="checkpoint directory")
    options, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
