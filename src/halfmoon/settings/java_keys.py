"""Configuration keys of RocketMQ that mean nothing here, each with its reason, so that a ``broker.conf`` can be used as it is.

A key that a settings class declares is never looked up here. Names are those of BrokerConfig, MessageStoreConfig,
NettyServerConfig, NettyClientConfig and NamesrvConfig (RocketMQ 4.9.7 and 5.3.3). Holds values only.
"""

from __future__ import annotations

_REASONS = {
    "one loop handles all requests a turn at a time: there are no thread pools and no queues between them": """
        sendMessageThreadPoolNums putMessageFutureThreadPoolNums pullMessageThreadPoolNums litePullMessageThreadPoolNums
        ackMessageThreadPoolNums processReplyMessageThreadPoolNums queryMessageThreadPoolNums adminBrokerThreadPoolNums
        clientManageThreadPoolNums consumerManageThreadPoolNums loadBalanceProcessorThreadPoolNums heartbeatThreadPoolNums
        recoverThreadPoolNums endTransactionThreadPoolNums sendThreadPoolQueueCapacity putThreadPoolQueueCapacity
        pullThreadPoolQueueCapacity litePullThreadPoolQueueCapacity ackThreadPoolQueueCapacity replyThreadPoolQueueCapacity
        queryThreadPoolQueueCapacity clientManagerThreadPoolQueueCapacity consumerManagerThreadPoolQueueCapacity
        heartbeatThreadPoolQueueCapacity endTransactionPoolQueueCapacity adminBrokerThreadPoolQueueCapacity
        loadBalanceThreadPoolQueueCapacity brokerFastFailureEnable waitTimeMillsInSendQueue waitTimeMillsInPullQueue
        waitTimeMillsInLitePullQueue waitTimeMillsInHeartbeatQueue waitTimeMillsInTransactionQueue waitTimeMillsInAckQueue
        waitTimeMillsInAdminBrokerQueue clientRequestThreadPoolNums defaultThreadPoolNums clientRequestThreadPoolQueueCapacity
        defaultThreadPoolQueueCapacity unRegisterBrokerQueueCapacity asyncSendEnable enableFastChannelEventProcess
        recoverConcurrently dispatchCqThreads dispatchCqCacheNum enableAsyncReput enableBuildConsumeQueueConcurrently
        batchDispatchRequestThreadPoolNums dispatchFromSenderThread""",
    "sockets are run by the event loop, with bounds of their own": """
        serverWorkerThreads serverCallbackExecutorThreads serverSelectorThreads serverOnewaySemaphoreValue
        serverAsyncSemaphoreValue serverChannelMaxIdleTimeSeconds serverSocketSndBufSize serverSocketRcvBufSize
        writeBufferHighWaterMark writeBufferLowWaterMark serverSocketBacklog serverNettyWorkerGroupEnable
        serverPooledByteBufAllocatorEnable useEpollNativeSelector enableShutdownGracefully shutdownWaitTimeSeconds
        clientWorkerThreads clientOnewaySemaphoreValue clientAsyncSemaphoreValue
        connectTimeoutMillis channelNotActiveInterval isScanAvailableNameSrv scanAvailableNameSrv clientChannelMaxIdleTimeSeconds
        clientSocketSndBufSize clientSocketRcvBufSize clientPooledByteBufAllocatorEnable clientCloseSocketIfTimeout
        socksProxyConfig disableCallbackExecutor disableNettyWorkerGroup maxReconnectIntervalTimeSeconds
        enableReconnectForGoAway transferMsgByHeap printChannelGroups printChannelGroupsMinNum""",
    "the address to listen on is given by --host": "bindAddress",
    "the directory is given by --data": """
        storePathDLedgerCommitLog storePathEpochFile storePathBrokerIdentity readOnlyCommitLogStorePaths rocketmqHome kvConfigPath
        configStorePath brokerConfigPath""",
    "the store is one directory, and this is its place in it": """
        storePathCommitLog storePathConsumeQueue storePathIndex storeCheckpoint abortFile""",
    "the log is written by one writer, a turn at a time, into files made ready before": """
        useReentrantLockWhenPutMessage spinLockCollisionRetreatOptimalDegree useABSLock topicQueueLockNum
        osPageCacheBusyTimeOutMills warmMapedFileEnable flushLeastPagesWhenWarmMapedFile transientStorePoolEnable
        transientStorePoolSize fastFailIfNoBufferInStorePool commitIntervalCommitLog commitCommitLogLeastPages
        commitCommitLogThoroughInterval maxAsyncPutMessageRequests wakeCommitWhenPutMessage wakeFlushWhenPutMessage
        putMessageTimeout putConsumeQueueDataByFileChannel debugLockEnable""",
    "a sync covers everything that was written, whenever it comes": """
        flushCommitLogTimed flushCommitLogLeastPages flushConsumeQueueLeastPages flushCommitLogThoroughInterval
        flushConsumeQueueThoroughInterval""",
    "every record is checked whole, always": "checkCRCOnRecover forceVerifyPropCRC",
    "the store chooses it": """
        deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval destroyMapedFileIntervalForcibly redeleteHangedFileInterval
        putMsgIndexHightWater messageIndexSafe diskFallRecorded maxRecoveryCommitlogFiles maxBatchDeleteFilesNum
        recheckReputOffsetFromCq travelCqFileNumWhenGetMessage correctLogicMinOffsetSleepInterval
        correctLogicMinOffsetForceInterval mappedFileSwapEnable commitLogForceSwapMapInterval commitLogSwapMapInterval
        commitLogSwapMapReserveFileNum logicQueueForceSwapMapInterval logicQueueSwapMapInterval cleanSwapedMapInterval
        logicQueueSwapMapReserveFileNum searchBcqByCacheEnable enableCleanExpiredOffset pullBatchMaxMessageCount maxChecksumRange
        replicasPerDiskPartition logicalDiskSpaceCleanForciblyThreshold maxConsumeQueueScan sampleCountThreshold sampleSteps
        maxFilterMessageSize maxTopicLength accessMessageInMemoryHotRatio bitMapLengthConsumeQueueExt
        maxErrorRateOfBloomFilter expectConsumerNumUseFilter
        mappedFileSizeConsumeQueueExt mapperFileSizeBatchConsumeQueue cleanRocksDBDirtyCQIntervalMin statRocksDBCQIntervalSec
        memTableFlushIntervalMs realTimePersistRocksDBConfig enableRocksDBLog rocksdbCQDoubleWriteEnable
        bottomMostCompressionTypeForConsumeQueueStore rocksdbCompressionType rocksdbFlushWalFrequency
        rocksdbWalFileRollingThreshold readUnCommitted enabledAppendPropCRC configManagerVersion""",
    "a pair of Halfmoon fails over by a lease (--lease), without these": """
        haMaxGapNotInSync offsetCheckInSlave totalReplicas minInSyncReplicas
        allAckInSyncStateSet enableAutoInSyncReplicas haFlowControlEnable maxHaTransferByteInSecond haMaxTimeSlaveNotCatchup
        syncMasterFlushOffsetWhenStartup maxSlaveResendLength syncFromLastFile asyncLearner dLegerGroup dLegerPeers dLegerSelfId
        preferredLeaderId isEnableBatchPush enableBatchPush enableSlaveActingMaster enableRemoteEscape skipPreOnline
        syncBrokerMemberGroupPeriod brokerHeartbeatInterval brokerNotActiveTimeoutMillis sendHeartbeatTimeoutMillis
        compatibleWithOldNameSrv controllerAddr fetchControllerAddrByDnsLookup syncBrokerMetadataPeriod checkSyncStateSetPeriod
        syncControllerMetadataPeriod controllerHeartBeatTimeoutMills brokerElectionPriority supportActingMaster
        notifyMinBrokerIdChanged enableControllerInNamesrv""",
    "delayed messages are delivered to the millisecond, a part a turn, and their progress is kept at once": """
        flushDelayOffsetInterval enableScheduleMessageStats enableScheduleAsyncDeliver
        scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked maxDelayTime delayOffsetUpdateVersionStep
        mappedFileSizeTimerLog timerPrecisionMs timerRollWindowSlot timerFlushIntervalMs timerGetMessageThreadNum
        timerPutMessageThreadNum timerEnableDisruptor timerEnableCheckMetrics timerInterceptDelayLevel
        disappearTimeAfterStart timerStopEnqueue timerCheckMetricsWhen timerSkipUnknownError timerWarmEnable
        timerStopDequeue timerEnableRetryUntilSuccess timerCongestNumEachSlot timerMetricSmallThreshold
        timerProgressLogIntervalMs timerColdDataCheckIntervalMs allowRecallWhenBrokerNotWriteable""",
    "decisions are counted by the broker itself and written at once": """
        transactionMetricFlushInterval transactionOpMsgMaxSize transactionOpBatchInterval""",
    "the pop family is not built yet": """
        popPollingSize popPollingMapSize maxPopPollingSize reviveQueueNum reviveInterval reviveMaxSlow reviveScanTime
        enableSkipLongAwaitingAck reviveAckWaitMs enablePopLog enablePopBufferMerge popCkStayBufferTime popCkStayBufferTimeOut
        popCkMaxBufferSize popCkOffsetMaxQueueSize enablePopBatchAck popLongPollingForceNotifyInterval
        enableNotifyBeforePopCalculateLag enableNotifyAfterPopOrderLockRelease initPopOffsetByCheckMsgInMem
        retrieveMessageFromPopRetryTopicV1 enableRetryTopicV2 popFromRetryProbability popConsumerFSServiceInit
        popConsumerKVServiceLog popConsumerKVServiceInit popConsumerKVServiceEnable popReviveMaxReturnSizePerRead
        popReviveMaxAttemptTimes popResponseReturnActualRetryTopic popInflightMessageThreshold enablePopMessageThreshold
        defaultMessageRequestMode defaultPopShareQueueNum serverLoadBalancerEnable loadBalancePollNameServerInterval
        cleanOfflineBrokerInterval skipWhenCKRePutReachMaxTimes appendAckAsync appendCkAsync""",
    "filters go with the consumers that subscribed them": "filterDataCleanTimeSpan",
    "filters by a class of the consumer's are not supported": "filterServerNums",
    "RocketMQ itself uses it for Alibaba's commercial service only, or not at all": """
        highSpeedMode commercialEnable commercialTimerCount commercialTransCount commercialBigCount commercialBaseCount
        commercialSizePerMsg isolateLogEnable productEnvName clusterTest enableLmqStats enableLmq enableMultiDispatch
        maxLmqConsumeQueueNum enableCreateSysGroup enableRegisterProducer""",
    "statistics are always kept and bounded": """
        enableDetailStat autoDeleteUnusedStats accountStatsEnable accountStatsPrintZeroValues maxStatsIdleTimeInMinutes
        estimateAccumulation metricsExporterType metricsOtelCardinalityLimit metricsGrpcExporterTarget metricsGrpcExporterHeader
        metricGrpcExporterTimeOutInMills metricGrpcExporterIntervalInMills metricLoggingExporterIntervalInMills
        metricsPromExporterPort metricsPromExporterHost metricsLabel metricsInDelta""",
    "name servers are given as a list of addresses": """
        fetchNamesrvAddrByAddressServer fetchNameSrvAddrByDnsLookup fetchNamesrvAddrInterval updateNameServerAddrPeriod""",
    "not built; the broker behaves as with RocketMQ's default": """
        messageStorePlugIn disableConsumeIfConsumerReadSlowly consumerFallbehindThreshold
        flushConsumerOffsetHistoryInterval realTimeNotifyConsumerChange
        enableNetWorkFlowControl enableBroadcastOffsetStore broadcastOffsetExpireSecond
        broadcastOffsetExpireMaxSecond litePullMessageEnable forwardTimeout useServerSideResetOffset
        consumerOffsetUpdateVersionStep lockInStrictMode validateSystemTopicWhenUpdateTopic useStaticSubscription
        subscriptionExpiredTimeout coldCtrStrategyEnable usePIDColdCtrStrategy cgColdReadThreshold globalColdReadThreshold
        coldDataFlowControlEnable coldDataScanEnable dataReadAheadEnable enableSingleTopicRegister enableMixedMessageType
        enableSplitRegistration splitRegistrationSize configBlackList clearRetryTopicWhenDeleteTopic autoMessageVersionOnTopicLen
        compactionMappedFileSize compactionCqMappedFileSize compactionScheduleInternal maxOffsetMapSize compactionThreadNum
        enableCompaction returnOrderTopicConfigToBroker enableTopicList deleteTopicWithBrokerRegistration""",
}

IGNORED: dict[str, str] = {key: reason for reason, keys in _REASONS.items() for key in keys.split()}
"""Key → why it has no effect."""

PLACES = {
    "storePathCommitLog": "commitlog", "storePathConsumeQueue": "consumequeue", "storePathIndex": "index",
    "storeCheckpoint": "checkpoint", "abortFile": "abort",
}  # fmt: skip
"""Key → where it is inside ``storePathRootDir``. Another place is refused by whoever knows the directory."""

REFUSED: dict[str, tuple[frozenset[str], str]] = {
    "enableDLegerCommitLog": (frozenset({"false"}), "replication by log consensus is not built"),
    "enableControllerMode": (frozenset({"false"}), "replication by a controller is not built"),
    "duplicationEnable": (frozenset({"false"}), "a pair of Halfmoon is made by a lease (--lease)"),
    "storeType": (frozenset({"default"}), "the store has one form"),
    "enableConsumeQueueExt": (frozenset({"false"}), "extended queue entries are not built"),
}
"""Key → values (lower case) that change nothing here, and why any other is an error: ignoring it would break a promise."""
