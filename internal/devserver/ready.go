package devserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
)

const (
	// readyInterval is how often a server that is not ready is asked again.
	readyInterval = 50 * time.Millisecond
	// answerTimeout bounds one answer, so that a question which is lost is asked again.
	answerTimeout = 5 * time.Second
)

// awaitReady waits until the server at address has the namespace and can search by the
// attributes, of which it registers those that a database from before does not have.
func awaitReady(ctx context.Context, address, namespace string, attributes map[string]enumspb.IndexedValueType) error {
	c, err := client.NewLazyClient(client.Options{
		HostPort:  address,
		Namespace: namespace,
		// Failing to connect is expected here, and nothing to log.
		Logger: log.NewStructuredLogger(slog.New(slog.NewTextHandler(io.Discard, nil))),
	})
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		err := checkReady(ctx, c, namespace, attributes)
		var wrong *attributeTypeError
		if err == nil || errors.As(err, &wrong) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(readyInterval):
		}
	}
}

func checkReady(ctx context.Context, c client.Client, namespace string, attributes map[string]enumspb.IndexedValueType) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	if _, err := c.CheckHealth(ctx, &client.CheckHealthRequest{}); err != nil {
		return fmt.Errorf("health check: %w", err)
	}
	_, err := c.WorkflowService().DescribeNamespace(ctx, &workflowservice.DescribeNamespaceRequest{Namespace: namespace})
	if err != nil {
		return fmt.Errorf("namespace %s: %w", namespace, err)
	}
	if err := registerAttributes(ctx, c, namespace, attributes); err != nil {
		return fmt.Errorf("search attributes of namespace %s: %w", namespace, err)
	}
	// An attribute can be listed before it can be used.
	var terms []string
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		terms = append(terms, name+" IS NULL")
	}
	_, err = c.CountWorkflow(ctx, &workflowservice.CountWorkflowExecutionsRequest{Query: strings.Join(terms, " AND ")})
	if err != nil {
		return fmt.Errorf("search by attributes: %w", err)
	}
	return nil
}

// attributeTypeError says that an attribute exists with another type, which waiting does not
// change.
type attributeTypeError struct {
	name       string
	have, want enumspb.IndexedValueType
}

func (e *attributeTypeError) Error() string {
	return fmt.Sprintf("%s is %s there and has to be %s; use another database file or namespace", e.name, e.have, e.want)
}

func registerAttributes(ctx context.Context, c client.Client, namespace string, attributes map[string]enumspb.IndexedValueType) error {
	operator := c.OperatorService()
	listed, err := operator.ListSearchAttributes(ctx, &operatorservice.ListSearchAttributesRequest{Namespace: namespace})
	if err != nil {
		return err
	}
	missing := map[string]enumspb.IndexedValueType{}
	for name, want := range attributes {
		switch have, ok := listed.GetCustomAttributes()[name]; {
		case !ok:
			missing[name] = want
		case have != want:
			return &attributeTypeError{name: name, have: have, want: want}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	_, err = operator.AddSearchAttributes(ctx, &operatorservice.AddSearchAttributesRequest{
		Namespace: namespace, SearchAttributes: missing,
	})
	return err
}
