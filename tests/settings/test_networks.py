"""Addresses and networks of settings."""

from __future__ import annotations

import pytest

from halfmoon.settings.networks import Networks


@pytest.mark.parametrize(
    ("remote", "held"),
    [
        ("10.1.2.3:4711", True),
        ("192.0.2.5:1", True),
        ("192.0.2.6:1", False),
        ("[2001:db8::1]:2", True),
        ("[fe80::1%eth0]:3", False),
        ("unknown:0", False),
    ],
)
def test_only_addresses_that_are_named_are_held(remote: str, held: bool) -> None:
    assert Networks("10.0.0.0/8, 192.0.2.5,2001:db8::/32").hold_peer(remote) is held
    assert not Networks("").hold_peer(remote)
    assert not Networks("")
    assert Networks("10.0.0.1")
