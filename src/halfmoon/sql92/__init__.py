"""SQL92 filters: an expression over a message's properties, parsed once and tested against many messages.

Pure: bytes of properties in, yes or no out. For the broker, the simulation, the command line, and whoever reads a topic.

    wanted = sql92.compile("amount > 100 AND region IN ('eu', 'us')")
    wanted.matches(b"amount\\x01250\\x02region\\x01eu\\x02")           # True
    wanted.matching([first, second, third])                          # places of those that match
"""

from __future__ import annotations

from halfmoon.hot import encode_properties as stored
from halfmoon.sql92.filter import Filter, FilterOutcome, FilterVerdict, compile
from halfmoon.sql92.refusals import ExpressionRefused

__all__ = ["ExpressionRefused", "Filter", "FilterOutcome", "FilterVerdict", "compile", "stored"]
