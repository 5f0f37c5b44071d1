"""LLM inference by the shared library of nanovllm, with the names of vLLM and nano-vllm.

    from nanovllm import LLM, SamplingParams

    llm = LLM("Qwen3-0.6B")
    for output in llm.generate(["Once upon a time"], SamplingParams(temperature=0.6)):
        print(output.outputs[0].text)
"""

from ._library import LIBRARY as _LIBRARY
from .errors import (BusyError, ConfigError, CudaError, Error, InternalError, InvalidError,
                     LoadError, RequestError, UnsupportedError)
from .llm import LLM, Message, Prompt, Stream, TextPrompt, TokenizerView, TokensPrompt
from .outputs import (CompletionOutput, Health, Logprob, Percentiles, RequestOutput, Stats,
                      StreamPiece)
from .sampling_params import SamplingParams, StructuredOutputsParams
from .session import Session

__version__ = _LIBRARY.version

__all__ = [
    "LLM", "BusyError", "CompletionOutput", "ConfigError", "CudaError", "Error", "Health",
    "InternalError", "InvalidError", "LoadError", "Logprob", "Message", "Percentiles", "Prompt",
    "RequestError", "RequestOutput", "SamplingParams", "Session", "Stats", "Stream", "StreamPiece",
    "StructuredOutputsParams", "TextPrompt", "TokenizerView", "TokensPrompt", "UnsupportedError",
    "__version__",
]
