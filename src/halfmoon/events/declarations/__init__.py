"""Publishers and consumers declared in TOML, in XML (``sofa:publisher``, ``sofa:consumer``), or in code.

`load` reads files and returns `Declared`: publishers by id, and the consumers' handlers, which `halfmoon.events.run` and
`halfmoon.events.Consumers` take. The names in a file are looked up in a table of classes; only what stands there is imported.
"""

from __future__ import annotations

from halfmoon.events.declarations.building import Declared, declared, load
from halfmoon.events.declarations.declaration import (
    ChannelDeclaration,
    ConsumerDeclaration,
    Declarations,
    EventDeclaration,
    PublisherDeclaration,
)
from halfmoon.events.errors import DeclarationRefused

__all__ = [
    "ChannelDeclaration",
    "ConsumerDeclaration",
    "DeclarationRefused",
    "Declarations",
    "Declared",
    "EventDeclaration",
    "PublisherDeclaration",
    "declared",
    "load",
]
