package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	tine "github.com/tinerun/tine"
)

func newRootCmd(f *factory) *cobra.Command {
	root := &cobra.Command{
		Use:   "tine",
		Short: "Durable, forkable executions of AI agents",
		Long: `Runs AI agents as durable executions on Temporal, and forks them at any event.

Commands talk to a Temporal server. The flags say which, or else Temporal's own
settings: TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, TEMPORAL_API_KEY, the TEMPORAL_TLS
variables, and a profile file.

The beginning of an ID is enough where no other ID begins so.

` + exitCodes,
		Example: `  tine dev
  tine exec create YourAgent '{"task":"tidy the notes"}' --wait
  tine exec fork YourExecutionId --at 39`,
		Args: cobra.ArbitraryArgs, RunE: group, SuggestionsMinimumDistance: nearEnough,
		SilenceErrors: true, SilenceUsage: true,
		PersistentPreRun: func(*cobra.Command, []string) {
			f.started = true
		},
	}
	root.SetIn(f.in)
	root.SetOut(f.out)
	root.SetErr(f.errOut)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usagef("%v", err) })
	root.SetHelpCommand(newHelpCmd())
	root.SetUsageTemplate(usageTemplate)
	addConnectionFlags(root, f)
	root.AddCommand(newDevCmd(f, nil), newExecCmd(f), newSessionCmd(f), newApprovalCmd(f), newPolicyCmd(f), newVersionCmd(f, nil))
	addCompletionCmd(root)
	return root
}

// usageTemplate is cobra's, but for what none of our commands has.
const usageTemplate = `Usage:
  {{if .HasAvailableSubCommands}}{{.CommandPath}} COMMAND{{else}}{{.UseLine}}{{end}}
{{- if .HasExample}}

Examples:
{{.Example}}{{end}}
{{- if .HasAvailableSubCommands}}

Commands:{{range .Commands}}{{if (or .IsAvailableCommand (eq .Name "help"))}}
  {{rpad .Name .NamePadding}}  {{.Short}}{{end}}{{end}}{{end}}
{{- if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}
{{- if .HasAvailableInheritedFlags}}

Flags of every command:
{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}
{{- if .HasAvailableSubCommands}}

"{{.CommandPath}} COMMAND --help" says more about a command.{{end}}
`

func addConnectionFlags(root *cobra.Command, f *factory) {
	flags := root.PersistentFlags()
	flags.StringVar(&f.flags.Address, "address", "", "`HOST:PORT` of the Temporal server")
	flags.StringVar(&f.flags.Namespace, "namespace", "", "Temporal `NAMESPACE`")
	flags.StringVar(&f.flags.Storage, "storage", "", "`DIR` that the workers keep large payloads in (env TINE_STORAGE)")
	flags.StringVar(&f.flags.Profile, "profile", "", "`NAME` of a profile in Temporal's profile file")
	flags.StringVar(&f.taskQueue, "task-queue", tine.DefaultTaskQueue, "task `QUEUE` that executions run on")
	flags.VarP(&f.output, "output", "o", "text for people, json for programs")
	complete(root, "output", f.output.complete)
}

// nearEnough is how many letters a command that is suggested may differ in.
const nearEnough = 2

// group is what a command that only has others does: cobra shows help whatever
// its arguments are.
func group(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	message := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		message += fmt.Sprintf("; did you mean %q?", near[0])
	}
	return usagef("%s", message)
}

// addCompletionCmd adds cobra's, and has it refuse shells that it does not know.
func addCompletionCmd(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			cmd.Short = "Generate a script that completes commands in a shell"
			cmd.Args, cmd.RunE = cobra.ArbitraryArgs, group
		}
	}
}

// newHelpCmd is cobra's help command, but for topics there are none of.
func newHelpCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show what a command does",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return usagef("there is no command %q", strings.Join(args, " "))
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}
