"""The shared library of nanovllm/c/nanovllm.h: its structs and functions."""

from __future__ import annotations

import ctypes
import os
from ctypes import (CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int32,
                    c_int64, c_size_t, c_uint64, c_void_p, sizeof)
from pathlib import Path
from typing import Any, Callable, Optional

from .errors import Error, error_of

ABI_VERSION = 0
FINISH_ERROR = 4
FINISH_REASONS: dict[int, Optional[str]] = {0: None, 1: "stop", 2: "length", 3: "abort", 4: "error"}


def without_zeros(name: str, text: bytes) -> bytes:
    """The text, which C reads up to its first zero byte. Raises ValueError if it has one."""
    if b"\0" in text:
        raise ValueError(f"{name} must not have zero bytes, got {text!r}")
    return text


class Sized(Structure):
    """A struct of the header. All bytes but its size are zero unless a field is given."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(struct_size=sizeof(type(self)), **fields)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, bytes) and name != "text":  # which has a size
            without_zeros(name, value)
        super().__setattr__(name, value)


WarningCallback = CFUNCTYPE(None, c_void_p, c_char_p)


class EngineConfig(Sized):
    _fields_ = [
        ("struct_size", c_size_t), ("model", c_char_p), ("device", c_char_p), ("dtype", c_char_p),
        ("disk_kv_path", c_char_p), ("disk_kv_bytes", c_uint64), ("host_kv_bytes", c_int64),
        ("kv_bytes", c_int64), ("kv_blocks", c_int64), ("max_model_len", c_int64),
        ("device_index", c_int32), ("tensor_parallel", c_int32), ("num_threads", c_int32),
        ("max_num_seqs", c_int32), ("max_num_batched_tokens", c_int32),
        ("disable_prefix_caching", c_int32), ("seed", c_uint64), ("has_seed", c_int32),
        ("reserved", c_int32), ("step_timeout_seconds", c_double), ("expert_parallel", c_int32),
        ("disable_custom_all_reduce", c_int32), ("on_warning", WarningCallback),
        ("warning_user", c_void_p), ("session_blocks", c_int64), ("speculative_method", c_char_p),
        ("speculative_model", c_char_p), ("speculative_model_kv_blocks", c_int64),
        ("num_speculative_tokens", c_int32), ("prompt_lookup_max", c_int32),
        ("prompt_lookup_min", c_int32), ("disable_adaptive_drafts", c_int32),
    ]


class TokenBias(Structure):
    _fields_ = [("token", c_int32), ("bias", c_float)]


class CSamplingParams(Sized):
    _fields_ = [
        ("struct_size", c_size_t), ("seed", c_uint64), ("has_seed", c_int32),
        ("has_temperature", c_int32), ("temperature", c_float), ("top_p", c_float),
        ("top_k", c_int32), ("has_min_p", c_int32), ("min_p", c_float),
        ("repetition_penalty", c_float), ("frequency_penalty", c_float),
        ("presence_penalty", c_float), ("n", c_int32), ("max_tokens", c_int32),
        ("min_tokens", c_int32), ("ignore_eos", c_int32), ("keep_special_tokens", c_int32),
        ("include_stop_str_in_output", c_int32), ("has_logprobs", c_int32),
        ("logprobs", c_int32), ("priority", c_int32), ("reserved", c_int32),
        ("stop", POINTER(c_char_p)), ("num_stop", c_size_t), ("stop_token_ids", c_void_p),
        ("num_stop_token_ids", c_size_t), ("allowed_token_ids", c_void_p),
        ("num_allowed_token_ids", c_size_t), ("bad_words", POINTER(c_char_p)),
        ("num_bad_words", c_size_t), ("logit_bias", POINTER(TokenBias)),
        ("num_logit_bias", c_size_t), ("json_schema", c_char_p), ("regex", c_char_p),
        ("grammar", c_char_p), ("choice", POINTER(c_char_p)), ("num_choice", c_size_t),
        ("json_object", c_int32), ("json_space", c_int32), ("after_reasoning", c_int32),
        ("reserved_2", c_int32),
    ]


class CRequest(Sized):
    _fields_ = [
        ("struct_size", c_size_t), ("text", c_char_p), ("text_size", c_size_t),
        ("token_ids", c_void_p), ("num_token_ids", c_size_t), ("messages", c_char_p),
        ("tools", c_char_p), ("enable_thinking", c_int32), ("reserved", c_int32),
        ("sampling", POINTER(CSamplingParams)), ("cache_salt", c_char_p), ("whole", c_int32),
        ("reserved_2", c_int32),
    ]


class TokenLogprob(Structure):
    _fields_ = [("token", c_int32), ("logprob", c_float)]


class CEvent(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("id", c_uint64), ("sample", c_int32),
        ("finish_reason", c_int32), ("is_last", c_int32), ("has_token", c_int32),
        ("token", c_int32), ("has_logprob", c_int32), ("logprob", c_float), ("num_top", c_int32),
        ("top", POINTER(TokenLogprob)), ("text", c_void_p), ("text_size", c_size_t),
        ("error", c_char_p), ("num_generated_tokens", c_int32), ("num_prompt_tokens", c_int32),
        ("num_cached_tokens", c_int32), ("reserved", c_int32), ("token_ids", c_void_p),
        ("num_token_ids", c_size_t), ("stop_string", c_char_p), ("has_stop_token", c_int32),
        ("stop_token", c_int32),
    ]


class EmbedOptions(Sized):
    _fields_ = [("struct_size", c_size_t), ("dimensions", c_int64), ("max_prompt_tokens", c_int64),
                ("keep_length", c_int32), ("priority", c_int32)]


class ScoreOptions(Sized):
    _fields_ = [("struct_size", c_size_t), ("instruction", c_char_p),
                ("max_prompt_tokens", c_int64), ("has_answers", c_int32), ("yes", c_int32),
                ("no", c_int32), ("priority", c_int32)]


COUNTERS = ("num_waiting", "num_running", "num_finished", "num_steps", "num_preemptions",
            "num_prefill_tokens", "num_decode_tokens", "num_sampled_tokens", "num_queried_tokens",
            "num_hit_tokens", "num_kv_blocks", "num_free_kv_blocks")
SECONDS = ("prefill_seconds", "decode_seconds", "host_seconds")
PERCENTILES = ("queue_seconds", "first_token_seconds", "inter_token_seconds",
               "end_to_end_seconds")
DRAFT_COUNTERS = ("num_draft_steps", "num_drafts", "num_draft_tokens", "num_accepted_tokens",
                  "num_failed_drafts")


class CStats(Sized):
    _fields_ = [("struct_size", c_size_t), *((name, c_int64) for name in COUNTERS),
                *((name, c_double) for name in SECONDS),
                *((name, c_double * 3) for name in PERCENTILES),
                *((name, c_int64) for name in DRAFT_COUNTERS), ("num_draft_positions", c_int64),
                ("num_accepted_tokens_per_pos", c_int64 * 64)]


class CHealth(Sized):
    _fields_ = [("struct_size", c_size_t), ("state", c_int32), ("reserved", c_int32),
                ("seconds", c_double), ("reason", c_char * 1024)]


class CInfo(Sized):
    _fields_ = [("struct_size", c_size_t), ("vocab_size", c_int64), ("max_total_tokens", c_int64),
                ("has_tokenizer", c_int32), ("has_chat_template", c_int32),
                ("hidden_size", c_int64)]


EventCallback = CFUNCTYPE(c_int32, c_void_p, POINTER(CEvent))

_FUNCTIONS: dict[str, list[Any]] = {
    "engine_create": [POINTER(EngineConfig), POINTER(c_void_p)],
    "engine_destroy": [c_void_p],
    "submit": [c_void_p, POINTER(CRequest), EventCallback, c_void_p, POINTER(c_uint64)],
    "abort": [c_void_p, c_uint64],
    "run": [c_void_p],
    "stop": [c_void_p],
    "reset": [c_void_p],
    "session_create": [c_void_p, POINTER(c_void_p)],
    "session_load": [c_void_p, c_char_p, POINTER(c_void_p)],
    "session_fork": [c_void_p, POINTER(c_void_p)],
    "session_destroy": [c_void_p],
    "session_submit": [c_void_p, POINTER(CRequest), EventCallback, c_void_p, POINTER(c_uint64)],
    "session_append": [c_void_p, POINTER(CRequest)],
    "session_save": [c_void_p, c_char_p],
    "session_tokens": [c_void_p, c_void_p, c_size_t, POINTER(c_size_t)],
    "session_messages": [c_void_p, c_char_p, c_size_t, POINTER(c_size_t)],
    "embed": [c_void_p, POINTER(POINTER(CRequest)), c_size_t, POINTER(EmbedOptions), c_void_p,
              c_size_t, POINTER(c_size_t)],
    "score": [c_void_p, c_char_p, POINTER(c_char_p), c_size_t, POINTER(ScoreOptions), c_void_p],
    "tokenize": [c_void_p, POINTER(CRequest), c_void_p, c_size_t, POINTER(c_size_t)],
    "detokenize": [c_void_p, c_void_p, c_size_t, c_int32, c_char_p, c_size_t, POINTER(c_size_t)],
    "get_stats": [c_void_p, POINTER(CStats)],
    "get_health": [c_void_p, POINTER(CHealth)],
    "get_info": [c_void_p, POINTER(CInfo)],
    "describe": [c_void_p, c_char_p, c_size_t, POINTER(c_size_t)],
}


class Library:
    """The functions of the shared library. They release Python's lock while they run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        found = self._library.nvllm_abi_version()
        if found != ABI_VERSION:
            raise Error(f"{path} has version {found} of the binary interface; this package needs "
                        f"{ABI_VERSION}")
        self._library.nvllm_last_error.restype = c_char_p
        self._library.nvllm_version.restype = c_char_p
        self._functions: dict[str, Callable[..., int]] = {}
        for name, arguments in _FUNCTIONS.items():
            function = getattr(self._library, "nvllm_" + name, None)
            if function is None:
                raise Error(f"{path} is older than this package: it has no nvllm_{name}")
            function.argtypes = arguments
            function.restype = c_int32
            self._functions[name] = function

    @property
    def version(self) -> str:
        version: bytes = self._library.nvllm_version()
        return version.decode()

    def call(self, name: str, *arguments: Any) -> int:
        """Calls `nvllm_<name>`. Returns its status; a negative one is raised."""
        for argument in arguments:
            if isinstance(argument, bytes):
                without_zeros(f"an argument of {name}", argument)
        status = self._functions[name](*arguments)
        if status < 0:
            message: bytes = self._library.nvllm_last_error()
            raise error_of(status, message.decode(errors="replace"))
        return status


def _candidates() -> list[Path]:
    given = os.environ.get("NANOVLLM_LIBRARY")
    if given:
        return [Path(given)]
    folder = Path(__file__).parent
    return [folder / "libnanovllm_c_cuda.so", folder / "libnanovllm_c.so"]


def _load() -> Library:
    reasons: list[str] = []
    for path in _candidates():
        if path.exists():
            try:
                return Library(path)
            except OSError as error:  # such as a machine without the driver of CUDA
                reasons.append(str(error))
        else:
            reasons.append(f"there is no {path}")
    raise ImportError("nanovllm: the shared library cannot be loaded: " + "; ".join(reasons))


LIBRARY = _load()
