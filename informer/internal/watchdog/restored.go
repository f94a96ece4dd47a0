package watchdog

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/kube"
)

const (
	checkTimeout = 5 * time.Second
	maxList      = 4 << 20 // bytes of a list of one object
)

// wentBack reports whether the API server is at an earlier version than the one from which the
// watch begins, because etcd was restored during an outage. Such a watch is accepted, but the API
// server sends no event before that version. It is false if the API server does not say its version.
func (w *transport) wentBack(watch *http.Request) bool {
	ctx, cancel := context.WithTimeout(watch.Context(), checkTimeout)
	defer cancel()
	list := watch.Clone(ctx)
	query := list.URL.Query()
	from := query.Get("resourceVersion")
	for key := range query {
		if key != "fieldSelector" { // a right can depend on it
			query.Del(key)
		}
	}
	query.Set("limit", "1")
	list.URL.RawQuery = query.Encode()
	if list.Header == nil {
		list.Header = http.Header{}
	}
	list.Header.Set("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json")
	resp, err := w.next.RoundTrip(list)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	var at struct {
		Metadata struct{ ResourceVersion string }
	}
	if resp.StatusCode != http.StatusOK || json.NewDecoder(io.LimitReader(resp.Body, maxList)).Decode(&at) != nil {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(at.Metadata.ResourceVersion, from)
	if err != nil || order >= 0 {
		return false
	}
	klog.FromContext(ctx).Info("etcd was restored from a backup, and an informer lists again", "path", kube.Printable(watch.URL.Path, maxText), "version", at.Metadata.ResourceVersion, "watched", from)
	return true
}
