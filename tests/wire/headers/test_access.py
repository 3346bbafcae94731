"""Requests that administer accounts, as they travel."""

from __future__ import annotations

from halfmoon.wire.headers.access import PlainAccessConfig, UpdateAndCreateAclConfig, UpdateGlobalWhiteAddrsConfig
from halfmoon.wire.json import to_json
from tests.wire.headers.fields import sent


def test_an_account_is_given_by_texts():
    header = UpdateAndCreateAclConfig(access_key="account1", secret_key="secret-1", topic_perms="a=PUB,b=SUB")
    assert sent(header) == {"accessKey": "account1", "secretKey": "secret-1", "admin": "false", "topicPerms": "a=PUB,b=SUB"}


def test_a_rotation_says_how_long_the_secret_so_far_is_kept():
    header = UpdateAndCreateAclConfig(access_key="account1", secret_key="secret-1", keep_previous_ms=5)
    assert sent(header) == {"accessKey": "account1", "secretKey": "secret-1", "admin": "false", "keepPreviousMs": "5"}


def test_white_addresses_name_a_file_of_the_broker():
    header = UpdateGlobalWhiteAddrsConfig(global_white_addrs="1.2.3.4", acl_file_full_path="/conf/acl/a.yml")
    assert sent(header) == {"globalWhiteAddrs": "1.2.3.4", "aclFileFullPath": "/conf/acl/a.yml"}


def test_an_account_does_not_show_its_secret_but_where_it_is_written():
    config = PlainAccessConfig(access_key="account1", secret_key="secret-1")
    assert "secret-1" not in repr(config)
    assert "secret-1" not in repr(UpdateAndCreateAclConfig(access_key="account1", secret_key="secret-1"))
    assert b'"secretKey":"secret-1"' in to_json(config)
