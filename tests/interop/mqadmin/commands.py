"""The calls of Apache's admin tool that are compared: good ones and refusals, in the order in which they are run.

Words in braces stand for what the scenario made, see `tests.interop.mqadmin.scenario`. A call that prints something else against
our servers is named in `DIFFERS`, with the reason for which we want it so, or in `OPEN`, with what is missing. Holds data only.
"""

from __future__ import annotations

import re
import shlex

CALLS = r"""
clusterList
clusterList -m
topicList
topicList -c
topicRoute -t {topic}
topicRoute -t {topic} -l
topicRoute -t Nowhere
topicRoute
topicRoute -z
help topicRoute
noSuchCommand
topicStatus -t {topic}
topicStatus -t Nowhere
topicClusterList -t {topic}
topicClusterList -t Nowhere
brokerStatus -b {broker}
brokerStatus -c {cluster}
brokerStatus -c Nowhere
getBrokerConfig -b {broker}
getBrokerConfig -c {cluster}
getBrokerConfig -c Nowhere
getNamesrvConfig
statsAll
statsAll -a
statsAll -t {topic}
statsAll -t Nowhere
exportMetadata -c {cluster} -f {home}
exportMetadata -b {broker} -t -f {home}
exportMetadata -b {broker} -g -f {home}
exportMetadata -c {cluster} -s -f {home}
exportMetadata -c Nowhere -f {home}
exportConfigs -c {cluster} -f {home}
exportConfigs -c Nowhere -f {home}
exportMetrics -c {cluster} -f {home}
exportMetrics -c Nowhere -f {home}
consumerConnection -g {group}
consumerConnection -g {group} -b {broker}
consumerConnection -g Nowhere
consumerProgress
consumerProgress -g {group}
consumerProgress -g {group} -s true
consumerProgress -g Nowhere
consumerStatus -g {group}
consumerStatus -g {group} -b {broker}
consumerStatus -g {group} -i {client}
consumerStatus -g {group} -i {client} -s
consumerStatus -g {group} -i nobody
consumerStatus -g Nowhere
producerConnection -g {producer} -t {topic}
producerConnection -g Nowhere -t {topic}
producer -b {broker}
producer
brokerConsumeStats -b {broker}
brokerConsumeStats -b {broker} -o true
brokerConsumeStats -b {broker} -l 5
updateTopic -b {broker} -t Made -r 3 -w 2
updateTopic -c {cluster} -t MadeOnCluster -r 4 -w 4 -p 6 -o true
updateTopic -c {cluster} -t MadeUnit -r 1 -w 1 -u true -s true
updateTopic -b {broker} -t "bad topic" -r 1 -w 1
updateTopic -b {broker} -t {long_name}
updateTopic -b {broker} -t TBW102
updateTopic -b {broker} -t SCHEDULE_TOPIC_XXXX
updateTopic -b {broker} -t Made -r x
updateTopic -b {broker}
updateTopic -c Nowhere -t Made
topicRoute -t MadeOnCluster
updateTopicPerm -b {broker} -t Made -p 4
updateTopicPerm -c {cluster} -t Made -p 2
updateTopicPerm -b {broker} -t Made -p 2
updateTopicPerm -b {broker} -t Made -p 9
updateTopicPerm -b {broker} -t Nowhere -p 6
topicRoute -t Made
updateOrderConf -t Made -m put -v broker-a:2
updateOrderConf -t Made -m get
topicRoute -t Made
updateOrderConf -t Made -m delete
updateOrderConf -t Made -m get
updateOrderConf -t Made -m bad
allocateMQ -t {topic} -i 10.0.0.1,10.0.0.2
allocateMQ -t Nowhere -i 10.0.0.1
updateSubGroup -b {broker} -g Grown -s true -m true -d false -q 2 -r 5 -i 0 -w 1 -a false
updateSubGroup -c {cluster} -g GrownOnCluster
updateSubGroup -b {broker} -g Grown -q x
updateSubGroup -b {broker} -g "bad group"
updateSubGroup -c Nowhere -g Grown
getConsumerConfig -g Grown
getConsumerConfig -g {group}
getConsumerConfig -g Nowhere
deleteSubGroup -b {broker} -g Grown
deleteSubGroup -c {cluster} -g GrownOnCluster -r true
deleteSubGroup -b {broker} -g Nowhere
deleteSubGroup -g Nowhere
setConsumeMode -g {group}
queryMsgById -i {offset_id}
queryMsgById -i {offset_id} -g {group} -d {client}
queryMsgById -i {offset_id} -g {group} -d nobody
queryMsgById -i {unknown_offset_id}
queryMsgById -i short
queryMsgByKey -t {topic} -k key-7
queryMsgByKey -t {topic} -k none
queryMsgByKey -t Nowhere -k none
queryMsgByUniqueKey -t {topic} -i {unique_id}
queryMsgByUniqueKey -t {topic} -i {unique_id} -a
queryMsgByUniqueKey -t {topic} -i {unique_id} -g {group} -d {client}
queryMsgByUniqueKey -t {topic} -i {unknown_unique_id}
queryMsgByOffset -t {topic} -b broker-a -i 1 -o 2
queryMsgByOffset -t {topic} -b broker-a -i 1 -o 99
queryMsgByOffset -t {topic} -b nowhere -i 1 -o 2
queryMsgTraceById -i {traced_id}
queryMsgTraceById -i {unknown_unique_id}
printMsg -t {topic} -d true
printMsg -t {topic} -s TagA -d true -c UTF-8
printMsg -t {topic} -b {future_ms} -e {future_ms}
printMsg -t {later} -d true
printMsg -t Nowhere
printMsgByQueue -t {topic} -a broker-a -i 0 -p true -d true
printMsgByQueue -t {topic} -a broker-a -i 0 -f true
printMsgByQueue -t {topic} -a broker-a -i 99 -f true
printMsgByQueue -t Nowhere -a broker-a -i 0 -p true
queryCq -b {broker} -t {topic} -q 0 -i 0 -c 2
queryCq -b {broker} -t {topic} -q 0 -i 0 -c 2 -g {group}
queryCq -b {broker} -t {topic} -q 0 -i 0 -c 2 -g Nowhere
queryCq -t {topic} -q 0 -i 0
queryCq -b {broker} -t {topic} -q 0 -i 99
queryCq -b {broker} -t {topic} -q 9 -i 0
queryCq -b {broker} -t Nowhere -q 0 -i 0
consumeMessage -t {topic} -c 3
consumeMessage -t {topic} -b broker-a -i 0 -o 1 -c 2 -g Looking
consumeMessage -t {topic} -b broker-a -i 9 -o 1 -c 2 -g Looking
consumeMessage -t {topic} -s {past_ms} -e {future_ms} -g Looking
consumeMessage -t Nowhere -c 1
sendMsgStatus -b broker-a -c 3
sendMsgStatus -b nowhere -c 1
sendMessage -t {topic} -p hello -b broker-a -i 1 -k sent -c TagB
sendMessage -t {topic} -p traced -b broker-a -i 1 -m true
sendMessage -t {topic} -p hello -b nowhere -i 1
sendMessage -t "bad topic" -p hello
sendMessage -t {topic}
queryMsgById -i {single_id} -s true
checkMsgSendRT -t {topic} -a 3 -s 16
checkMsgSendRT -t MadeBySend -a 3 -s 16
clusterRT -a 2 -s 16 -i 60
clusterRT -c Nowhere -a 2
resetOffsetByTime -g {offline} -t {topic} -s {past_ms}
resetOffsetByTime -g {group} -t {topic} -s bad
resetOffsetByTime -g Nowhere -t {topic} -s now
resetOffsetByTime -g {group} -t Nowhere -s now
resetOffsetByTime -g {group} -t {topic} -s now
skipAccumulatedMessage -g {offline} -t {topic}
skipAccumulatedMessage -g {group} -t {topic} -f true
skipAccumulatedMessage -g Nowhere -t {topic}
cloneGroupOffset -s {offline} -d {clone} -t {topic}
cloneGroupOffset -s {offline} -d {clone} -t {topic} -o true
cloneGroupOffset -s Nowhere -d {clone} -t {topic}
cloneGroupOffset -s {offline} -d {clone} -t Nowhere
wipeWritePerm -b broker-a
topicRoute -t {topic}
addWritePerm -b broker-a
topicRoute -t {topic}
wipeWritePerm -b nowhere
addWritePerm -b nowhere
updateBrokerConfig -b {broker} -k fileReservedTime -v 96
updateBrokerConfig -c {cluster} -k fileReservedTime -v 72
updateBrokerConfig -c Nowhere -k fileReservedTime -v 72
updateBrokerConfig -b {broker} -k noSuchKey -v 1
updateBrokerConfig -b {broker} -k fileReservedTime -v word
updateBrokerConfig -b {broker} -k maxMessageSize -v 4000000
updateBrokerConfig -b {broker} -k rocketmqHome -v /nowhere
updateNamesrvConfig -k orderMessageEnable -v true
updateNamesrvConfig -k noSuchKey -v 1
updateNamesrvConfig -k kvConfigPath -v /nowhere
updateKvConfig -s SPACE -k a -v b
deleteKvConfig -s SPACE -k a
deleteKvConfig -s SPACE -k a
cleanExpiredCQ -b {broker}
cleanExpiredCQ -c {cluster}
cleanExpiredCQ
cleanExpiredCQ -c Nowhere
cleanUnusedTopic -b {broker}
cleanUnusedTopic -c {cluster}
cleanUnusedTopic
deleteExpiredCommitLog -b {broker}
deleteExpiredCommitLog -c {cluster}
deleteExpiredCommitLog
clusterAclConfigVersion -b {broker}
getAclConfig -b {broker}
updateAclConfig -b {broker} -a account1 -s secret123
deleteAclConfig -b {broker} -a account1
updateGlobalWhiteAddr -b {broker} -g 10.10.10.10
deleteTopic -c {cluster} -t Made
deleteTopic -c {cluster} -t Nowhere
deleteTopic -c Nowhere -t Made
deleteTopic -c {cluster} -t TBW102
topicRoute -t Made
startMonitoring
"""

WITH_ACCOUNTS = r"""
operator: updateTopic -b {broker} -t Sold -r 1 -w 1
operator: updateTopic -b {broker} -t Read -r 1 -w 1
operator: clusterAclConfigVersion -b {broker}
operator: clusterAclConfigVersion -c {cluster}
operator: clusterAclConfigVersion -c Nowhere
operator: getAclConfig -b {broker}
operator: getAclConfig -c {cluster}
operator: updateAclConfig -b {broker} -a account1 -s secret-1 -t Sold=PUB,Read=SUB -g Shop=SUB -i DENY -u SUB -w 10.0.0.*
operator: getAclConfig -b {broker}
operator: updateAclConfig -b {broker} -a account1 -s secret-2 -m true
operator: updateAclConfig -c {cluster} -a account2 -s secret-3
operator: updateAclConfig -b {broker} -a account3 -s secret-3 -t Sold=SOMETIMES
operator: updateAclConfig -b {broker} -a short -s secret-4
operator: updateAclConfig -b {broker} -a account4 -s short
operator: updateAclConfig -b {broker} -a account5
operator: updateAclConfig -b {broker}
operator: getAclConfig -b {broker}
operator: deleteAclConfig -b {broker} -a account1
operator: deleteAclConfig -b {broker} -a nobody12
operator: deleteAclConfig -c {cluster} -a account2
operator: updateGlobalWhiteAddr -b {broker} -g 10.10.10.*,10.11.1.1
operator: updateGlobalWhiteAddr -c {cluster} -g 10.12.0.0
operator: getAclConfig -b {broker}
operator: clusterAclConfigVersion -b {broker}
operator: updateGlobalWhiteAddr -b {broker} -g word
operator: updateAclConfig -b {broker} -a account6 -s secret-6 -i SOMETIMES
operator: sendMessage -t Sold -p hello -b broker-a -i 0
shopkeeper: sendMessage -t Sold -p hello -b broker-a -i 0
shopkeeper: sendMessage -t Read -p hello -b broker-a -i 0
shopkeeper: consumeMessage -t Read -g Shop -c 1
shopkeeper: consumeMessage -t Sold -g Free -c 1
shopkeeper: updateTopic -b {broker} -t Mine -r 1 -w 1
shopkeeper: deleteTopic -c {cluster} -t Sold
shopkeeper: updateAclConfig -b {broker} -a account7 -s secret-7
shopkeeper: getAclConfig -b {broker}
shopkeeper: topicStatus -t Sold
stranger: sendMessage -t Sold -p hello -b broker-a -i 0
stranger: updateTopic -b {broker} -t Mine -r 1 -w 1
forger: sendMessage -t Sold -p hello -b broker-a -i 0
unsigned: sendMessage -t Sold -p hello -b broker-a -i 0
unsigned: updateTopic -b {broker} -t Mine -r 1 -w 1
unsigned: topicRoute -t Sold
"""
"""Calls to brokers that want accounts, each with the account that it is made with (`tests.interop.mqadmin.accounts`)."""


def _numbered(text: str) -> tuple[str, ...]:
    lines = [line for line in text.splitlines() if line]
    return tuple(f"{line}  #{lines[:i].count(line) + 1}" if lines[:i].count(line) else line for i, line in enumerate(lines))


OPEN_CALLS, SIGNED_CALLS = _numbered(CALLS), _numbered(WITH_ACCOUNTS)
NUMBERED = OPEN_CALLS + SIGNED_CALLS
"""The calls with the number of the repetition behind those that were made before: each is another name."""


def arguments(call: str) -> list[str]:
    """Return the words of a call, without its account and its number."""
    return shlex.split(re.sub(r"^\w+: |  #\d+$", "", call))


OPEN: dict[str, str] = {}
"""Call, or its beginning before a star → what our servers still lack."""

_OFF = "access control is off: ours says so, Apache's broker fails on a null or does not answer"
_CHECKED = "what can never be right is refused, not stored"
_SECRET = "no refusal repeats a secret"
_ADMINISTRATORS = "only an administrator sees or changes accounts; from Apache's broker every account gets all secrets"

DIFFERS: dict[str, str] = {
    "getBrokerConfig -b {broker}": "it has settings of its own, and those of RocketMQ that mean something here",
    "getBrokerConfig -c {cluster}": "it has settings of its own, and those of RocketMQ that mean something here",
    "getNamesrvConfig": "it has settings of its own, and those of RocketMQ that mean something here",
    'updateSubGroup -b {broker} -g "bad group"': "names of groups are checked, as by RocketMQ 5.x",
    "printMsg -t {later} *": "a delayed message is delivered without the property WAIT, which is for the broker alone",
    "updateBrokerConfig -b {broker} -k noSuchKey *": "a key that does not exist is refused, not accepted without effect",
    "updateBrokerConfig -b {broker} -k fileReservedTime -v word": "a value that does not fit is refused, not passed over",
    "updateBrokerConfig -b {broker} -k maxMessageSize *": "it can only be set at the start, and ours says so",
    "updateBrokerConfig -b {broker} -k rocketmqHome *": "paths cannot be changed from afar",
    "updateNamesrvConfig -k noSuchKey *": "a key that does not exist is refused, not accepted without effect",
    "clusterAclConfigVersion *": _OFF,
    "getAclConfig *": _OFF,
    "updateAclConfig *": _OFF,
    "deleteAclConfig *": _OFF,
    "updateGlobalWhiteAddr *": _OFF,
    "operator: updateAclConfig -b {broker} -a account3 *": "the refusal names file and line",
    "operator: updateAclConfig -b {broker} -a short *": _SECRET,
    "operator: updateAclConfig -b {broker} -a account4 *": _SECRET,
    "operator: updateAclConfig -b {broker} -a account6 *": _CHECKED,
    "operator: updateGlobalWhiteAddr -b {broker} -g word": _CHECKED,
    "operator: getAclConfig *": "secrets are masked",
    "shopkeeper: updateAclConfig *": _ADMINISTRATORS,
    "shopkeeper: getAclConfig *": _ADMINISTRATORS,
}
"""Call, or its beginning before a star → why ours prints something else on purpose."""


def mark(call: str) -> tuple[str, str]:
    """Return what is expected of a call: ``("same", "")``, ``("differs", reason)`` or ``("open", reason)``."""
    for name, reasons in (("open", OPEN), ("differs", DIFFERS)):
        for pattern, reason in reasons.items():
            if call in (pattern, pattern.removesuffix(" *")) or (pattern.endswith("*") and call.startswith(pattern[:-1])):
                return name, reason
    return "same", ""
