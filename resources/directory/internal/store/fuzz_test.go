//go:build linux

package store

import (
	"reflect"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// sampleTree has an entry of each kind.
func sampleTree() []entry {
	id := blobDomain.sum([]byte("x"))
	at := timestamp{sec: -1, nsec: 999_999_999}
	return []entry{
		{name: "\xff", kind: kindFile, mode: 0o4755, uid: 1, gid: 1<<32 - 1, mtime: at, size: 1 << 40, content: id},
		{name: "a", kind: kindDir, mode: 0o1777, mtime: at, content: id, attributes: id},
		{name: "b", kind: kindSymlink, mode: 0o777, mtime: timestamp{sec: 1 << 40}, target: "../x"},
		{name: "c", kind: kindFIFO, mode: 0o600},
		{name: "d", kind: kindHardLink, target: "a/b"},
	}
}

func TestTreeEncoding(t *testing.T) {
	t.Parallel()
	want := sampleTree()
	want = append(want[1:], want[0]) // sorted by bytes
	got, err := decodeTree(appendTree(nil, want))
	require.NoError(t, err)
	require.Equal(t, want, got)

	empty, err := decodeTree(appendTree(nil, nil))
	require.NoError(t, err)
	require.Empty(t, empty)
}

func TestTreesThatLeadOutAreRefused(t *testing.T) {
	t.Parallel()
	file := func(name string) entry { return entry{name: name, kind: kindFile} }
	link := func(target string) entry { return entry{name: "a", kind: kindHardLink, target: target} }
	tests := map[string][]entry{
		"no name":            {file("")},
		"dot":                {file(".")},
		"dot dot":            {file("..")},
		"slash":              {file("a/b")},
		"zero byte":          {file("a\x00")},
		"same name twice":    {file("a"), file("a")},
		"not sorted":         {file("b"), file("a")},
		"unknown kind":       {{name: "a", kind: 'x'}},
		"mode with type":     {{name: "a", kind: kindDir, mode: 0o40755}},
		"nanoseconds":        {{name: "a", kind: kindFIFO, mtime: timestamp{nsec: 1e9}}},
		"negative size":      {{name: "a", kind: kindFile, size: -1}},
		"link out":           {link("../x")},
		"link to root":       {link("/x")},
		"link to nothing":    {link("")},
		"link with dots":     {link("a/./b")},
		"link to below link": {link("a//b")},
	}
	for name, entries := range tests {
		_, err := decodeTree(appendTree(nil, entries))
		require.Error(t, err, name)
	}
}

// requireBounded fails if a parser allocates much more than its input is long.
func requireBounded(t *testing.T, input []byte, parse func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	parse()
	runtime.ReadMemStats(&after)
	const perByte, fixed = 200, 1 << 20
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > uint64(len(input))*perByte+fixed {
		t.Fatalf("%d bytes of input made the parser allocate %d", len(input), allocated)
	}
}

func FuzzTree(f *testing.F) {
	f.Add(appendTree(nil, nil))
	f.Add(appendTree(nil, sampleTree()[1:]))
	f.Add([]byte{treeVersion, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, data []byte) {
		requireBounded(t, data, func() {
			entries, err := decodeTree(data)
			if err != nil {
				return
			}
			again, err := decodeTree(appendTree(nil, entries))
			require.NoError(t, err)
			require.Equal(t, entries, again)
		})
	})
}

func FuzzRecord(f *testing.F) {
	root := sampleTree()[1]
	root.name = ""
	sample, err := newRecord(root, 3, 4).encode()
	require.NoError(f, err)
	f.Add(sample)
	f.Add([]byte(`{"format":1}`))
	f.Add([]byte(`{"format":2}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		requireBounded(t, data, func() {
			root, err := parseRecord(data)
			if err != nil {
				return
			}
			again, err := newRecord(root, 0, 0).encode()
			require.NoError(t, err)
			reread, err := parseRecord(again)
			require.NoError(t, err)
			require.Equal(t, root, reread)
		})
	})
}

// FuzzCache parses what has a checksum; the fuzzer cannot guess one, so it is added.
func FuzzCache(f *testing.F) {
	id := blobDomain.sum(nil)
	packIndex := encodePackIndex(map[ID]span{id: {offset: 8, length: 1}})
	f.Add(packIndex[:len(packIndex)-len(ID{})])
	f.Add([]byte(statIndexMagic + "\x00\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Add([]byte(indexMagic + "\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, body []byte) {
		data := appendChecksum(body)
		requireBounded(t, data, func() {
			if objects, err := parsePackIndex(data); err == nil {
				again, err := parsePackIndex(encodePackIndex(objects))
				require.NoError(t, err)
				require.True(t, reflect.DeepEqual(objects, again))
			}
			_, _, _ = parseStatIndex(data)
		})
	})
}

func FuzzAttributes(f *testing.F) {
	f.Add(encodeAttributes([]attribute{{name: "user.a", value: []byte("1")}}))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, data []byte) {
		requireBounded(t, data, func() {
			attributes, err := decodeAttributes(data)
			if err != nil {
				return
			}
			again, err := decodeAttributes(encodeAttributes(attributes))
			require.NoError(t, err)
			require.Equal(t, attributes, again)
		})
	})
}
