package policytest

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

// Suite is a report with the name that CI servers show for it.
type Suite struct {
	Name string
	Report
}

type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Errors   int         `xml:"errors,attr"`
		Skipped  int         `xml:"skipped,attr"`
		Cases    []junitCase `xml:"testcase"`
		Output   string      `xml:"system-out,omitempty"`
	}
	junitCase struct {
		Name    string        `xml:"name,attr"`
		Class   string        `xml:"classname,attr"`
		Failure *junitFailure `xml:"failure"`
	}
	junitFailure struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr"`
		Text    string `xml:",chardata"`
	}
)

// WriteJUnit writes reports in the XML that CI servers read.
func WriteJUnit(w io.Writer, suites ...Suite) error {
	var document junitSuites
	for _, s := range suites {
		document.Tests += len(s.Cases)
		document.Failures += s.Failed
		document.Suites = append(document.Suites, s.junit())
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	encoder := xml.NewEncoder(w)
	encoder.Indent("", "  ")
	if err := encoder.Encode(document); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

func (s Suite) junit() junitSuite {
	suite := junitSuite{Name: s.Name, Tests: len(s.Cases), Failures: s.Failed}
	for _, r := range s.Cases {
		c := junitCase{Name: r.Name, Class: s.Name}
		if !r.OK {
			c.Failure = &junitFailure{
				Message: r.Message, Type: "policy",
				Text: strings.TrimSpace(fmt.Sprintf("decided %s by rule %s %s", r.Decision, r.RuleID, r.Reason)),
			}
		}
		suite.Cases = append(suite.Cases, c)
	}
	if len(s.UnreachedRules) > 0 {
		suite.Output = "rules that no case reached: " + strings.Join(s.UnreachedRules, ", ")
	}
	return suite
}
