// Command tine runs AI agents as durable, forkable executions on Temporal.
package main

import (
	"os"

	"github.com/tinerun/tine/internal/cli"
)

func main() {
	os.Exit(cli.Main())
}
