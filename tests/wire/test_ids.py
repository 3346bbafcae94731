"""Tests of hosts and ids: the worked examples, both address families, and texts that are no ids."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.errors import BadMessage, UsageError
from halfmoon.wire.ids import (
    UniqueIds,
    host_text,
    offset_msg_id,
    pack_host,
    parse_offset_msg_id,
)

OFFSETS = st.integers(0, 2**63 - 1)
PORTS = st.integers(1, 65535)
NOW = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC
MONTH_BEGIN = 1_698_796_800_000  # 2023-11-01 00:00:00 UTC


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("127.0.0.1:10911", "7f00000100002a9f"),
        ("192.0.2.10:51676", "c000020a0000c9dc"),
        ("[fd00::1]:10911", "fd000000000000000000000000000001" + "00002a9f"),
        ("fd00::1:10911", "fd000000000000000000000000000001" + "00002a9f"),
        ("[fe80::1%eth0]:1", "fe800000000000000000000000000001" + "00000001"),
    ],
)
def test_a_host_is_its_address_and_port(text, data):
    assert pack_host(text).hex() == data


@given(st.ip_addresses(v=4) | st.ip_addresses(v=6), PORTS)
def test_a_host_is_read_as_it_was_written(ip, port):
    text = f"{ip}:{port}" if ip.version == 4 else f"[{ip}]:{port}"

    assert host_text(pack_host(text)) == text


@pytest.mark.parametrize("text", ["", "localhost:1", "1.2.3.4", "1.2.3.4:0", "1.2.3.4:65536", "1.2.3:4", "1.2.3.4:x", "::1"])
def test_what_is_no_host_is_refused(text):
    with pytest.raises(UsageError):
        pack_host(text)


@pytest.mark.parametrize("size", [0, 4, 7, 9, 19, 21])
def test_a_host_of_another_length_is_refused(size):
    with pytest.raises(BadMessage):
        host_text(bytes(size))


def test_the_worked_offset_message_ids_are_written_and_read():
    assert offset_msg_id(pack_host("127.0.0.1:10911"), 4096) == "7F00000100002A9F0000000000001000"
    assert offset_msg_id(pack_host("10.0.0.1:10911"), 1024) == "0A00000100002A9F0000000000000400"

    found = parse_offset_msg_id("7F00000100002A9F0000000000001000")

    assert (found.address, found.physical_offset) == ("127.0.0.1:10911", 4096)


@given(st.ip_addresses(), PORTS, OFFSETS, st.booleans())
def test_an_offset_message_id_is_read_as_it_was_written_in_either_case(ip, port, offset, lower):
    host = ip.packed + port.to_bytes(4, "big")
    text = offset_msg_id(host, offset)

    assert len(text) == (32 if ip.version == 4 else 56)
    assert text == text.upper()
    assert parse_offset_msg_id(text.lower() if lower else text) == (host, offset)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7F00000100002A9F000000000000100",
        "7F00000100002A9F00000000000010000",
        "7F00000100002A9F000000000000100G",
        "7F000001 00002A9F 00000000001000",
        "7F00000100002A9F8000000000001000",
        "7F000001000000000000000000001000",
        "7F000001FFFFFFFF0000000000001000",
        "7F00000100002A9F0000000000001000,7F00000100002A9F0000000000001000",
        "é" * 32,
    ],
)
def test_what_is_no_offset_message_id_is_refused(text):
    with pytest.raises(UsageError):
        parse_offset_msg_id(text)


@given(st.text(max_size=60))
def test_any_text_is_an_id_or_refused(text):
    try:
        parse_offset_msg_id(text)
    except UsageError:
        pass


def elapsed_of(text):
    """Return what a sender's id says of its time: ms since the month began."""
    return int(text[-12:-4], 16)


def test_a_unique_id_tells_address_process_time_and_number():
    ids = UniqueIds(bytes((10, 11, 12, 13)), 0x1_04D2, Random(1))

    first, second = ids.next(NOW), ids.next(NOW + 5)

    assert first.startswith("0A0B0C0D04D2")
    assert (elapsed_of(first), first[-4:]) == (NOW - MONTH_BEGIN, "0000")
    assert (elapsed_of(second), second[-4:]) == (NOW + 5 - MONTH_BEGIN, "0001")


@pytest.mark.parametrize(("ip", "digits"), [(bytes(4), 32), (bytes(16), 56)])
def test_a_unique_id_has_32_or_56_upper_case_digits(ip, digits):
    text = UniqueIds(ip, 1, Random(1)).next(NOW)

    assert len(text) == digits
    assert text == text.upper()


@pytest.mark.parametrize("now", [MONTH_BEGIN, MONTH_BEGIN - 1, 1_703_980_800_000 + 86_400_000 - 1, 1_709_251_199_999, 0])
def test_the_time_of_a_unique_id_counts_from_the_begin_of_the_month(now):
    elapsed = elapsed_of(UniqueIds(bytes(4), 1, Random(1)).next(now))

    assert 0 <= elapsed < 31 * 86_400_000
    assert (now - elapsed) % 86_400_000 == 0


def test_a_new_month_begins_a_new_count():
    ids = UniqueIds(bytes(4), 1, Random(1))
    december = MONTH_BEGIN + 30 * 86_400_000

    times = [elapsed_of(ids.next(now)) for now in (december - 1, december, december + 1)]

    assert times == [30 * 86_400_000 - 1, 0, 1]


def test_a_clock_that_steps_back_to_the_month_before_gives_0():
    ids = UniqueIds(bytes(4), 1, Random(1))
    ids.next(MONTH_BEGIN)

    assert elapsed_of(ids.next(MONTH_BEGIN - 1)) == 0


def test_65536_ids_of_one_millisecond_are_different():
    ids = UniqueIds(bytes(4), 1, Random(1))

    assert len({ids.next(NOW) for _ in range(65536)}) == 65536


def test_two_processes_with_the_same_address_and_number_make_different_ids():
    assert UniqueIds(bytes(4), 1, Random(1)).next(NOW) != UniqueIds(bytes(4), 1, Random(2)).next(NOW)


def test_an_address_of_another_length_is_refused():
    with pytest.raises(UsageError):
        UniqueIds(bytes(5), 1, Random(1))
