package orders

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"testing"
)

// Servers has the addresses of a name server and a broker, host:port each.
type Servers struct {
	NameServer string `json:"nameserver"`
	Broker     string `json:"broker"`
}

// Halfmoon starts a name server and a broker for a test: on free ports, in a temporary directory. They stop at the test's end, and
// when this process dies, because their standard input ends then. The command is halfmoon, or the value of HALFMOON.
func Halfmoon(t testing.TB) Servers {
	t.Helper()
	command := os.Getenv("HALFMOON")
	if command == "" {
		command = "halfmoon"
	}
	process := exec.Command(command, "serve", "--ephemeral", "--until-eof")
	process.Stderr = os.Stderr
	input, err := process.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatalf("%s cannot be run, set HALFMOON to where it is installed: %v", command, err)
	}
	t.Cleanup(func() {
		input.Close()
		process.Wait()
	})
	var servers Servers
	ready, err := bufio.NewReader(output).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(ready, &servers)
	}
	if err != nil {
		t.Fatalf("%s did not start: %v", command, err)
	}
	return servers
}
