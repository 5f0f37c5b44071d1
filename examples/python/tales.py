"""What the package does, cell by cell: an editor with '# %%' cells runs it as a notebook.

    pip install ./.python
    python examples/python/tales.py [MODEL]
"""

# %% An engine
import sys
from pathlib import Path

from nanovllm import LLM, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else str(Path(__file__).parent.parent / "models/fairytale")
llm = LLM(model)
print(llm.describe())

# %% A batch
params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=48, seed=7)
for output in llm.generate(["Once upon a time there was a fox", "A king had three sons"], params):
    print(f"{output.prompt}{output.outputs[0].text}\n")

# %% A stream
for piece in llm.stream("The old woman said", params):
    print(piece.text, end="", flush=True)
print("\n")

# %% How likely each token was
completion = llm.generate("A king", SamplingParams(temperature=0, max_tokens=4, logprobs=2))[0].outputs[0]
for token, likeliest in zip(completion.token_ids, completion.logprobs or []):
    others = [one.decoded_token for other, one in likeliest.items() if other != token]
    print(f"{likeliest[token].decoded_token!r}: {likeliest[token].logprob:.2f}; next {others}")

# %% A text of a form
from nanovllm import StructuredOutputsParams

hero = {"type": "object", "required": ["hero", "age"], "properties": {
    "hero": {"enum": ["fox", "wolf", "queen"]}, "age": {"type": "integer", "minimum": 1, "maximum": 99}}}
form = SamplingParams(seed=7, structured_outputs=StructuredOutputsParams(json=hero))
print(llm.generate("There was once", form)[0].outputs[0].text)

# %% A conversation that goes two ways
with llm.session() as session:
    print(session.generate("Once upon a time there was a fox", params)["text"])
    other = session.fork()
    print("...", session.generate(" Then the wolf", params)["text"])
    print("...", other.generate(" Then the queen", params)["text"])

# %% Which of two texts is nearer
vectors = llm.embed(["The king died.", "The queen died.", "A fox ran into the wood."])
print((vectors @ vectors.T).round(2))

# %% What it has done
stats = llm.stats()
print(f"{stats.num_sampled_tokens} tokens, {stats.num_hit_tokens} of {stats.num_queried_tokens} "
      "prompt tokens were in the prefix cache")
llm.close()
