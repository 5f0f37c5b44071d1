"""`LLM`: an engine for a checkpoint, with the names of vLLM and nano-vllm."""

from __future__ import annotations

import ctypes
import difflib
import json
import os
import queue
import sys
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ctypes import byref, c_size_t, pointer
from typing import TYPE_CHECKING, Any, TypedDict, Union

from ._engine import Collected, Engine, Streamed
from ._library import (COUNTERS, DRAFT_COUNTERS, PERCENTILES, SECONDS, CRequest, CSamplingParams,
                       EmbedOptions, EngineConfig, ScoreOptions, WarningCallback)
from .errors import BusyError
from .outputs import Health, Logprob, Percentiles, RequestOutput, Stats, StreamPiece
from .sampling_params import SamplingParams, texts_of, tokens_of

if TYPE_CHECKING:
    import numpy
    import numpy.typing

    Vectors = numpy.typing.NDArray[numpy.float32]

    from .session import Session

__all__ = ["LLM", "Message", "Prompt", "Stream", "TextPrompt", "TokenizerView", "TokensPrompt"]


class _Salted(TypedDict, total=False):
    #: The prompt shares cached prefixes only with prompts of the same salt.
    cache_salt: str


class TextPrompt(_Salted):
    """A text, which is encoded as it is."""

    prompt: str


class TokensPrompt(_Salted):
    """Token ids."""

    prompt_token_ids: Sequence[int]


Prompt = Union[str, Sequence[int], TextPrompt, TokensPrompt]
#: A message of a conversation, with `role`, `content` and further fields of the chat template.
Message = Mapping[str, Any]

#: Settings of vLLM and nano-vllm that have nothing to set here: CUDA graphs are always used, the KV
#: cache gets what `kv_cache_memory_bytes` says, and no code of a checkpoint is run.
_WITHOUT_EFFECT = frozenset((
    "disable_log_stats", "enforce_eager", "gpu_memory_utilization", "kvcache_block_size",
    "swap_space", "trust_remote_code"))


def _set_prompt(request: CRequest, prompt: Any) -> None:
    """Sets what the request is to continue, and keeps it alive."""
    salt = None
    if isinstance(prompt, Mapping):
        known = {"prompt", "prompt_token_ids", "cache_salt"}
        if unknown := set(prompt) - known:
            raise ValueError(f"a prompt has no key {sorted(unknown)[0]!r}; it has "
                             f"{', '.join(sorted(known))}")
        salt = prompt.get("cache_salt")
        prompt = prompt.get("prompt_token_ids", prompt.get("prompt"))
    if salt is not None:
        request.cache_salt = salt.encode()
    if isinstance(prompt, str):
        text = prompt.encode()
        request.text, request.text_size = text, len(text)
        return
    if prompt is None or isinstance(prompt, (bytes, float, int)):
        raise TypeError(f"a prompt is a str, a list of token ids or a dict, got {prompt!r}")
    request.kept = tokens_of("token ids of a prompt", prompt)
    request.token_ids, request.num_token_ids = request.kept.buffer_info()[0], len(request.kept)
    if not len(request.kept):  # no list is NULL, which would be no prompt
        request.text = b""
        request.token_ids = None


def _is_one_prompt(prompts: Any) -> bool:
    if isinstance(prompts, (str, Mapping)):
        return True
    return len(prompts) > 0 and hasattr(prompts[0], "__index__")


def _text_of(prompt: Any) -> str | None:
    if isinstance(prompt, Mapping):
        prompt = prompt.get("prompt")
    return prompt if isinstance(prompt, str) else None


def _flag(name: str, value: Any) -> int:
    if not isinstance(value, (bool, int)) or value not in (0, 1):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return int(value)


def _number(name: str, value: Any, least: int = 1, bits: int = 31) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if not least <= value < 2**bits:
        raise ValueError(f"{name} must be at least {least} and below 2^{bits}, got {value}")
    return int(value)


#: Settings that are numbers: the field of the struct, the least value and the bits.
_NUMBERS = {
    "tensor_parallel_size": ("tensor_parallel", 1, 31),
    "max_model_len": ("max_model_len", 1, 63),
    "max_num_seqs": ("max_num_seqs", 1, 31),
    "max_num_batched_tokens": ("max_num_batched_tokens", 1, 31),
    "kv_cache_memory_bytes": ("kv_bytes", 1, 63),
    "num_gpu_blocks_override": ("kv_blocks", 1, 63),
    "session_blocks": ("session_blocks", 1, 31),
    "host_kv_bytes": ("host_kv_bytes", 1, 63),
    "disk_kv_bytes": ("disk_kv_bytes", 1, 63),
    "device_index": ("device_index", 0, 31),
    "num_threads": ("num_threads", 1, 31),
}
_FLAGS = {
    "enable_expert_parallel": "expert_parallel",
    "disable_custom_all_reduce": "disable_custom_all_reduce",
}
_OTHERS = ("device", "disk_kv_path", "dtype", "enable_prefix_caching", "num_kvcache_blocks",
           "on_warning", "seed", "speculative_config", "step_timeout_seconds")
#: The same within `speculative_config`.
_SPECULATIVE_NUMBERS = {
    "num_speculative_tokens": ("num_speculative_tokens", 0, 31),
    "prompt_lookup_max": ("prompt_lookup_max", 1, 31),
    "prompt_lookup_min": ("prompt_lookup_min", 1, 31),
    "model_kv_blocks": ("speculative_model_kv_blocks", 1, 63),
}


def _given(owner: str, settings: Mapping[str, Any], *known: Iterable[str]) -> dict[str, Any]:
    """Those that are not None. Raises TypeError for one that is not known."""
    names = {name for some in known for name in some}
    for name in settings:
        if name not in names:
            nearest = difflib.get_close_matches(str(name), names, 1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise TypeError(f"{owner} has no setting {name!r}{hint}")
    return {name: value for name, value in settings.items() if value is not None}


def _set_numbers(config: EngineConfig, given: Mapping[str, Any],
                 fields: Mapping[str, tuple[str, int, int]]) -> None:
    for name, (field, least, bits) in fields.items():
        if name in given:
            setattr(config, field, _number(name, given[name], least, bits))


def _set_speculation(config: EngineConfig, settings: Any) -> None:
    if not isinstance(settings, Mapping):
        raise TypeError(f"speculative_config must be a dict, got {settings!r}")
    given = _given("speculative_config", settings, _SPECULATIVE_NUMBERS,
                   ("method", "model", "adaptive"))
    if given.get("num_speculative_tokens") == 0:
        return
    _set_numbers(config, given, _SPECULATIVE_NUMBERS)
    if "model" in given:
        config.speculative_model = os.fsencode(os.path.expanduser(given["model"]))
    if "method" in given or "model" not in given:  # else the library looks what the model is
        config.speculative_method = str(given.get("method", "ngram")).encode()
    config.disable_adaptive_drafts = 1 - _flag("adaptive", given.get("adaptive", True))


def _config_of(model: str | os.PathLike[str], settings: Mapping[str, Any]) -> EngineConfig:
    given = _given("LLM", settings, _NUMBERS, _FLAGS, _OTHERS, _WITHOUT_EFFECT)
    config = EngineConfig(model=os.fsencode(os.path.expanduser(model)))
    _set_numbers(config, given, _NUMBERS)
    for name, field in _FLAGS.items():
        setattr(config, field, _flag(name, given.get(name, False)))
    if given.get("num_kvcache_blocks", -1) > 0:  # nano-vllm's, where -1 is unset
        config.kv_blocks = _number("num_kvcache_blocks", given["num_kvcache_blocks"], 1, 63)
    config.disable_prefix_caching = 1 - _flag("enable_prefix_caching",
                                              given.get("enable_prefix_caching", True))
    if given.get("dtype", "auto") != "auto":
        config.dtype = str(given["dtype"]).rpartition(".")[2].encode()
    if given.get("device", "auto") != "auto":
        config.device = str(given["device"]).encode()
    if "disk_kv_path" in given:
        config.disk_kv_path = os.fsencode(given["disk_kv_path"])
    if "seed" in given:
        config.has_seed, config.seed = 1, _number("seed", given["seed"], 0, 64)
    if "step_timeout_seconds" in given:
        config.step_timeout_seconds = float(given["step_timeout_seconds"])
    if "speculative_config" in given:
        _set_speculation(config, given["speculative_config"])
    return config


def _warn(text: str) -> None:
    print(f"nanovllm: {text}", file=sys.stderr)


class Stream(Iterator[StreamPiece]):
    """The pieces of a request while it runs. Leaving a `with` block, or dropping the stream before
    its end, takes the request back."""

    def __init__(self, llm: LLM, request: CRequest) -> None:
        self._llm = llm  # which lives as long
        self._queue: queue.SimpleQueue[StreamPiece | None] = queue.SimpleQueue()
        self._listener = Streamed(self._queue)
        self._has_ended = False
        #: For `LLM.abort`.
        self.request_id = str(llm._engine.submit(request, self._listener))

    def __next__(self) -> StreamPiece:
        piece = None if self._has_ended else self._queue.get()
        if piece is not None and piece.finish_reason != "error":
            if piece.logprobs:
                self._llm._decode(piece.logprobs)
            return piece
        if not self._has_ended:
            while piece is not None:
                piece = self._queue.get()
            self._has_ended = True
            if self._listener.error is not None:
                raise self._listener.error
        raise StopIteration

    def abort(self) -> bool:
        """Takes the request back: its last piece has the reason "abort"."""
        return not self._has_ended and self._llm.abort(self.request_id)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    def __del__(self) -> None:
        try:
            self.abort()
        except (AttributeError, BusyError):  # it has never begun, or the engine is closed
            pass


class TokenizerView:
    """The tokeniser of a checkpoint."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, with those that the tokeniser adds."""
        request = CRequest()
        _set_prompt(request, text)
        return self._llm._engine.tokenize(request) if text else []

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of tokens."""
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        return self._llm._engine.detokenize(tokens_of("token_ids", ids), not skip_special_tokens)

    def apply_chat_template(self, conversation: Sequence[Message], *, tokenize: bool = True,
                            tools: Sequence[Mapping[str, Any]] | None = None,
                            enable_thinking: bool | None = None) -> Any:
        """The prompt of a conversation, which ends where the answer begins: tokens, or with
        `tokenize=False` their text."""
        request = self._llm._chat_request(conversation, tools, {"enable_thinking": enable_thinking})
        ids = self._llm._engine.tokenize(request)
        return ids if tokenize else self.decode(ids)


class LLM:
    """A checkpoint in memory, and the requests that it serves.

    A thread of the engine serves, so that any thread may call any method at any time, and requests
    of several callers share its steps. `close`, or the end of a `with` block, frees the memory.

    Args:
        model: Directory of a Hugging Face checkpoint, or a GGUF file.
        settings: See docs/python.md: `dtype`, `device`, `tensor_parallel_size`, `max_model_len`,
            `max_num_seqs`, `max_num_batched_tokens`, `enable_prefix_caching`, `seed`,
            `kv_cache_memory_bytes` and others.
    """

    def __init__(self, model: str | os.PathLike[str], **settings: Any) -> None:
        config = _config_of(model, settings)
        tell: Callable[[str], None] = settings.get("on_warning") or _warn
        # Kept until the engine is made, which is as long as it is called.
        config.on_warning = WarningCallback(
            lambda _, text: tell((text or b"").decode(errors="replace")))
        self._engine = Engine(config)
        self._finalizer = weakref.finalize(self, self._engine.close)
        info = self._engine.info()
        #: Most tokens of a sequence, prompt and generated.
        self.max_model_len: int = info.max_total_tokens
        self.vocab_size: int = info.vocab_size
        self._hidden_size: int = info.hidden_size
        self._texts_of_tokens: dict[int, str] = {}

    # ---- Its life ----

    def close(self) -> None:
        """Ends the remaining requests with "abort", and frees the memory."""
        self._finalizer()

    #: nano-vllm's name.
    exit = close

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- Texts ----

    def generate(self, prompts: Prompt | Sequence[Prompt],
                 sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
                 use_tqdm: bool | Callable[..., Any] = True) -> list[RequestOutput]:
        """Continues prompts, in one batch, and returns their outputs in order.

        Args:
            prompts: One prompt or several: a str, a list of token ids, or a dict with `prompt` or
                `prompt_token_ids`, and perhaps `cache_salt`.
            sampling_params: For all prompts, or one for each. None: the checkpoint's settings.
            use_tqdm: Whether to show the progress, where tqdm is installed.

        Raises:
            RequestError: A prompt cannot be served. The other requests are taken back.
            KeyboardInterrupt: Ctrl-C. All requests have then ended.
        """
        given: list[Any] = [prompts] if _is_one_prompt(prompts) else list(prompts)
        requests = []
        for prompt in given:
            request = CRequest()
            _set_prompt(request, prompt)
            requests.append(request)
        return self._serve(requests, [_text_of(prompt) for prompt in given], sampling_params,
                           use_tqdm)

    def chat(self, messages: Sequence[Message] | Sequence[Sequence[Message]],
             sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
             use_tqdm: bool | Callable[..., Any] = True, *,
             tools: Sequence[Mapping[str, Any]] | None = None,
             chat_template_kwargs: Mapping[str, Any] | None = None,
             cache_salt: str | None = None) -> list[RequestOutput]:
        """Answers one conversation or several, rendered by the checkpoint's chat template.

        Args:
            messages: Messages with `role` and `content`, or a list of such conversations.
            tools: Tools for the template.
            chat_template_kwargs: `enable_thinking`.
            cache_salt: The prompts share cached prefixes only with prompts of the same salt.
        """
        conversations: list[Any] = (list(messages) if messages and
                                    not isinstance(messages[0], Mapping) else [messages])
        requests = [self._chat_request(one, tools, chat_template_kwargs) for one in conversations]
        for request in requests:
            request.cache_salt = None if cache_salt is None else cache_salt.encode()
        return self._serve(requests, [None] * len(requests), sampling_params, use_tqdm)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Stream:
        """Continues a prompt, and gives each piece of text as soon as it is there."""
        request = CRequest()
        _set_prompt(request, prompt)
        return self._stream(request, sampling_params)

    def stream_chat(self, messages: Sequence[Message],
                    sampling_params: SamplingParams | None = None, *,
                    tools: Sequence[Mapping[str, Any]] | None = None,
                    chat_template_kwargs: Mapping[str, Any] | None = None) -> Stream:
        """`chat` for one conversation, as a stream."""
        return self._stream(self._chat_request(messages, tools, chat_template_kwargs),
                            sampling_params)

    def abort(self, request_id: str | int) -> bool:
        """Takes a request back: it ends with the reason "abort" in the next step at the latest.
        False: it had ended before."""
        return self._engine.abort(int(request_id))

    def session(self, messages: Sequence[Message] = (), *,
                cache_salt: str | None = None) -> Session:
        """A conversation that keeps what was said, and holds what was computed of it."""
        from .session import Session

        session = Session(self, self._engine.make_session("session_create"), cache_salt)
        if messages:
            session.append(messages)
        return session

    def load_session(self, path: str | os.PathLike[str]) -> Session:
        """The conversation that `Session.save` has written.

        Raises:
            LoadError: There is no such file, it is altered, or it is of another model.
        """
        from .session import Session

        return Session(self, self._engine.make_session("session_load", os.fsencode(path)), None)

    # ---- Vectors ----

    def embed(self, prompts: Prompt | Sequence[Prompt], *, dimensions: int | None = None,
              normalize: bool = True, truncate_prompt_tokens: int | None = None) -> Vectors:
        """The embeddings of inputs, one a row, in float32.

        Args:
            dimensions: Elements to keep, the first ones.
            normalize: Whether vectors get length 1.
            truncate_prompt_tokens: Of a longer input the last tokens are kept; None: it is refused.
        """
        import numpy

        given: list[Any] = [prompts] if _is_one_prompt(prompts) else list(prompts)
        requests = [CRequest() for _ in given]
        for request, prompt in zip(requests, given):
            _set_prompt(request, prompt)
        options = EmbedOptions(keep_length=1 - _flag("normalize", normalize))
        if dimensions is not None:
            options.dimensions = _number("dimensions", dimensions)
        if truncate_prompt_tokens is not None:
            options.max_prompt_tokens = _number("truncate_prompt_tokens", truncate_prompt_tokens)
        width = dimensions or self._hidden_size
        vectors = numpy.zeros((len(given), width), dtype=numpy.float32)
        inputs = (ctypes.POINTER(CRequest) * len(given))(*map(pointer, requests))
        size = c_size_t()
        self._engine.call_aside("embed", inputs, len(given), byref(options),
                                vectors.ctypes.data_as(ctypes.c_void_p), vectors.size, byref(size))
        return vectors.reshape(-1)[:len(given) * size.value].reshape(len(given), size.value)

    def score(self, query: str, documents: str | Sequence[str], *,
              instruction: str | None = None, truncate_prompt_tokens: int | None = None,
              answers: tuple[int, int] | None = None) -> Vectors:
        """How well each document answers the query, in [0, 1].

        Args:
            instruction: The task in a sentence; None: that of web search.
            truncate_prompt_tokens: Of a longer prompt the document loses its end.
            answers: The tokens that say yes and no; None: "yes" and "no".
        """
        import numpy

        texts = [documents] if isinstance(documents, str) else list(documents)
        options = ScoreOptions()
        if instruction is not None:
            options.instruction = instruction.encode()
        if truncate_prompt_tokens is not None:
            options.max_prompt_tokens = _number("truncate_prompt_tokens", truncate_prompt_tokens)
        if answers is not None:
            options.has_answers = 1
            options.yes, options.no = (_number("answers", answer, 0) for answer in answers)
        scores = numpy.zeros(len(texts), dtype=numpy.float32)
        encoded = texts_of("documents", texts)
        self._engine.call_aside("score", query.encode(), encoded, len(texts), byref(options),
                                scores.ctypes.data_as(ctypes.c_void_p))
        return scores

    # ---- What it is, and how it does ----

    def get_tokenizer(self) -> TokenizerView:
        """The checkpoint's tokeniser."""
        return TokenizerView(self)

    def stats(self) -> Stats:
        """Counters since the engine was made."""
        c = self._engine.stats()
        values: dict[str, Any] = {name: getattr(c, name)
                                  for name in (*COUNTERS, *SECONDS, *DRAFT_COUNTERS)}
        for name in PERCENTILES:
            values[name] = Percentiles(*getattr(c, name))
        values["num_accepted_tokens_per_pos"] = tuple(
            c.num_accepted_tokens_per_pos[:c.num_draft_positions])
        return Stats(**values)

    def health(self) -> Health:
        """Whether the engine serves. Answers while a step hangs, too."""
        c = self._engine.health()
        return Health(("ok", "hung", "failed")[c.state], c.seconds,
                      c.reason.decode(errors="replace"))

    def describe(self) -> str:
        """Backend, threads, ranks, KV cache and policy, in lines for people."""
        return self._engine.describe()

    # ---- Within the package ----

    def _chat_request(self, messages: Sequence[Message],
                      tools: Sequence[Mapping[str, Any]] | None,
                      template_kwargs: Mapping[str, Any] | None) -> CRequest:
        kwargs = dict(template_kwargs or {})
        thinking = kwargs.pop("enable_thinking", None)
        if kwargs:
            raise ValueError(f"chat_template_kwargs has {sorted(kwargs)[0]!r}; "
                             "it can have 'enable_thinking'")
        request = CRequest(messages=json.dumps(list(messages)).encode())
        if tools:
            request.tools = json.dumps(list(tools)).encode()
        if thinking is not None:
            request.enable_thinking = 1 if thinking else -1
        return request

    def _sampling(self, params: SamplingParams | None) -> CSamplingParams:
        return CSamplingParams() if params is None else params.to_c(self.max_model_len)

    def _stream(self, request: CRequest, params: SamplingParams | None) -> Stream:
        request.sampling = pointer(self._sampling(params))
        return Stream(self, request)

    def _serve(self, requests: list[CRequest], texts: list[str | None],
               params: SamplingParams | Sequence[SamplingParams] | None,
               use_tqdm: bool | Callable[..., Any],
               session: ctypes.c_void_p | None = None) -> list[RequestOutput]:
        if params is None or isinstance(params, SamplingParams):
            settings: Sequence[SamplingParams | None] = [params] * len(requests)
        else:
            settings = list(params)
            if len(settings) != len(requests):
                raise ValueError(f"there are {len(requests)} prompts, but {len(settings)} "
                                 "sampling_params")
        for request, one in zip(requests, settings):
            sampling = self._sampling(one)
            request.sampling = pointer(sampling)
            request.whole = 1 - sampling.has_logprobs
        batch = _Batch(self._engine)
        with batch, _progress(use_tqdm, len(requests)) as advance:
            for request, one in zip(requests, settings):
                batch.submit(request, 1 if one is None else one.n, session)
            batch.wait(advance)
        return [self._output(*one) for one in zip(batch.ids, batch.results, requests, texts)]

    def _output(self, id: int, result: Collected, request: CRequest,
                text: str | None) -> RequestOutput:
        for sample in result.samples:
            if sample.logprobs:
                self._decode(sample.logprobs)
        return RequestOutput(str(id), text, result.samples, True, result.num_prompt_tokens,
                             result.num_cached_tokens, lambda: self._engine.tokenize(request))

    def _decode(self, logprobs: list[dict[int, Logprob]]) -> None:
        """Adds the texts of tokens, where there is a tokeniser."""
        for position in logprobs:
            for token, logprob in position.items():
                if token not in self._texts_of_tokens:
                    self._texts_of_tokens[token] = self._engine.detokenize(array("i", [token]), True)
                position[token] = logprob._replace(decoded_token=self._texts_of_tokens[token])


class _Batch:
    """Requests of one call. When it is left by an exception, they have ended."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._done: queue.SimpleQueue[Collected] = queue.SimpleQueue()
        self._num_done = 0
        self.ids: list[int] = []
        self.results: list[Collected] = []

    def submit(self, request: CRequest, num_samples: int,
               session: ctypes.c_void_p | None) -> None:
        result = Collected(num_samples, self._done)
        self.ids.append(self._engine.submit(request, result, session))
        self.results.append(result)

    def wait(self, advance: Callable[[], Any]) -> None:
        """Until all have ended. Raises the first error."""
        while self._num_done < len(self.results):
            result = self._done.get()  # which Ctrl-C interrupts
            self._num_done += 1
            if result.error is not None:
                raise result.error
            advance()

    def __enter__(self) -> _Batch:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            return
        try:
            for id, result in zip(self.ids, self.results):
                if not result.has_ended:
                    self._engine.abort(id)
            while self._num_done < len(self.results):
                self._done.get()
                self._num_done += 1
        except BusyError:  # it is being closed, which ends them
            pass


class _progress:
    """A bar of tqdm, where it is wanted and installed."""

    def __init__(self, use_tqdm: bool | Callable[..., Any], total: int) -> None:
        self._bar: Any = None
        if not use_tqdm:
            return
        make: Any = use_tqdm
        if use_tqdm is True:
            try:
                from tqdm.auto import tqdm as make  # type: ignore
            except ImportError:
                return
        self._bar = make(total=total, desc="Generating")

    def __enter__(self) -> Callable[[], Any]:
        return self._bar.update if self._bar is not None else lambda: None

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
