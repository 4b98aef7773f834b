// Package policytest tests policies: against cases in a file beside the policy ([ReadFile] and
// [Run]), and against the steps of past executions ([Replay]).
//
// The cases of shell.yaml stand in shell.policytest.yaml:
//
//	agent_id: coder            # of the cases that name no agent
//	cases:
//	  - name: deleting files is denied
//	    target: shell          # kind: tool_call unless the case says otherwise
//	    args: {command: rm -rf build}
//	    expect: deny
//	    expect_rule: no-destruction
package policytest
