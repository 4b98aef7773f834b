package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	tine "github.com/tinerun/tine"
	"github.com/tinerun/tine/policy"
	"github.com/tinerun/tine/policy/policytest"
)

func newPolicyCmd(f *factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Check and test policies",
		Long: `A policy decides each step of an agent: it allows or denies it, or requires a
person's approval. It is written as rules in YAML, in Rego, or in both, and may be
an OPA bundle archive.

These commands work on files. Several files are one policy, such as rules and the
Rego beside them. A directory holds the policies of several agents, as for a
worker: AGENT.yaml for an agent, and default.yaml for those without.`,
		Example: `  tine policy check shell.yaml
  tine policy eval shell.yaml --target shell --args '{"command":"rm -rf /"}'
  tine policy test shell.yaml`,
		Args: cobra.ArbitraryArgs, RunE: group, SuggestionsMinimumDistance: nearEnough,
	}
	cmd.AddCommand(newPolicyCheckCmd(f, nil), newPolicyEvalCmd(f, nil), newPolicyTestCmd(f, nil))
	return cmd
}

// policyFiles are the arguments that name a policy, and the keys of archives among them.
type policyFiles struct {
	paths []string
	keys  []string // as given: ID=FILE
}

func (p *policyFiles) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&p.keys, "verification-key", nil, "`ID=FILE` of a key that OPA bundle archives are signed with;\nmay be repeated")
}

// files checks that there is at least one FILE.
func files(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usagef("%s: FILE is missing", cmd.CommandPath())
	}
	return nil
}

// agentPolicy is a policy with the files it is made of.
type agentPolicy struct {
	name   string // the agent's, in a directory
	paths  []string
	bundle *policy.Bundle
}

func (p agentPolicy) String() string { return strings.Join(p.paths, " + ") }

// loadedPolicies are the policies that arguments name.
type loadedPolicies struct {
	// engine decides for each agent as a worker would.
	engine interface {
		policy.Engine
		policy.Describer
	}
	all       []agentPolicy
	directory string // empty for one policy
}

// unrestricted reports whether no policy is for the agent.
func (l *loadedPolicies) unrestricted(agent string) bool {
	_, unrestricted := l.engine.Describe(agent)
	return unrestricted
}

// directory is the one FILE, if it is a directory.
func (p *policyFiles) directory() (string, error) {
	for _, path := range p.paths {
		info, err := os.Stat(path)
		switch {
		case err != nil:
			return "", unreadable("policy", path, err, "name a file that ends in .yaml, .yml, .rego or .tar.gz, or a directory of them")
		case info.IsDir() && len(p.paths) > 1:
			return "", usagef("directory %s must be the only FILE: it holds policies of its own", path)
		case info.IsDir():
			return path, nil
		}
	}
	return "", nil
}

// load reads and compiles.
func (p *policyFiles) load(ctx context.Context) (*loadedPolicies, error) {
	keys, err := p.readKeys()
	if err != nil {
		return nil, err
	}
	opts := policy.Options{VerificationKeys: keys}
	directory, err := p.directory()
	if err != nil {
		return nil, err
	}
	if directory != "" {
		return loadDirectory(ctx, directory, opts)
	}
	sources, err := readSources(p.paths)
	if err != nil {
		return nil, err
	}
	bundle, err := policy.Compile(ctx, sources, opts)
	if err != nil {
		return nil, err
	}
	return &loadedPolicies{engine: bundle, all: []agentPolicy{{paths: p.paths, bundle: bundle}}}, nil
}

func loadDirectory(ctx context.Context, path string, opts policy.Options) (*loadedPolicies, error) {
	store, err := policy.Open(ctx, path, policy.StoreOptions{Compile: opts, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	store.Close() // the policies stay as they are now
	loaded := &loadedPolicies{engine: store, directory: path}
	for _, status := range store.Status() {
		loaded.all = append(loaded.all, agentPolicy{status.Name, status.Files, store.Bundle(status.Name)})
	}
	return loaded, nil
}

// pack compiles a policy, so that an invalid one is refused here, and packs it for a fork: without
// the directories of this machine.
func (p *policyFiles) pack(ctx context.Context, paths []string) (*tine.PolicyBundle, error) {
	keys, err := p.readKeys()
	if err != nil {
		return nil, err
	}
	sources, err := readSources(paths)
	if err != nil {
		return nil, err
	}
	bundle, err := policy.Compile(ctx, sources, policy.Options{VerificationKeys: keys})
	if err != nil {
		return nil, err
	}
	for i := range sources {
		sources[i].Name = filepath.Base(sources[i].Name)
	}
	return &tine.PolicyBundle{Digest: bundle.Digest(), Files: sources}, nil
}

// readSources names the files as the user does, so that problems can be found.
func readSources(paths []string) ([]policy.Source, error) {
	var sources []policy.Source
	var problems []policy.Problem
	for _, path := range paths {
		read, err := policy.ReadFiles(path)
		if err != nil {
			problems = append(problems, policy.Problem{File: path, Message: strings.TrimPrefix(err.Error(), "policy "+path+": ")})
			continue
		}
		sources = append(sources, policy.Source{Name: path, Data: read[0].Data})
	}
	if len(problems) > 0 {
		return nil, &policy.LoadError{Problems: problems}
	}
	return sources, nil
}

func (p *policyFiles) readKeys() (map[string]string, error) {
	keys := map[string]string{}
	for _, key := range p.keys {
		id, path, ok := strings.Cut(key, "=")
		if !ok || id == "" || path == "" {
			return nil, usagef("--verification-key must be ID=FILE, not %q", key)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, unreadable("--verification-key", path, err, "")
		}
		keys[id] = string(content)
	}
	return keys, nil
}

// documents writes the JSON of policies: one document, or for a directory the list of them.
func documents[D any](f *factory, loaded *loadedPolicies, all []D) error {
	if loaded.directory != "" {
		return writeDocument(f.out, all)
	}
	return writeDocument(f.out, all[0])
}

// fileError says that a file, or a policy in a directory, is not there.
type fileError struct {
	code    string
	message string
	hint    string
}

func (e *fileError) Error() string { return e.message }

func unreadable(what, path string, err error, hint string) error {
	var about *fs.PathError
	if errors.As(err, &about) {
		err = about.Err
	}
	return &fileError{"unreadable_file", fmt.Sprintf("cannot read %s %s: %v", what, path, err), hint}
}

// noPolicy says that a directory has no policy for an agent, so that nothing decides its steps.
func noPolicy(directory, agent string) error {
	return &fileError{
		"no_policy", fmt.Sprintf("agent %q has no policy in %s", agent, directory),
		fmt.Sprintf("add %s.yaml, or default.yaml for the agents that have none of their own", url.PathEscape(agent)),
	}
}

// policyFailure tells what is wrong with a policy or its case file, problem by problem. Other
// errors are passed on.
func policyFailure(f *factory, err error) error {
	var file *fileError
	var policies *policy.LoadError
	var cases *policytest.FileError
	switch {
	case errors.As(err, &file):
		failure{code: file.code, message: file.message, hint: file.hint}.write(f.errOut, f.json())
		return &childError{exitFailed}
	case errors.As(err, &policies):
		return tellProblems(f, "invalid_policy", "the policy cannot be used", policies.Problems)
	case errors.As(err, &cases):
		return tellProblems(f, "invalid_cases", "the case file cannot be used", cases.Problems)
	default:
		return err
	}
}

// policyErrorDocument is an errorDocument that says where the problems are.
type policyErrorDocument struct {
	errorDocument
	Problems []policy.Problem `json:"problems"`
}

func tellProblems(f *factory, code, message string, problems []policy.Problem) error {
	if f.json() {
		_ = writeJSON(f.errOut, map[string]policyErrorDocument{
			"error": {errorDocument{Code: code, Message: fmt.Sprintf("%s: %s", message, problems[0])}, problems},
		})
		return &childError{exitFailed}
	}
	fmt.Fprintf(f.errOut, "error: %s\n", message)
	for _, p := range problems {
		fmt.Fprintf(f.errOut, "%s%s\n", indent, printable(p.String()))
	}
	return &childError{exitFailed}
}

// failWith ends a command whose text output has said what there is to say; programs are told by
// a JSON error as always.
func failWith(f *factory, code, message, hint string) error {
	failure{code: code, message: message, hint: hint, told: true}.write(f.errOut, f.json())
	return &childError{exitFailed}
}
