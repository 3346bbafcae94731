"""Tests of the settings of accepted connections: every server has them, within the same bounds."""

from __future__ import annotations

import pytest

from halfmoon.errors import SettingError
from halfmoon.programs.configuration import BROKER, NAME_SERVER, configuration


@pytest.mark.parametrize(("section", "sections"), [("nameserver", NAME_SERVER), ("broker", BROKER)])
def test_every_server_bounds_its_connections_alike(section, sections):
    found = getattr(configuration(sections, assignments=[f"{section}.connections_max=8"]), section)

    assert (found.connections_max, found.connections_per_address_max, found.proxy_protocol_from) == (8, 8_000, "")
    for wrong in ("connections_max=7", "connections_per_address_max=-1", "proxy_protocol_from=everybody"):
        with pytest.raises(SettingError, match=wrong.partition("=")[0]):
            configuration(sections, assignments=[f"{section}.{wrong}"])
