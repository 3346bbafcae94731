"""Forms of settings: tests of a whole text, beside its type, each with a description.

A text that reaches an answer, a name, an address or a path is checked here, once, wherever the setting comes from.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import ip_address, ip_network
from typing import NamedTuple

from halfmoon.limits import CERTIFICATE_NAME_MAX


class Form(NamedTuple):
    """Form of a text: a test, and the description that ends the sentence *must be …* and stands in the reference."""

    fits: Callable[[str], object]
    what: str


def pattern(expression: str, what: str) -> Form:
    """Return the form of a regular expression that the whole text matches."""
    return Form(re.compile(expression).fullmatch, what)


_LABEL = "[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_DURATION = "[1-9][0-9]{0,8}[smhd]"


def is_ip(text: str) -> bool:
    """Whether a text is an IP address; IPv6 may stand in brackets and have a zone."""
    try:
        ip_address((text[1:-1] if text.startswith("[") and text.endswith("]") else text).partition("%")[0])
    except ValueError:
        return False
    return True


def is_host(text: str) -> bool:
    """Whether a text is an IP address or may be the name of a host."""
    return is_ip(text) or (len(text) < 254 and _HOST.fullmatch(text) is not None)


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to a port on a host name or address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def are_addresses(text: str) -> bool:
    """Whether a text is empty or ``host:port`` addresses joined by ``;`` or ``,``."""
    parts = [part.strip() for part in re.split("[;,]", text)]
    return all(_is_address(part) for part in parts if part)


def are_networks(text: str) -> bool:
    """Whether a text is empty or IP addresses and networks (``10.0.0.0/8``) joined by ``,``."""
    try:
        return all(ip_network(part.strip(), strict=False) for part in text.split(",") if part.strip())
    except ValueError:
        return False


def are_certificates(text: str) -> bool:
    """Whether a text is empty or names in certificates joined by ``,``, without ``*``: they are exact."""
    return text.isprintable() and "*" not in text and all(len(part.strip()) <= CERTIFICATE_NAME_MAX for part in text.split(","))


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return is_host(host) and port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536


def _is_visible(text: str) -> bool:
    return len(text) <= 128 and text.isprintable() and " " not in text


NAME = pattern(r"[%|a-zA-Z0-9_.-]{1,127}", "1 to 127 of the characters a-z, A-Z, 0-9, _, -, ., % and |")
"""Names of brokers and clusters: a topic is named after each, and every one of their characters stands in answers."""
TOPIC = pattern(r"[%|a-zA-Z0-9_-]{1,127}", "a topic's name: 1 to 127 of the characters a-z, A-Z, 0-9, _, -, % and |")
NAMESPACE = pattern(r"[|a-zA-Z0-9_-]{0,127}", "empty, or up to 127 of the characters a-z, A-Z, 0-9, _, - and |")
HOURS = pattern(r" *([01]?[0-9]|2[0-3]) *(; *([01]?[0-9]|2[0-3]) *)*;?", "hours of a day, 00 to 23, joined by ;")
DELAYS = pattern(
    rf" *({_DURATION}( +{_DURATION}){{0,63}})? *", "up to 64 times a number from 1 on and s, m, h or d, with spaces between"
)
IP = Form(is_ip, "an IP address")
IP_OR_NONE = Form(lambda text: not text or is_ip(text), "empty, or an IP address")
HOST = Form(lambda text: not text or is_host(text), "an IP address or the name of a host; empty: all addresses")
ADDRESSES = Form(are_addresses, "empty, or addresses host:port joined by ;")
NETWORKS = Form(are_networks, "empty, or IP addresses and networks such as 10.0.0.0/8 joined by ,")
CERTIFICATES = Form(are_certificates, f"empty, or names of up to {CERTIFICATE_NAME_MAX} characters without *, joined by ,")
PART = Form(_is_visible, "up to 128 visible characters, no space")
"""Parts of a client's id."""
KEY = Form(lambda text: len(text) <= 256 and text.isprintable(), "up to 256 printable characters")
"""Access keys, secrets and tokens."""
SECRET = Form(lambda text: not text or (16 <= len(text) <= 256 and text.isprintable()), "16 to 256 printable characters")
PATH = Form(lambda text: text.isprintable() and "${" not in text, "a path as it is, without ${…}")
LEASE = Form(
    lambda text: not text or ("://" in text and len(text) <= 2048 and text.isprintable()),
    "empty, or a URL: postgresql://…, etcd://… or kubernetes://…, of up to 2048 printable characters",
)
PASSWORD = Form(lambda text: text.isprintable() and len(text) <= 256, "up to 256 visible characters")
