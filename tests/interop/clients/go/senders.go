package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// Producers by group, with the load of each.
var producers = map[string]rocketmq.Producer{}
var loads = map[string]*steadyLoad{}

var statuses = map[primitive.SendStatus]string{
	primitive.SendOK:                "SEND_OK",
	primitive.SendFlushDiskTimeout:  "FLUSH_DISK_TIMEOUT",
	primitive.SendFlushSlaveTimeout: "FLUSH_SLAVE_TIMEOUT",
	primitive.SendSlaveNotAvailable: "SLAVE_NOT_AVAILABLE",
}

func options(given order) []producer.Option {
	found := []producer.Option{
		producer.WithGroupName(given.Group),
		producer.WithNameServer(primitive.NamesrvAddr{given.Nameserver}),
		producer.WithInstanceName("producer-" + given.Group),
		producer.WithQueueSelector(producer.NewHashQueueSelector()),
		producer.WithRetry(2),
		producer.WithNamespace(given.Namespace),
	}
	if given.AccessKey != "" {
		found = append(found, producer.WithCredentials(primitive.Credentials{AccessKey: given.AccessKey, SecretKey: given.SecretKey}))
	}
	if given.Trace {
		found = append(found, producer.WithTrace(tracing(given)))
	}
	return found
}

func tracing(given order) *primitive.TraceConfig {
	at := primitive.NamesrvAddr{given.Nameserver}
	return &primitive.TraceConfig{Access: primitive.Local, NamesrvAddrs: at, Resolver: primitive.NewPassthroughResolver(at)}
}

func startProducer(given order) (any, error) {
	made, err := rocketmq.NewProducer(options(given)...)
	if err != nil {
		return nil, err
	}
	producers[given.Group] = made
	return true, made.Start()
}

func stopProducer(given order) (any, error) {
	made := producers[given.Group]
	delete(producers, given.Group)
	return true, made.Shutdown()
}

func message(given order, number int) *primitive.Message {
	numbered := func(text string) string { return strings.ReplaceAll(text, "{n}", fmt.Sprint(number)) }
	made := primitive.NewMessage(given.Topic, []byte(numbered(given.Body)))
	made.WithTag(given.Tag)
	if given.Keys != "" {
		made.WithKeys(strings.Split(numbered(given.Keys), " "))
	}
	if given.ShardingKey != "" {
		made.WithShardingKey(given.ShardingKey)
	}
	if given.Level != 0 {
		made.WithDelayTimeLevel(given.Level)
	}
	for name, value := range given.Properties {
		made.WithProperty(name, value)
	}
	return made
}

func sent(result *primitive.SendResult) facts {
	return facts{
		"status": statuses[result.Status], "msg_id": result.MsgID, "offset_msg_id": result.OffsetMsgID,
		"queue_id": result.MessageQueue.QueueId, "broker_name": result.MessageQueue.BrokerName, "queue_offset": result.QueueOffset,
	}
}

func send(given order) (any, error) {
	results := []facts{}
	for i := 0; i < max(1, given.Count); i++ {
		result, err := producers[given.Group].SendSync(context.Background(), message(given, i))
		if err != nil {
			return nil, err
		}
		results = append(results, sent(result))
	}
	return results, nil
}

func sendBatch(given order) (any, error) {
	var messages []*primitive.Message
	for i := 0; i < given.Count; i++ {
		messages = append(messages, message(given, i))
	}
	result, err := producers[given.Group].SendSync(context.Background(), messages...)
	if err != nil {
		return nil, err
	}
	return sent(result), nil
}

// request sends a request and answers with what the replier said.
func request(given order) (any, error) {
	timeout := time.Duration(given.TimeoutMs) * time.Millisecond
	answer, err := producers[given.Group].Request(context.Background(), timeout, message(given, 0))
	if err != nil {
		return nil, err
	}
	return string(answer.Body), nil
}

// steadyLoad sends one message after another until told to stop; what fails is tried again as a new message.
type steadyLoad struct {
	lock         sync.Mutex
	acknowledged map[string]facts
	failed       int
	longest      time.Duration // between two that were acknowledged
	stop, done   chan struct{}
}

func load(given order) (any, error) {
	running := &steadyLoad{acknowledged: map[string]facts{}, stop: make(chan struct{}), done: make(chan struct{})}
	loads[given.Group] = running
	go running.run(given, producers[given.Group])
	return true, nil
}

func (l *steadyLoad) run(given order, with rocketmq.Producer) {
	defer close(l.done)
	last := time.Now()
	for i := 0; ; i++ {
		time.Sleep(time.Duration(given.PauseMs) * time.Millisecond)
		select {
		case <-l.stop:
			return
		default:
		}
		made := message(given, i)
		result, err := with.SendSync(context.Background(), made)
		l.lock.Lock()
		if err == nil && result.Status == primitive.SendOK {
			l.acknowledged[string(made.Body)] = sent(result)
			l.longest = max(l.longest, time.Since(last))
			last = time.Now()
		} else {
			l.failed++
		}
		l.lock.Unlock()
		if err != nil {
			time.Sleep(20 * time.Millisecond)
		}
	}
}

func loadCount(given order) (any, error) {
	running := loads[given.Group]
	running.lock.Lock()
	defer running.lock.Unlock()
	return len(running.acknowledged), nil
}

func loadStop(given order) (any, error) {
	running := loads[given.Group]
	close(running.stop)
	<-running.done
	longestMs := running.longest.Milliseconds()
	return facts{"acknowledged": running.acknowledged, "failed": running.failed, "longest_ms": longestMs}, nil
}
