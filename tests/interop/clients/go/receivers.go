package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// receiver is a push consumer. What it receives is kept until it is asked for.
type receiver struct {
	consumer rocketmq.PushConsumer
	lock     sync.Mutex
	received []facts
	failures map[string]int
}

var receivers = map[string]*receiver{}

func received(message *primitive.MessageExt) facts {
	return facts{
		"topic": message.Topic, "queue_id": message.Queue.QueueId, "queue_offset": message.QueueOffset, "msg_id": message.MsgId,
		"body": string(message.Body), "tag": message.GetTags(), "keys": message.GetKeys(), "born_ms": message.BornTimestamp,
		"reconsume_times": message.ReconsumeTimes, "properties": message.GetProperties(), "at_ms": time.Now().UnixMilli(),
	}
}

func selector(given order) consumer.MessageSelector {
	if given.SQL != "" {
		return consumer.MessageSelector{Type: consumer.SQL92, Expression: given.SQL}
	}
	if given.Expression != "" {
		return consumer.MessageSelector{Type: consumer.TAG, Expression: given.Expression}
	}
	return consumer.MessageSelector{}
}

func consumerOptions(given order) []consumer.Option {
	found := []consumer.Option{
		consumer.WithGroupName(given.Group),
		consumer.WithNameServer(primitive.NamesrvAddr{given.Nameserver}),
		consumer.WithInstance("consumer-" + given.Name),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(given.Orderly),
		consumer.WithSuspendCurrentQueueTimeMillis(50 * time.Millisecond),
		consumer.WithNamespace(given.Namespace),
	}
	if given.Broadcast {
		found = append(found, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	if given.ReconsumeMax != nil {
		found = append(found, consumer.WithMaxReconsumeTimes(*given.ReconsumeMax))
	}
	if given.AccessKey != "" {
		found = append(found, consumer.WithCredentials(primitive.Credentials{AccessKey: given.AccessKey, SecretKey: given.SecretKey}))
	}
	if given.Trace {
		found = append(found, consumer.WithTrace(tracing(given)))
	}
	return found
}

func push(given order) (any, error) {
	made, err := rocketmq.NewPushConsumer(consumerOptions(given)...)
	if err != nil {
		return nil, err
	}
	found := &receiver{consumer: made, failures: map[string]int{}}
	receivers[given.Name] = found
	listener := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		return found.consume(given, messages), nil
	}
	err = made.Subscribe(given.Topic, selector(given), listener)
	if err != nil {
		return nil, err
	}
	return true, made.Start()
}

func (r *receiver) consume(given order, messages []*primitive.MessageExt) consumer.ConsumeResult {
	r.lock.Lock()
	defer r.lock.Unlock()
	for _, message := range messages {
		r.received = append(r.received, received(message))
		if given.Replies {
			answer(given, message)
		}
		body := string(message.Body)
		if r.failures[body]++; r.failures[body] <= given.Fails {
			if given.Orderly {
				return consumer.SuspendCurrentQueueAMoment
			}
			return consumer.ConsumeRetryLater
		}
	}
	return consumer.ConsumeSuccess
}

func answer(given order, message *primitive.MessageExt) {
	made, err := consumer.CreateReplyMessage(message, nil) // it takes a body for properties
	if err == nil {
		made.Body = append([]byte("answer to "), message.Body...)
		_, err = producers[given.Group].SendSync(context.Background(), made)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "no reply:", err)
	}
}

func (r *receiver) all() []facts {
	r.lock.Lock()
	defer r.lock.Unlock()
	return append([]facts{}, r.received...)
}

// pushWait waits until "count" messages came or "timeout_ms" passed, and answers with all that came.
func pushWait(given order) (any, error) {
	found := receivers[given.Name]
	end := time.Now().Add(time.Duration(given.TimeoutMs) * time.Millisecond)
	for len(found.all()) < given.Count && time.Now().Before(end) {
		time.Sleep(5 * time.Millisecond)
	}
	return found.all(), nil
}

func pushStop(given order) (any, error) {
	found := receivers[given.Name]
	delete(receivers, given.Name)
	return found.all(), found.consumer.Shutdown()
}
