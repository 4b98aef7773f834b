package devserver

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// tuning are the settings of the server that make sequential steps fast. Measured with server
// 1.29.1 on two cores that others kept busy, where a step is one activity after another:
// untuned 85 to 100 ms a step, tuned 19 to 37 (speed_test.go). What else was tried changed
// nothing that could be told from noise: one partition a task queue, SQLite without a journal
// in memory, the cache of search attributes, a lazier garbage collector.
//
// docker-compose.temporal.yml carries the same, and a test compares them.
var tuning = map[string]any{
	// A history shard reads its queue of transfers at most 20 times a second by default, and a
	// step waits for two reads.
	"history.transferProcessorMaxPollRPS": 1000,
	// Activities on a workflow's own task queue are handed out in the answer to the worker that
	// scheduled them, which saves a fifth of a step.
	"system.enableActivityEagerExecution": true,
	// A timer fires when the clock has passed it by this much, a second by default: a sleep of
	// 1 ms took 1005 ms, and takes 20. Retries and timeouts are timers, too. They are correct
	// with any value, since a new one is placed behind what has been read already.
	"history.timerProcessorMaxTimeShift": "1ms",
	// Timers are then read for each, four times: with 20 reads a second a sleep takes 205 ms.
	"history.timerProcessorMaxPollRPS": 1000,
}

// filePragmas are for a server that keeps its state in a file. SQLite's defaults wait for the
// disk several times a transaction: 110 to 150 ms a step. With a write-ahead log that is
// synchronised at checkpoints only, a file is about as fast as memory. What this gives up is
// the last transactions before a power failure; a server that is killed loses nothing.
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
