"""Request codes of RocketMQ that no server here answers, each with the reason. Holds values only.

Names are those of RequestCode (RocketMQ 4.9.7 and 5.3.3). A server answers them with code 3 and the remark of the original,
followed by the reason unless the original has none either.
"""

from __future__ import annotations

from typing import NamedTuple


class RefusedRequest(NamedTuple):
    """Request that is refused on purpose."""

    name: str
    reason: str


NEVER = "RocketMQ declares it and answers it nowhere"
"""Reason for codes that 4.9 refuses as well: the remark is the original's."""

_BY_REASON = {
    NEVER: """
        13 QUERY_BROKER_OFFSET, 22 GET_TOPIC_CONFIG_LIST, 23 GET_TOPIC_NAME_LIST, 27 TRIGGER_DELETE_FILES, 47 GET_CLIENT_CONFIG,
        209 SUSPEND_CONSUMER, 210 RESUME_CONSUMER, 211 RESET_CONSUMER_OFFSET_IN_CONSUMER, 212 RESET_CONSUMER_OFFSET_IN_BROKER,
        213 ADJUST_CONSUMER_THREAD_POOL, 214 WHO_CONSUME_THE_MESSAGE, 301 REGISTER_FILTER_SERVER,
        302 REGISTER_MESSAGE_FILTER_CLASS""",
    "the store has one form, which is not RocksDB's": """
        354 CHECK_ROCKSDB_CQ_WRITE_PROGRESS, 355 EXPORT_ROCKSDB_CONFIG_TO_JSON""",
    "static topics are not supported: a topic's queues stay at their broker": """
        513 UPDATE_AND_CREATE_STATIC_TOPIC""",
    "one process is one broker": """
        902 ADD_BROKER, 903 REMOVE_BROKER""",
    "roles do not change while a broker runs": """
        905 NOTIFY_MIN_BROKER_ID_CHANGE, 906 EXCHANGE_BROKER_HA_INFO, 908 RESET_MASTER_FLUSH_OFFSET,
        1007 GET_BROKER_EPOCH_CACHE, 1008 NOTIFY_BROKER_ROLE_CHANGED""",
    "there is no controller": """
        1001 CONTROLLER_ALTER_SYNC_STATE_SET, 1002 CONTROLLER_ELECT_MASTER, 1003 CONTROLLER_REGISTER_BROKER,
        1004 CONTROLLER_GET_REPLICA_INFO, 1005 CONTROLLER_GET_METADATA_INFO, 1006 CONTROLLER_GET_SYNC_STATE_DATA,
        1009 UPDATE_CONTROLLER_CONFIG, 1010 GET_CONTROLLER_CONFIG, 1011 CLEAN_BROKER_DATA, 1012 CONTROLLER_GET_NEXT_BROKER_ID,
        1013 CONTROLLER_APPLY_BROKER_ID""",
    "nothing is read ahead, and reads of old messages slow down no others": """
        2001 UPDATE_COLD_DATA_FLOW_CTR_CONFIG, 2002 REMOVE_COLD_DATA_FLOW_CTR_CONFIG, 2003 GET_COLD_DATA_FLOW_CTR_INFO,
        2004 SET_COMMITLOG_READ_MODE""",
    "users and policies of 5.x are not supported": """
        3001 AUTH_CREATE_USER, 3002 AUTH_UPDATE_USER, 3003 AUTH_DELETE_USER, 3004 AUTH_GET_USER, 3005 AUTH_LIST_USER,
        3006 AUTH_CREATE_ACL, 3007 AUTH_UPDATE_ACL, 3008 AUTH_DELETE_ACL, 3009 AUTH_GET_ACL, 3010 AUTH_LIST_ACL""",
    "consumers pull; nobody pops": """
        200050 POP_MESSAGE, 200051 ACK_MESSAGE, 200052 PEEK_MESSAGE, 200053 CHANGE_MESSAGE_INVISIBLETIME, 200054 NOTIFICATION,
        200055 POLLING_INFO, 200056 POP_ROLLBACK, 200151 BATCH_ACK_MESSAGE""",
}

REFUSED: dict[int, RefusedRequest] = {}
"""Code → name and reason."""

for _reason, _lines in _BY_REASON.items():
    for _line in _lines.split(","):
        _code, _name = _line.split()
        REFUSED[int(_code)] = RefusedRequest(_name, _reason)
