package policy_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"io"
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
	opabundle "github.com/open-policy-agent/opa/v1/bundle"
	"github.com/stretchr/testify/require"

	"github.com/tinerun/tine/policy"
)

const archiveRego = `package tine

default decision := {"decision": "deny"}

decision := {"decision": "allow"} if input.target in data.lists.tools
`

// opaBundle is what opa build would make.
func opaBundle(t *testing.T, sign *opabundle.SigningConfig) opabundle.Bundle {
	t.Helper()
	b := opabundle.Bundle{
		Manifest: opabundle.Manifest{Roots: &[]string{"tine", "tine_test", "lists"}},
		Data:     map[string]any{"lists": map[string]any{"tools": []any{"ls", "cat"}}},
	}
	for path, text := range map[string]string{
		"/tine/policy.rego":      archiveRego,
		"/tine/policy_test.rego": "package tine_test\n\ntest_x if http.send({}) == 1",
	} {
		b.Modules = append(b.Modules, opabundle.ModuleFile{
			Path: path, URL: path, Raw: []byte(text), Parsed: ast.MustParseModule(text),
		})
	}
	if sign != nil {
		require.NoError(t, b.GenerateSignature(sign, "key", false))
	}
	return b
}

func archive(t *testing.T, b opabundle.Bundle) policy.Source {
	t.Helper()
	var packed bytes.Buffer
	require.NoError(t, opabundle.NewWriter(&packed).Write(b))
	return policy.Source{Name: "b.tar.gz", Data: packed.Bytes()}
}

// repack changes the files of an archive.
func repack(t *testing.T, from policy.Source, change func(name string, content []byte) []byte) policy.Source {
	t.Helper()
	unzipped, err := gzip.NewReader(bytes.NewReader(from.Data))
	require.NoError(t, err)
	files := map[string]string{}
	for in := tar.NewReader(unzipped); ; {
		header, err := in.Next()
		if err == io.EOF {
			return tarball(t, files)
		}
		require.NoError(t, err)
		content, err := io.ReadAll(in)
		require.NoError(t, err)
		if content = change(header.Name, content); content != nil {
			files[header.Name] = string(content)
		}
	}
}

func tarball(t *testing.T, files map[string]string) policy.Source {
	t.Helper()
	var packed bytes.Buffer
	zipped := gzip.NewWriter(&packed)
	out := tar.NewWriter(zipped)
	for name, content := range files {
		require.NoError(t, out.WriteHeader(&tar.Header{Name: name, Size: int64(len(content)), Mode: 0o600}))
		_, err := out.Write([]byte(content))
		require.NoError(t, err)
	}
	require.NoError(t, out.Close())
	require.NoError(t, zipped.Close())
	return policy.Source{Name: "b.tar.gz", Data: packed.Bytes()}
}

func requireTools(t *testing.T, opts policy.Options, files ...policy.Source) {
	t.Helper()
	bundle, err := policy.Compile(t.Context(), files, opts)
	require.NoError(t, err)
	for target, want := range map[string]string{"ls": policy.Allow, "rm": policy.Deny} {
		d, err := bundle.Decide(t.Context(), tool(target, ""))
		require.NoError(t, err)
		require.Equal(t, want, d.Decision)
		require.Equal(t, "rego", d.RuleID)
	}
}

func TestArchive(t *testing.T) {
	t.Parallel()
	requireTools(t, policy.Options{}, archive(t, opaBundle(t, nil)))

	bundle := compile(t, archive(t, opaBundle(t, nil)), file("p.yaml", "{default_action: allow, rules: [{id: a, when: {target: ls}, then: {decision: deny}}]}"))
	d, err := bundle.Decide(t.Context(), tool("ls", ""))
	require.NoError(t, err)
	require.Equal(t, "a", d.RuleID)
	d, err = bundle.Decide(t.Context(), tool("cat", ""))
	require.NoError(t, err)
	require.Equal(t, policy.Allow, d.Decision)
}

// signer is a key to sign with, as PEM, and what verifies it.
type signer struct{ algorithm, private, public string }

func signers(t *testing.T) []signer {
	t.Helper()
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	encode := func(kind string, der []byte, err error) string {
		require.NoError(t, err)
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	rsaPublic, err := x509.MarshalPKIXPublicKey(&rsaKey.PublicKey)
	rsaPEM := encode("PUBLIC KEY", rsaPublic, err)
	ecPublic, err := x509.MarshalPKIXPublicKey(&ecKey.PublicKey)
	ecPEM := encode("PUBLIC KEY", ecPublic, err)
	rsaPrivate := encode("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rsaKey), nil)
	ecPrivate, err := x509.MarshalECPrivateKey(ecKey)
	return []signer{
		{"HS256", "a shared secret", "a shared secret"},
		{"HS512", "a shared secret", "a shared secret"},
		{"RS256", rsaPrivate, rsaPEM},
		{"PS384", rsaPrivate, rsaPEM},
		{"ES256", encode("EC PRIVATE KEY", ecPrivate, err), ecPEM},
	}
}

func TestSignedArchive(t *testing.T) {
	t.Parallel()
	for _, s := range signers(t) {
		t.Run(s.algorithm, func(t *testing.T) {
			t.Parallel()
			signed := archive(t, opaBundle(t, opabundle.NewSigningConfig(s.private, s.algorithm, "")))
			keys := map[string]string{"key": s.public}
			requireTools(t, policy.Options{VerificationKeys: keys}, signed)

			require.Equal(t, []string{"b.tar.gz: the archive is signed, but there is no verification key to check it with"},
				problems(t, policy.Options{}, signed))

			otherID := problems(t, policy.Options{VerificationKeys: map[string]string{"other": s.public}}, signed)
			require.Len(t, otherID, 1)
			require.Contains(t, otherID[0], "verification key corresponding to ID key not found")

			for what, change := range map[string]func(string, []byte) []byte{
				"digest mismatch": func(name string, content []byte) []byte {
					return bytes.ReplaceAll(content, []byte("default decision"), []byte("default  decision"))
				},
				"digest mismatch ": func(name string, content []byte) []byte {
					return bytes.ReplaceAll(content, []byte(`"cat"`), []byte(`"rm"`))
				},
				"not found in the target bundle": func(name string, content []byte) []byte {
					if strings.HasSuffix(name, "policy_test.rego") {
						return nil
					}
					return content
				},
				"is not signed, and the verification keys allow signed ones only": func(name string, content []byte) []byte {
					if strings.HasSuffix(name, ".signatures.json") {
						return nil
					}
					return content
				},
			} {
				got := problems(t, policy.Options{VerificationKeys: keys}, repack(t, signed, change))
				require.Len(t, got, 1)
				require.Contains(t, got[0], strings.TrimSpace(what))
			}
		})
	}
}

func TestArchiveSignedWithAnotherKey(t *testing.T) {
	t.Parallel()
	all := signers(t)
	secret, rsaKey, other := all[0], all[2], signers(t)[2]
	signed := archive(t, opaBundle(t, opabundle.NewSigningConfig(rsaKey.private, rsaKey.algorithm, "")))
	for key, want := range map[string]string{
		other.public:                    "failed to verify JWT signature",
		secret.public:                   `the archive is signed with "RS256", which no verification key is for`,
		"-----BEGIN PUBLIC KEY-----\nx": `the verification key "key" is not PEM`,
	} {
		got := problems(t, policy.Options{VerificationKeys: map[string]string{"key": key}}, signed)
		require.Len(t, got, 1)
		require.Contains(t, got[0], want)
	}

	// A public key is known to all, so nothing may be signed with it as a secret.
	forged := archive(t, opaBundle(t, opabundle.NewSigningConfig(rsaKey.public, "HS256", "")))
	got := problems(t, policy.Options{VerificationKeys: map[string]string{"key": rsaKey.public}}, forged)
	require.Equal(t, []string{`b.tar.gz: the archive is signed with "HS256", which no verification key is for`}, got)
}

func TestArchiveProblems(t *testing.T) {
	t.Parallel()
	const begin = "package tine\n\n"
	good := map[string]string{"/p.rego": archiveRego}
	with := func(name, content string) map[string]string {
		return map[string]string{"/p.rego": archiveRego, name: content}
	}
	for _, test := range []struct {
		files map[string]string
		want  string
	}{
		{map[string]string{}, "b.tar.gz: no rule defines data.tine.decision"},
		{map[string]string{"/data.json": `{"tine": {"decision": {"decision": "allow"}}}`}, "b.tar.gz: no rule defines data.tine.decision"},
		{map[string]string{"/a/p.rego": begin + "decision :="}, "b.tar.gz:a/p.rego:3: unexpected eof token"},
		{map[string]string{"/a/p.rego": begin + "decision := time.now_ns()"}, "b.tar.gz:a/p.rego:3: time.now_ns is not allowed"},
		{with("/data.json", "{"), "b.tar.gz: bundle load failed on /data.json"},
		{with("/policy.wasm", "x"), "the archive holds WebAssembly; build it with: opa build --target rego"},
		{map[string]string{"/patch.json": `{"data": [{"op": "add", "path": "a", "value": 1}]}`}, "b.tar.gz: the archive is a delta bundle"},
		{with("/.signatures.json", "{}"), "b.tar.gz: the archive is signed, but there is no verification key"},
		{with("/big.rego", begin+strings.Repeat("#\n", 1<<19)), "b.tar.gz: not an OPA bundle: its Rego has more than 1048576 bytes"},
		{with("/a/data.json", `"`+strings.Repeat("x", 32<<20)+`"`), "b.tar.gz: not an OPA bundle: it unpacks to more than 33554432 bytes"},
		{map[string]string{"/.manifest": `{"roots": ["other"]}`, "/p.rego": archiveRego}, "b.tar.gz: manifest roots [other] do not permit"},
	} {
		got := problems(t, policy.Options{}, tarball(t, test.files))
		require.NotEmpty(t, got)
		require.Contains(t, got[0], test.want)
	}

	_, err := policy.Compile(t.Context(), []policy.Source{tarball(t, good)}, policy.Options{})
	require.NoError(t, err)
	whole := tarball(t, good).Data
	for what, data := range map[string][]byte{
		"not an OPA bundle: EOF":                         {},
		"not an OPA bundle: gzip: invalid header":        []byte("package tine"),
		"not an OPA bundle: unexpected EOF":              whole[:len(whole)-20],
		"has 8388609 bytes; at most 8388608 are allowed": make([]byte, 8<<20+1),
	} {
		got := problems(t, policy.Options{}, policy.Source{Name: "b.tar.gz", Data: data})
		require.Len(t, got, 1)
		require.Contains(t, got[0], what)
	}
	signatures := with("/.signatures.json", `{"signatures": ["x.y.z"]}`)
	got := problems(t, policy.Options{VerificationKeys: map[string]string{"key": "secret"}}, tarball(t, signatures))
	require.Contains(t, got[0], "the signature of the archive cannot be read")
}
