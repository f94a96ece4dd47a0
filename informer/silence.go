package informer

import (
	"math"
	"net/http"
	"time"

	"github.com/controllerkit/controllerkit/informer/internal/watchdog"
)

// defaultSilence is three times the interval of the API server's bookmarks.
const defaultSilence = 3 * time.Minute

// EndSilentWatches returns a function that wraps a transport so that informers notice
// watches that have died without an error. It has the form of rest.Config.Wrap:
//
//	config.Wrap(informer.EndSilentWatches(0))
//
// The API server sends a bookmark about once a minute to a watch that asks for bookmarks, as
// informers do. If a watch that is being read brings no byte for the time silence, the transport
// ends it as a server does, and logs a line. The informer then watches again from its last
// resource version. A watch that gets no response at all is treated the same; one that begins
// with a list has at least 10s. If two watches in a row of an informer of a [Set] bring no byte
// after their responses, it lists again: etcd may have been restored from a backup, and an API
// server at an earlier version sends such a watch no event. client-go alone asks the server to
// end a watch after 5 to 10 minutes, and waits for that without limit. 0 means 3m. A negative
// value disables the timeout. Do not set a second or less: an informer lists again if a watch
// ends that early without an event.
//
// If a watch of an informer does not reach the API server, or gets the response 429, the transport
// sends it again, after pauses that grow from 0.8 to 60s. They end with the request's context.
// client-go's own pauses do not, so that an informer would outlast its stop by up to a minute.
// A response to any request of the config ends the pauses of those that did not reach it: after
// an outage the caches are fresh a second or two after a leader's next renewal. When such a watch
// is accepted, the transport lists one object: if the API server is at an earlier version than
// the watch, etcd was restored, and the informer lists again. If an informer's
// requests fail, a line of log has the reason within 10s, and again each minute. A watch
// that no informer sends is sent again only if it has sendInitialEvents.
//
// If the API server's watch cache is too old for a list that is streamed, client-go sends the watch
// again without end and without a line of log. The transport instead makes the informer list, and logs
// a line.
//
// It concerns all watches of the config, not only the watches of informers. A watch that does
// not ask for bookmarks, and one of an aggregated API server without bookmarks, ends after each
// silence, and the informer lists after each second one. client-go itself repeats a watch that gets no response, up to 10 times. Other
// requests pass unchanged, lists too. [Set.Check], [Set.LastEvents] and [Set.Relist] need the
// transport in the config of the informers' client. A nil transport means
// http.DefaultTransport.
func EndSilentWatches(silence time.Duration) func(http.RoundTripper) http.RoundTripper {
	switch {
	case silence == 0:
		silence = defaultSilence
	case silence < 0:
		silence = math.MaxInt64
	}
	wrap := watchdog.New(silence)
	return func(next http.RoundTripper) http.RoundTripper {
		if next == nil {
			next = http.DefaultTransport
		}
		return wrap(next)
	}
}
