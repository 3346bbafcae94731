"""Declarations in XML, as the article has them: ``sofa:publisher`` and ``sofa:consumer`` in a file of Spring beans.

Follows the article's form: a publisher has ``id``, ``group``, ``sofa:channels`` (with ``tx-callback``) and
``sofa:binding.msg_broker``; a consumer also a ``sofa:listener``, and ``sofa:event`` in its channels. A ``ref`` names a ``bean`` of
the file, whose class is looked up in the table of classes, or a name of that table itself.

The file is data: no document type, no entity, no include is read, and size, depth and count are bounded. What a bean holds inside
is not looked at, for the Python object comes from the table; elements of other Spring namespaces are passed over.
Differs: ``waterMark`` may only be -1 (none): a backlog is watched by ``halfmoon group lag``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple
from xml.parsers import expat

from halfmoon.events.consuming.on import DIRECT
from halfmoon.events.declarations.declaration import (
    BINDING,
    ChannelDeclaration,
    ConsumerDeclaration,
    Declarations,
    EventDeclaration,
    PublisherDeclaration,
    nearest,
)
from halfmoon.events.errors import DeclarationRefused

DEPTH_MAX = 16
ELEMENTS_MAX = 50_000


class Element:
    """An element: its name as written, attributes, place (file and line), and children."""

    __slots__ = ("attributes", "children", "name", "place")

    def __init__(self, name: str, attributes: dict[str, str], place: str) -> None:
        self.name, self.attributes, self.place = name, attributes, place
        self.children: list[Element] = []

    def all(self, name: str) -> list[Element]:
        """Return the children of a name."""
        return [child for child in self.children if child.name == name]


class Shape(NamedTuple):
    """Attributes and children that an element may have. ``once``: there is exactly one of each child."""

    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    children: Mapping[str, Shape] = MappingProxyType({})
    once: bool = False


_BINDING = f"sofa:binding.{BINDING}"
_EVENT = Shape(required=("eventCode",), optional=("eventType", "persistence", "waterMark"))
PUBLISHER = Shape(
    required=("id", "group"),
    children={
        "sofa:channels": Shape(optional=("tx-callback",), children={"sofa:channel": Shape(required=("value",))}),
        _BINDING: Shape(),
    },
    once=True,
)
CONSUMER = Shape(
    required=("id", "group"),
    children={
        "sofa:listener": Shape(required=("ref",)),
        "sofa:channels": Shape(children={"sofa:channel": Shape(required=("value",), children={"sofa:event": _EVENT})}),
        _BINDING: Shape(),
    },
    once=True,
)
TOP = {"sofa:publisher": PUBLISHER, "sofa:consumer": CONSUMER}
PASSED_OVER = frozenset(("description", "import", "alias", "sofa:service", "sofa:reference"))
"""Other elements of such files, which say nothing of events."""


def read_xml(text: bytes, name: str) -> Declarations:
    """Return the declarations of a file; errors call it ``name``. Listeners are names for the table of classes.

    Raises DeclarationRefused, which names file and line.
    """
    root = _ElementParser(name).parse(text)
    if root.name not in TOP and root.name != "beans":
        raise DeclarationRefused(root.place, f"<{root.name}> is no root", nearest(root.name, ("beans", *TOP)))
    top = [root] if root.name in TOP else root.children
    beans = _beans(top)
    for element in top:
        if element.name in TOP:
            _check(element, TOP[element.name])
        elif not _is_passed_over(element.name):
            raise DeclarationRefused(element.place, f"unknown element <{element.name}>", nearest(element.name, ("bean", *TOP)))
    return Declarations(
        publishers=tuple(_publisher(element, beans) for element in top if element.name == "sofa:publisher"),
        consumers=tuple(_consumer(element, beans) for element in top if element.name == "sofa:consumer"),
    )


# ---------------------------------------------------------------- elements to values


def _publisher(element: Element, beans: dict[str, str]) -> PublisherDeclaration:
    (channels,) = element.all("sofa:channels")
    callback = channels.attributes.get("tx-callback", "")
    return PublisherDeclaration(
        id=element.attributes["id"],
        group=element.attributes["group"],
        topics=tuple(channel.attributes["value"] for channel in channels.children),
        tx_callback=beans.get(callback, callback),
        place=element.place,
    )


def _consumer(element: Element, beans: dict[str, str]) -> ConsumerDeclaration:
    (listener,), (channels,) = element.all("sofa:listener"), element.all("sofa:channels")
    ref = listener.attributes["ref"]
    return ConsumerDeclaration(
        id=element.attributes["id"],
        group=element.attributes["group"],
        listener=beans.get(ref, ref),
        channels=tuple(
            ChannelDeclaration(
                topic=channel.attributes["value"],
                events=tuple(_event(event) for event in channel.children),
                place=channel.place,
            )
            for channel in channels.children
        ),
        place=element.place,
    )


def _event(element: Element) -> EventDeclaration:
    place, given = element.place, element.attributes
    persistence = given.get("persistence", "true")
    if persistence not in ("true", "false"):
        raise DeclarationRefused(place, f"persistence is {persistence!r:.60}", "write 'true' or 'false'")
    if given.get("waterMark", "-1") != "-1":
        what = f"waterMark is {given['waterMark']!r:.60}"
        raise DeclarationRefused(place, what, "leave it out; `halfmoon group lag` shows a backlog")
    return EventDeclaration(
        code=given["eventCode"], type=given.get("eventType", DIRECT), persistence=persistence == "true", place=place
    )


def _beans(top: list[Element]) -> dict[str, str]:
    """Return the class of each bean of the file by its id."""
    found: dict[str, str] = {}
    for bean in top:
        if bean.name != "bean" or "id" not in bean.attributes or "class" not in bean.attributes:
            continue
        if (known := bean.attributes["id"]) in found:
            raise DeclarationRefused(bean.place, f"bean {known!r:.60} is there twice", "keep one of the two")
        found[known] = bean.attributes["class"]
    return found


def _is_passed_over(name: str) -> bool:
    prefix, colon, _ = name.partition(":")
    return name == "bean" or name in PASSED_OVER or (bool(colon) and prefix != "sofa")


# ---------------------------------------------------------------- the form


def _check(element: Element, shape: Shape) -> None:
    """Raise DeclarationRefused for an attribute or child that does not belong into an element, or is missing."""
    place, allowed = element.place, (*shape.required, *shape.optional)
    for attribute in element.attributes:
        if attribute not in allowed and attribute.partition(":")[0] != "xmlns" and not attribute.startswith("xsi:"):
            what = f"unknown attribute {attribute!r:.60} of <{element.name}>"
            raise DeclarationRefused(place, what, _belongs(attribute) or nearest(attribute, allowed, kind="attribute"))
    for attribute in shape.required:
        if not element.attributes.get(attribute):
            raise DeclarationRefused(place, f"<{element.name}> has no {attribute}", f'add {attribute}="…"')
    for child in element.children:
        if child.name not in shape.children:
            what = f"unknown element <{child.name[:60]}> in <{element.name}>"
            raise DeclarationRefused(child.place, what, nearest(child.name, shape.children, kind="element"))
        _check(child, shape.children[child.name])
    for once in shape.children if shape.once else ():
        if (count := len(element.all(once))) != 1:
            what = f"<{element.name}> has {count} of <{once}>" if count else f"<{element.name}> has no <{once}>"
            raise DeclarationRefused(place, what, f"{'keep one' if count else f'add <{once}>'}")


def _belongs(attribute: str) -> str:
    places = {
        "tx-callback": "it belongs to <sofa:channels> of a publisher",
        "ref": "it belongs to <sofa:listener>",
        "value": "it belongs to <sofa:channel>",
        **dict.fromkeys((*_EVENT.required, *_EVENT.optional), "it belongs to <sofa:event>"),
    }
    return places.get(attribute, "")


# ---------------------------------------------------------------- text to elements


class _ElementParser:
    """Parser that builds elements from text, and stops at the first thing that has no place in a declaration."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._open = [Element("", {}, name)]
        """Those around the place that is read; the first one is the file."""
        self._count = 0
        self._expat = expat.ParserCreate()
        self._expat.StartElementHandler = self._start
        self._expat.EndElementHandler = self._end
        self._expat.CharacterDataHandler = self._text
        self._expat.StartDoctypeDeclHandler = self._refuse_doctype
        self._expat.EntityDeclHandler = self._refuse_doctype
        self._expat.ProcessingInstructionHandler = self._refuse_instruction

    def parse(self, text: bytes) -> Element:
        """Return the root. Raises DeclarationRefused."""
        try:
            self._expat.Parse(text, True)
        except expat.ExpatError as exc:
            what = f"not well-formed at column {exc.offset + 1}: {expat.ErrorString(exc.code)}"
            raise DeclarationRefused(f"{self._name}:{exc.lineno}", what, "mend the XML there") from None
        except (ValueError, LookupError) as exc:  # an encoding that the declaration names and nobody knows
            raise DeclarationRefused(self._place(), f"cannot be decoded: {exc}", "save it as UTF-8") from None
        return self._open[0].children[0]  # there is one, or it was not well-formed

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if len(self._open) > DEPTH_MAX:
            raise DeclarationRefused(self._place(), f"elements lie deeper than {DEPTH_MAX}", "a declaration needs five levels")
        if self._count > ELEMENTS_MAX:
            raise DeclarationRefused(self._place(), f"more than {ELEMENTS_MAX} elements", "split the file")
        element = Element(name, attributes, self._place())
        self._open[-1].children.append(element)
        self._open.append(element)

    def _end(self, name: str) -> None:
        self._open.pop()

    def _text(self, text: str) -> None:
        if text.strip() and any(one.name in TOP for one in self._open):
            inside = self._open[-1].name
            raise DeclarationRefused(self._place(), f"text {text.strip()!r:.40} in <{inside}>", "say it in attributes")

    def _refuse_doctype(self, *_: object) -> None:
        raise DeclarationRefused(self._place(), "a document type or entity is declared", "take the DOCTYPE out: it is never read")

    def _refuse_instruction(self, target: str, data: str) -> None:
        raise DeclarationRefused(self._place(), f"a processing instruction <?{target[:40]}?>", "take it out: it is never followed")

    def _place(self) -> str:
        return f"{self._name}:{self._expat.CurrentLineNumber}"
