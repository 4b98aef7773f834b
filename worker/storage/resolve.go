package storage

import (
	"context"
	"errors"
	"fmt"

	commonpb "go.temporal.io/api/common/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/proxy"
	sdkpb "go.temporal.io/api/sdk/v1"
	"go.temporal.io/sdk/converter"
	"google.golang.org/protobuf/encoding/protojson"
)

// referenceType is the message type of a payload that refers to another. The SDK resolves references
// for workers, and not in the histories that a client reads.
var referenceType = string((*sdkpb.ExternalStorageReference)(nil).ProtoReflect().Descriptor().FullName())

// Limit is the most bytes of JSON that fit a payload where there is such a storage, or zero for what
// fits a history.
func Limit(s converter.ExternalStorage) int {
	if len(s.Drivers) == 0 {
		return 0
	}
	return PayloadLimit
}

// Resolver gives a function that puts what an event's references mean into the event. Without
// storage it refuses events that have any.
func Resolver(s converter.ExternalStorage) func(*historypb.HistoryEvent) error {
	drivers := map[string]converter.StorageDriver{}
	for _, d := range s.Drivers {
		drivers[d.Name()] = d
	}
	visit := proxy.VisitPayloadsOptions{
		SkipSearchAttributes: true,
		Visitor: func(ctx *proxy.VisitPayloadsContext, payloads []*commonpb.Payload) ([]*commonpb.Payload, error) {
			resolved := payloads
			for i, payload := range payloads {
				if string(payload.GetMetadata()["messageType"]) != referenceType {
					continue
				}
				meant, err := resolve(ctx, drivers, payload)
				if err != nil {
					return nil, err
				}
				resolved[i] = meant
			}
			return resolved, nil
		},
	}
	return func(event *historypb.HistoryEvent) error {
		return proxy.VisitPayloads(context.Background(), event, visit)
	}
}

func resolve(ctx context.Context, drivers map[string]converter.StorageDriver, payload *commonpb.Payload) (*commonpb.Payload, error) {
	var ref sdkpb.ExternalStorageReference
	if err := protojson.Unmarshal(payload.GetData(), &ref); err != nil {
		return nil, fmt.Errorf("storage: reference to a payload: %w", err)
	}
	driver := drivers[ref.GetDriverName()]
	if driver == nil {
		return nil, fmt.Errorf("storage: a payload is in the external storage %q, which is not configured; set %s or --storage as the workers have it", ref.GetDriverName(), Env)
	}
	payloads, err := driver.Retrieve(converter.StorageDriverRetrieveContext{Context: ctx}, []converter.StorageDriverClaim{{ClaimData: ref.GetClaimData()}})
	if err != nil {
		return nil, err
	}
	if len(payloads) != 1 {
		return nil, errors.New("storage: the driver gave another number of payloads than was asked for")
	}
	return payloads[0], nil
}
