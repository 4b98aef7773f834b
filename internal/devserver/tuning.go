package devserver

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// tuning are the settings of the server that make sequential steps fast. Measured with server
// 1.29.1 on two busy cores: a step is an activity, one after another.
//
// docker-compose.temporal.yml carries the same, and a test compares them.
var tuning = map[string]any{
	// A history shard reads its queues at most 20 times a second by default, and a step needs
	// two reads: 85 to 100 ms a step. With this 20, as fast as the server's own work allows.
	"history.transferProcessorMaxPollRPS": 1000,
	// The same for timers, which retries, timeouts and sleeps are.
	"history.timerProcessorMaxPollRPS": 1000,
	// A timer fires when the server's clock has passed it by this much, 1 s by default: a
	// sleep of 1 ms took 1005 ms, and takes 14. Timers are correct with any value, since new
	// ones are placed after what has been read; a small one means more reads.
	"history.timerProcessorMaxTimeShift": "1ms",
	// Activities on a workflow's own task queue are handed out in the answer that scheduled
	// them, which saves a queue and a poll: from 20 to 16 ms a step.
	"system.enableActivityEagerExecution": true,
}

// filePragmas are for a server that keeps its state in a file. SQLite's defaults wait for the
// disk several times a transaction: 110 to 150 ms a step. With a write-ahead log, synchronised
// at checkpoints, it is 25 to 30 ms, near the 20 that memory takes at the same time. What this
// gives up is the last transactions before a power failure; a server that is killed loses
// nothing.
var filePragmas = []string{"journal_mode=wal", "synchronous=normal"}

// dynamicConfig gives the arguments for tuning with overrides over it.
func dynamicConfig(overrides map[string]any) ([]string, error) {
	settings := maps.Clone(tuning)
	maps.Copy(settings, overrides)
	var args []string
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		value, err := json.Marshal(settings[key])
		if err != nil {
			return nil, fmt.Errorf("dynamic config %s: %w", key, err)
		}
		args = append(args, "--dynamic-config-value", key+"="+string(value))
	}
	return args, nil
}
