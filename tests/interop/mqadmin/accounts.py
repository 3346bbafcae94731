"""The admin tool against brokers that want accounts: each call is signed with the account that it names, or with none."""

from __future__ import annotations

from pathlib import Path

from tests.interop.apache import Cluster
from tests.interop.java_peer import JavaPeer
from tests.interop.mqadmin.commands import SIGNED_CALLS
from tests.interop.mqadmin.scenario import run
from tests.interop.ours import Serve

SETTINGS = {"aclEnable": "true"}
SIGNED_AS = {
    "operator": ("operator", "secret of operator"),
    "shopkeeper": ("shopkeeper", "secret of shopkeeper"),
    "stranger": ("stranger", "secret of stranger"),
    "forger": ("operator", "not the secret"),
}
"""Who makes a call → access key and secret key. Others do not sign."""

RULES = """globalWhiteRemoteAddresses: []
accounts:
- accessKey: operator
  secretKey: secret of operator
  admin: true
- accessKey: shopkeeper
  secretKey: secret of shopkeeper
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - Sold=PUB
  - Read=SUB
  groupPerms:
  - Shop=DENY
"""


def prints(server: Serve | Cluster, home: Path) -> dict[str, list[str]]:
    """Start the server with the accounts, and return the masked lines that each call printed."""
    rules = (server.home if isinstance(server, Cluster) else server.data) / "conf" / "plain_acl.yml"
    rules.parent.mkdir(parents=True, exist_ok=True)
    rules.write_text(RULES)
    rules.chmod(0o600)
    home.mkdir(parents=True)
    peer = JavaPeer("4.9.7", home)
    try:
        server.start()
        names = {"broker": f"127.0.0.1:{server.broker_port}", "cluster": "DefaultCluster"}
        found = {}
        for call in SIGNED_CALLS:
            _sign_as(call.split(":")[0], home / "conf" / "tools.yml")
            found[call] = run(peer, server, call, names, {str(rules.parent): "<conf>", str(home): "<home>"})
        return found
    except RuntimeError as exc:  # the server does not start: no call prints what it should
        return {call: [str(exc).splitlines()[0]] for call in SIGNED_CALLS}
    finally:
        peer.stop()
        server.kill()


def _sign_as(who: str, file: Path) -> None:
    """Write the file in which the tool looks for its account at each call."""
    file.unlink(missing_ok=True)
    if who in SIGNED_AS:
        file.write_text("accessKey: {}\nsecretKey: {}\n".format(*SIGNED_AS[who]))
