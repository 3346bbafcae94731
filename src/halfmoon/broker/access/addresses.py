"""White addresses: the patterns that a rule file gives, and whether an address is among them. Values only.

A pattern is one address, ``*``, or an address of which parts are ``*`` or a range: ``192.168.1.*``, ``192.168.1-2.*``,
``1050::*``, ``1050::5:600:1-200:*``. Several addresses are joined by commas, or by a list as the last part: ``192.168.1.{4,5}``.
Numbers of IPv6 are hexadecimal, and a last ``*`` stands for all parts that are missing.

Follows RemoteAddressStrategyFactory (RocketMQ 4.9.7).
Differs: parts behind the first range count; the original ignores them. ``1.2.3-5.7`` takes in ``1.2.4.7``, but not ``1.2.4.8``.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

Pattern = tuple[tuple[int, int], ...]
"""The lowest and highest number of each part: four parts for IPv4, eight for IPv6."""

ANYBODY = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
ADDRESSES_MAX = 1000
"""Addresses that one pattern may list."""

_EVERYWHERE: tuple[Pattern, ...] = (((0, 255),) * 4, ((0, 0xFFFF),) * 8)


class BadAddress(ValueError):
    """A text is no pattern of addresses. The message names the text and the fault."""


def patterns(text: str) -> tuple[Pattern, ...]:
    """Return the patterns of a text; none if it is blank. Raises BadAddress."""
    text = text.strip()
    if not text:
        return ()
    if text in ANYBODY:
        return _EVERYWHERE
    if text.endswith("}"):
        head, brace, listed = text[:-1].partition("{")
        if not brace or head[-1:] not in (".", ":"):
            raise BadAddress(f"{text!r:.100}: a list in braces must be the last part of an address")
        texts = [head + last.strip() for last in listed.split(",")]
    else:
        texts = [part.strip() for part in text.split(",")]
    if len(texts) > ADDRESSES_MAX:
        raise BadAddress(f"more than {ADDRESSES_MAX} addresses in one pattern")
    return tuple(map(_pattern, texts))


def _pattern(text: str) -> Pattern:
    try:
        return _v6(text) if ":" in text else _v4(text)
    except ValueError:
        raise BadAddress(f"{text!r:.100} is no address and no pattern of addresses") from None


def _v4(text: str) -> Pattern:
    parts = text.split(".")
    if len(parts) != 4:
        raise ValueError
    return tuple(_part(part, 10, 255) for part in parts)


def _v6(text: str) -> Pattern:
    head, gap, tail = text.partition("::")
    left, right = head.split(":") if head else [], tail.split(":") if tail else []
    missing = 8 - len(left) - len(right)
    if gap:
        if missing < 1 or "::" in tail:
            raise ValueError
        parts = [*left, *["0"] * missing, *right]
    else:
        parts = left + ["*"] * missing if left[-1] == "*" else left
    if len(parts) != 8:
        raise ValueError
    if "." in parts[-1]:
        return numbers_as_pattern(IPv6Address(text))
    return tuple(_part(part, 16, 0xFFFF) for part in parts)


def _part(text: str, base: int, highest: int) -> tuple[int, int]:
    if text == "*":
        return 0, highest
    low, dash, high = text.partition("-")
    numbers = _number(low, base), _number(high if dash else low, base)
    if not 0 <= numbers[0] <= numbers[1] <= highest:
        raise ValueError
    return numbers


def _number(text: str, base: int) -> int:
    if not text.isascii() or not text.isalnum():  # int() also takes signs, blanks and underscores
        raise ValueError
    return int(text, base)


def numbers_of(host: str) -> tuple[int, ...]:
    """Return the parts of an address, and none for a text that is no address; IPv4 inside IPv6 is IPv4."""
    try:
        address = ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return ()
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    packed = address.packed
    if isinstance(address, IPv4Address):
        return tuple(packed)
    return tuple(packed[at] << 8 | packed[at + 1] for at in range(0, 16, 2))


def numbers_as_pattern(address: IPv6Address) -> Pattern:
    """Return the pattern of one address."""
    return tuple((number, number) for number in numbers_of(str(address)))


def among(numbers: tuple[int, ...], white: tuple[Pattern, ...]) -> bool:
    """Whether an address is taken in by one of the patterns."""
    return any(
        len(pattern) == len(numbers) and all(low <= number <= high for number, (low, high) in zip(numbers, pattern))
        for pattern in white
    )
