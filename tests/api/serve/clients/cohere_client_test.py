"""Cohere's package against a running server that reranks.

    python3 cohere_client_test.py --server PATH_TO_serve --model DIR [TEST...]

No small model here has been trained to rerank, and a reranker answers "yes" or "no". So the server
gets a copy of the model whose tokeniser has a token "yes"; what the scores are is not looked at.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import unittest

import cohere

from server_process import ServerProcess

QUERY = "Who lost her crown?"
DOCUMENTS = ["The queen lost her crown in the woods.", "A fox slept.",
             "The wolf had a coat of grey fur, and nobody had ever seen him run."]

options = None
server = None
folder = None


def copy_with_yes(model, target):
    """Links to the files of `model`, and its tokeniser with "yes" in place of its last token."""
    for name in os.listdir(model):
        if name != "tokenizer.json":
            os.symlink(os.path.join(os.path.abspath(model), name), os.path.join(target, name))
    with open(os.path.join(model, "tokenizer.json"), encoding="utf-8") as file:
        tokenizer = json.load(file)
    vocabulary, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    left, right = merges[-1] if isinstance(merges[-1], list) else merges[-1].split(" ")
    vocabulary["yes"] = vocabulary.pop(left + right)
    merges[-1] = ["y", "es"] if isinstance(merges[-1], list) else "y es"
    with open(os.path.join(target, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(tokenizer, file)


def setUpModule():
    global server, folder
    folder = tempfile.TemporaryDirectory()
    copy_with_yes(options.model, folder.name)
    server = ServerProcess(options.server, folder.name, "--kv-blocks", "256",
                           "--served-model-name", "tale")


def tearDownModule():
    if server is not None:
        server.kill()
    if folder is not None:
        folder.cleanup()


def expected(top_n=None):
    """(index, score) of the documents, by the server's own route."""
    reply = server.json("POST", "/rerank", {"query": QUERY, "documents": DOCUMENTS, "top_n": top_n})
    return [(result["index"], result["relevance_score"]) for result in reply["results"]]


def given(response):
    return [(result.index, result.relevance_score) for result in response.results]


class CohereClient(unittest.TestCase):
    def client(self, kind):
        return self.enterContext(kind(api_key="unused", base_url=server.url))

    def test_second_version(self):
        client = self.client(cohere.ClientV2)
        for top_n in (None, 1, 2, 3):
            fields = {} if top_n is None else {"top_n": top_n}
            response = client.rerank(model="tale", query=QUERY, documents=DOCUMENTS, **fields)
            self.assertTrue(response.id)
            self.assertEqual(given(response), expected(top_n))
            scores = [result.relevance_score for result in response.results]
            self.assertEqual(scores, sorted(scores, reverse=True))

    def test_documents_are_cut(self):
        client = self.client(cohere.ClientV2)
        whole, many, few = (
            given(client.rerank(model="tale", query=QUERY, documents=DOCUMENTS, **fields))
            for fields in ({}, {"max_tokens_per_doc": 4096}, {"max_tokens_per_doc": 1}))
        self.assertEqual(whole, many)
        self.assertNotEqual(whole, few)
        # A document that would not fit is cut to what was asked for.
        long = client.rerank(model="tale", query=QUERY, documents=["fox " * 5000],
                             max_tokens_per_doc=8)
        self.assertEqual(len(long.results), 1)

    def test_first_version(self):
        client = self.client(cohere.Client)
        response = client.rerank(model="tale", query=QUERY, documents=DOCUMENTS, top_n=2,
                                 return_documents=True)
        self.assertEqual(given(response), expected(2))
        for result in response.results:
            self.assertEqual(result.document.text, DOCUMENTS[result.index])

    def test_async(self):
        async def ask():
            async with cohere.AsyncClientV2(api_key="unused", base_url=server.url) as client:
                return await asyncio.gather(*(
                    client.rerank(model="tale", query=QUERY, documents=DOCUMENTS)
                    for _ in range(8)))

        for response in asyncio.run(ask()):
            self.assertEqual(given(response), expected())

    def test_refusals(self):
        client = self.client(cohere.ClientV2)
        with self.assertRaises(cohere.errors.NotFoundError):
            client.rerank(model="other", query=QUERY, documents=DOCUMENTS)
        for fields in ({"top_n": -1}, {"max_tokens_per_doc": -1}, {"documents": []}):
            with self.assertRaises(cohere.errors.BadRequestError) as caught:
                client.rerank(**{"model": "tale", "query": QUERY, "documents": DOCUMENTS, **fields})
            self.assertIn(next(iter(fields)), json.dumps(caught.exception.body))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", required=True)
    options, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
