package protocol

import "encoding/json"

// Encode and Decode are encoding/json for workflow code. Temporal's workflowcheck cannot
// follow what that package does by reflection; it is deterministic, map keys included.

//workflowcheck:ignore
func Encode(v any) (json.RawMessage, error) { return json.Marshal(v) }

//workflowcheck:ignore
func Decode(raw json.RawMessage, into any) error { return json.Unmarshal(raw, into) }

// IsJSON reports whether raw is one JSON value.
//
//workflowcheck:ignore
func IsJSON(raw json.RawMessage) bool { return json.Valid(raw) }
