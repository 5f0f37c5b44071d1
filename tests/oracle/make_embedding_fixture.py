"""Writes tests/fixtures/embeddings.json: what Hugging Face makes of texts to be embedded or scored.

    python tests/oracle/make_embedding_fixture.py   # from the repository root

Versions and how to install them: tests/oracle/README.md. The model is examples/models/fairytale,
in float32.

    templates    [{post_processor, encode: [[text, ids], ...]}, ...]: ids of `tokenizers` with that
                 post_processor in the model's tokenizer.json
    embeddings   [{text, ids, hidden}, ...]: `hidden` is the hidden state after the last norm at
                 the last token, [hidden_size]; `ids` end with the token of the first template
    scores       {instruction, query, yes, no, cases: [{document, num_tokens, score}, ...]}: `score`
                 is softmax([no, yes])[1] of the logits of these two tokens after the prompt of
                 Qwen3-Reranker's model card
"""

import json
from pathlib import Path

import tokenizers
import torch
import transformers
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "examples" / "models" / "fairytale"
END = "<|endoftext|>"
TEXTS = ("Once", "There was once a clockmaker.", "Ein König, der nie schlief.", "a <|im_end|> b")
DOCUMENTS = (
    "The king gave the miller's son a silver key and half his kingdom.",
    "Every morning one of the clocks had stopped.",
    "",
)
QUERY = "Who was given a key?"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided."
    ' Note that the answer can only be "yes" or "no".'
)
PREFIX = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def template(pieces, vocabulary):
    """A TemplateProcessing: '$A' is the text, other pieces are tokens."""
    single = [
        {"Sequence": {"id": "A", "type_id": 0}}
        if piece == "$A"
        else {"SpecialToken": {"id": piece, "type_id": 0}}
        for piece in pieces
    ]
    tokens = {
        piece: {"id": piece, "ids": [vocabulary[piece]], "tokens": [piece]}
        for piece in pieces
        if piece != "$A"
    }
    pair = [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}


def main():
    file = json.loads((MODEL / "tokenizer.json").read_text(encoding="utf-8"))
    plain = tokenizers.Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    vocabulary = plain.get_vocab(with_added_tokens=True)
    byte_level = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False,
    }
    behind = template(["$A", END], vocabulary)
    around = template(["<|im_start|>", END, "$A", "<|im_end|>"], vocabulary)
    processors = [
        {"type": "Sequence", "processors": [byte_level, behind]},  # Qwen3-Embedding's
        behind,
        around,
    ]
    out = {
        "versions": {
            "torch": torch.__version__.split("+")[0],
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
        },
        "templates": [],
        "embeddings": [],
    }
    with_end = None
    for processor in processors:
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps({**file, "post_processor": processor}))
        with_end = with_end or tokenizer
        encode = [[text, tokenizer.encode(text).ids] for text in ("",) + TEXTS]
        out["templates"].append({"post_processor": processor, "encode": encode})

    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    with torch.no_grad():
        for text in TEXTS:
            ids = with_end.encode(text).ids
            hidden = model.model(torch.tensor([ids])).last_hidden_state[0, -1]
            values = [float(f"{x:.9g}") for x in hidden.tolist()]
            out["embeddings"].append({"text": text, "ids": ids, "hidden": values})
        yes, no = plain.encode(" king").ids[0], plain.encode(" clock").ids[0]
        cases = []
        for document in DOCUMENTS:
            body = f"<Instruct>: {INSTRUCTION}\n<Query>: {QUERY}\n<Document>: {document}"
            ids = plain.encode(PREFIX + body + SUFFIX, add_special_tokens=False).ids
            logits = model(torch.tensor([ids])).logits[0, -1]
            score = torch.softmax(logits[[no, yes]].double(), dim=0)[1].item()
            cases.append({"document": document, "num_tokens": len(ids), "score": score})
    out["scores"] = {
        "instruction": INSTRUCTION, "query": QUERY, "yes": yes, "no": no, "cases": cases,
    }
    path = ROOT / "tests" / "fixtures" / "embeddings.json"
    path.write_text(json.dumps(out, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
