"""Generator of docs/mqadmin.md from tests/interop/mqadmin/result.json, which tests/interop/mqadmin writes with RECORD=1."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from tools.generated import write_or_check

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "mqadmin.md"
RESULT = ROOT / "tests" / "interop" / "mqadmin" / "result.json"

HEAD = """# Apache's admin tool with Halfmoon

Written by `tools/generate_mqadmin.py` from the result of `tests/interop/mqadmin`; a test says when it is stale.

`mqadmin` of RocketMQ 4.9.7 works with Halfmoon's name server and broker. Every command was run against Apache's servers (4.9.7) and
against Halfmoon's, each with the same topics, groups, messages, an online producer and an online consumer, with good arguments and
with wrong ones; and against brokers with access control, as an operator, as an account with few permissions, and as accounts that
are refused (the words before a colon below). {same} of {all} calls print the same, refusals included.

Not compared: times, message ids, addresses, rates, sizes of records, measured durations, the version, and the order of rows of a
hash table. Halfmoon's broker shows more runtime information (`brokerStatus`), and has four topics from the start that Apache's
broker creates on first use, or does not have: `RMQ_SYS_TRANS_HALF_TOPIC`, `RMQ_SYS_TRANS_OP_HALF_TOPIC`, `rmq_sys_wheel_timer`
and `rmq_sys_HALFMOON_BATCHES`.

| command | calls | print the same |
|---|---:|---:|
"""

NOT_THE_SAME = """
## Differences

| call | reason |
|---|---|
"""

Entry = dict[str, str]


def page(entries: list[Entry]) -> str:
    """Return the page for a recorded result."""
    commands: dict[str, list[Entry]] = {}
    for entry in entries:
        commands.setdefault(re.sub(r"^\w+: ", "", entry["call"]).split()[0], []).append(entry)
    same = sum(entry["result"] == "same" for entry in entries)
    rows = [
        f"| `{name}` | {len(calls)} | {_same(calls)} |\n"
        for name, calls in sorted(commands.items(), key=lambda row: row[0].lower())
    ]
    others = [f"| `{e['call']}` | {_why(e)} |\n" for e in entries if e["result"] != "same"]
    return HEAD.format(same=same, all=len(entries)) + "".join(rows) + (NOT_THE_SAME + "".join(others) if others else "")


def _same(calls: list[Entry]) -> str:
    count = sum(entry["result"] == "same" for entry in calls)
    return str(count) if count < len(calls) else "all"


def _why(entry: Entry) -> str:
    return f"**open**: {entry['reason']}" if entry["result"] == "open" else entry["reason"]


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(json.loads(RESULT.read_text())), sys.argv[1:]))
