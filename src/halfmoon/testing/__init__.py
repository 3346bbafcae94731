"""Tools for users' tests: the pytest plugin, a local broker on sockets, a `World` in virtual time, and its use by publishers."""

from halfmoon.lazy import lazy as _lazy

__all__ = ["World", "replace"]

__getattr__, __dir__ = _lazy(__name__, {"world": "World", "events.replacement": "replace"})
