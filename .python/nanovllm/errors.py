"""What the library reports, as exceptions with its messages."""

from __future__ import annotations

__all__ = [
    "BusyError", "ConfigError", "CudaError", "Error", "InternalError", "InvalidError", "LoadError",
    "RequestError", "UnsupportedError", "error_of",
]


class Error(Exception):
    """The base of all errors of the library."""


class InvalidError(Error, ValueError):
    """An argument is not a valid value."""


class UnsupportedError(Error):
    """This build of the library lacks what was asked for, such as a device or a type."""


class ConfigError(Error, ValueError):
    """A setting, or a field of config.json."""


class LoadError(Error):
    """A file of the checkpoint is missing or malformed."""


class RequestError(Error, ValueError):
    """This request cannot be served; others can."""


class CudaError(Error):
    """The driver, a device or a library of CUDA."""


class BusyError(Error):
    """The engine is closed, or is being closed."""


class InternalError(Error):
    """Anything else, such as a step that failed."""


_MEMORY = -7
_KINDS: dict[int, type[Error]] = {
    -1: InvalidError, -2: UnsupportedError, -3: ConfigError, -4: LoadError, -5: RequestError,
    -6: CudaError, -8: BusyError, -9: InternalError,
}


def error_of(status: int, message: str) -> Exception:
    """The exception for a negative status of the library."""
    if status == _MEMORY:
        return MemoryError(message)
    return _KINDS.get(status, InternalError)(message)
