"""Functions that touch each message, in Python: the reference that the compiled twin equals. Used through `halfmoon.hot`.

``Reader`` turns the bytes of a turn into `Messages`, which are columns of one queue; ``Messages`` become the bytes of the log, of
the queue and of the answers. Nothing here decides, waits, or keeps more than bounded caches of text that it has read before.
"""

INTERFACE = 30
"""Version of the compiled twin's interface; grows when a function that it replaces comes, goes, or means something else."""
