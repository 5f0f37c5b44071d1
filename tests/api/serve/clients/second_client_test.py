"""LangChain's ChatOpenAI against a running server: another client than OpenAI's own code paths.

    python3 second_client_test.py --server PATH_TO_serve --model DIR [TEST...]
"""

import argparse
import sys
import unittest
from typing import Literal

import pydantic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from server_process import ServerProcess

CONVERSATION = [SystemMessage("You tell tales."), HumanMessage("Tell me of a fox.")]

options = None
server = None


@tool
def get_weather(town: Literal["Rome", "Oslo"], day: Literal[1, 2, 3]) -> str:
    """The weather in a town."""
    return f"Rain in {town} on day {day}."


class Tale(pydantic.BaseModel):
    """A tale in short."""
    animal: Literal["fox", "wolf"]
    ends_well: bool


def setUpModule():
    global server
    server = ServerProcess(options.server, options.model, "--kv-blocks", "512",
                           "--served-model-name", "tale")


def tearDownModule():
    if server is not None:
        server.kill()


def chat_model(**fields):
    return ChatOpenAI(**{"base_url": server.url + "/v1", "api_key": "unused", "model": "tale",
                         "max_tokens": 32, "temperature": 0, "max_retries": 0, **fields})


class SecondClient(unittest.TestCase):
    def test_chat(self):
        reply = chat_model().invoke(CONVERSATION)
        self.assertTrue(reply.content)
        self.assertEqual(reply.usage_metadata["output_tokens"] + reply.usage_metadata["input_tokens"],
                         reply.usage_metadata["total_tokens"])
        self.assertIn(reply.response_metadata["finish_reason"], ("stop", "length"))

    def test_stream(self):
        whole = chat_model().invoke(CONVERSATION)
        model = chat_model(stream_usage=True)
        chunks = list(model.stream(CONVERSATION))
        # On busy cores the reader is late and pieces are joined, but not each time.
        self.assertTrue(any(len(list(model.stream(CONVERSATION))) > 5 for _ in range(20)))
        self.assertEqual("".join(chunk.content for chunk in chunks), whole.content)
        usage = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
        self.assertEqual(usage[-1]["output_tokens"], whole.usage_metadata["output_tokens"])

    def test_batch(self):
        model = chat_model()
        alone = [model.invoke(f"Tale {i}").content for i in range(4)]
        together = [reply.content for reply in model.batch([f"Tale {i}" for i in range(4)])]
        self.assertEqual(together, alone)

    def test_logprobs(self):
        reply = chat_model().bind(logprobs=True, top_logprobs=2).invoke(CONVERSATION)
        self.assertEqual(len(reply.response_metadata["logprobs"]["content"][0]["top_logprobs"]), 2)

    def test_tools_that_may_be_called(self):
        reply = chat_model().bind_tools([get_weather]).invoke(CONVERSATION)
        self.assertIsInstance(reply, AIMessage)

    def test_tool_call(self):
        model = chat_model(max_tokens=200)
        bound = model.bind_tools([get_weather], tool_choice="get_weather",
                                 parallel_tool_calls=False)
        reply = bound.invoke(CONVERSATION)
        self.assertEqual([call["name"] for call in reply.tool_calls], ["get_weather"])
        answer = get_weather.invoke(reply.tool_calls[0])
        self.assertIsInstance(answer, ToolMessage)
        self.assertIn(reply.tool_calls[0]["args"]["town"], answer.content)

        streamed = None
        for chunk in bound.stream(CONVERSATION):
            streamed = chunk if streamed is None else streamed + chunk
        self.assertEqual([(c["name"], c["args"]) for c in streamed.tool_calls],
                         [(c["name"], c["args"]) for c in reply.tool_calls])

    def test_structured_output(self):
        model = chat_model(max_tokens=900).with_structured_output(Tale, method="json_schema")
        self.assertIsInstance(model.invoke(CONVERSATION), Tale)


def main():
    global options
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", required=True, help="the program 'serve'")
    parser.add_argument("--model", required=True, help="checkpoint directory")
    options, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
