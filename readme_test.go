package tine_test

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/internal/testserver"
)

func TestMain(m *testing.M) { os.Exit(testserver.Main(m)) }

// TestExample runs the example, which needs a server.
func TestExample(t *testing.T) {
	t.Setenv("TEMPORAL_ADDRESS", testserver.Address(t))
	stdout := os.Stdout
	t.Cleanup(func() { os.Stdout = stdout })
	r, w, err := os.Pipe()
	require.NoError(t, err)
	os.Stdout = w
	printed := make(chan string)
	go func() {
		all, _ := io.ReadAll(r)
		printed <- string(all)
	}()
	Example()
	require.NoError(t, w.Close())
	var lines []string // without those of the SDK's logger
	for line := range strings.Lines(<-printed) {
		if strings.HasPrefix(line, "looked up") || strings.HasPrefix(line, "{") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	require.Equal(t, []string{"looked up Oslo", "looked up Rome", "looked up Bonn", `{"Bonn":"sunny","Oslo":"sunny"}`}, lines)
}

// TestSnippets checks that the Go code of the documentation is code that compiles: each block
// is a part of one of these files.
func TestSnippets(t *testing.T) {
	t.Parallel()
	var code []string
	for _, pattern := range []string{"example_test.go", "*/example_test.go", "*/*/example_test.go", "*/*/*/example_test.go", "examples/*/*.go", "examples/*/*/*.go", "resources/resourcetest/*.go"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, file := range files {
			code = append(code, flush(t, file))
		}
	}
	pages, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	for _, page := range append(pages, "README.md") {
		raw, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, block := range regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllSubmatch(raw, -1) {
			snippet := unindented(string(block[1]))
			found := false
			for _, file := range code {
				found = found || strings.Contains(file, snippet)
			}
			require.True(t, found, "%s has Go code that no example has:\n%s", page, block[1])
		}
	}
}

func flush(t *testing.T, file string) string {
	t.Helper()
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	return unindented(string(raw))
}

// unindented is code without the indentation, which a snippet need not have.
func unindented(code string) string {
	return regexp.MustCompile(`(?m)^[\t ]+`).ReplaceAllString(code, "")
}

// TestLinks checks that what the documentation links to in the repository is there.
func TestLinks(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	for _, page := range append(pages, "README.md", "CONTRIBUTING.md", "CHANGELOG.md") {
		raw, err := os.ReadFile(page)
		require.NoError(t, err)
		prose := regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAll(raw, nil)
		for _, link := range regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`).FindAllSubmatch(prose, -1) {
			_, err := os.Stat(filepath.Join(filepath.Dir(page), string(link[1])))
			require.NoError(t, err, "%s links to %s", page, link[1])
		}
	}
}
