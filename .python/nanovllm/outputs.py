"""What requests give back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional, Union

__all__ = ["CompletionOutput", "Health", "Logprob", "Percentiles", "RequestOutput", "Stats",
           "StreamPiece"]


class Logprob(NamedTuple):
    """How likely a token was."""

    logprob: float
    rank: Optional[int]  #: 1 is the likeliest; None: not among those that were asked for
    decoded_token: Optional[str] = None


@dataclass
class CompletionOutput:
    """What one sample generated."""

    index: int
    text: str
    token_ids: list[int]
    #: The sum of the log-probabilities of all tokens, if `logprobs` was set.
    cumulative_logprob: Optional[float] = None
    #: A dict for each token, if `logprobs` was set: of the token and of the likeliest ones.
    logprobs: Optional[list[dict[int, Logprob]]] = None
    #: "stop", "length" or "abort".
    finish_reason: Optional[str] = None
    #: With "stop": the text of `stop` or the token of `stop_token_ids` that ended it; None: an end
    #: token of the model, or the end of the form that was asked for.
    stop_reason: Union[int, str, None] = None

    def finished(self) -> bool:
        """Whether the sample has ended."""
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """The result of one prompt. `output["text"]` and `output["token_ids"]` are those of its first
    sample."""

    request_id: str
    prompt: Optional[str]
    outputs: list[CompletionOutput]
    finished: bool
    #: Tokens of the prompt, and those of them that were found in the prefix cache.
    num_prompt_tokens: int
    num_cached_tokens: int
    _encode: Callable[[], list[int]] = field(repr=False, compare=False)
    _prompt_token_ids: Optional[list[int]] = field(default=None, repr=False, compare=False)

    @property
    def prompt_token_ids(self) -> list[int]:
        """The tokens of the prompt. A text is encoded when this is first read."""
        if self._prompt_token_ids is None:
            self._prompt_token_ids = self._encode()
        return self._prompt_token_ids

    def keys(self) -> tuple[str, str]:
        """What can be asked for by `output[key]`."""
        return ("text", "token_ids")

    def __getitem__(self, key: str) -> Any:
        if key not in self.keys():
            raise KeyError(key)
        return getattr(self.outputs[0], key)


@dataclass
class StreamPiece:
    """What a stream gives for each token."""

    text: str  #: newly generated; may be empty
    token_ids: list[int]  #: the token, or none at the end
    index: int = 0  #: of the sample
    finish_reason: Optional[str] = None  #: on the last piece of a sample
    logprobs: Optional[list[dict[int, Logprob]]] = None
    stop_reason: Union[int, str, None] = None  #: as CompletionOutput has it

    def __str__(self) -> str:
        return self.text


class Percentiles(NamedTuple):
    """The 50th, 90th and 99th percentile."""

    p50: float
    p90: float
    p99: float


@dataclass(frozen=True)
class Stats:
    """Counters since the engine was made, and its state between two steps; see `nvllm_stats` in
    nanovllm/c/nanovllm.h."""

    num_waiting: int
    num_running: int
    num_finished: int
    num_steps: int
    num_preemptions: int
    num_prefill_tokens: int
    num_decode_tokens: int
    num_sampled_tokens: int
    num_queried_tokens: int
    num_hit_tokens: int
    num_kv_blocks: int
    num_free_kv_blocks: int
    prefill_seconds: float
    decode_seconds: float
    host_seconds: float
    queue_seconds: Percentiles
    first_token_seconds: Percentiles
    inter_token_seconds: Percentiles
    end_to_end_seconds: Percentiles
    num_draft_steps: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_failed_drafts: int
    num_accepted_tokens_per_pos: tuple[int, ...]  #: num_speculative_tokens of them


@dataclass(frozen=True)
class Health:
    """Whether the engine serves."""

    state: str  #: "ok", "hung" or "failed"
    seconds: float  #: that the oldest step has been running, or since the failure
    reason: str
