package protocol

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
)

// PageBytes is how much JSON of records one page holds before it is compressed. Even what
// cannot be compressed stays below PayloadLimit.
const PageBytes = 1 << 20

// packedPage is a page of records in JSON.
type packedPage struct {
	// Gzip is the compressed JSON array of the records, and Records the array itself where it
	// cannot be compressed.
	Gzip    []byte          `json:"gzip,omitempty"`
	Records json.RawMessage `json:"records,omitempty"`
	Next    int             `json:"next,omitempty"`
}

// MarshalJSON compresses the records.
func (p PrefixPage) MarshalJSON() ([]byte, error) { return packPage(p.Records, p.Next) }

// UnmarshalJSON expands the records.
func (p *PrefixPage) UnmarshalJSON(raw []byte) (err error) {
	p.Next, err = unpackPage(raw, &p.Records)
	return err
}

func packPage(records any, next int) ([]byte, error) {
	raw, err := json.Marshal(records)
	if err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(raw); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	if base64.StdEncoding.EncodedLen(packed.Len()) >= len(raw) {
		return json.Marshal(packedPage{Records: raw, Next: next})
	}
	return json.Marshal(packedPage{Gzip: packed.Bytes(), Next: next})
}

func unpackPage(raw []byte, records any) (next int, err error) {
	var page packedPage
	if err := json.Unmarshal(raw, &page); err != nil {
		return 0, err
	}
	if page.Records != nil {
		return page.Next, json.Unmarshal(page.Records, records)
	}
	r, err := gzip.NewReader(bytes.NewReader(page.Gzip))
	if err != nil {
		return 0, fmt.Errorf("prefix page: %w", err)
	}
	expanded, err := io.ReadAll(r)
	if err != nil {
		return 0, fmt.Errorf("prefix page: %w", err)
	}
	return page.Next, json.Unmarshal(expanded, records)
}
