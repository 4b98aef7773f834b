package storage_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/converter"
	"google.golang.org/protobuf/proto"

	"github.com/tinerun/tine/worker/storage"
)

func open(t *testing.T, dir string) converter.StorageDriver {
	t.Helper()
	s, err := storage.Open(dir)
	require.NoError(t, err)
	return s.Drivers[0]
}

func payload(text string) *commonpb.Payload {
	return &commonpb.Payload{Metadata: map[string][]byte{"encoding": []byte("json/plain")}, Data: []byte(text)}
}

func store(t *testing.T, d converter.StorageDriver, payloads ...*commonpb.Payload) ([]converter.StorageDriverClaim, error) {
	return d.Store(converter.StorageDriverStoreContext{Context: t.Context()}, payloads)
}

func retrieve(t *testing.T, d converter.StorageDriver, claims ...converter.StorageDriverClaim) ([]*commonpb.Payload, error) {
	return d.Retrieve(converter.StorageDriverRetrieveContext{Context: t.Context()}, claims)
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	require.NoError(t, err)
	return found
}

func TestDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "made")
	d := open(t, "file://"+dir)
	want := []*commonpb.Payload{payload("one"), payload("two"), payload("one")}
	claims, err := store(t, d, want...)
	require.NoError(t, err)
	require.Len(t, files(t, dir), 2, "equal payloads share a file, and nothing else stays")
	got, err := retrieve(t, open(t, dir), claims...)
	require.NoError(t, err)
	for i := range want {
		require.True(t, proto.Equal(want[i], got[i]))
	}
}

func TestDirectoryAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := open(t, dir)
	large := payload(strings.Repeat("x", 1<<20))
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			claims, err := store(t, d, large)
			if err != nil {
				t.Error(err)
				return
			}
			got, err := retrieve(t, d, claims...)
			if err != nil || !proto.Equal(large, got[0]) {
				t.Errorf("not what was stored: %v", err)
			}
		})
	}
	wg.Wait()
	require.Len(t, files(t, dir), 1)
}

func TestDirectoryFaults(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := open(t, dir)
	claims, err := store(t, d, payload("text"))
	require.NoError(t, err)
	name := files(t, dir)[0]

	info, err := os.Stat(name)
	require.NoError(t, err)
	for _, damage := range [][]byte{[]byte("other"), make([]byte, info.Size())} {
		require.NoError(t, os.WriteFile(name, damage, 0o600))
		_, err = retrieve(t, d, claims...)
		require.ErrorContains(t, err, dir+" is damaged")
		_, err = store(t, d, payload("text")) // mends it
		require.NoError(t, err)
		_, err = retrieve(t, d, claims...)
		require.NoError(t, err)
	}

	require.NoError(t, os.Remove(name))
	_, err = retrieve(t, d, claims...)
	require.ErrorContains(t, err, "is not in the storage "+dir)

	for _, hash := range []string{"", "../../etc/passwd", "abcd"} {
		_, err = retrieve(t, d, converter.StorageDriverClaim{ClaimData: map[string]string{"sha256": hash}})
		require.ErrorContains(t, err, "no name of a payload")
	}

	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.WriteFile(dir, nil, 0o600)) // no directory can be made there
	_, err = store(t, d, payload("text"))
	require.ErrorContains(t, err, "not stored")
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	for location, problem := range map[string]string{
		"relative/path": "must be absolute", "": "must be absolute", "s3://bucket": "only directories",
	} {
		_, err := storage.Open(location)
		require.ErrorContains(t, err, problem)
	}
}
