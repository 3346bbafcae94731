"""Why a connection could not be made, in the operating system's own words. Opens nothing."""

from __future__ import annotations

from os import strerror

from halfmoon.errors import ConnectFailed


def unreached(address: str, cause: BaseException) -> ConnectFailed:
    """Return the error of a connection that could not be made: the address, and the operating system's reason."""
    return ConnectFailed(f"connect to {address} failed: {_reason(cause)}", address)


def _reason(cause: BaseException) -> str:
    number = getattr(cause, "errno", None)
    if isinstance(cause, TimeoutError) and not number:
        return "timeout"
    if isinstance(number, int) and number > 0:
        return strerror(number)
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
