"""A setting that cannot work is refused where it is given, with the form that its value must have."""

from __future__ import annotations

import pytest

from halfmoon.errors import SettingError
from halfmoon.programs.configuration import BROKER, configuration


@pytest.mark.parametrize(
    "assignment",
    [
        *("deleteWhen=abc", "deleteWhen=25", "deleteWhen=04,05", 'regionId=a"b', "regionId=", "brokerName=a b/c"),
        *("brokerClusterName=a/b", "msgTraceTopicName=../x", "brokerName=" + "x" * 128),
    ],
)
def test_a_setting_that_cannot_work_is_refused(assignment):
    with pytest.raises(SettingError, match="must be"):
        configuration(BROKER, assignments=[assignment])


@pytest.mark.parametrize(
    "assignment",
    ["deleteWhen=04", "deleteWhen=4;16; 23", "regionId=eu-west.1", "brokerName=broker-a.host_1", "msgTraceTopicName=traces"],
)
def test_a_setting_that_works_is_taken(assignment):
    configuration(BROKER, assignments=[assignment])
