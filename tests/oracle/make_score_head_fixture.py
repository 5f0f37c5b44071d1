"""Writes tests/fixtures/score_heads.json: what classifiers say of texts, by Hugging Face.

    python tests/oracle/make_score_head_fixture.py   # from the repository root

Versions and how to install them: tests/oracle/README.md. The decoder is examples/models/fairytale,
in float32, with heads of one label and of three.

    heads   [{weight, classify: [{ids, logits, probabilities}, ...]}, ...]: `weight` is score.weight,
            [num_labels][hidden_size]; `logits` are Qwen3ForSequenceClassification's;
            `probabilities` sentence-transformers' CrossEncoder's: the sigmoid of one label, which
            it applies by itself, and torch's softmax of several
    scores  {instruction, query, cases: [{document, num_tokens, score}, ...]}: of the head of one
            label. `score` is CrossEncoder's for the pair of texts that Qwen3-Reranker's template
            makes of a query and a document
"""

import json
import tempfile
from pathlib import Path

import sentence_transformers
import torch
import transformers
from sentence_transformers import CrossEncoder
from transformers import AutoTokenizer, Qwen3ForSequenceClassification

from make_embedding_fixture import DOCUMENTS, INSTRUCTION, MODEL, PREFIX, QUERY, ROOT, SUFFIX, TEXTS


def numbers(values):
    return [float(f"{x:.9g}") for x in values]


def classifier(num_labels, seed):
    model = Qwen3ForSequenceClassification.from_pretrained(
        MODEL, num_labels=num_labels, dtype=torch.float32
    ).eval()
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(num_labels, model.config.hidden_size, generator=generator) * 0.05
    weight = torch.tensor([numbers(row.tolist()) for row in weight])
    with torch.no_grad():
        model.score.weight.copy_(weight)
    return model


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.chat_template = None  # CrossEncoder would wrap the pair into messages
    out = {
        "versions": {
            "torch": torch.__version__.split("+")[0],
            "transformers": transformers.__version__,
            "sentence_transformers": sentence_transformers.__version__,
        },
        "heads": [],
    }
    for num_labels in (1, 3):
        model = classifier(num_labels, 7000 + num_labels)
        model.config.pad_token_id = 0
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            encoder = CrossEncoder(folder, device="cpu")
        assert encoder.num_labels == num_labels
        cases = []
        for text in TEXTS:
            ids = tokenizer(text)["input_ids"]
            with torch.no_grad():
                logits = model(torch.tensor([ids])).logits[0]
                if num_labels == 1:
                    probabilities = encoder.activation_fn(logits)
                else:
                    probabilities = torch.softmax(logits, dim=0)
            cases.append({
                "ids": ids,
                "logits": numbers(logits.tolist()),
                "probabilities": numbers(probabilities.tolist()),
            })
        weight = [numbers(row) for row in model.score.weight.tolist()]
        out["heads"].append({"weight": weight, "classify": cases})
        if num_labels > 1:
            continue
        cases = []
        for document in DOCUMENTS:
            first = f"{PREFIX}<Instruct>: {INSTRUCTION}\n<Query>: {QUERY}\n"
            second = f"<Document>: {document}{SUFFIX}"
            ids = tokenizer(first, second)["input_ids"]
            assert ids == tokenizer(first + second)["input_ids"]
            score = encoder.predict([(first, second)])[0]
            with torch.no_grad():
                logit = model(torch.tensor([ids])).logits[0, 0]
            assert abs(torch.sigmoid(logit).item() - score) < 1e-6
            cases.append({"document": document, "num_tokens": len(ids), "score": float(score)})
        out["scores"] = {"instruction": INSTRUCTION, "query": QUERY, "cases": cases}
    path = ROOT / "tests" / "fixtures" / "score_heads.json"
    path.write_text(json.dumps(out, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
