package eventlog

import (
	commonpb "go.temporal.io/api/common/v1"
	historypb "go.temporal.io/api/history/v1"
	updatepb "go.temporal.io/api/update/v1"

	"github.com/tinerun/tine/internal/protocol"
)

// updates keeps who decides an approval until the update has done so. Updates of other
// names are the agent's own business.
type updates struct {
	// admitted has the requests of updates that were admitted before they were accepted, by
	// their ids. Then only the first event has the request; so it is after a reset.
	admitted map[string]*updatepb.Request
	accepted map[int64]decider // by the id of the event
}

// decider is who decides an approval, and by which update.
type decider struct {
	update    string
	identity  string
	principal string
}

func newUpdates() updates {
	return updates{admitted: map[string]*updatepb.Request{}, accepted: map[int64]decider{}}
}

func (u updates) admit(a *historypb.WorkflowExecutionUpdateAdmittedEventAttributes) {
	if request := a.GetRequest(); decides(request) {
		u.admitted[request.GetMeta().GetUpdateId()] = request
	}
}

func (u updates) accept(ev *historypb.HistoryEvent) {
	a := ev.GetWorkflowExecutionUpdateAcceptedEventAttributes()
	request := a.GetAcceptedRequest()
	if request == nil {
		request = u.admitted[a.GetProtocolInstanceId()] // which is the update's id
		delete(u.admitted, a.GetProtocolInstanceId())
	}
	if decides(request) {
		u.accepted[ev.GetEventId()] = decider{
			update:    request.GetInput().GetName(),
			identity:  request.GetMeta().GetIdentity(),
			principal: principal(ev.GetPrincipal()),
		}
	}
}

// complete forgets an update. It reports whether the update decides an approval.
func (u updates) complete(acceptedID int64) (decider, bool) {
	by, ok := u.accepted[acceptedID]
	delete(u.accepted, acceptedID)
	return by, ok
}

func decides(request *updatepb.Request) bool {
	switch request.GetInput().GetName() {
	case protocol.UpdateGrant, protocol.UpdateDeny:
		return true
	default:
		return false
	}
}

// principal names the caller that the server has authenticated, like "jwt:ada".
func principal(p *commonpb.Principal) string {
	if p.GetType() == "" {
		return p.GetName()
	}
	return p.GetType() + ":" + p.GetName()
}
