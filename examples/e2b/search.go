package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	enumspb "go.temporal.io/api/enums/v1"
	"google.golang.org/protobuf/proto"

	"github.com/tinerun/tine/internal/protocol"
)

// search is where a secret was looked for, and found.
type search struct {
	historyEvents, logEvents, logBytes, files int
	found                                     []string
}

func (s search) String() string {
	if len(s.found) > 0 {
		return fmt.Sprintf("The token of GitHub was FOUND in %v.", s.found)
	}
	return fmt.Sprintf("The token of GitHub, plain or in base64, is in none of %d events of Temporal's histories, %d events of the logs, %d bytes of the worker's log, and %d files of sandboxes and snapshots.",
		s.historyEvents, s.logEvents, s.logBytes, s.files)
}

// searchFor looks for a secret in all that the executions have left.
func (p *place) searchFor(ctx context.Context, secret string, executions ...*finished) (search, error) {
	var s search
	forms := formsOf(secret)
	look := func(where string, text []byte) {
		for _, form := range forms {
			if bytes.Contains(text, form) {
				s.found = append(s.found, where)
				return
			}
		}
	}
	workflows := map[string]bool{}
	for _, e := range executions {
		workflows[e.ID] = true
		workflows[protocol.SessionWorkflowID(e.output.Session)] = true
		for _, event := range e.log.Events() {
			raw, err := json.Marshal(event)
			if err != nil {
				return s, err
			}
			s.logEvents++
			look(fmt.Sprintf("event %d of %s", event.Seq, e.ID), raw)
		}
	}
	for id := range workflows {
		events := p.temporal.GetWorkflowHistory(ctx, id, "", false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
		for events.HasNext() {
			event, err := events.Next()
			if err != nil {
				return s, err
			}
			raw, err := proto.Marshal(event) // payloads stand in it as they are
			if err != nil {
				return s, err
			}
			s.historyEvents++
			look(fmt.Sprintf("history event %d of %s", event.GetEventId(), id), raw)
		}
	}
	logged := p.logged.bytes()
	s.logBytes = len(logged)
	look("the worker's log", logged)
	err := filepath.WalkDir(filepath.Join(p.world.dir, "sandboxes"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		s.files++
		look(path, content)
		return err
	})
	return s, err
}

// formsOf are a secret, and what of its base64 does not depend on what stands around it.
func formsOf(secret string) [][]byte {
	forms := [][]byte{[]byte(secret)}
	for before := range 3 {
		encoded := base64.RawStdEncoding.EncodeToString([]byte("___"[:before] + secret))
		// The first characters hold bits of what is before, and the last ones of what follows.
		forms = append(forms, []byte(encoded[(before*8+5)/6:len(encoded)-1]))
	}
	return forms
}
