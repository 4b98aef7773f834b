package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// choice is a flag with a few allowed values.
type choice struct {
	value   string
	allowed []string
	name    string // of the value, in the help text
}

func (c *choice) String() string { return c.value }

func (c *choice) Type() string { return c.name }

func (c *choice) Set(value string) error {
	if !slices.Contains(c.allowed, value) {
		return fmt.Errorf("must be one of %s", strings.Join(c.allowed, ", "))
	}
	c.value = value
	return nil
}

func (c *choice) complete(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return c.allowed, cobra.ShellCompDirectiveNoFileComp
}

// addChoice adds the flag to a command, with completion.
func addChoice(cmd *cobra.Command, c *choice, name, usage string) {
	cmd.Flags().Var(c, name, usage)
	complete(cmd, name, c.complete)
}

func complete(cmd *cobra.Command, name string, fn cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(name, fn); err != nil {
		panic(err) // the flag has just been added, once
	}
}

// arguments checks how many there are, and names those that are missing.
func arguments(required []string, optional ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(required) {
			return usagef("%s: %s is missing", cmd.CommandPath(), required[len(args)])
		}
		if most := len(required) + len(optional); len(args) > most {
			return usagef("%s: unexpected argument %q", cmd.CommandPath(), args[most])
		}
		return nil
	}
}
