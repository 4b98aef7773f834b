package worker

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/sdk/log"

	"github.com/tinerun/tine/internal/attributes"
)

// attributesTimeout bounds the look at a namespace's search attributes.
const attributesTimeout = 10 * time.Second

// ensureSearchAttributes registers the search attributes if it may. Where they are missing
// and it may not, executions go without, and the log says what somebody has to do.
func (p *Plugin) ensureSearchAttributes(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, attributesTimeout)
	defer cancel()
	missing, wrong, err := p.missingAttributes(ctx)
	if err == nil && len(missing) > 0 && len(wrong) == 0 {
		add := map[string]enumspb.IndexedValueType{}
		for _, name := range missing {
			add[name] = attributes.Types()[name]
		}
		_, err = p.client.OperatorService().AddSearchAttributes(ctx, &operatorservice.AddSearchAttributesRequest{
			Namespace: p.opts.Namespace, SearchAttributes: add,
		})
		if err == nil {
			missing = nil
		}
	}
	if err == nil && len(missing) == 0 && len(wrong) == 0 {
		p.activities.SetSearchAttributes(p.opts.Namespace)
		return
	}
	p.logger().Warn("executions will have no search attributes: lists cannot filter by them until they are registered",
		"namespace", p.opts.Namespace,
		"missing", strings.Join(missing, ", "),
		"registered with another type", strings.Join(wrong, ", "),
		"error", err,
		"do", p.attributesCommand(missing))
}

func (p *Plugin) missingAttributes(ctx context.Context) (missing, wrong []string, err error) {
	listed, err := p.client.OperatorService().ListSearchAttributes(ctx, &operatorservice.ListSearchAttributesRequest{Namespace: p.opts.Namespace})
	if err != nil {
		return slices.Sorted(maps.Keys(attributes.Types())), nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(attributes.Types())) {
		switch have, ok := listed.GetCustomAttributes()[name]; {
		case !ok:
			missing = append(missing, name)
		case have != attributes.Types()[name]:
			wrong = append(wrong, name)
		}
	}
	return missing, wrong, nil
}

// attributesCommand is what an operator would run.
func (p *Plugin) attributesCommand(missing []string) string {
	var b strings.Builder
	b.WriteString("temporal operator search-attribute create --namespace " + p.opts.Namespace)
	for _, name := range missing {
		b.WriteString(" --name " + name + " --type " + attributes.Types()[name].String())
	}
	return b.String()
}

func (p *Plugin) logger() log.Logger {
	return log.NewStructuredLogger(p.opts.slog())
}
