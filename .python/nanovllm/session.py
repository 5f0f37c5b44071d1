"""Conversations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .outputs import RequestOutput
from .sampling_params import SamplingParams

if TYPE_CHECKING:
    from .llm import LLM, Message

__all__ = ["Session"]


class Session:
    """A conversation that keeps what was said. Each turn sends all of it, and the prefix cache has
    what was computed before, unless other requests have taken its place.

    It consists of texts (`generate`) or of messages (`chat`), not of both. A session has one turn
    at a time; different sessions may be used by different threads.
    """

    def __init__(self, llm: LLM, messages: Sequence[Message] = (), *,
                 cache_salt: str | None = None) -> None:
        self._llm = llm
        self._tokens: list[int] = []
        self._messages: list[Message] = list(messages)
        self._salt = cache_salt
        self._is_closed = False

    @property
    def tokens(self) -> list[int]:
        """The conversation of texts, as tokens."""
        return list(self._tokens)

    @property
    def messages(self) -> list[Message]:
        """The conversation of messages."""
        return list(self._messages)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Forgets the conversation. The session takes no further turn."""
        self._tokens, self._messages, self._is_closed = [], [], True

    def fork(self) -> Session:
        """A session with the same past, which continues separately."""
        self._check(None)
        other = Session(self._llm, self._messages, cache_salt=self._salt)
        other._tokens = list(self._tokens)
        return other

    def generate(self, text: str, sampling_params: SamplingParams | None = None) -> RequestOutput:
        """Appends the text to the conversation and continues it. An end token and a stop text that
        end the turn are not kept."""
        self._check(sampling_params)
        if self._messages:
            raise ValueError("this conversation consists of messages: call chat")
        tokens = self._tokens + self._llm.get_tokenizer().encode(text)
        prompt: Any = {"prompt_token_ids": tokens}
        if self._salt is not None:
            prompt["cache_salt"] = self._salt
        output = self._llm.generate(prompt, sampling_params, use_tqdm=False)[0]
        if output.outputs[0].finish_reason != "abort":
            self._tokens = tokens + self._kept(output, sampling_params or SamplingParams())
        return output

    def chat(self, message: str | Message, sampling_params: SamplingParams | None = None,
             **options: Any) -> RequestOutput:
        """Appends a message, of the user if it is a text, and the answer to it.

        Args:
            options: `tools` and `chat_template_kwargs`, as `LLM.chat` has them.
        """
        self._check(sampling_params)
        if self._tokens:
            raise ValueError("this conversation consists of texts: call generate")
        turn: Message = {"role": "user", "content": message} if isinstance(message, str) else message
        messages = [*self._messages, turn]
        output = self._llm.chat(messages, sampling_params, use_tqdm=False,
                                cache_salt=self._salt, **options)[0]
        if output.outputs[0].finish_reason != "abort":
            self._messages = [*messages, {"role": "assistant", "content": output["text"]}]
        return output

    def _check(self, params: SamplingParams | None) -> None:
        if self._is_closed:
            raise ValueError("the session is closed")
        if params is not None and params.n != 1:
            raise ValueError(f"a turn of a session has one sample, got n = {params.n}")

    def _kept(self, output: RequestOutput, params: SamplingParams) -> list[int]:
        """The generated tokens that stay in the conversation."""
        completion = output.outputs[0]
        ids, text = completion.token_ids, completion.text
        if completion.finish_reason != "stop" or not ids:
            return ids
        decode = self._llm.get_tokenizer().decode
        stops = params.stops()
        if params.include_stop_str_in_output and text.endswith(tuple(stops)) and stops:
            return ids
        if decode(ids, params.skip_special_tokens) == text:
            return ids[:-1]  # an end token, which has no text, or a stop token
        if not any(stop in decode(ids, params.skip_special_tokens) for stop in stops):
            return ids[:-1]
        kept = len(ids)
        while kept and len(decode(ids[:kept], params.skip_special_tokens)) > len(text):
            kept -= 1
        return ids[:kept]
