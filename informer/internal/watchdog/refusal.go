package watchdog

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/alive"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// maxBody bounds what is read of a response 429, in bytes.
const maxBody = 16 << 10

// isRefused reports whether the same watch may succeed later: the server has no time for it, or
// the request did not reach it.
func isRefused(resp *http.Response, err error) bool {
	if err == nil {
		return resp != nil && resp.StatusCode == http.StatusTooManyRequests
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return true
	}
	_, ok := errors.AsType[*tls.CertificateVerificationError](err) // the certificates may be changing
	return ok || utilnet.IsConnectionRefused(err)
}

// retryAfter returns the time that the server asks for.
func retryAfter(resp *http.Response) time.Duration {
	seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // 0 if it is no number
	return time.Duration(max(0, min(seconds, maxRetryAfter))) * time.Second
}

// note tells the informer about a refusal with its reason, and logs those that last. The caller
// can still read the response.
func note(req *http.Request, kind alive.Kind, observed *alive.Informer, resp *http.Response, err error) {
	if !isRefused(resp, err) {
		if err == nil {
			observed.Answered()
		}
		return
	}
	text := "The API server cannot be reached by an informer, which tries again"
	if err == nil {
		text = "The API server refuses the requests of an informer, which are sent again"
		err = apierrors.NewTooManyRequests("the API server responded 429"+reason(resp), int(retryAfter(resp).Seconds()))
	}
	if kind == alive.List {
		err = fmt.Errorf("failed to list: %w", err) // as the reflector does
	}
	n, lasting, tell := observed.Refused(err)
	level := 2
	if tell {
		level = 0
	}
	if logger := klog.FromContext(req.Context()).V(level); logger.Enabled() {
		logger.Info(text, "path", kube.Printable(req.URL.Path, maxText), "requests", n, "since", lasting.Round(time.Second).String(), "err", kube.PrintableError(err, maxText))
	}
}

// reason returns the message of a response, after a colon, and puts what it has read back.
func reason(resp *http.Response) string {
	if resp.Body == nil {
		return ""
	}
	body := resp.Body
	head, _ := io.ReadAll(io.LimitReader(body, maxBody)) // the caller gets the error again
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head), body), body}
	var status metav1.Status
	var unknown runtime.Unknown
	protobuf, isProtobuf := bytes.CutPrefix(head, []byte("k8s\x00"))
	switch {
	case isProtobuf && unknown.Unmarshal(protobuf) == nil && status.Unmarshal(unknown.Raw) == nil:
	case json.Unmarshal(head, &status) == nil:
	default:
		return ""
	}
	if status.Message == "" {
		return ""
	}
	return ": " + status.Message
}
