"""Conversations."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Mapping, Sequence
from ctypes import byref, c_void_p
from typing import TYPE_CHECKING, Any

from ._library import CRequest
from .outputs import RequestOutput
from .sampling_params import SamplingParams

if TYPE_CHECKING:
    from .llm import LLM, Message

__all__ = ["Session"]


class Session:
    """A conversation that holds its blocks of the KV cache, so that each turn computes what is new
    alone. If sessions hold more than `session_blocks`, or a request could not run otherwise, the
    session that was used longest ago loses its blocks, and its next turn computes them again.

    A conversation consists of texts (`generate`) or of messages (`chat`), not of both. A session
    has one turn at a time; different sessions may be used by different threads. `LLM.session` and
    `LLM.load_session` make one.
    """

    def __init__(self, llm: LLM, handle: c_void_p, cache_salt: str | None) -> None:
        self._llm = llm
        self._made = handle
        self._salt = cache_salt
        self._finalizer = weakref.finalize(self, llm._engine.end_session, handle)

    @property
    def tokens(self) -> list[int]:
        """The conversation as tokens. If it consists of messages, those of the last turn's prompt
        and answer."""
        return self._llm._engine.tokens_of(self._handle)

    @property
    def messages(self) -> list[Message]:
        """The conversation of messages."""
        found: list[Message] = json.loads(self._llm._engine.messages_of(self._handle))
        return found

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives back the blocks. The session takes no further turn."""
        self._finalizer()

    def fork(self) -> Session:
        """A session with the same past, which continues separately. Both hold the same blocks."""
        made = self._llm._engine.make_session("session_fork", session=self._handle)
        return Session(self._llm, made, self._salt)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the conversation, and what is held of it, to a file for `LLM.load_session`."""
        self._llm._engine.call("session_save", os.fsencode(path), session=self._handle)

    def append(self, prompt: str | Sequence[Message]) -> None:
        """Puts a text or messages after the conversation without a turn."""
        request = self._text_request(prompt) if isinstance(prompt, str) else \
            self._chat_request(prompt)
        self._llm._engine.call("session_append", byref(request), session=self._handle)

    def generate(self, text: str, sampling_params: SamplingParams | None = None) -> RequestOutput:
        """Appends the text to the conversation and continues it. An end token and a stop text that
        end the turn are not kept."""
        return self._turn(self._text_request(text), text, sampling_params)

    def chat(self, message: str | Message, sampling_params: SamplingParams | None = None, *,
             tools: Sequence[Mapping[str, Any]] | None = None,
             chat_template_kwargs: Mapping[str, Any] | None = None) -> RequestOutput:
        """Appends a message, of the user if it is a text, and the answer to it.

        Args:
            tools: As `LLM.chat` has them.
            chat_template_kwargs: The same.
        """
        turn: Message = {"role": "user", "content": message} if isinstance(message, str) else message
        return self._turn(self._chat_request([turn], tools, chat_template_kwargs), None,
                          sampling_params)

    @property
    def _handle(self) -> c_void_p:
        if not self._finalizer.alive:
            raise ValueError("the session is closed")
        return self._made

    def _text_request(self, text: str) -> CRequest:
        encoded = text.encode()
        return self._salted(CRequest(text=encoded, text_size=len(encoded)))

    def _chat_request(self, messages: Sequence[Message],
                      tools: Sequence[Mapping[str, Any]] | None = None,
                      chat_template_kwargs: Mapping[str, Any] | None = None) -> CRequest:
        return self._salted(self._llm._chat_request(messages, tools, chat_template_kwargs))

    def _salted(self, request: CRequest) -> CRequest:
        if self._salt is not None:
            request.cache_salt = self._salt.encode()
        return request

    def _turn(self, request: CRequest, text: str | None,
              params: SamplingParams | None) -> RequestOutput:
        output, = self._llm._serve([request], [text], params, False, self._handle)
        if output.outputs[0].finish_reason != "abort":  # and the session has the prompt
            output._prompt_token_ids = self.tokens[:output.num_prompt_tokens]
        return output
