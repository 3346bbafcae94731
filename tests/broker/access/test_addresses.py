"""Tests of white addresses: every form of pattern that the original reads, and that no other is taken."""

from __future__ import annotations

import pytest

from halfmoon.broker.access.addresses import ADDRESSES_MAX, BadAddress, among, numbers_of, patterns


def takes_in(pattern, host):
    return among(numbers_of(host), patterns(pattern))


@pytest.mark.parametrize(("pattern", "inside", "outside"), [
    ("127.0.0.1", ["127.0.0.1", "::ffff:127.0.0.1"], ["127.0.0.2", "::1"]),
    ("*", ["1.2.3.4", "1050::1"], ["unknown", ""]),
    ("*.*.*.*", ["1.2.3.4"], []),
    ("*:*:*:*:*:*:*:*", ["1050::1"], []),
    (" 192.168.1.* ", ["192.168.1.0", "192.168.1.255"], ["192.168.2.1"]),
    ("192.168.1-2.*", ["192.168.1.9", "192.168.2.9"], ["192.168.0.9", "192.168.3.9"]),
    ("192.168.1.10-20", ["192.168.1.10", "192.168.1.20"], ["192.168.1.9", "192.168.1.21", "192.168.1.1"]),
    ("192.168.*.*", ["192.168.0.0"], ["192.169.0.0"]),
    ("1.2.3-5.7", ["1.2.4.7"], ["1.2.4.8"]),
    ("192.168.1.{4, 5}", ["192.168.1.4", "192.168.1.5"], ["192.168.1.6", "192.168.1.45"]),
    ("10.0.0.1,10.0.0.3", ["10.0.0.1", "10.0.0.3"], ["10.0.0.2"]),
    ("1050:0000:0000:0000:0005:0600:300c:326b", ["1050::5:600:300C:326B"], ["1050::5:600:300c:326c"]),
    ("1050::0005:0600:300c:{326b,1}", ["1050::5:600:300c:1"], ["1050::5:600:300c:2"]),
    ("1050::5:600:300c:1-200", ["1050::5:600:300c:1", "1050::5:600:300c:200"], ["1050::5:600:300c:201"]),
    ("1050::5:600:1-200:*", ["1050::5:600:200:ffff"], ["1050::5:600:201:1"]),
    ("1:2:3:*", ["1:2:3:4:5:6:7:8"], ["1:2:4:4:5:6:7:8"]),
    ("::1", ["::1", "[::1]", "::1%eth0"], ["::2", "0.0.0.1"]),
    ("", [], ["1.2.3.4"]),
])  # fmt: skip
def test_a_pattern_takes_in_what_it_says(pattern, inside, outside):
    assert all(takes_in(pattern, host) for host in inside)
    assert not any(takes_in(pattern, host) for host in outside)


@pytest.mark.parametrize("pattern", [
    "1.2.3", "1.2.3.4.5", "1.2.3.256", "1.2.3.-1", "1.2.3.5-4", "1.2.3.+4", "1.2.3.1_0", "1.2.3.", "host", "1.2.3.{4", "{1,2}",
    "1.2.{3,4}.5", "1.2.3.{4,x}", "1:2:3", "1::2::3", "::10000", "1:2:3:4:5:6:7:8::", "1.2.3.١", ",", "1.2.3.4,",
    "1.2.3.4-5-6",
])  # fmt: skip
def test_any_other_text_is_refused(pattern):
    with pytest.raises(BadAddress):
        patterns(pattern)


def test_a_pattern_lists_a_bounded_number_of_addresses():
    assert len(patterns(",".join(["1.2.3.4"] * ADDRESSES_MAX))) == ADDRESSES_MAX
    with pytest.raises(BadAddress, match="more than"):
        patterns(",".join(["1.2.3.4"] * (ADDRESSES_MAX + 1)))
