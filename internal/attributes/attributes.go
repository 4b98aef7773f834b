// Package attributes says which search attributes executions use.
package attributes

import (
	enumspb "go.temporal.io/api/enums/v1"

	"github.com/tinerun/tine/internal/protocol"
)

// Types are the types of the search attributes, by name.
func Types() map[string]enumspb.IndexedValueType {
	return map[string]enumspb.IndexedValueType{
		protocol.AttributeStatus:     enumspb.INDEXED_VALUE_TYPE_KEYWORD,
		protocol.AttributeAgent:      enumspb.INDEXED_VALUE_TYPE_KEYWORD,
		protocol.AttributeSession:    enumspb.INDEXED_VALUE_TYPE_KEYWORD,
		protocol.AttributeForkedFrom: enumspb.INDEXED_VALUE_TYPE_KEYWORD,
		protocol.AttributeForkSeq:    enumspb.INDEXED_VALUE_TYPE_INT,
	}
}
