package cli

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

type versionOptions struct{ f *factory }

func newVersionCmd(f *factory, runF func(context.Context, *versionOptions) error) *cobra.Command {
	opts := &versionOptions{f}
	return &cobra.Command{
		Use:   "version",
		Short: "Show the versions of tine and what it is built with",
		Long: `Shows the version and commit of tine, and the versions of Go and of Temporal's SDK
that it is built with.`,
		Example: `  tine version
  tine version -o json | jq -r .version`,
		Args:              arguments(nil),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if runF != nil {
				return runF(cmd.Context(), opts)
			}
			return runVersion(cmd.Context(), opts)
		},
	}
}

// versionDocument is the JSON of tine version.
type versionDocument struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	// Modified says that the commit is not all there is in the binary.
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	SDK      string `json:"sdk"`
	API      string `json:"api"`
}

func runVersion(_ context.Context, opts *versionOptions) error {
	info, ok := opts.f.build()
	if !ok {
		info = &debug.BuildInfo{} // a binary without module support: nothing is known
	}
	v := versions(info)
	if opts.f.json() {
		return writeDocument(opts.f.out, v)
	}
	commit := cmp.Or(v.Commit, "unknown")
	if v.Modified {
		commit += ", modified"
	}
	fmt.Fprintf(opts.f.out, "tine    %s\ncommit  %s\ngo      %s\nsdk     %s\napi     %s\n", v.Version, commit, v.Go, v.SDK, v.API)
	return nil
}

func versions(info *debug.BuildInfo) versionDocument {
	v := versionDocument{Version: cmp.Or(info.Main.Version, "unknown"), Go: cmp.Or(info.GoVersion, "unknown"), SDK: "unknown", API: "unknown"}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			dep = &debug.Module{Path: dep.Path, Version: dep.Replace.Version}
		}
		switch dep.Path {
		case "go.temporal.io/sdk":
			v.SDK = dep.Version
		case "go.temporal.io/api":
			v.API = dep.Version
		}
	}
	return v
}
