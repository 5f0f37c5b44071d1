"""How a request is sampled and when it ends."""

from __future__ import annotations

import ctypes
import json as json_text
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from ._library import CSamplingParams, TokenBias, without_zeros

__all__ = ["SamplingParams", "StructuredOutputsParams"]


def _int_of(name: str, value: int, least: int, most: int = 2**31 - 1) -> int:
    """The value, if it is in range. The struct's fields would wrap in silence."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if not least <= value <= most:
        raise ValueError(f"{name} must be in [{least}, {most}], got {value}")
    return int(value)


def _positive(name: str, value: float) -> float:
    if not value > 0:
        raise ValueError(f"{name} must be above 0, got {value}")
    return float(value)


def tokens_of(name: str, ids: Iterable[int]) -> "array[int]":
    """Token ids as the library reads them."""
    try:
        return array("i", ids)
    except (TypeError, OverflowError) as error:
        raise type(error)(f"{name} must be integers of 32 bits: {error}") from None


def texts_of(name: str, texts: Sequence[str]) -> "ctypes.Array[ctypes.c_char_p]":
    encoded = [without_zeros(name, text.encode()) for text in texts]
    return (ctypes.c_char_p * len(encoded))(*encoded)


def _form(name: str, text: str) -> bytes:
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a str, got {text!r}")
    return without_zeros(name, text.encode())


@dataclass
class StructuredOutputsParams:
    """The form of a text: exactly one of `json`, `regex`, `choice`, `grammar` and `json_object`. A
    finished text has it. The names are vLLM's. docs/structured_output.md says what each can state;
    what the library does not support is a RequestError of the request, which names the place."""

    #: A JSON Schema, as a dict or a text.
    json: Union[str, Mapping[str, Any], None] = None
    #: A regular expression that matches the whole text.
    regex: Optional[str] = None
    #: Texts, of which one is the answer.
    choice: Optional[Sequence[str]] = None
    #: A grammar in GBNF's notation. It must come from a trusted author.
    grammar: Optional[str] = None
    #: Any JSON object.
    json_object: Optional[bool] = None
    #: Of JSON. True: no white space; False: up to 8 characters of it in each place; None: nothing,
    #: one blank, or one line feed with its indentation.
    disable_any_whitespace: Optional[bool] = None
    #: The form begins after "</think>", and before it anything goes.
    after_reasoning: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        forms = ("json", "regex", "choice", "grammar", "json_object")
        given = [name for name in forms if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise ValueError(f"exactly one of {', '.join(forms)} must be set, got "
                             f"{' and '.join(given) or 'none'}")

    def add_to(self, c: CSamplingParams) -> Any:
        """Sets the fields of the struct. What is returned must live as long."""
        kept = None
        if self.json is not None:
            c.json_schema = _form("json", self.json if isinstance(self.json, str) else
                                  json_text.dumps(self.json))
        elif self.regex is not None:
            c.regex = _form("regex", self.regex)
        elif self.grammar is not None:
            c.grammar = _form("grammar", self.grammar)
        elif self.choice is not None:
            if isinstance(self.choice, str) or not self.choice:
                raise ValueError(f"choice must be a list of texts, got {self.choice!r}")
            kept = texts_of("choice", self.choice)
            c.choice, c.num_choice = kept, len(kept)
        else:
            c.json_object = 1
        if self.disable_any_whitespace is not None:
            c.json_space = 1 if self.disable_any_whitespace else 2
        c.after_reasoning = bool(self.after_reasoning)
        return kept


@dataclass
class SamplingParams:
    """How a request is sampled and when it ends. The names and defaults are those of vLLM, but for
    `max_tokens`, whose default is nano-vllm's.

    A field `temperature`, `top_p`, `top_k`, `min_p` or `repetition_penalty` that is None takes the
    checkpoint's value (generation_config.json).
    """

    #: Samples of one prompt, up to 128.
    n: int = 1
    #: In [-2, 2]: what each occurrence in the output takes from a token's logit.
    frequency_penalty: float = 0.0
    #: In [-2, 2]: what a token loses once it has occurred in the output.
    presence_penalty: float = 0.0
    #: Above 0; more than 1 makes tokens of prompt and output less likely.
    repetition_penalty: Optional[float] = 1.0
    #: 0 takes the likeliest token.
    temperature: Optional[float] = 1.0
    #: In (0, 1]: keeps the likeliest tokens that have this mass together.
    top_p: Optional[float] = 1.0
    #: Keeps the k likeliest tokens; 0 and -1 keep all.
    top_k: Optional[int] = 0
    #: In [0, 1]: keeps tokens of at least this share of the likeliest one's probability.
    min_p: Optional[float] = 0.0
    #: Same seed, same sample, whatever else is in the batch.
    seed: Optional[int] = None
    #: One text or several that end the generation; they are not part of the text.
    stop: Union[str, Sequence[str], None] = None
    #: Further tokens that end it.
    stop_token_ids: Optional[Sequence[int]] = None
    #: Texts that must not be generated.
    bad_words: Optional[Sequence[str]] = None
    #: Whether the end tokens of the model do not end the text.
    ignore_eos: bool = False
    #: Most generated tokens; None: as many as the model's context has room for.
    max_tokens: Optional[int] = 64
    #: No end before this many.
    min_tokens: int = 0
    #: The number of likeliest tokens to report for each position, 0 to 20. None: no report.
    logprobs: Optional[int] = None
    #: Whether the text leaves special tokens out.
    skip_special_tokens: bool = True
    #: Whether a stop text is part of the text.
    include_stop_str_in_output: bool = False
    #: Added to the logits of tokens, in [-100, 100].
    logit_bias: Optional[Mapping[int, float]] = None
    #: No token but these.
    allowed_token_ids: Optional[Sequence[int]] = None
    #: Lower is served earlier, if the scheduling uses it.
    priority: int = field(default=0, kw_only=True)
    #: The form that the text must have.
    structured_outputs: Optional[StructuredOutputsParams] = field(default=None, kw_only=True)

    def stops(self) -> list[str]:
        """The stop texts as a list."""
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else list(self.stop)

    def to_c(self, max_total_tokens: int) -> CSamplingParams:
        """The struct of the library. It keeps what its pointers point to."""
        c = CSamplingParams(
            n=_int_of("n", self.n, 1), frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            max_tokens=(max_total_tokens if self.max_tokens is None else
                        _int_of("max_tokens", self.max_tokens, 1)),
            min_tokens=_int_of("min_tokens", self.min_tokens, 0), ignore_eos=bool(self.ignore_eos),
            keep_special_tokens=not self.skip_special_tokens,
            include_stop_str_in_output=bool(self.include_stop_str_in_output),
            priority=_int_of("priority", self.priority, -2**31))
        if self.temperature is not None:
            c.has_temperature, c.temperature = 1, self.temperature
        if self.top_p is not None:
            c.top_p = _positive("top_p", self.top_p)
        if self.top_k is not None:
            c.top_k = _int_of("top_k", self.top_k, -1) or -1
        if self.min_p is not None:
            c.has_min_p, c.min_p = 1, self.min_p
        if self.repetition_penalty is not None:
            c.repetition_penalty = _positive("repetition_penalty", self.repetition_penalty)
        if self.seed is not None:
            c.has_seed, c.seed = 1, _int_of("seed", self.seed, 0, 2**64 - 1)
        if self.logprobs is not None:
            c.has_logprobs, c.logprobs = 1, _int_of("logprobs", self.logprobs, 0)
        self._add_lists(c)
        return c

    def _add_lists(self, c: CSamplingParams) -> None:
        kept: list[Any] = []
        for name, texts in (("stop", self.stops()), ("bad_words", list(self.bad_words or ()))):
            if texts:
                kept.append(texts_of(name, texts))
                setattr(c, name, kept[-1])
                setattr(c, "num_" + name, len(texts))
        for name, ids in (("stop_token_ids", self.stop_token_ids),
                          ("allowed_token_ids", self.allowed_token_ids)):
            if ids:
                kept.append(tokens_of(name, ids))
                setattr(c, name, kept[-1].buffer_info()[0])
                setattr(c, "num_" + name, len(kept[-1]))
        if self.logit_bias:
            kept.append((TokenBias * len(self.logit_bias))(
                *(TokenBias(_int_of("a token of logit_bias", int(token), 0), bias)
                  for token, bias in self.logit_bias.items())))
            c.logit_bias, c.num_logit_bias = kept[-1], len(kept[-1])
        if self.structured_outputs is not None:
            if not isinstance(self.structured_outputs, StructuredOutputsParams):
                raise TypeError("structured_outputs must be StructuredOutputsParams, got "
                                f"{self.structured_outputs!r}")
            kept.append(self.structured_outputs.add_to(c))
        c.kept = kept
