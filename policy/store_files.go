package policy

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// maxFileBytes is far more than a policy has. It keeps a file that is none, such as a log
// that somebody wrote to the wrong place, from filling the worker's memory at each look.
const maxFileBytes = 64 << 20

// sight is what a look at a policy's files has shown.
type sight struct {
	files    []Source
	problems []Problem // of files that cannot be read
	print    fingerprint
}

// fingerprint is the same for two sights that are the same, problems included.
type fingerprint [sha256.Size]byte

// find gives the paths of the policies that are on disk, by policy.
func (s *Store) find() (map[string][]string, error) {
	if !s.isDir {
		return map[string][]string{DefaultName: {s.path}}, nil
	}
	return find(s.path)
}

func find(dir string) (map[string][]string, error) {
	listed, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	found := map[string][]string{}
	for _, file := range listed {
		if name, ok := policyName(file.Name()); ok && !file.IsDir() {
			found[name] = append(found[name], filepath.Join(dir, file.Name()))
		}
	}
	return found, nil
}

// policyName is the agent that a file of a directory is for, or DefaultName.
func policyName(file string) (string, bool) {
	if !isPart(file) {
		return "", false
	}
	stem := strings.TrimSuffix(file, ".tar.gz")
	if stem == file {
		stem = strings.TrimSuffix(file, filepath.Ext(file))
	}
	if name, err := url.PathUnescape(stem); err == nil {
		return name, true
	}
	return stem, true
}

// see reads the files of a policy.
func see(paths []string) sight {
	var seen sight
	sum := sha256.New()
	for _, path := range paths {
		hashPart(sum, []byte(path))
		data, err := readPolicy(path)
		if err != nil {
			hashPart(sum, []byte(err.Error()))
			seen.problems = append(seen.problems, Problem{File: path, Message: err.Error()})
			continue
		}
		hashPart(sum, nil) // so that no content is taken for a problem
		hashPart(sum, data)
		seen.files = append(seen.files, Source{Name: path, Data: data})
	}
	sum.Sum(seen.print[:0])
	return seen
}

// blind is the sight of policies whose directory cannot be read.
func blind(dir string, err error) sight {
	message := cause(err).Error()
	return sight{
		problems: []Problem{{File: dir, Message: message}},
		print:    sha256.Sum256([]byte(message)),
	}
}

// readPolicy reads one file. Errors do not name it.
func readPolicy(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, cause(err)
	}
	if !info.Mode().IsRegular() { // to read a pipe could take for ever
		return nil, errors.New("not a regular file")
	}
	if info.Size() > maxFileBytes {
		return nil, fmt.Errorf("the file has %d bytes; at most %d are read", info.Size(), maxFileBytes)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, cause(err)
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, errors.New("the file is empty")
	}
	return data, nil
}

// cause is what is wrong, without the path that the problem has anyway.
func cause(err error) error {
	var about *fs.PathError
	if errors.As(err, &about) {
		return about.Err
	}
	return err
}
