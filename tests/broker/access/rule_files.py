"""Rule files for tests: accounts of several kinds, and a broker that goes by them."""

from __future__ import annotations

from pathlib import Path

from halfmoon.wire.signature import Credentials

USER, ADMIN = Credentials("RocketMQ", "12345678"), Credentials("rocketmq2", "87654321")

RULES = """
globalWhiteRemoteAddresses:
- 10.10.103.*
accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  - topicC=SUB
  groupPerms:
  - groupA=DENY
  - groupB=PUB|SUB
- accessKey: rocketmq2
  secretKey: 87654321
  whiteRemoteAddress: 192.168.1.*
  admin: true
"""


def write(root: Path, text: str = RULES, name: str = "plain_acl.yml") -> Path:
    """Write a file of rules into a data directory."""
    path = root / "conf" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
    return path
