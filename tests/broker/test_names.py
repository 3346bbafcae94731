"""Names of topics and groups: which are legal, and which belong to the system."""

import pytest

from halfmoon.broker.names import check_group, check_topic, dead_letter_topic, is_system_topic, retry_topic
from halfmoon.errors import BrokerError


@pytest.mark.parametrize("name", ["T", "%RETRY%G", "a|b-c_9", "x" * 127])
def test_legal_names_pass(name):
    check_topic(name)
    check_group(name)


@pytest.mark.parametrize("name", ["", "  ", "a b", "\xe9", "T\n", "x" * 256])
def test_other_names_are_refused(name):
    for check in (check_topic, check_group):
        with pytest.raises(BrokerError):
            check(name)


def test_system_topics_are_those_of_the_table_and_those_with_the_prefix():
    assert is_system_topic("TRANS_CHECK_MAX_TIME_TOPIC")
    assert is_system_topic("rmq_sys_anything")
    assert not is_system_topic("orders")
    assert (retry_topic("G"), dead_letter_topic("G")) == ("%RETRY%G", "%DLQ%G")
