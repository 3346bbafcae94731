package orders

import (
	"context"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// shop stands for a database: orders that begin with "paid" are committed.
type shop struct{}

func (shop) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	if string(message.Body[:4]) == "paid" {
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}

func (shop) CheckLocalTransaction(*primitive.MessageExt) primitive.LocalTransactionState {
	return primitive.UnknowState
}

func TestOnlyOrdersThatWereCommittedAreDelivered(t *testing.T) {
	rlog.SetLogLevel("error")
	servers := primitive.NamesrvAddr{Halfmoon(t).NameServer}
	sender, err := rocketmq.NewTransactionProducer(shop{}, producer.WithNameServer(servers), producer.WithGroupName("P_shop"))
	if err != nil {
		t.Fatal(err)
	}
	if err := sender.Start(); err != nil {
		t.Fatal(err)
	}
	defer sender.Shutdown()
	for _, body := range []string{"refused", "paid 20"} {
		if _, err := sender.SendMessageInTransaction(context.Background(), primitive.NewMessage("orders", []byte(body))); err != nil {
			t.Fatal(err)
		}
	}

	delivered := make(chan string, 10)
	receiver, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(servers), consumer.WithGroupName("C_mail"), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	if err != nil {
		t.Fatal(err)
	}
	take := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			delivered <- string(message.Body)
		}
		return consumer.ConsumeSuccess, nil
	}
	if err := receiver.Subscribe("orders", consumer.MessageSelector{}, take); err != nil {
		t.Fatal(err)
	}
	if err := receiver.Start(); err != nil {
		t.Fatal(err)
	}
	defer receiver.Shutdown()
	select {
	case body := <-delivered:
		if body != "paid 20" {
			t.Fatalf("delivered: %s", body)
		}
	case <-time.After(60 * time.Second):
		t.Fatal("nothing was delivered")
	}
}
