package main

import (
	"context"
	"sync"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// decider is a transactional producer. Each message says in its user properties what becomes of it: "execute" is what the local
// transaction returns (COMMIT_MESSAGE, ROLLBACK_MESSAGE, UNKNOW), "check" what a check is answered.
type decider struct {
	producer rocketmq.TransactionProducer
	lock     sync.Mutex
	checked  []facts
}

var deciders = map[string]*decider{}

var states = map[string]primitive.LocalTransactionState{
	"COMMIT_MESSAGE":   primitive.CommitMessageState,
	"ROLLBACK_MESSAGE": primitive.RollbackMessageState,
	"UNKNOW":           primitive.UnknowState,
}

func (d *decider) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	return states[message.GetProperty("execute")]
}

func (d *decider) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	d.lock.Lock()
	defer d.lock.Unlock()
	d.checked = append(d.checked, received(message))
	return states[message.GetProperty("check")]
}

func startTransactions(given order) (any, error) {
	made := &decider{}
	with, err := rocketmq.NewTransactionProducer(made, options(given)...)
	if err != nil {
		return nil, err
	}
	made.producer = with
	deciders[given.Name] = made
	return true, with.Start()
}

func sendInTransaction(given order) (any, error) {
	results := []facts{}
	for i := 0; i < max(1, given.Count); i++ {
		result, err := deciders[given.Name].producer.SendMessageInTransaction(context.Background(), message(given, i))
		if err != nil {
			return nil, err
		}
		results = append(results, sent(result.SendResult))
	}
	return results, nil
}

func checks(given order) (any, error) {
	found := deciders[given.Name]
	found.lock.Lock()
	defer found.lock.Unlock()
	return append([]facts{}, found.checked...), nil
}

func stopTransactions(given order) (any, error) {
	found := deciders[given.Name]
	delete(deciders, given.Name)
	return true, found.producer.Shutdown()
}
