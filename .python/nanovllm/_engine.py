"""An engine of the library, a thread that serves its requests, and who hears of their events."""

from __future__ import annotations

import ctypes
import itertools
import os
import queue
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_size_t, c_uint64, c_void_p, string_at
from typing import Any, Protocol

from ._library import (FINISH_ERROR, FINISH_REASONS, LIBRARY, CEvent, CHealth, CInfo, CRequest,
                       CStats, EngineConfig, EventCallback)
from .errors import BusyError, Error
from .outputs import CompletionOutput, Logprob, StreamPiece


class Listener(Protocol):
    """Hears of one request, on the thread that serves."""

    def hear(self, event: CEvent) -> None:
        """Called for each event. What it raises aborts the request."""

    def fail(self, error: BaseException) -> None:
        """Called with what `hear` has raised."""

    def end(self) -> None:
        """Called once, after the last event."""


_keys = itertools.count(1)
_listeners: dict[int, Listener] = {}


def _hear(key: int, pointer: Any) -> int:
    event = pointer.contents
    listener = _listeners.get(key)
    if listener is None:  # Ctrl-C came in `submit`
        return 1
    result = 0
    try:
        listener.hear(event)
    except BaseException as error:  # nothing may be thrown into the library
        listener.fail(error)
        result = 1
    if event.is_last:
        del _listeners[key]
        listener.end()
    return result


_CALLBACK = EventCallback(_hear)  # one for all requests; it is never freed


def text_of(event: CEvent) -> str:
    """The event's text, which may have zero bytes."""
    text = string_at(event.text, event.text_size)
    return text.decode("utf-8", errors="replace")


def reason_of(event: CEvent) -> str | None:
    """Why the sample has ended, or None."""
    return FINISH_REASONS[event.finish_reason]


def stop_reason_of(event: CEvent) -> int | str | None:
    """The stop text or the stop token that has ended the sample, or None."""
    if event.has_stop_token:
        token: int = event.stop_token
        return token
    text: bytes | None = event.stop_string
    return None if text is None else text.decode()


def logprobs_of(event: CEvent) -> dict[int, Logprob]:
    """Those of an event that has some."""
    found: dict[int, Logprob] = {}
    for rank, top in enumerate(event.top[:event.num_top], 1):
        found[top.token] = Logprob(top.logprob, rank)
    if event.token not in found:
        found[event.token] = Logprob(event.logprob, None)
    return found


class Collected:
    """The whole result of a request."""

    def __init__(self, num_samples: int, done: Any) -> None:
        self.samples = [CompletionOutput(i, "", []) for i in range(num_samples)]
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.error: BaseException | None = None
        self.has_ended = False
        self._pieces: list[list[str]] = [[] for _ in range(num_samples)]
        self._done = done

    def hear(self, event: CEvent) -> None:
        sample = self.samples[event.sample]
        self._pieces[event.sample].append(text_of(event))
        if event.token_ids:
            sample.token_ids = array(
                "i", string_at(event.token_ids, 4 * event.num_token_ids)).tolist()
        elif event.has_token:
            sample.token_ids.append(event.token)
        if event.has_logprob:
            if sample.logprobs is None:
                sample.logprobs, sample.cumulative_logprob = [], 0.0
            sample.logprobs.append(logprobs_of(event))
            sample.cumulative_logprob = (sample.cumulative_logprob or 0.0) + event.logprob
        if event.finish_reason:
            sample.finish_reason = reason_of(event)
            sample.stop_reason = stop_reason_of(event)
        if event.finish_reason == FINISH_ERROR and self.error is None:
            self.error = Error((event.error or b"").decode(errors="replace"))
        if event.is_last:
            self.num_prompt_tokens = event.num_prompt_tokens
            self.num_cached_tokens = event.num_cached_tokens

    def fail(self, error: BaseException) -> None:
        self.error = error

    def end(self) -> None:
        for sample, pieces in zip(self.samples, self._pieces):
            sample.text = "".join(pieces)
        self.has_ended = True
        self._done.put(self)


class Streamed:
    """Pieces of a request, for a thread that takes them out of a queue. The end is None."""

    def __init__(self, pieces: Any) -> None:
        self._pieces = pieces
        self.error: BaseException | None = None

    def hear(self, event: CEvent) -> None:
        if event.finish_reason == FINISH_ERROR:
            self.error = Error((event.error or b"").decode(errors="replace"))
        self._pieces.put(StreamPiece(
            text_of(event), [event.token] if event.has_token else [], event.sample,
            reason_of(event), [logprobs_of(event)] if event.has_logprob else None,
            stop_reason_of(event)))

    def fail(self, error: BaseException) -> None:
        self.error = error

    def end(self) -> None:
        self._pieces.put(None)


def _aside(function: Callable[[], object]) -> None:
    """Calls a function that may call callbacks, on a thread that Ctrl-C does not reach: within a
    callback it would end the wrong request. If Ctrl-C ends the wait, the thread goes on."""
    results: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def run() -> None:
        try:
            function()
        except BaseException as error:
            results.put(error)
        else:
            results.put(None)

    try:
        threading.Thread(target=run, name="nanovllm-call", daemon=True).start()
    except RuntimeError:  # the interpreter is ending, and starts no thread
        run()
    error = results.get()
    if error is not None:
        raise error


class Engine:
    """An engine. Any thread may call anything of it."""

    def __init__(self, config: EngineConfig) -> None:
        handle = c_void_p()
        LIBRARY.call("engine_create", byref(config), byref(handle))
        self._handle = handle
        self._process = os.getpid()
        self._is_closing = False
        self._num_calls = 0
        self._is_idle = threading.Condition()
        self._closed = threading.Event()
        self._runner = threading.Thread(target=self._run, name="nanovllm", daemon=True)
        self._runner.start()

    def _run(self) -> None:
        while not self._is_closing:
            try:
                LIBRARY.call("run", self._handle)
            except Exception:  # of a step; its requests have heard of it
                continue

    @contextmanager
    def _using(self) -> Iterator[c_void_p]:
        """The handle, which is valid as long as this lasts."""
        if os.getpid() != self._process:
            raise BusyError("the engine belongs to another process")
        with self._is_idle:
            if self._is_closing:
                raise BusyError("the engine is closed")
            self._num_calls += 1
        try:
            yield self._handle
        finally:
            with self._is_idle:
                self._num_calls -= 1
                self._is_idle.notify_all()

    def close(self) -> None:
        """Ends the remaining requests with "abort", and frees the memory. Waits for calls of other
        threads."""
        if os.getpid() != self._process:
            return
        if threading.current_thread() is self._runner:  # a collection of garbage in a callback
            threading.Thread(target=self.close, daemon=True).start()
            return
        with self._is_idle:
            is_first = not self._is_closing
            self._is_closing = True
        if not is_first:
            self._closed.wait()
            return
        with self._is_idle:
            self._is_idle.wait_for(lambda: self._num_calls == 0)
        LIBRARY.call("stop", self._handle)
        self._runner.join()
        _aside(self._destroy)

    def _destroy(self) -> None:
        LIBRARY.call("engine_destroy", self._handle)
        self._closed.set()

    @property
    def is_closed(self) -> bool:
        return self._is_closing

    def submit(self, request: CRequest, listener: Listener,
               session: c_void_p | None = None) -> int:
        """Queues a request, or a turn of a session, and returns its id."""
        key = next(_keys)
        id = c_uint64()
        _listeners[key] = listener
        try:
            with self._using() as handle:
                LIBRARY.call("submit" if session is None else "session_submit",
                             session or handle, byref(request), _CALLBACK, key, byref(id))
        except BaseException:
            _listeners.pop(key, None)
            if id.value:  # Ctrl-C
                self.abort(id.value)
            raise
        return id.value

    def abort(self, id: int) -> bool:
        """Takes a request back. False: it had ended before."""
        with self._using() as handle:
            return LIBRARY.call("abort", handle, id) == 1

    def call(self, name: str, *arguments: Any, session: c_void_p | None = None) -> int:
        """A function of the library whose first argument is the engine, or a session of it."""
        with self._using() as handle:
            return LIBRARY.call(name, session or handle, *arguments)

    def make_session(self, name: str, *arguments: Any,
                     session: c_void_p | None = None) -> c_void_p:
        """The session that a function of the library makes. `end_session` ends it."""
        made = c_void_p()
        self.call(name, *arguments, byref(made), session=session)
        return made

    def end_session(self, session: c_void_p) -> None:
        """Gives back what a session holds. The engine may have been closed before."""
        if os.getpid() == self._process:
            LIBRARY.call("session_destroy", session)

    def call_aside(self, name: str, *arguments: Any) -> None:
        """The same for a function that serves requests."""
        _aside(lambda: self.call(name, *arguments))

    def stats(self) -> CStats:
        stats = CStats()
        self.call("get_stats", byref(stats))
        return stats

    def health(self) -> CHealth:
        health = CHealth()
        self.call("get_health", byref(health))
        return health

    def info(self) -> CInfo:
        info = CInfo()
        self.call("get_info", byref(info))
        return info

    def describe(self) -> str:
        return self._text("describe")

    def tokenize(self, request: CRequest) -> list[int]:
        """The tokens of a prompt."""
        return self._tokens("tokenize", byref(request), capacity=(
            request.text_size + 16 if request.text is not None else 4096))

    def tokens_of(self, session: c_void_p) -> list[int]:
        """The conversation of a session."""
        return self._tokens("session_tokens", session=session)

    def messages_of(self, session: c_void_p) -> str:
        """Its messages, as JSON."""
        return self._text("session_messages", session=session)

    def detokenize(self, tokens: "array[int]", keep_special_tokens: bool) -> str:
        """The text of tokens."""
        return self._text("detokenize", tokens.buffer_info()[0], len(tokens),
                          int(keep_special_tokens), capacity=16 * len(tokens) + 16)

    def _tokens(self, name: str, *arguments: Any, capacity: int = 4096,
                session: c_void_p | None = None) -> list[int]:
        count = c_size_t()
        while True:
            tokens = (ctypes.c_int32 * capacity)()
            self.call(name, *arguments, tokens, capacity, byref(count), session=session)
            if count.value <= capacity:
                return list(tokens[:count.value])
            capacity = count.value

    def _text(self, name: str, *arguments: Any, capacity: int = 4096,
              session: c_void_p | None = None) -> str:
        size = c_size_t()
        while True:
            text = ctypes.create_string_buffer(capacity)
            self.call(name, *arguments, text, capacity, byref(size), session=session)
            if size.value < capacity:
                return text.raw[:size.value].decode("utf-8", errors="replace")
            capacity = size.value + 1
