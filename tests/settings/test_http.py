"""Settings of the port for monitoring."""

from __future__ import annotations

import pytest

from halfmoon.errors import SettingError
from halfmoon.programs.configuration import BROKER, NAME_SERVER, configuration


def test_there_is_no_port_until_one_is_given_and_it_listens_on_loopback() -> None:
    plain = configuration(BROKER).http
    assert (plain.http_port, plain.http_host) == (None, "127.0.0.1")


@pytest.mark.parametrize("sections", [BROKER, NAME_SERVER, {**NAME_SERVER, **BROKER}])
def test_it_is_given_alike_to_every_server(sections) -> None:
    given = configuration(sections, environment={"HALFMOON_HTTP_PORT": "9100"}, assignments=["http.http_host=::1"]).http
    assert (given.http_port, given.http_host) == (9100, "::1")


@pytest.mark.parametrize("assignment", ["http_port=65536", "http_port=-1", "http_port=x", "http_host=a b", "http_series_max=10"])
def test_what_cannot_work_is_refused(assignment) -> None:
    with pytest.raises(SettingError, match="must be"):
        configuration(BROKER, assignments=[assignment])
