package policy

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	opabundle "github.com/open-policy-agent/opa/v1/bundle"
)

// readArchive gives the modules and the data of an archive that `opa build` made. With keys the
// archive has to be signed with one of them.
func readArchive(file Source, keys map[string]string) (modules map[string]*ast.Module, data map[string]any, problems []Problem) {
	refuse := func(format string, args ...any) (map[string]*ast.Module, map[string]any, []Problem) {
		return nil, nil, []Problem{{File: file.Name, Message: fmt.Sprintf(format, args...)}}
	}
	if len(file.Data) > maxArchive {
		return refuse("the archive has %d bytes; at most %d are allowed", len(file.Data), maxArchive)
	}
	signatures, err := unpack(file.Data)
	if err != nil {
		return refuse("not an OPA bundle: %v", err)
	}
	var verification *opabundle.VerificationConfig
	switch {
	case signatures == nil && len(keys) > 0:
		return refuse("the archive is not signed, and the verification keys allow signed ones only")
	case signatures != nil && len(keys) == 0:
		return refuse("the archive is signed, but there is no verification key to check it with")
	case signatures != nil:
		if verification, err = verificationConfig(signatures, keys); err != nil {
			return refuse("%v", err)
		}
	}
	b, err := opabundle.NewReader(bytes.NewReader(file.Data)).
		WithBundleVerificationConfig(verification).
		WithSizeLimitBytes(maxUnpacked + 1).
		WithCapabilities(capabilities).
		WithRegoVersion(ast.RegoV1).
		Read()
	switch {
	case err != nil:
		return nil, nil, within(file.Name, regoProblems("", err))
	case b.Type() != opabundle.SnapshotBundleType:
		return refuse("the archive is a delta bundle; only whole ones are allowed")
	case len(b.WasmModules) > 0:
		return refuse("the archive holds WebAssembly; build it with: opa build --target rego")
	}
	modules = map[string]*ast.Module{}
	for i, m := range b.Modules {
		if !isTest(m.Path) {
			modules[strconv.Itoa(i)] = m.Parsed
		}
	}
	return modules, b.Data, nil
}

// within says of problems with files in an archive which archive it is.
func within(archive string, problems []Problem) []Problem {
	for i, p := range problems {
		problems[i].File = strings.TrimSuffix(archive+":"+strings.TrimPrefix(p.File, "/"), ":")
	}
	return problems
}

// unpack reads a whole archive once, so that nothing later has to fear its size, and gives its
// signatures, or nil.
func unpack(archive []byte) (signatures []byte, err error) {
	unzipped, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return nil, err
	}
	limited := &io.LimitedReader{R: unzipped, N: 2 * maxUnpacked} // with what stands between files
	files := tar.NewReader(limited)
	var size, regoSize int64
	for {
		header, err := files.Next()
		if errors.Is(err, io.EOF) && limited.N > 0 {
			return signatures, nil
		}
		if err != nil && limited.N > 0 {
			return nil, err
		}
		// A sparse file can be bigger than all that is read of it.
		if limited.N <= 0 || header.Size > maxUnpacked-size {
			return nil, fmt.Errorf("it unpacks to more than %d bytes, which is the most allowed", maxUnpacked)
		}
		size += header.Size
		if kindOf(header.Name) == kindRego {
			regoSize += header.Size
		}
		if regoSize > maxRego {
			return nil, fmt.Errorf("its Rego has more than %d bytes, which is the most allowed", maxRego)
		}
		content, err := io.ReadAll(files)
		if err != nil {
			return nil, err
		}
		if opabundle.IsSignaturesFile(strings.TrimPrefix(header.Name, "/")) {
			signatures = content
		}
	}
}

// How signatures can be made. What the key is decides which are believed, lest a public key is
// taken for a shared secret.
var (
	secretAlgorithms = []string{"HS256", "HS384", "HS512"}
	publicAlgorithms = []string{
		"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
	}
)

func verificationConfig(signatures []byte, keys map[string]string) (*opabundle.VerificationConfig, error) {
	algorithm, err := signedWith(signatures)
	if err != nil {
		return nil, fmt.Errorf("the signature of the archive cannot be read: %w", err)
	}
	configs := map[string]*opabundle.KeyConfig{}
	for _, id := range slices.Sorted(maps.Keys(keys)) {
		allowed := secretAlgorithms
		if strings.Contains(keys[id], "-----BEGIN") {
			allowed = publicAlgorithms
			if block, _ := pem.Decode([]byte(keys[id])); block == nil {
				return nil, fmt.Errorf("the verification key %q is not PEM", id)
			}
		}
		if slices.Contains(allowed, algorithm) {
			configs[id] = &opabundle.KeyConfig{Key: keys[id], Algorithm: algorithm}
		}
	}
	if len(configs) == 0 {
		return nil, fmt.Errorf("the archive is signed with %q, which no verification key is for", algorithm)
	}
	return opabundle.NewVerificationConfig(configs, "", "", nil), nil
}

// signedWith is the algorithm that the signature's header claims.
func signedWith(signatures []byte) (string, error) {
	var config opabundle.SignaturesConfig
	if err := json.Unmarshal(signatures, &config); err != nil {
		return "", err
	}
	if len(config.Signatures) != 1 {
		return "", fmt.Errorf("there are %d; one is needed", len(config.Signatures))
	}
	encoded, _, _ := strings.Cut(config.Signatures[0], ".")
	header, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return "", err
	}
	var claims struct {
		Algorithm string `json:"alg"`
	}
	err = json.Unmarshal(header, &claims)
	return claims.Algorithm, err
}
