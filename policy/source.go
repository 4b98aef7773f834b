package policy

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tinerun/tine/internal/protocol"
)

// Source is one file of a policy. The ending of its name says what it is: .yaml or .yml for
// rules, .rego for Rego, .tar.gz for an OPA bundle archive.
type Source = protocol.PolicyFile

// How big a policy may be, in bytes. A megabyte of rules or Rego takes some 3 s and 150 MB to
// compile, and 35 MB to keep. A fork's policy must fit into one payload anyway.
const (
	maxRules    = 1 << 20  // the YAML
	maxRego     = 1 << 20  // all Rego together, that of an archive too
	maxArchive  = 8 << 20  // an archive as it is
	maxUnpacked = 32 << 20 // all its files together
)

// kind is what a file is, by the ending of its name.
type kind string

const (
	kindRules   kind = "yaml"
	kindRego    kind = "rego"
	kindArchive kind = "tar.gz"
)

// kindOf gives no kind for a file that is no policy.
func kindOf(name string) kind {
	switch {
	case strings.HasSuffix(name, ".yaml"), strings.HasSuffix(name, ".yml"):
		return kindRules
	case strings.HasSuffix(name, ".rego"):
		return kindRego
	case strings.HasSuffix(name, ".tar.gz"):
		return kindArchive
	}
	return ""
}

// isTest reports whether a file tests a policy rather than being part of one.
func isTest(name string) bool {
	return strings.HasSuffix(name, ".policytest.yaml") || strings.HasSuffix(name, ".policytest.yml") ||
		strings.HasSuffix(name, "_test.rego")
}

// isPart reports whether a file in a directory is part of a policy. Hidden ones are not: editors
// leave those.
func isPart(name string) bool {
	return kindOf(name) != "" && !isTest(name) && !strings.HasPrefix(name, ".")
}

// ReadFiles reads a policy's files from disk, for Compile, and names them without their
// directories. The error is the first file that cannot be read.
func ReadFiles(paths ...string) ([]Source, error) {
	var files []Source
	for _, path := range paths {
		info, err := os.Stat(path)
		switch {
		case err != nil:
			return nil, fmt.Errorf("policy %s: %w", path, cause(err))
		case info.IsDir():
			return nil, fmt.Errorf("policy %s: a directory has the policies of several agents; read the files of one", path)
		case kindOf(path) == "":
			return nil, fmt.Errorf("policy %s: %s", path, notAPolicy)
		}
		data, err := readPolicy(path)
		if err != nil {
			return nil, fmt.Errorf("policy %s: %w", path, err)
		}
		files = append(files, Source{Name: filepath.Base(path), Data: data})
	}
	if len(files) == 0 {
		return nil, errors.New("policy: no files are named")
	}
	return files, nil
}

// FilesOf gives the paths of an agent's policy in a directory, which is read as Open reads it:
// those of the agent's own policy, or else of the default one. There are none if it has neither.
func FilesOf(dir, agentID string) ([]string, error) {
	found, err := find(dir)
	if err != nil {
		return nil, fmt.Errorf("policies: %w", err)
	}
	if own := found[agentID]; len(own) > 0 {
		return own, nil
	}
	return found[DefaultName], nil
}

const notAPolicy = "the name must end in .yaml or .yml for rules, .rego for Rego, or .tar.gz for an OPA bundle"

// Digest names a policy by what its files are and hold: "sha256:" and hex digits. Their names
// beyond that, and their order, change nothing about it.
func Digest(files []Source) string {
	sorted := slices.SortedFunc(slices.Values(files), func(a, b Source) int {
		return cmp.Or(cmp.Compare(kindOf(a.Name), kindOf(b.Name)), slices.Compare(a.Data, b.Data))
	})
	h := sha256.New()
	for _, f := range sorted {
		hashPart(h, []byte(kindOf(f.Name)))
		hashPart(h, f.Data)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// hashPart adds a part with its length, so that no two lists of parts add the same.
func hashPart(h hash.Hash, part []byte) {
	var length [8]byte
	binary.BigEndian.PutUint64(length[:], uint64(len(part)))
	h.Write(length[:])
	h.Write(part)
}
