"""Writes what Hugging Face makes of examples/models/fairytale_moe and fairytale_embedding.

    python tests/oracle/make_fairytale_models_fixtures.py            # from the repository root
    python tests/oracle/make_fairytale_models_fixtures.py --out DIR  # elsewhere, to compare with diff -r

Versions and how to install them: tests/oracle/README.md. It is run again whenever the models are.

tests/fixtures/parity/fairytale_moe.json and .safetensors: layout and meaning are those of
make_parity_fixtures.py, with 32 greedy tokens. Experts run by the implementation "eager".

tests/fixtures/fairytale_search.json, in float32:

    queries      [{query, tale, found, ids, cosines}, ...]: the question, the paragraph of
                 examples/tales.txt that answers it, counted from 0, and the one whose vector is the
                 nearest; ids with instruction and end token; the cosines of the vectors of the query
                 and of each paragraph
    recall       the share of the queries with tale == found
"""

import argparse
import json
import os
from pathlib import Path

import torch
import transformers
from transformers import AutoModel, AutoTokenizer

import make_parity_fixtures as parity
from make_qwen3_moe_fixtures import load

parity.NUM_GREEDY = 32
INSTRUCTION = "Given a question, find the passage that answers it"  # examples/search.cpp has it, too
# Written before the model was trained, in the order of the tales.
QUERIES = (
    "Who spins straw into gold?", "Why did the wolf lie in grandmother's bed?",
    "the witch in the gingerbread house", "Who asked the mirror who is the fairest?",
    "Who lost a golden slipper at the ball?", "the cat who wanted boots",
    "the fisherman's wife who wished to be king", "a donkey, a dog, a cat and a cock",
    "the frog and the golden ball", "the princess who slept for a hundred years",
    "Who won the race, the hare or the tortoise?", "the fox and the sour grapes",
    "How did the fox get the cheese?", "the ugly duckling", "Which emperor was naked?",
    "the mermaid who gave away her voice",
)


@torch.no_grad()
def search(directory, tales):
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModel.from_pretrained(directory, dtype=torch.float32).eval()

    def vector(text):
        ids = tokenizer.encode(text)
        hidden = model(torch.tensor([ids])).last_hidden_state[0, -1]
        return ids, torch.nn.functional.normalize(hidden, dim=0)

    vectors = torch.stack([vector(tale)[1] for tale in tales])
    queries = []
    for tale, query in enumerate(QUERIES):
        ids, of_query = vector(f"Instruct: {INSTRUCTION}\nQuery:{query}")
        cosines = vectors @ of_query
        found = int(cosines.argmax())
        queries.append({"query": query, "tale": tale, "found": found, "ids": ids,
                        "cosines": [float(f"{x:.7g}") for x in cosines.tolist()]})
        print("right" if found == tale else f"tale {found}", "for", query)
    recall = sum(entry["tale"] == entry["found"] for entry in queries) / len(queries)
    versions = {key: parity.versions()[key] for key in ("torch", "transformers", "tokenizers")}
    return {"versions": versions, "recall": recall, "queries": queries}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=parity.ROOT / "tests/fixtures")
    parser.add_argument("--models", type=Path, default=parity.ROOT / "examples/models")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    os.umask(0o022)
    (arguments.out / "parity").mkdir(parents=True, exist_ok=True)

    moe = arguments.models / "fairytale_moe"
    prompts = parity.text_prompts(moe)
    some = [sorted({0, len(prompt) // 2, len(prompt) - 1}) for prompt in prompts]
    parity.write_expected(arguments.out / "parity", "fairytale_moe", moe, prompts, some, {}, load=load)

    text = (parity.ROOT / "examples/tales.txt").read_text(encoding="utf-8")
    tales = [tale.replace("\n", " ") for tale in text.strip().split("\n\n")]
    assert len(tales) == len(QUERIES)
    result = search(arguments.models / "fairytale_embedding", tales)
    (arguments.out / "fairytale_search.json").write_text(
        json.dumps(result, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{result['recall']:.0%} of the queries find their tale")


if __name__ == "__main__":
    main()
