"""What of a print of the admin tool is not compared: times, ids, addresses, rates, measured sizes and durations. Never waits."""

from __future__ import annotations

import re
from collections.abc import Mapping

_PATTERNS = tuple(
    (re.compile(pattern, re.MULTILINE), to)
    for pattern, to in (
        (r", org\.apache\.rocketmq\.acl[\w.$]+\(\w+\.java:\d+\)", ""),  # its refusals say where in its code they come from
        (r"^\s+at [\w.$/]+.*\n", ""),  # the tool's own places in a stack trace
        (r"^\s+\.\.\. \d+ more\n", ""),
        (
            r"^.*( *TID: \d+ STATE: .*|\(\w+\.java:\d+\)|\(Native Method\)|\(Unknown Source\)|/0x[0-9a-f]+\.\w+\(.*)$\n",
            "",
        ),  # stacks
        (r"\b(MSG_REGION|TRACE_ON)=\w+, |, (MSG_REGION|TRACE_ON)=\w+", ""),  # stored with each message from 5.x on, and by ours
        (r"[0-9A-F]{32,56}", "<id>"),
        (r"@[0-9a-f]{1,8}\b", "@<hash>"),  # Java prints no leading zeros
        (r"\$\$Lambda\$\d+/0x[0-9a-f]+", "<lambda>"),
        (r"\b20\d{12}(\d{3})?\b", "<time>"),
        (r"(spentTimeMills=|\"counter\": )\d+", r"\1<n>"),
        (r"\b127\.0\.0\.1:\d+", "<address>"),
        (r"\b(\d{1,3}\.){3}\d{1,3}\b", "<host>"),
        (r"\d{4}-\d\d-\d\d[ #]\d\d:\d\d:\d\d([:,.]\d{3})?", "<time>"),
        (r"\b1[78]\d{11}\b", "<ms>"),
        (r"\b\d+ ?\(?ms\b", "<n>ms"),
        (r"V4_9_\d", "V<version>"),
        (r"\b((storeSize|commitLogOffset|physicOffset|physicSize)=|(CommitLog Offset|Store Size): *)\d+", r"\1<n>"),
        (r"\d+\.\d+(E-?\d+)?", "<n>"),
        (r"<n>( <n>)+", "<n>"),  # rates of three windows, of which Apache leaves out those that it is too young for
    )
)

_LINES: Mapping[str, tuple[str, str]] = {
    "checkMsgSendRT": (r"(true|false) +\d+$", r"\1 <n>"),
    "brokerStatus": (
        r"(bootTimestamp|runtime|brokerVersion|.*DirCapacity|.*TimeMax|.*DistributeTime|remainHowManyDataToFlush|.*Behind\w+"
        r"|msgPutTotalTodayNow|putMessageTimesTotal|dispatchMaxBuffer|earliestMessageTimeStamp|commitLogMaxOffset|putMessageSizeTotal|pageCacheLock\w+"
        r"|.*HeadWaitTimeMills|.*QueueSize|.*QueueCapacity) *: .*$",
        r"\1: <n>",
    ),
    "consumerProgress": (r"(OFFLINE|BROADCASTING|CLUSTERING) \d+ (\d+)$", r"\1 <n> \2"),
    "wipeWritePerm": (r"OK, \d+$", "OK, <n>"),
    "addWritePerm": (r"OK, \d+$", "OK, <n>"),
    "clusterList": (r"^(\S+ broker-a \d+ \d+) \d+ (\d+)$", r"\1 <n> \2"),
    "statsAll": (r"(?<=^RMQ_SYS_TRACE_TOPIC 0 <n>) \d+", " <n>"),
}
"""Command → what else differs in its lines from run to run: how many messages hold the traces is left to chance, too."""


_UNORDERED = ("topicList", "statsAll", "producer")
"""Commands that print in the order of a hash table, which depends on its size and its history."""
_OWN_TOPICS = re.compile(r"(\S+ +)?(RMQ_SYS_TRANS_(OP_)?HALF_TOPIC|rmq_sys_HALFMOON_BATCHES|rmq_sys_wheel_timer)\b")
"""Topics that Apache's broker makes when they are first needed, or does not have."""
_OURS = re.compile(
    r"(<broker> +)?(acl\w+|batch\w+|transactions\w+|nativeVersion|requestsRefused|getTransferredTps"
    r"|brokerFaults|copiesEpochs|pairState|pairEpoch) *:"
)
"""Runtime information that only ours has."""


_ITSELF = re.compile(r"producer group .*clientId=<host>@<ms>,")
"""The tool among the producers, where it took more than the second after which it says that it is there."""


def masked(command: str, printed: str, names: Mapping[str, str]) -> list[str]:
    """Return the lines of a print, blanks joined, with the scenario's names (text → name) and all else that varies masked."""
    for text, name in sorted(names.items(), key=lambda pair: -len(pair[0])):
        printed = printed.replace(text, name)
    for pattern, to in _PATTERNS:
        printed = pattern.sub(to, printed)
    lines = [" ".join(line.split()) for line in printed.splitlines() if line.strip() and not _OURS.match(line)]
    varies, to = _LINES.get(command, ("$^", ""))
    lines = [re.sub(varies, to, line) for line in lines if not _OWN_TOPICS.match(line) and not _ITSELF.match(line)]
    return sorted(lines) if command in _UNORDERED else lines
