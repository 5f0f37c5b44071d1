"""What the tests of the package share."""

import unittest
from pathlib import Path

from nanovllm import LLM, SamplingParams

MODELS = Path(__file__).parent.parent.parent / "examples" / "models"
MODEL = MODELS / "fairytale"
PROMPTS = ["Once upon a time there was a fox", "A king had three sons", "The old woman said"]


def make(model=MODEL, **settings):
    return LLM(model, **{"device": "cpu", "num_threads": 1, "num_gpu_blocks_override": 512,
                         **settings})


def greedy(max_tokens=24, **fields):
    return SamplingParams(temperature=0, max_tokens=max_tokens, **fields)


def endless(max_tokens=2000, **fields):
    return greedy(max_tokens, ignore_eos=True, **fields)


class FairytaleTest(unittest.TestCase):
    """Tests that share an engine."""

    @classmethod
    def setUpClass(cls):
        cls.llm = make()

    @classmethod
    def tearDownClass(cls):
        cls.llm.close()
