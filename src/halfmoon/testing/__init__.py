"""Tools for users' tests: the pytest plugin, a local broker on sockets, and a `World` in virtual time."""

from halfmoon.lazy import lazy as _lazy

__all__ = ["World"]

__getattr__, __dir__ = _lazy(__name__, {"world": "World"})
