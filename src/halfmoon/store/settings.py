"""Settings of the store. The sizes of files are part of the format: an existing directory keeps them."""

from __future__ import annotations

from dataclasses import dataclass

from halfmoon.settings import forms, setting

ASYNC_FLUSH, SYNC_FLUSH = "ASYNC_FLUSH", "SYNC_FLUSH"


@dataclass(frozen=True, kw_only=True)
class StoreSettings:
    """Settings of one store. Java keys are RocketMQ's own."""

    data: str = setting(
        "", java="storePathRootDir", form=forms.PATH,
        why="Directory of the store, as set by --data; empty: halfmoon in the user's data directory.",
    )  # fmt: skip
    flush_disk_type: str = setting(
        ASYNC_FLUSH,
        java="flushDiskType",
        choices=(ASYNC_FLUSH, SYNC_FLUSH),
        why="SYNC_FLUSH answers a send once the message is on the device; ASYNC_FLUSH answers before.",
    )
    commit_log_file_bytes: int = setting(
        1024**3,
        java="mappedFileSizeCommitLog",
        low=4096,
        high=2**31 - 1,
        why="Size of a log file. Part of the format: an existing directory keeps its size.",
    )
    queue_file_bytes: int = setting(
        6_000_000,
        java="mappedFileSizeConsumeQueue",
        low=20,
        high=2**31 - 8,
        why="Size of a consume queue file: 300,000 entries of 20 bytes. Part of the format.",
    )
    hash_slots: int = setting(
        5_000_000, java="maxHashSlotNum", low=1, high=2**31 - 1, why="Hash slots of a key index file. Part of the format."
    )
    index_entries_max: int = setting(
        20_000_000, java="maxIndexNum", low=2, high=2**31 - 1, why="Entries of a key index file. Part of the format."
    )
    message_index_enable: bool = setting(
        True, java="messageIndexEnable", why="Index messages by key. Without it they cannot be queried by key."
    )
    message_bytes_max: int = setting(
        4 * 1024**2,
        java="maxMessageSize",
        agreed=True,
        low=1,
        high=2**31 - 2**17,
        why="Longest body of a message; its record may be 64 KiB longer.",
    )
    flush_log_interval_ms: int = setting(
        500, java="flushIntervalCommitLog", low=1, high=60_000, why="Longest time a message stays unsynced with ASYNC_FLUSH."
    )
    flush_queue_interval_ms: int = setting(
        1000,
        java="flushIntervalConsumeQueue",
        low=1,
        high=60_000,
        why="How often consume queues are synced and the checkpoint advances.",
    )
    transaction_file_records: int = setting(
        2_000_000,
        low=16,
        high=80_000_000,
        why="Half messages per file of the transaction state table. After a change the table is rebuilt.",
    )
    flush_transactions_interval_ms: int = setting(
        1000,
        low=1,
        high=600_000,
        why="How often the transaction state table is synced. After a kill about this much of the log is read again.",
    )
    readable_by: str = setting(
        "owner",
        choices=("owner", "group", "all"),
        why="Readers of new files in the data directory (0600 in 0700, 0640 in 0750, 0644 in 0755), regardless of the umask; "
        "existing files keep their modes.",
    )
    delete_when: str = setting(
        "04", java="deleteWhen", form=forms.HOURS, why="Hours of the day (UTC, separated by ;) when expired files are deleted."
    )
    file_reserved_hours: int = setting(
        72, java="fileReservedTime", low=0, high=1_000_000, why="How long a log file is kept after its last write, in hours."
    )
    clean_interval_ms: int = setting(
        10_000,
        java="cleanResourceInterval",
        low=100,
        high=3_600_000,
        why="How often the broker looks for expired files and at the disk space.",
    )
    delete_batch_max: int = setting(10, java="deleteFileBatchMax", low=1, high=1000, why="Log files deleted in one round.")
    disk_used_ratio_max: int = setting(
        75,
        java="diskMaxUsedSpaceRatio",
        low=10,
        high=95,
        why="Disk usage in percent above which expired files are deleted at any hour.",
    )
    clean_forcibly_enable: bool = setting(
        True, java="cleanFileForciblyEnable", why="Delete files before they expire when disk usage is above the forcible ratio."
    )
    disk_clean_forcibly_ratio: int = setting(
        85,
        java="diskSpaceCleanForciblyRatio",
        low=10,
        high=99,
        why="Disk usage in percent above which files are deleted regardless of age.",
    )
    disk_warning_ratio: int = setting(
        90, java="diskSpaceWarningLevelRatio", low=10, high=100, why="Disk usage in percent above which sends are refused."
    )
    memory_bytes: int = setting(
        0, why="Memory of the machine, to decide which messages are read from disk; 0: 8 GiB.", low=0, high=2**60
    )
    access_in_memory_ratio: int = setting(
        40,
        java="accessMessageInMemoryMaxRatio",
        low=1,
        high=95,
        why="Share of memory, in percent, that is assumed to hold the newest messages.",
    )
    transfer_count_in_memory: int = setting(
        32, java="maxTransferCountOnMessageInMemory", low=1, high=65_536, why="Most messages of one pull from memory."
    )
    transfer_bytes_in_memory: int = setting(
        262_144, java="maxTransferBytesOnMessageInMemory", low=1, high=2**30, why="Most bytes of one pull from memory."
    )
    transfer_count_on_disk: int = setting(
        8, java="maxTransferCountOnMessageInDisk", low=1, high=65_536, why="Most messages of one pull from disk."
    )
    transfer_bytes_on_disk: int = setting(
        65_536, java="maxTransferBytesOnMessageInDisk", low=1, high=2**30, why="Most bytes of one pull from disk."
    )
    scan_entries_max: int = setting(
        16_000, low=32, high=10_000_000, why="Queue entries that one pull with a filter examines: about a millisecond of work."
    )
    query_count_max: int = setting(64, java="maxMsgsNumBatch", low=1, high=4096, why="Most messages of one query by key.")

    @property
    def sync_flush(self) -> bool:
        """Whether messages are visible and answered only once durable."""
        return self.flush_disk_type == SYNC_FLUSH
