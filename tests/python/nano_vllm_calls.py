"""A program with the calls that programs for nano-vllm make: nano_vllm_calls.py MODEL [NUM_SEQS].

The last line is the throughput of NUM_SEQS requests of random tokens, and the share of the time
in which the engine was in no step.
"""

import os
import random
import sys
import time

from nanovllm import LLM, SamplingParams


def tell(llm):
    prompts = ["Once upon a time", "A king had three sons"]
    params = SamplingParams(temperature=0.6, max_tokens=48)
    for prompt, output in zip(prompts, llm.generate(prompts, params)):
        print(f"{prompt!r}: {output['text']!r}")
        assert len(output["token_ids"]) <= 48


def seconds_of_steps(llm):
    stats = llm.stats()  # no call of nano-vllm's
    return stats.prefill_seconds + stats.decode_seconds + stats.host_seconds


def measure(llm, num_seqs, longest=512, vocabulary=4096):
    def tokens():
        return [random.randint(0, 10000) % vocabulary for _ in range(random.randint(100, longest))]

    prompts = [tokens() for _ in range(num_seqs)]
    params = [SamplingParams(temperature=0.6, ignore_eos=True,
                             max_tokens=random.randint(100, longest)) for _ in range(num_seqs)]
    llm.generate(["Benchmark: "], SamplingParams())
    before = seconds_of_steps(llm)
    begin = time.time()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.time() - begin
    outside = 1 - (seconds_of_steps(llm) - before) / seconds
    wanted = [one.max_tokens for one in params]
    assert [len(output["token_ids"]) for output in outputs] == wanted
    print(f"{sum(wanted)} tokens, {seconds:.2f} s, {sum(wanted) / seconds:.2f} tokens/s, "
          f"{outside:.2%} outside steps")


def main():
    random.seed(0)
    llm = LLM(os.path.expanduser(sys.argv[1]), enforce_eager=False, max_model_len=4096,
              tensor_parallel_size=1)
    tell(llm)
    measure(llm, int(sys.argv[2]) if len(sys.argv) > 2 else 4)


if __name__ == "__main__":
    main()
