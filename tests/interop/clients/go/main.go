// Apache's Go client, told what to do over standard input: one JSON object a line with a "verb", answered by one JSON object a
// line, in order. It decides nothing: what the answers should be is for the caller to say.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type order struct {
	Verb, Name, Group, Nameserver, Topic, Body, Tag, Keys, Expression, SQL, Namespace string

	AccessKey    string `json:"access_key"`
	SecretKey    string `json:"secret_key"`
	ShardingKey  string `json:"sharding_key"`
	Properties   map[string]string
	Count        int
	Level        int
	TimeoutMs    int    `json:"timeout_ms"`
	PauseMs      int    `json:"pause_ms"` // before each message of a load
	Fails        int    // how often each message fails before it succeeds
	Orderly      bool   // one message of a queue at a time
	Broadcast    bool   // each member gets everything
	Replies      bool   // answer each message by the producer of the group
	Trace        bool   // report what happens to messages
	ReconsumeMax *int32 `json:"reconsume_max"`
}

type facts map[string]any

var verbs = map[string]func(order) (any, error){
	"producer":      startProducer,
	"producer.stop": stopProducer,
	"send":          send,
	"send.batch":    sendBatch,
	"request":       request,
	"load":          load,
	"load.count":    loadCount,
	"load.stop":     loadStop,
	"tx.producer":   startTransactions,
	"tx.send":       sendInTransaction,
	"tx.checks":     checks,
	"tx.stop":       stopTransactions,
	"push":          push,
	"push.wait":     pushWait,
	"push.stop":     pushStop,
}

func main() {
	rlog.SetLogLevel("warn")
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		result, err := run(lines.Bytes())
		if err != nil {
			answers.Encode(facts{"error": fmt.Sprintf("%T", err), "text": err.Error()})
		} else {
			answers.Encode(facts{"result": result})
		}
	}
}

func run(line []byte) (any, error) {
	var given order
	if err := json.Unmarshal(line, &given); err != nil {
		return nil, err
	}
	verb := verbs[given.Verb]
	if verb == nil {
		return nil, fmt.Errorf("no such verb: %s", given.Verb)
	}
	return verb(given)
}
