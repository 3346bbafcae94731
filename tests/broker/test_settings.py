"""Bounds of the broker's settings."""

import pytest

from halfmoon.broker.settings import BrokerSettings
from halfmoon.errors import SettingError
from halfmoon.settings import check


@pytest.mark.parametrize("wrong", [{"port": 65_536}, {"broker_id": -1}, {"name": "a b"}, {"permission": 8}])
def test_a_value_out_of_its_bounds_is_refused_by_name(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        check(BrokerSettings(**wrong))
