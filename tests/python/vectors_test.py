"""Embeddings and scores, as arrays of numpy."""

import sys
import unittest

try:
    import numpy
except ImportError:
    print("skipped: numpy is not installed")
    sys.exit(77)

from fairytale import MODELS, FairytaleTest, make
from nanovllm import RequestError


class VectorsTest(FairytaleTest):
    def test_embed(self):
        texts = ["The king died.", "A queen was born.", "The king died."]
        vectors = self.llm.embed(texts)
        self.assertEqual((vectors.shape, vectors.dtype), ((3, 256), numpy.float32))
        products = vectors @ vectors.T
        self.assertTrue(numpy.allclose(products.diagonal(), 1, atol=1e-3))
        self.assertTrue(numpy.allclose(products[0, 2], 1, atol=1e-3))
        self.assertLess(products[0, 1], 0.99)
        few = self.llm.embed(texts[0], dimensions=64)
        self.assertEqual(few.shape, (1, 64))
        raw = self.llm.embed(texts, dimensions=64, normalize=False)
        self.assertTrue(numpy.allclose(raw / numpy.linalg.norm(raw, axis=1)[:, None],
                                            self.llm.embed(texts, dimensions=64), atol=1e-3))
        self.assertEqual(self.llm.embed([]).shape, (0, 256))
        with self.assertRaisesRegex(RequestError, "input 1"):
            self.llm.embed(["a", ""])

    @unittest.skipUnless((MODELS / "fairytale_embedding/model.safetensors").exists(),
                         "its weights are not there: examples/models/get.sh")
    def test_a_model_of_embeddings(self):
        with make(MODELS / "fairytale_embedding") as llm:
            found = llm.embed(["The fox ran into the forest.", "A fox hid between the trees.",
                               "She baked bread for her mother."])
            self.assertGreater(found[0] @ found[1], found[0] @ found[2])

    def test_score(self):
        documents = ["The king gave him a key.", "A clock had stopped."]
        scores = self.llm.score("Who?", documents, answers=(300, 301))
        self.assertEqual(scores.shape, (2,))
        one = self.llm.score("Who?", documents[1], answers=(301, 300))
        self.assertAlmostEqual(float(one[0] + scores[1]), 1, 3)
        for query, document in (("Who\0?", "a"), ("Who?", "a\0b")):
            with self.assertRaisesRegex(ValueError, "zero bytes"):
                self.llm.score(query, [document], answers=(300, 301))
        with self.assertRaisesRegex(RequestError, "'yes'"):
            self.llm.score("Who?", documents)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
