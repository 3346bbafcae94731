"""Where programs keep data when nobody says where."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfmoon.cli.shared.places import console_directory, data_home


@pytest.mark.parametrize("environment", [{}, {"XDG_DATA_HOME": ""}, {"XDG_DATA_HOME": "relative"}])
def test_without_an_absolute_path_it_is_in_the_home_of_the_user(environment):
    assert data_home(environment) == Path.home() / ".local/share/halfmoon"


def test_the_console_is_in_the_data_directory_that_an_option_or_a_variable_names():
    environment = {"XDG_DATA_HOME": "/x", "HALFMOON_DATA": "/data"}

    assert console_directory("/given", environment) == Path("/given/console")
    assert console_directory(None, environment) == Path("/data/console")
    assert console_directory(None, {"XDG_DATA_HOME": "/x"}) == Path("/x/halfmoon/console")
